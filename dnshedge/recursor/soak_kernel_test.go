package recursor_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/ipv4"

	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/netsim"
)

// inside opens sockets in a network namespace.
type inside struct{ *netsim.Namespace }

func (n inside) DialContext(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = n.Do(func() (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// listen answers datagrams to port 53 of all addresses of a namespace for the servers of the crowd, until the test
// ends.
func (c *crowd) listen(t *testing.T, space *netsim.Namespace) {
	var pc net.PacketConn
	require.NoError(t, space.Do(func() (err error) {
		pc, err = net.ListenPacket("udp4", ":53")
		return err
	}))
	t.Cleanup(func() { _ = pc.Close() })
	all := ipv4.NewPacketConn(pc)
	require.NoError(t, all.SetControlMessage(ipv4.FlagDst, true))
	go func() {
		b := make([]byte, 4096)
		for {
			n, control, from, err := all.ReadFrom(b)
			if err != nil {
				return
			}
			m := new(dns.Msg)
			to, ok := netip.AddrFromSlice(control.Dst.To4())
			if err := m.Unpack(b[:n]); err != nil || !ok {
				t.Errorf("a query to %v cannot be read: %v", to, err)
				return
			}
			response, rtt := c.respond(to, m)
			if response == nil {
				continue
			}
			packed, err := response.Pack()
			if err != nil {
				t.Errorf("the response to %v cannot be written: %v", m, err)
				return
			}
			time.AfterFunc(rtt, func() {
				_, _ = all.WriteTo(packed, &ipv4.ControlMessage{Src: to.AsSlice()}, from) // a client that has gone needs no response
			})
		}
	}()
}

// respond returns the response of a server, or nil, and the time to the response.
func (c *crowd) respond(to netip.Addr, m *dns.Msg) (*dns.Msg, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.find(to)
	q := query{m, dns.CanonicalName(m.Question[0].Name), m.Question[0].Qtype, false}
	response := answer(s.zones, q)
	if s.change != nil {
		response = s.change(q, response)
	}
	return response, s.delay()
}

// use is the resource use of a process.
type use struct {
	heap                uint64 // bytes that are alive
	sockets, goroutines int
}

func used(t *testing.T) use {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	open, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return use{m.HeapAlloc, len(open), runtime.NumGoroutine()}
}

func (u use) max(v use) use {
	return use{max(u.heap, v.heap), max(u.sockets, v.sockets), max(u.goroutines, v.goroutines)}
}

func (u use) String() string {
	return fmt.Sprintf("%.1f MB of heap, %d descriptors, %d goroutines", float64(u.heap)/1e6, u.sockets, u.goroutines)
}

// TestResolverMemoryIsStableOverKernelSockets runs for ten minutes with HEDGE_TEST_SOAK=10m.
func TestResolverMemoryIsStableOverKernelSockets(t *testing.T) {
	if testing.Short() {
		t.Skip("takes real time")
	}
	space, err := netsim.NewNamespace(crowdNetwork)
	if errors.Is(err, netsim.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { _ = space.Close() })
	long := doubles.SoakTime(t, 6*time.Second)
	perSecond := 200
	if doubles.RaceEnabled {
		perSecond = 50 // a machine with other work has no time for more, and then all that waits grows
	}
	c := newCrowd(t)
	c.listen(t, space)
	before := used(t)
	r := c.resolver(func(r *recursor.Resolver) { r.MaxBytes, r.Dialer = 1<<20, inside{space} })
	var asked, failed, late atomic.Int64
	var thirds [3]use
	start := time.Now()
	n := int(long.Seconds()) * perSecond
	for i := range n {
		time.Sleep(time.Until(start.Add(time.Duration(i) * time.Second / time.Duration(perSecond))))
		go func() {
			began := time.Now()
			m, _, err := r.ExchangeContext(context.Background(), parseQuestion(fmt.Sprintf("www.z%d.t%d. A", i, i%16)), "")
			if err != nil || m.Rcode != dns.RcodeSuccess {
				failed.Add(1)
			}
			if time.Since(began) > time.Second {
				late.Add(1)
			}
			asked.Add(1)
		}()
		if i%perSecond == perSecond/2 {
			third := &thirds[i*3/n]
			*third = third.max(used(t))
		}
	}
	require.Eventually(t, func() bool { return asked.Load() == int64(n) }, 15*time.Second, 10*ms, "every question is answered")
	s := r.Stats()
	require.NoError(t, r.Close())
	after := used(t)
	for range 500 { // running queries end
		if after = used(t); after.sockets <= before.sockets && after.goroutines <= before.goroutines {
			break
		}
		time.Sleep(10 * ms)
	}
	t.Logf("%d names in %v: %d failed, %d took more than a second; %.2f queries each, %d of all to dead servers; %d hedges, %d timeouts",
		n, long, failed.Load(), late.Load(), float64(s.Wire)/float64(n), c.dead.Load(), s.Hedges, s.Timeouts)
	t.Logf("before: %v\nthirds, at most: %v\nafter: %v", before, thirds, after)

	// In a hundredth of the zones both servers are dead at a time.
	assert.Less(t, float64(failed.Load()), float64(n)*0.02+3)
	assert.LessOrEqual(t, s.Bytes, s.MaxBytes)
	assert.Less(t, float64(thirds[2].heap), 1.1*float64(thirds[1].heap)+2e6, "memory grows")
	assert.Less(t, thirds[2].sockets, 2*thirds[1].sockets+50, "sockets grow")
	assert.Less(t, thirds[2].goroutines, 2*thirds[1].goroutines+50, "goroutines grow")
	assert.LessOrEqual(t, after.sockets, before.sockets, "sockets are left open")
	assert.LessOrEqual(t, after.goroutines, before.goroutines, "goroutines are left running")
	assert.Less(t, float64(after.heap), float64(before.heap)+4e6, "memory is not freed")
}
