package recursor_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/internal/doubles"
	sign "github.com/gohedge/hedge/internal/signer"
)

// tree is a set of signed zones and an unsigned zone, with servers at sockets of this machine. They corrupt every
// hundredth response.
type tree struct {
	*testNetwork
	truth   map[string]string // existing records, by name
	names   []string
	sockets map[string]string // the socket of a server, by its address and port 53

	mu  sync.Mutex // guards rng
	rng *rand.Rand
}

// newTree makes 20 zones of 40 names each, half of them with NSEC3 records. TTLs and signatures end within half a
// minute, so that all is queried again and again.
func newTree(t *testing.T) *tree {
	text := strings.TrimSpace(pairs) + "\n"
	e := &tree{truth: make(map[string]string), sockets: make(map[string]string), rng: rand.New(rand.NewPCG(1, 1))}
	for z := range 20 {
		text += fmt.Sprintf("z%d.tld. delegated 192.0.4.%d 192.0.4.%d\n", z, 1+z%4, 5+z%4)
		for i := range 40 {
			name, addr := fmt.Sprintf("n%d.z%d.tld.", i, z), fmt.Sprintf("198.51.%d.%d", z, i)
			text += fmt.Sprintf("  %s 10 A %s\n", name, addr)
			e.truth[name] = "NOERROR " + name + " A " + addr
			e.names = append(e.names, name)
		}
		e.names = append(e.names, fmt.Sprintf("no.z%d.tld.", z), fmt.Sprintf("n7x.z%d.tld.", z))
	}
	e.testNetwork = newTestNetwork(t, text)
	e.quiet = true
	e.sign("unsigned.tld.")
	for _, z := range e.zones() {
		for _, sets := range z.sets {
			for _, set := range sets {
				for _, rr := range set {
					rr.Header().Ttl = min(rr.Header().Ttl, 30)
				}
			}
		}
		if z.name != "unsigned.tld." {
			z.sign()
		}
		if strings.HasPrefix(z.name, "z1") {
			z.proveBy(sign.NSEC3, sign.NSEC3Params{})
		}
	}
	for a := range e.servers {
		e.sockets[a.String()+":53"] = e.serve(t, func(m *dns.Msg) *dns.Msg { return e.respond(a, m) })
	}
	return e
}

// respond returns the response of a server without fault.
func (e *tree) respond(at netip.Addr, m *dns.Msg) *dns.Msg {
	e.testNetwork.mu.Lock()
	defer e.testNetwork.mu.Unlock()
	return answer(e.servers[at].zones, query{m, dns.CanonicalName(m.Question[0].Name), m.Question[0].Qtype, false})
}

// draw returns a random number below n.
func (e *tree) draw(n int) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rng.IntN(n)
}

// serve answers queries over UDP and TCP at a socket until the test ends. It corrupts every hundredth response.
func (e *tree) serve(t *testing.T, respond func(*dns.Msg) *dns.Msg) (at string) {
	pc, l := sockets(t)
	handle := dns.HandlerFunc(func(rw dns.ResponseWriter, m *dns.Msg) {
		r := respond(m)
		if e.draw(100) == 0 {
			r = r.Copy()
			e.mu.Lock()
			for range 1 + e.rng.IntN(3) {
				mutate(e.rng, r)
			}
			e.mu.Unlock()
		}
		if _, udp := rw.LocalAddr().(*net.UDPAddr); udp {
			r.Truncate(1232)
		}
		_ = rw.WriteMsg(r) // a client that has gone needs no response; a corrupted response that cannot be written is lost
	})
	for _, s := range []*dns.Server{{PacketConn: pc, Handler: handle}, {Listener: l, Handler: handle}} {
		started, ended := make(chan struct{}), make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() {
			defer close(ended)
			_ = s.ActivateAndServe() // until it is shut down
		}()
		<-started
		t.Cleanup(func() {
			_ = s.Shutdown()
			<-ended
		})
	}
	return pc.LocalAddr().String()
}

// sockets opens a UDP socket and a TCP listener with the same port. It tries again if another program has the port
// of the second.
func sockets(t *testing.T) (net.PacketConn, net.Listener) {
	for range 20 {
		pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
		require.NoError(t, err)
		if l, err := net.Listen("tcp4", pc.LocalAddr().String()); err == nil {
			return pc, l
		}
		require.NoError(t, pc.Close())
	}
	t.Fatal("no port is free for UDP and TCP")
	return nil, nil
}

// DialContext opens a socket to a server.
func (e *tree) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, cmp.Or(e.sockets[address], address))
}

// forwarder returns a Validator whose upstreams are two resolvers at sockets. The servers of these resolvers have no
// faults.
func (e *tree) forwarder(t *testing.T) *dnssec.Validator {
	inner := &dnshedge.Client{}
	for range 2 {
		r := newValidatingResolver(e.testNetwork)
		r.MaxBytes = 1 << 20
		inner.Upstreams = append(inner.Upstreams, dnshedge.Upstream{Addr: e.serve(t, func(m *dns.Msg) *dns.Msg {
			resp, _, err := r.ExchangeContext(context.Background(), m, "")
			if err != nil {
				return new(dns.Msg).SetRcode(m, dns.RcodeServerFailure)
			}
			return resp
		})})
	}
	v := &dnssec.Validator{Exchanger: inner, Trust: dnssec.Trust{Anchors: []dns.RR{e.zone(".").signer.ds()}}, MaxBytes: 256 << 10}
	t.Cleanup(func() {
		_ = v.Close()
		_ = inner.Close()
	})
	return v
}

// tally counts the results of questions.
type tally struct{ asked, failed, late, insecure, untrue atomic.Int64 }

// ask resolves a name and counts the result in n.
func (e *tree) ask(t *testing.T, x dnshedge.Exchanger, name string, n *tally) {
	began := time.Now()
	m, _, err := x.ExchangeContext(context.Background(), parseQuestion(name+" A +ad"), "")
	if time.Since(began) > time.Second {
		n.late.Add(1)
	}
	n.asked.Add(1)
	switch {
	case err != nil || m.Rcode == dns.RcodeServerFailure:
		n.failed.Add(1)
	case !m.AuthenticatedData:
		n.insecure.Add(1)
		t.Errorf("%T: %s is not secure: %v", x, name, m)
	case formatResponse(m) != cmp.Or(e.truth[name], "NXDOMAIN"):
		n.untrue.Add(1)
		t.Errorf("%T: %s is not so: %v", x, name, m)
	}
}

func (n *tally) String() string {
	return fmt.Sprintf("%d questions: %d failed, %d took more than a second, %d not secure, %d untrue", n.asked.Load(), n.failed.Load(), n.late.Load(), n.insecure.Load(), n.untrue.Load())
}

// soak sends a hundred questions per second each to a Resolver and a Validator.
func (e *tree) soak(t *testing.T, long time.Duration) {
	const perSecond = 100
	r := newValidatingResolver(e.testNetwork, func(r *recursor.Resolver) { r.Dialer, r.MaxBytes = e, 1<<20 })
	t.Cleanup(func() { _ = r.Close() })
	v := e.forwarder(t)
	var resolved, forwarded tally
	var running sync.WaitGroup
	var thirds [3]use
	start, n := time.Now(), int(long.Seconds()*perSecond)
	for i := range n {
		time.Sleep(time.Until(start.Add(time.Duration(i) * time.Second / perSecond)))
		name, other := e.names[e.draw(len(e.names))], e.names[e.draw(len(e.names))]
		running.Go(func() { e.ask(t, r, name, &resolved) })
		running.Go(func() { e.ask(t, v, other, &forwarded) })
		if i%(5*perSecond) == perSecond/2 {
			third := &thirds[i*3/n]
			*third = third.max(used(t))
		}
		if i%(60*perSecond) == 60*perSecond-1 {
			t.Logf("after %v: resolved: %v; forwarded: %v; %v", time.Since(start).Round(time.Second), &resolved, &forwarded, used(t))
		}
	}
	running.Wait()
	t.Logf("resolved: %v; %d responses passed over, bogus by code %v\nforwarded: %v; %d responses passed over, bogus by code %v\nthirds, at most: %v", &resolved, r.Stats().PassedOver, r.Stats().Bogus, &forwarded, v.Stats().PassedOver, v.Stats().Bogus, thirds)
	assert.LessOrEqual(t, resolved.failed.Load(), resolved.asked.Load()/1000+1)
	assert.LessOrEqual(t, forwarded.failed.Load(), forwarded.asked.Load()/1000+1)
	if thirds[1].heap > 0 {
		assert.Less(t, float64(thirds[2].heap), 1.1*float64(thirds[1].heap)+2e6, "memory grows")
		assert.Less(t, thirds[2].sockets, 2*thirds[1].sockets+50, "sockets grow")
		assert.Less(t, thirds[2].goroutines, 2*thirds[1].goroutines+50, "goroutines grow")
	}
}

// TestResolverValidatesWithChangedResponses runs for twenty minutes with HEDGE_TEST_SOAK=20m. Every hundredth
// response to a Resolver or a Validator is corrupted. Secure answers are correct, almost no question fails, and the
// memory is stable.
func TestResolverValidatesWithChangedResponses(t *testing.T) {
	if testing.Short() {
		t.Skip("takes real time")
	}
	e := newTree(t)
	before := used(t)
	t.Run("all", func(t *testing.T) { e.soak(t, doubles.SoakTime(t, 2*time.Second)) })
	var after use
	for range 500 { // running queries end
		if after = used(t); after.sockets <= before.sockets && after.goroutines <= before.goroutines {
			break
		}
		time.Sleep(10 * ms)
	}
	t.Logf("before: %v\nafter: %v", before, after)
	assert.LessOrEqual(t, after.sockets, before.sockets, "sockets are left")
	assert.LessOrEqual(t, after.goroutines, before.goroutines, "goroutines are left")
	assert.Less(t, float64(after.heap), float64(before.heap)+4e6, "memory is left")
}
