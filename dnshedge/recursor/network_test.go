package recursor_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/internal/deadline"
	"github.com/gohedge/hedge/internal/doubles"
)

const ms = time.Millisecond

func TestMain(m *testing.M) {
	doubles.PreloadNetConfig()
	os.Exit(m.Run())
}

// A testNetwork has name servers in memory. It is made from a text:
//
//	. served 198.41.0.4                        the root, whose servers, named here unless by hand, are the Hints
//	example. delegated 192.0.2.1 192.0.2.2     delegated by its parent to ns1.example. and ns2.example., with glue
//	  www A 192.0.2.80                         relative to the zone
//	  sub NS ns.elsewhere.                     a delegation by hand
//	sub.example. served 192.0.2.3              served there, whatever its parent says
//
// Records have a TTL of an hour unless one is given. Every zone has an SOA record, with
// a TTL and a MINIMUM of 300 s. Servers answer over UDP and TCP after a round trip of 10 ms
// unless configured otherwise. An address without a server is silent.
//
// A testNetwork fails the test at a query that no recursive resolver should send to a server.
type testNetwork struct {
	t     testing.TB
	start time.Time

	mu      sync.Mutex // guards the fields below, and those of servers
	servers map[netip.Addr]*server
	other   func(netip.Addr) *server // makes missing servers; may be nil
	log     []asked
	quiet   bool // log no query, only count it
	count   int
	loss    float64
	rand    *rand.Rand
	dials   int
	open    int
	maxOpen int
	refuse  func(network string, to netip.Addr) error // of dials; may be nil
}

// asked is a query to an address, with or without a server.
type asked struct {
	at     time.Duration // since the testNetwork began
	to     netip.Addr
	tcp    bool
	socket int
	name   string
	qtype  uint16
	msg    *dns.Msg
}

func (a asked) String() string {
	return fmt.Sprintf("%v %v %s %s", a.at, a.to, a.name, dns.TypeToString[a.qtype])
}

type server struct {
	zones []*zone
	rtt   time.Duration // 0: 10 ms
	// change makes the response from the response of a server without fault, or returns nil for no response. May be nil.
	change func(q query, r *dns.Msg) *dns.Msg
	raw    func(q query) [][]byte // the responses, in place of change; may be nil
	noTCP  bool                   // refuses connections
}

type query struct {
	*dns.Msg
	name  string // in lower case
	qtype uint16
	tcp   bool
}

func newTestNetwork(t testing.TB, text string) *testNetwork {
	w := &testNetwork{t: t, start: time.Now(), servers: make(map[netip.Addr]*server), rand: rand.New(rand.NewPCG(1, 2))}
	var zones []*zone
	var z *zone
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if len(f) < 2 || f[1] != "served" && f[1] != "delegated" {
			z.add(t, strings.TrimSpace(line))
			continue
		}
		z = newZone(f[0])
		var parent *zone
		for _, p := range zones {
			if p.holds(z.name) && (parent == nil || len(p.name) > len(parent.name)) {
				parent = p
			}
		}
		zones = append(zones, z)
		for i, a := range f[2:] {
			w.server(a).zones = append(w.server(a).zones, z)
			if f[1] == "delegated" {
				ns := fmt.Sprintf("ns%d.%s", i+1, z.name)
				for _, z := range []*zone{parent, z} {
					z.put(record(fmt.Sprintf("%s NS %s", f[0], ns)))
					z.put(address(ns, netip.MustParseAddr(a)))
				}
			}
		}
	}
	for a, s := range w.servers {
		for _, z := range s.zones {
			if z.name == "." && !strings.Contains(text, "  @ NS") {
				z.put(record(fmt.Sprintf(". NS ns-%s.", strings.NewReplacer(".", "-", ":", "-").Replace(a.String()))))
				z.put(address(fmt.Sprintf("ns-%s.", strings.NewReplacer(".", "-", ":", "-").Replace(a.String())), a))
			}
		}
	}
	return w
}

// address returns an A or AAAA record of a name.
func address(name string, a netip.Addr) dns.RR {
	if a.Is4() {
		return record(fmt.Sprintf("%s A %s", name, a))
	}
	return record(fmt.Sprintf("%s AAAA %s", name, a))
}

// bubble runs f in fake time with a testNetwork made from text.
func bubble(t *testing.T, text string, f func(t *testing.T, w *testNetwork)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newTestNetwork(t, text)) })
}

// server returns the server at an address, which it adds if there is none.
func (w *testNetwork) server(addr string) *server {
	a := netip.MustParseAddr(addr)
	if w.servers[a] == nil {
		w.servers[a] = new(server)
	}
	return w.servers[a]
}

// resolver returns a Resolver in the network. It does not validate, and is closed with the test.
func (w *testNetwork) resolver(set ...func(*recursor.Resolver)) *recursor.Resolver {
	r := &recursor.Resolver{Dialer: w, Trust: dnssec.Trust{Off: true}}
	w.mu.Lock()
	for a, s := range w.servers {
		if slices.ContainsFunc(s.zones, func(z *zone) bool { return z.name == "." }) {
			r.Hints = append(r.Hints, a)
		}
	}
	w.mu.Unlock()
	slices.SortFunc(r.Hints, netip.Addr.Compare)
	for _, f := range set {
		f(r)
	}
	w.t.Cleanup(func() { _ = r.Close() })
	return r
}

func noMinimise(r *recursor.Resolver) { r.NoMinimise = true }
func noHedges(r *recursor.Resolver)   { r.Hedge.Off = true }
func limits(l recursor.Limits) func(*recursor.Resolver) {
	return func(r *recursor.Resolver) { r.Limits = l }
}

// ask returns the response to a question such as "www.example. A". Options may follow with "+" in front: do, cd, ad,
// rd and noedns.
func (w *testNetwork) ask(r *recursor.Resolver, question string) *dns.Msg {
	w.t.Helper()
	m, err := w.exchange(context.Background(), r, question)
	require.NoError(w.t, err, question)
	return m
}

func (w *testNetwork) exchange(ctx context.Context, r *recursor.Resolver, question string) (*dns.Msg, error) {
	q := parseQuestion(question)
	before := q.String()
	m, _, err := r.ExchangeContext(ctx, q, "")
	if err == nil {
		require.NotNil(w.t, m, question)
		require.Equal(w.t, before, q.String(), "the question was changed")
		require.Equal(w.t, q.Id, m.Id)
		require.Equal(w.t, q.Question, m.Question)
		require.True(w.t, m.Response && m.RecursionAvailable && !m.Authoritative && !m.AuthenticatedData && !m.Truncated, m)
		require.Equal(w.t, q.IsEdns0() != nil, m.IsEdns0() != nil, "OPT record")
		_, err := m.Pack()
		require.NoError(w.t, err)
		require.NoError(w.t, checkSections(m), "%s: %v", question, m)
	}
	return m, err
}

// checkSections returns an error if the sections of a response are not well-formed. The answer section must be a
// chain from the question's name, with each RRset once and with one TTL. The authority section has only records that
// prove a denial, and the additional section none.
func checkSections(m *dns.Msg) error {
	q := m.Question[0]
	name, do := dns.CanonicalName(q.Name), m.IsEdns0() != nil && m.IsEdns0().Do()
	seen, ttls := map[string]bool{}, map[string]uint32{}
	for _, rr := range m.Answer {
		h := rr.Header()
		set := dns.CanonicalName(h.Name) + dns.TypeToString[h.Rrtype]
		ttl, again := ttls[set]
		if ttls[set] = h.Ttl; again && ttl != h.Ttl && h.Rrtype != dns.TypeRRSIG && h.Rrtype != dns.TypeDNAME { // two responses may have had them
			return fmt.Errorf("two TTLs: %v", rr)
		}
		if f := fact(rr); seen[f] {
			return fmt.Errorf("twice: %v", rr)
		} else {
			seen[f] = true
		}
		owner := dns.CanonicalName(h.Name)
		switch {
		case h.Ttl > 1<<31-1:
			return fmt.Errorf("TTL: %v", rr)
		case h.Rrtype == dns.TypeRRSIG && !do && q.Qtype != dns.TypeRRSIG && q.Qtype != dns.TypeANY:
			return fmt.Errorf("not asked for: %v", rr)
		case h.Rrtype == dns.TypeRRSIG:
		case h.Rrtype == dns.TypeDNAME && q.Qtype != dns.TypeDNAME && dns.IsSubDomain(owner, name):
		case owner != name:
			return fmt.Errorf("out of the chain, which is at %s: %v", name, rr)
		case h.Rrtype == dns.TypeCNAME && q.Qtype != dns.TypeCNAME && q.Qtype != dns.TypeANY:
			name = dns.CanonicalName(rr.(*dns.CNAME).Target)
		case h.Rrtype != q.Qtype && q.Qtype != dns.TypeANY:
			return fmt.Errorf("of another type: %v", rr)
		}
	}
	for _, rr := range m.Ns {
		switch rr.Header().Rrtype {
		case dns.TypeSOA:
		case dns.TypeNSEC, dns.TypeNSEC3, dns.TypeRRSIG:
			if !do {
				return fmt.Errorf("not asked for: %v", rr)
			}
		default:
			return fmt.Errorf("in AUTHORITY: %v", rr)
		}
	}
	for _, rr := range m.Extra {
		if rr.Header().Rrtype != dns.TypeOPT {
			return fmt.Errorf("in ADDITIONAL: %v", rr)
		}
	}
	return nil
}

func parseQuestion(s string) *dns.Msg {
	f := strings.Fields(s)
	m := new(dns.Msg).SetQuestion(f[0], dns.StringToType[f[1]])
	m.SetEdns0(1232, slices.Contains(f, "+do"))
	m.CheckingDisabled = slices.Contains(f, "+cd")
	m.AuthenticatedData = slices.Contains(f, "+ad")
	if slices.Contains(f, "+noedns") {
		m.Extra = nil
	}
	return m
}

// formatResponse returns a response as a line: NXDOMAIN, or "NOERROR www.example. A 192.0.2.80, …" in alphabetical
// order.
func formatResponse(m *dns.Msg) string {
	var all []string
	for _, rr := range m.Answer {
		h := rr.Header()
		all = append(all, fmt.Sprintf("%s %s %s", h.Name, dns.TypeToString[h.Rrtype], strings.TrimPrefix(rr.String(), h.String())))
	}
	slices.Sort(all)
	return strings.TrimSpace(dns.RcodeToString[m.Rcode] + " " + strings.Join(all, ", "))
}

// readExtendedError returns the code and the text of a response's extended error.
func readExtendedError(m *dns.Msg) (code uint16, text string) {
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if e, ok := o.(*dns.EDNS0_EDE); ok {
				return e.InfoCode, e.ExtraText
			}
		}
	}
	return 0, ""
}

// queriesSince returns the queries from the n-th on.
func (w *testNetwork) queriesSince(n int) []asked {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.log[n:])
}

// countQueries returns the number of queries to addresses, or to all addresses if none is given.
func (w *testNetwork) countQueries(to ...string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(to) == 0 {
		return w.count
	}
	for _, a := range w.log {
		if slices.Contains(to, a.to.String()) {
			n++
		}
	}
	return n
}

// questions returns the questions to an address, in order.
func (w *testNetwork) questions(to string) (all []string) {
	for _, a := range w.queriesSince(0) {
		if a.to.String() == to {
			all = append(all, a.name+" "+dns.TypeToString[a.qtype])
		}
	}
	return all
}

// withLock runs f, which may change the network while it is in use.
func (w *testNetwork) withLock(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// updateServers applies f to servers, which may be in use.
func (w *testNetwork) updateServers(addrs string, f func(*server)) {
	w.withLock(func() {
		for _, a := range strings.Fields(addrs) {
			f(w.server(a))
		}
	})
}

// setFault sets the fault of servers. Nil: none.
func (w *testNetwork) setFault(addrs string, change func(query, *dns.Msg) *dns.Msg) {
	w.updateServers(addrs, func(s *server) { s.change = change })
}

// Faults of servers.

func silent(query, *dns.Msg) *dns.Msg { return nil }

func respondRcode(code int) func(query, *dns.Msg) *dns.Msg {
	return func(q query, _ *dns.Msg) *dns.Msg {
		r := new(dns.Msg).SetRcode(q.Msg, code)
		if q.IsEdns0() != nil && code != dns.RcodeFormatError {
			r.SetEdns0(1232, false)
		}
		return r
	}
}

// respondNXDOMAIN returns a fault: the response is that of respondWith(text), with the code NXDOMAIN.
func respondNXDOMAIN(text string) func(query, *dns.Msg) *dns.Msg {
	respond := respondWith(text)
	return func(q query, r *dns.Msg) *dns.Msg {
		m := respond(q, r)
		m.Rcode = dns.RcodeNameError
		return m
	}
}

// respondWith returns a fault: the response has the records in text. Sections are divided by "|", and records "name
// type data" by ";". AA is set unless the text begins with "referral".
func respondWith(text string) func(query, *dns.Msg) *dns.Msg {
	rest, referral := strings.CutPrefix(text, "referral")
	return func(q query, _ *dns.Msg) *dns.Msg {
		r := new(dns.Msg).SetReply(q.Msg)
		r.Authoritative = !referral
		r.SetEdns0(1232, false)
		for i, part := range strings.Split(rest, "|") {
			section := []*[]dns.RR{&r.Answer, &r.Ns, &r.Extra}[i]
			for _, s := range strings.Split(part, ";") {
				if s = strings.TrimSpace(s); s != "" {
					*section = append(*section, record(s))
				}
			}
		}
		return r
	}
}

// onlyForQuestion returns a fault that applies only to names, or to all names if none is given. A single name may be
// given with its type.
func onlyForQuestion(question string, f func(query, *dns.Msg) *dns.Msg) func(query, *dns.Msg) *dns.Msg {
	want := strings.Fields(question)
	return func(q query, r *dns.Msg) *dns.Msg {
		if q.name == want[0] && (len(want) == 1 || dns.TypeToString[q.qtype] == want[1]) {
			return f(q, r)
		}
		return r
	}
}

func record(s string) dns.RR {
	rr, err := dns.NewRR("$TTL 3600\n" + s)
	if err != nil || rr == nil {
		panic(fmt.Sprint(s, err))
	}
	return rr
}

// zone has the records that authoritative servers serve.
type zone struct {
	name   string
	sets   map[string]map[uint16][]dns.RR // a name without records is an empty non-terminal
	signer *signer                        // nil: the zone is not signed
}

func newZone(name string) *zone {
	z := &zone{name: name, sets: make(map[string]map[uint16][]dns.RR)}
	z.put(&dns.SOA{
		Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 300},
		Ns:  "ns." + strings.TrimPrefix(name, "."), Mbox: "admin." + strings.TrimPrefix(name, "."), Serial: 1, Refresh: 3600, Retry: 600, Expire: 86400, Minttl: 300,
	})
	return z
}

func (z *zone) holds(name string) bool { return dns.IsSubDomain(z.name, name) }

func (z *zone) add(t testing.TB, line string) {
	t.Helper()
	p := dns.NewZoneParser(strings.NewReader(line), z.name, "")
	p.SetDefaultTTL(3600)
	rr, ok := p.Next()
	require.True(t, ok && rr != nil, "%s: %v", line, p.Err())
	if rr.Header().Rrtype == dns.TypeSOA {
		delete(z.sets[z.name], dns.TypeSOA)
	}
	z.put(rr)
}

func (z *zone) put(rr dns.RR) {
	var wire [255]byte
	n, err := dns.PackDomainName(dns.CanonicalName(rr.Header().Name), wire[:], 0, nil, false)
	name, _, err2 := dns.UnpackDomainName(wire[:n], 0) // with the escapes that queries have
	if err != nil || err2 != nil {
		panic(fmt.Sprint(rr, err, err2))
	}
	for n := name; z.holds(n); n = parentOf(n) {
		if z.sets[n] == nil {
			z.sets[n] = make(map[uint16][]dns.RR)
		}
		if n == z.name {
			break
		}
	}
	if z.sets[name] == nil { // out of the zone: glue
		z.sets[name] = make(map[uint16][]dns.RR)
	}
	z.sets[name][rr.Header().Rrtype] = append(z.sets[name][rr.Header().Rrtype], rr)
}

func parentOf(name string) string {
	i, end := dns.NextLabel(name, 0)
	if end {
		return "."
	}
	return name[i:]
}

// answer returns the response of a server of zones without fault.
func answer(zones []*zone, q query) *dns.Msg {
	r := new(dns.Msg).SetReply(q.Msg)
	r.RecursionDesired = q.RecursionDesired
	if opt := q.IsEdns0(); opt != nil {
		r.SetEdns0(1232, opt.Do())
	}
	name := q.name
	var z *zone
	for _, c := range zones {
		if c.holds(name) && (z == nil || len(c.name) > len(z.name)) && (q.qtype != dns.TypeDS || c.name != name || len(zones) == 1) {
			z = c
		}
	}
	if z == nil {
		r.Rcode = dns.RcodeRefused
		return r
	}
	for range 12 {
		if z.look(r, name, q) {
			break
		}
		last := r.Answer[len(r.Answer)-1].(*dns.CNAME)
		if name = dns.CanonicalName(last.Target); !z.holds(name) {
			break
		}
	}
	return r
}

// look adds the records of a name to r. It reports false if the record is a CNAME record.
func (z *zone) look(r *dns.Msg, name string, q query) bool {
	signed := q.IsEdns0() != nil && q.IsEdns0().Do()
	set := func(owner string, typ uint16) []dns.RR {
		all := z.sets[owner][typ]
		if signed && typ != dns.TypeRRSIG {
			for _, rr := range z.sets[owner][dns.TypeRRSIG] {
				if rr.(*dns.RRSIG).TypeCovered == typ {
					all = append(slices.Clone(all), rr)
				}
			}
		}
		return all
	}
	glue := func(ns []dns.RR) {
		for _, rr := range ns {
			ns, ok := rr.(*dns.NS)
			if !ok {
				continue
			}
			host := dns.CanonicalName(ns.Ns)
			r.Extra = append(r.Extra, z.sets[host][dns.TypeA]...)
			r.Extra = append(r.Extra, z.sets[host][dns.TypeAAAA]...)
		}
	}
	// The apex and the names between it and the name, from above.
	labels := dns.CountLabel(name) - dns.CountLabel(z.name)
	for i := range labels + 1 {
		owner := name
		for range labels - i {
			owner = parentOf(owner)
		}
		if ns := z.sets[owner][dns.TypeNS]; i > 0 && len(ns) > 0 && (owner != name || q.qtype != dns.TypeDS) {
			r.Ns = append(r.Ns, set(owner, dns.TypeNS)...)
			if signed {
				ds := set(owner, dns.TypeDS)
				if len(ds) == 0 {
					ds = z.coveringNSEC(owner)
				}
				r.Ns = append(r.Ns, ds...)
			}
			glue(ns)
			return true
		}
		if d := z.sets[owner][dns.TypeDNAME]; len(d) > 0 && owner != name {
			r.Authoritative = true
			r.Answer = append(r.Answer, set(owner, dns.TypeDNAME)...)
			prefix, target := strings.TrimSuffix(name, owner), d[0].(*dns.DNAME).Target
			if target == "." {
				target = ""
			}
			if len(prefix)+len(target) > 254 {
				r.Rcode = dns.RcodeYXDomain
				return true
			}
			r.Answer = append(r.Answer, &dns.CNAME{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: d[0].Header().Ttl}, Target: prefix + target})
			return false
		}
	}
	r.Authoritative = true
	owner := name
	if z.sets[name] == nil {
		for n := name; z.sets[n] == nil; n = parentOf(n) {
			owner = "*." + strings.TrimPrefix(parentOf(n), ".")
		}
	}
	if z.sets[owner] == nil {
		if len(r.Answer) == 0 || z.holds(name) {
			r.Rcode = dns.RcodeNameError
		}
		r.Ns = append(r.Ns, set(z.name, dns.TypeSOA)...)
		if signed {
			r.Ns = append(r.Ns, z.denials(name, "*."+strings.TrimPrefix(z.closest(name), "."))...)
		}
		return true
	}
	copied := func(all []dns.RR) (rrs []dns.RR) {
		for _, rr := range all {
			rr = dns.Copy(rr)
			rr.Header().Name = name
			rrs = append(rrs, rr)
		}
		return rrs
	}
	if owner != name && signed {
		r.Ns = append(r.Ns, z.denials(name)...)
	}
	if c := set(owner, dns.TypeCNAME); len(c) > 0 && q.qtype != dns.TypeCNAME {
		c = copied(c)
		slices.Reverse(c) // the CNAME record last
		r.Answer = append(r.Answer, c...)
		return false
	}
	all := copied(set(owner, q.qtype))
	if q.qtype == dns.TypeNS {
		glue(all)
	}
	if len(all) == 0 {
		r.Ns = append(r.Ns, set(z.name, dns.TypeSOA)...)
		if signed {
			r.Ns = append(r.Ns, z.denials(owner)...)
		}
	}
	r.Answer = append(r.Answer, all...)
	return true
}

// conn is a socket of a testNetwork.
type conn struct {
	w           *testNetwork
	to          netip.AddrPort
	tcp         bool
	number      int
	in          chan []byte
	closed      chan struct{}
	once        sync.Once
	read, write deadline.Deadline

	mu     sync.Mutex
	unread []byte // of a stream
	unsent []byte // of a stream
}

var _ net.Conn = (*conn)(nil)

// DialContext opens a socket. Over TCP this takes a round trip.
func (w *testNetwork) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	tcp := strings.HasPrefix(network, "tcp")
	w.mu.Lock()
	s := w.find(to.Addr())
	w.dials++
	number := w.dials
	if w.refuse != nil {
		err = w.refuse(network, to.Addr())
	}
	rtt := time.Duration(0)
	gone := s == nil
	if s != nil {
		rtt = s.delay()
		if tcp && s.noTCP && err == nil {
			err = syscall.ECONNREFUSED
		}
	}
	w.mu.Unlock()
	failed := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: net.UDPAddrFromAddrPort(to), Err: err}
	}
	if err == nil || err == syscall.ECONNREFUSED {
		if tcp {
			t := time.NewTimer(rtt)
			defer t.Stop()
			late := t.C
			if gone {
				late = nil
			}
			select {
			case <-late:
			case <-ctx.Done():
				return failed(ctx.Err())
			}
		}
	}
	if err != nil {
		return failed(err)
	}
	if ctx.Err() != nil {
		return failed(ctx.Err())
	}
	w.mu.Lock()
	w.open++
	w.maxOpen = max(w.maxOpen, w.open)
	w.mu.Unlock()
	return &conn{w: w, to: to, tcp: tcp, number: number, in: make(chan []byte, 64), closed: make(chan struct{})}, nil
}

// find returns the server at an address, or nil. The caller holds w.mu.
func (w *testNetwork) find(a netip.Addr) *server {
	s := w.servers[a]
	if s == nil && w.other != nil {
		if s = w.other(a); s != nil {
			w.servers[a] = s
		}
	}
	return s
}

func (s *server) delay() time.Duration {
	if s.rtt == 0 {
		return 10 * ms
	}
	return s.rtt
}

// serve handles a query to a server and delivers the responses.
func (c *conn) serve(b []byte) {
	w := c.w
	m := new(dns.Msg)
	if err := m.Unpack(b); err != nil {
		w.t.Errorf("a query cannot be read: %v", err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count++
	if len(m.Question) != 1 || m.RecursionDesired || m.Response || m.Truncated || m.AuthenticatedData || m.Opcode != dns.OpcodeQuery ||
		len(m.Answer)+len(m.Ns) > 0 || c.to.Port() != 53 {
		w.t.Errorf("not a query for a server: %v", m)
		return
	}
	if opt := m.IsEdns0(); opt != nil && opt.UDPSize() != 1232 {
		w.t.Errorf("EDNS with %d octets", opt.UDPSize())
	}
	q := query{m, dns.CanonicalName(m.Question[0].Name), m.Question[0].Qtype, c.tcp}
	if !w.quiet {
		w.log = append(w.log, asked{time.Since(w.start), c.to.Addr(), c.tcp, c.number, q.name, q.qtype, m})
	}
	s := w.find(c.to.Addr())
	if s == nil || !c.tcp && w.loss > 0 && w.rand.Float64() < w.loss {
		return
	}
	var all [][]byte
	for _, b := range s.respond(q) {
		if c.tcp {
			b = append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)
		} else if w.loss > 0 && w.rand.Float64() < w.loss {
			continue
		}
		all = append(all, b)
	}
	time.AfterFunc(s.delay(), func() {
		for _, b := range all {
			select {
			case c.in <- b:
			default: // as a socket whose buffer is full
			}
		}
	})
}

// respond returns the messages with which a server answers. The caller holds w.mu.
func (s *server) respond(q query) [][]byte {
	if s.raw != nil {
		return s.raw(q)
	}
	r := answer(s.zones, q)
	if s.change != nil {
		r = s.change(q, r)
	}
	if r == nil {
		return nil
	}
	r.Compress = true
	b, err := r.Pack()
	if err != nil {
		return nil
	}
	size := dns.MinMsgSize
	if opt := q.IsEdns0(); opt != nil {
		size = int(opt.UDPSize())
	}
	if !q.tcp && len(b) > size {
		r.Answer, r.Ns, r.Extra = nil, nil, nil
		r.Truncated = true
		b, _ = r.Pack()
	}
	return [][]byte{b}
}

func (c *conn) Write(b []byte) (int, error) {
	select {
	case <-c.closed:
		return 0, c.failed("write", net.ErrClosed)
	case <-c.write.Passed():
		return 0, c.failed("write", os.ErrDeadlineExceeded)
	default:
	}
	if !c.tcp {
		c.serve(b)
		return len(b), nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unsent = append(c.unsent, b...)
	for len(c.unsent) >= 2 {
		n := 2 + int(binary.BigEndian.Uint16(c.unsent))
		if len(c.unsent) < n {
			break
		}
		c.serve(c.unsent[2:n])
		c.unsent = c.unsent[n:]
	}
	return len(b), nil
}

func (c *conn) Read(b []byte) (int, error) {
	c.mu.Lock()
	if n := copy(b, c.unread); n > 0 {
		c.unread = c.unread[n:]
		c.mu.Unlock()
		return n, nil
	}
	c.mu.Unlock()
	select {
	case <-c.closed:
		return 0, c.failed("read", net.ErrClosed)
	case <-c.read.Passed():
		return 0, c.failed("read", os.ErrDeadlineExceeded)
	default:
	}
	select {
	case <-c.closed:
		return 0, c.failed("read", net.ErrClosed)
	case <-c.read.Passed():
		return 0, c.failed("read", os.ErrDeadlineExceeded)
	case m := <-c.in:
		if m == nil {
			return 0, io.EOF
		}
		n := copy(b, m)
		if c.tcp {
			c.mu.Lock()
			c.unread = m[n:]
			c.mu.Unlock()
		}
		return n, nil
	}
}

func (c *conn) failed(op string, err error) error {
	return &net.OpError{Op: op, Net: c.LocalAddr().Network(), Addr: c.RemoteAddr(), Err: err}
}

func (c *conn) Close() error {
	err := c.failed("close", net.ErrClosed)
	c.once.Do(func() {
		close(c.closed)
		c.read.Set(time.Time{})
		c.write.Set(time.Time{})
		c.w.mu.Lock()
		c.w.open--
		c.w.mu.Unlock()
		err = nil
	})
	return err
}

func (c *conn) LocalAddr() net.Addr {
	at := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.250"), uint16(1024+c.number%60000))
	if c.tcp {
		return net.TCPAddrFromAddrPort(at)
	}
	return net.UDPAddrFromAddrPort(at)
}

func (c *conn) RemoteAddr() net.Addr {
	if c.tcp {
		return net.TCPAddrFromAddrPort(c.to)
	}
	return net.UDPAddrFromAddrPort(c.to)
}

func (c *conn) SetDeadline(t time.Time) error {
	c.read.Set(t)
	c.write.Set(t)
	return nil
}
func (c *conn) SetReadDeadline(t time.Time) error  { c.read.Set(t); return nil }
func (c *conn) SetWriteDeadline(t time.Time) error { c.write.Set(t); return nil }
