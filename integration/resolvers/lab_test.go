// Package resolvers compares the recursive resolver of dnshedge with unbound and BIND, all of which
// ask the same servers on the same machine: those of a root and of zones that do not behave.
package resolvers

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/netsim"
)

// network has the addresses of the lab (RFC 2544), and rootAddr is where the root is served.
var (
	network  = netip.MustParsePrefix("198.18.0.0/15")
	rootAddr = netip.MustParseAddr("198.18.0.1")
)

// zone is what servers of the lab serve, and what is wrong with them.
type zone struct {
	name    string // fully qualified
	addrs   []netip.Addr
	hosts   []string // the names of the servers; nil: one in the zone for each of addrs, with glue
	records map[string][]dns.RR
	cuts    map[string]*zone // those that it delegates
	takes   time.Duration    // before each response
	noTCP   bool             // nobody listens there

	// twist changes what servers without a fault say; nil is no response. Nil: they have no fault.
	twist func(q query, r *dns.Msg) *dns.Msg
}

// query is one that a server was asked.
type query struct {
	*dns.Msg
	name   string // in lower case
	qtype  uint16
	tcp    bool
	server netip.Addr
}

// lab is a network namespace with servers.
type lab struct {
	space  *netsim.Namespace
	root   *zone
	served map[netip.Addr][]*zone // by address
	next   int                    // of the addresses
	quit   []func()

	mu   sync.Mutex                    // guards sent
	sent map[netip.Addr]map[string]int // queries, by the resolver's address and the last label of their name
}

// newLab returns a lab without servers. The test is skipped where there can be none.
func newLab(t *testing.T) *lab {
	t.Helper()
	space, err := netsim.NewNamespace(network)
	if errors.Is(err, netsim.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	l := &lab{space: space, served: make(map[netip.Addr][]*zone), sent: make(map[netip.Addr]map[string]int)}
	t.Cleanup(func() {
		for _, f := range slices.Backward(l.quit) {
			f()
		}
		require.NoError(t, space.Close())
	})
	l.root = &zone{name: ".", addrs: []netip.Addr{rootAddr}, hosts: []string{"a.root."}}
	l.add(nil, l.root, "a.root. A "+rootAddr.String())
	return l
}

// fresh returns n addresses that no other server has.
func (l *lab) fresh(n int) (addrs []netip.Addr) {
	for range n {
		l.next++
		addrs = append(addrs, netip.AddrFrom4([4]byte{198, 18, byte(1 + l.next/200), byte(1 + l.next%200)}))
	}
	return addrs
}

// add adds a zone below another one, with records of which each is a line of a zone file whose
// names are relative to the zone, or end with a dot.
func (l *lab) add(parent, z *zone, records ...string) {
	z.records, z.cuts = make(map[string][]dns.RR), make(map[string]*zone)
	if len(z.hosts) == 0 {
		for i := range z.addrs {
			z.hosts = append(z.hosts, fmt.Sprintf("ns%d.%s", i+1, z.name))
			records = append(records, fmt.Sprintf("ns%d A %s", i+1, z.addrs[i]))
		}
	}
	for _, h := range z.hosts {
		records = append(records, "@ NS "+h)
	}
	for _, text := range append(records, "@ 60 SOA ns1 admin 1 3600 600 86400 60") {
		z.put(text)
	}
	for _, a := range z.addrs {
		l.served[a] = append(l.served[a], z)
	}
	if parent != nil {
		parent.cuts[z.name] = z
	}
}

func (z *zone) put(text string) {
	rr := record(text, z.name)
	name := dns.CanonicalName(rr.Header().Name)
	z.records[name] = append(z.records[name], rr)
}

// record reads a line of a zone file.
func record(text, origin string) dns.RR {
	p := dns.NewZoneParser(strings.NewReader(text), origin, "")
	p.SetDefaultTTL(300)
	rr, ok := p.Next()
	if !ok {
		panic(fmt.Sprint(text, p.Err()))
	}
	return rr
}

// soa is the SOA record of a zone.
func soa(zone string) dns.RR { return record("@ 60 SOA ns1 admin 1 3600 600 86400 60", zone) }

// answer adds to r what a server without a fault says.
func (z *zone) answer(q query, r *dns.Msg) {
	for _, cut := range z.cuts {
		if dns.IsSubDomain(cut.name, q.name) && !(q.qtype == dns.TypeDS && q.name == cut.name) {
			cut.refer(r)
			return
		}
	}
	r.Authoritative = true
	name := q.name
	for range 8 {
		alias := ""
		for _, rr := range z.records[name] {
			if t := rr.Header().Rrtype; t == q.qtype || t == dns.TypeCNAME {
				r.Answer = append(r.Answer, dns.Copy(rr))
				if c, ok := rr.(*dns.CNAME); ok && q.qtype != dns.TypeCNAME {
					alias = dns.CanonicalName(c.Target)
				}
			}
		}
		if alias == "" || !dns.IsSubDomain(z.name, alias) {
			break
		}
		name = alias
	}
	if len(r.Answer) > 0 {
		return
	}
	if !z.exists(q.name) {
		r.Rcode = dns.RcodeNameError
	}
	r.Ns = append(r.Ns, soa(z.name))
}

// exists reports whether there is something at a name or below it.
func (z *zone) exists(name string) bool {
	for owner := range z.records {
		if dns.IsSubDomain(name, owner) {
			return true
		}
	}
	return false
}

// refer makes r a referral to the zone.
func (z *zone) refer(r *dns.Msg) {
	for _, h := range z.hosts {
		r.Ns = append(r.Ns, record("@ NS "+h, z.name))
		for _, rr := range z.records[h] {
			r.Extra = append(r.Extra, dns.Copy(rr))
		}
	}
}

// open starts the servers of all zones that were added.
func (l *lab) open(t *testing.T) {
	t.Helper()
	for _, a := range slices.SortedFunc(maps.Keys(l.served), netip.Addr.Compare) {
		at := netip.AddrPortFrom(a, 53).String()
		require.NoError(t, l.space.Do(func() error {
			pc, err := net.ListenPacket("udp", at)
			if err != nil {
				return err
			}
			l.serve(&dns.Server{PacketConn: pc, Handler: l.handler(a, false)})
			if l.served[a][0].noTCP {
				return nil
			}
			ln, err := net.Listen("tcp", at)
			if err != nil {
				return err
			}
			l.serve(&dns.Server{Listener: ln, Handler: l.handler(a, true)})
			return nil
		}))
	}
}

// serve runs a server until the test ends.
func (l *lab) serve(s *dns.Server) {
	ready, done := make(chan struct{}), make(chan struct{})
	s.NotifyStartedFunc = func() { close(ready) }
	go func() {
		defer close(done)
		_ = s.ActivateAndServe()
	}()
	<-ready
	l.quit = append(l.quit, func() {
		_ = s.Shutdown()
		<-done
	})
}

// handler answers as the zones at an address do.
func (l *lab) handler(at netip.Addr, tcp bool) dns.Handler {
	return dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
		if len(m.Question) != 1 {
			return
		}
		q := query{m, dns.CanonicalName(m.Question[0].Name), m.Question[0].Qtype, tcp, at}
		l.note(w.RemoteAddr(), q.name)
		r := new(dns.Msg).SetReply(m)
		r.Compress = true
		if m.IsEdns0() != nil {
			r.SetEdns0(1232, false)
		}
		var z *zone
		for _, other := range l.served[at] {
			if dns.IsSubDomain(other.name, q.name) && (z == nil || len(other.name) > len(z.name)) {
				z = other
			}
		}
		if z == nil {
			r.Rcode = dns.RcodeRefused
			_ = w.WriteMsg(r)
			return
		}
		z.answer(q, r)
		if z.twist != nil {
			r = z.twist(q, r)
		}
		time.Sleep(z.takes)
		if r != nil {
			_ = w.WriteMsg(r) // who has gone needs none
		}
	})
}

// note counts a query.
func (l *lab) note(from net.Addr, name string) {
	at, err := netip.ParseAddrPort(from.String())
	if err != nil {
		return
	}
	labels := dns.SplitDomainName(name)
	l.mu.Lock()
	defer l.mu.Unlock()
	by := l.sent[at.Addr().Unmap()]
	if by == nil {
		by = make(map[string]int)
		l.sent[at.Addr().Unmap()] = by
	}
	if len(labels) > 0 {
		by[labels[len(labels)-1]]++
	}
}

// count returns how many queries for names in a zone below the root a resolver has sent to all servers.
func (l *lab) count(by netip.Addr, tld string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sent[by][strings.TrimSuffix(tld, ".")]
}
