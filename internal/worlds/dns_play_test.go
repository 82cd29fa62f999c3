package worlds_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/netsim"
)

// A dnsPlay is one play of a dnsScenario, with the Client or with the patient resolver. It has the observations of the
// play.
type dnsPlay struct {
	w       *dnsScenario
	patient bool
	start   time.Time
	net     *netsim.Network
	broken  string
	dir     string
	client  *dnshedge.Client
	clients []*dnshedge.Client // all Clients: the main one, earlier ones, and one below it
	server  *dnshedge.Server
	results []*dnsResult // by ask
	conns   atomic.Int64 // open
	dials   atomic.Int64
	netdown atomic.Bool
	started atomic.Int64 // attempts that the Trace was told of
	done    atomic.Int64

	mu      sync.Mutex // guards the fields below
	open    map[int]*dnstest.Server
	over    bool
	seen    []dnsReceivedQuery
	count   map[dnsQueryCountKey]int
	serial  uint16
	said    map[uint16]*dnsSentAnswer
	notes   []finding
	strayed map[int]bool     // servers whose stray datagram has been sent
	tries   []dnsTracedQuery // queries of Clients, as the Trace is told
	kept    [][2]*dns.Msg    // responses of an Exchanger with their copies
	dnsResponses
}

// dnsResponses are the responses of servers. They are guarded by mu of the dnsPlay.
type dnsResponses struct {
	answers  int // failures included
	failures []dnsSentFailure
}

// A dnsTracedQuery is a query of a Client, as the Trace has reported it.
type dnsTracedQuery struct {
	began, end time.Duration // end is 0 before it
	dnshedge.AttemptInfo
	err error
}

func (t *dnsTracedQuery) String() string {
	return fmt.Sprintf("%v: %s %s of %s, attempt %d, hedge %v, ends after %v: %v",
		t.began, t.Name, dns.TypeToString[t.Type], t.Upstream.Addr, t.Attempt, t.Hedge, t.end-t.began, t.err)
}

// A dnsQueryCounts has the numbers of queries and answers until a time of the play.
type dnsQueryCounts struct {
	resends, wire, answers int
	more                   int // retransmissions and hedges
}

func (p *dnsPlay) countSent() (s dnsQueryCounts) {
	p.mu.Lock()
	clients := slices.Clone(p.clients)
	s.answers = p.answers
	p.mu.Unlock()
	for _, c := range clients {
		v := c.Stats()
		s.resends, s.wire = s.resends+int(v.Resends), s.wire+int(v.Wire)
		s.more += int(v.Hedges + v.Resends + v.Failovers)
	}
	return s
}

// A dnsResult is the result of a question: a response or an error. Times are since the start of the play.
type dnsResult struct {
	began, end time.Duration
	msg        *dns.Msg // nil: there is an error
	err        string
	closed     bool // the Client was closed before
	sent       dnsQueryCounts
}

func (r *dnsResult) String() string {
	if r == nil {
		return "{no end}"
	}
	if r.msg == nil {
		return fmt.Sprintf("{%s after %v}", r.err, r.end-r.began)
	}
	var rrs []string
	for _, rr := range slices.Concat(r.msg.Answer, r.msg.Ns) {
		rrs = append(rrs, strings.ReplaceAll(rr.String(), "\t", " "))
	}
	s := strings.Join(rrs, "; ")
	return fmt.Sprintf("{%s %.150s after %v}", dns.RcodeToString[r.msg.Rcode], s, r.end-r.began)
}

// succeeded reports whether the result is an answer.
func (r *dnsResult) succeeded() bool {
	return r != nil && r.msg != nil && (r.msg.Rcode == dns.RcodeSuccess || r.msg.Rcode == dns.RcodeNameError) && len(r.msg.Answer)+len(r.msg.Ns) > 0
}

func playDNS(s *stage, w *dnsScenario, patient bool) *dnsPlay {
	p := &dnsPlay{w: w, patient: patient, open: make(map[int]*dnstest.Server), count: make(map[dnsQueryCountKey]int), said: make(map[uint16]*dnsSentAnswer), strayed: make(map[int]bool)}
	dir, err := os.MkdirTemp("", "worlds")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	p.dir = dir
	p.broken = s.runInBubble(p.run)
	return p
}

func (p *dnsPlay) since() time.Duration { return time.Since(p.start) }

func (p *dnsPlay) host(server int) *netsim.Host { return p.net.Host(fmt.Sprintf("s%d", server)) }

func (p *dnsPlay) note(promise, format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notes = append(p.notes, finding{promise, fmt.Sprintf(format, args...)})
}

func (p *dnsPlay) run() {
	p.start = time.Now()
	names := []string{"client", "user"}
	for i := range p.w.servers {
		names = append(names, fmt.Sprintf("s%d", i))
	}
	n, err := netsim.NewMemory(1, names...)
	if err != nil {
		panic(err)
	}
	defer n.Close()
	p.net = n
	for i := range p.w.servers {
		n.Set("client", fmt.Sprintf("s%d", i), netsim.Profile{Delay: netsim.Constant(oneWayDelay(i))})
	}
	p.runServers()
	if !p.patient {
		p.startClient()
	}
	p.results = make([]*dnsResult, len(p.w.asks))
	var wg sync.WaitGroup
	for i, a := range p.w.asks {
		wg.Go(func() {
			time.Sleep(a.at)
			r := &dnsResult{began: p.since()}
			if p.patient {
				p.results[i] = p.resolvePatiently(a, r)
			} else {
				p.results[i] = p.askClient(a, r)
			}
		})
	}
	wg.Wait()
	if !p.patient {
		time.Sleep(time.Until(p.start.Add(p.w.way.changeAt))) // after all questions
		time.Sleep(15 * time.Second)
		p.closeClient()
	}
	p.stopAll()
	time.Sleep(time.Minute)
}

// startClient makes the Client and its front end.
func (p *dnsPlay) startClient() {
	p.client = p.newClient()
	p.applyChange()
	p.updateFiles()
	switch p.w.way.front {
	case "udp", "tcp":
	default:
		return
	}
	p.server = &dnshedge.Server{Client: p.client}
	at := p.net.Host("client")
	pc, err := at.ListenPacket("udp", ":53")
	if err != nil {
		panic(err)
	}
	ln, err := at.Listen("tcp", ":53")
	if err != nil {
		panic(err)
	}
	go func() { _ = p.server.ServePacket(pc) }()
	go func() { _ = p.server.Serve(ln) }()
}

// closeClient closes the Client, and checks that nothing of it is left.
func (p *dnsPlay) closeClient() {
	if p.server != nil {
		_ = p.server.Shutdown(context.Background())
	}
	synctest.Wait() // counters belong together when nothing happens
	p.checkStats()
	slices.Reverse(p.clients)
	for _, c := range p.clients {
		c.Close()
	}
	synctest.Wait() // queries that are cancelled end right after it
	if n := p.conns.Load(); n != 0 {
		p.note("5 connections", "%d are open after Close", n)
	}
	if a, b := p.started.Load(), p.done.Load(); a != b {
		p.note("5 counters", "the Trace was told of %d attempts, and of the end of %d", a, b)
	}
	for _, pair := range p.kept {
		if !reflect.DeepEqual(pair[0].Copy(), pair[1]) {
			p.note("6 exchanger", "its response was changed: %v", pair[0])
		}
	}
}

// checkStats checks that the statistics are consistent.
func (p *dnsPlay) checkStats() {
	var wire, hedges int64
	for _, c := range p.clients {
		v := c.Stats()
		var queries int64
		for _, u := range v.Upstreams {
			queries += u.Queries
		}
		wire, hedges = wire+v.Wire, hedges+v.Hedges
		switch {
		case v.HedgeWins > v.Hedges, v.ResendWins > v.Resends, v.Hits+v.Stale+v.Local+v.Shared > v.Queries:
			p.note("5 counters", "a part is larger than its whole: %+v", v)
		case queries != v.Wire && p.w.way.by != "resolvConf" && p.w.way.change != "close": // servers that it has no more are forgotten
			p.note("5 counters", "%d queries, and %d to servers", v.Wire, queries)
		}
	}
	if p.w.client.hedge == "off" || p.w.client.hedge == "shadow" {
		if hedges > 0 {
			p.note("3 hedges", "%d though hedging is off", hedges)
		}
	} else if most := .05*float64(wire) + 21*float64(len(p.clients)); p.w.client.hedge != "30ms" && float64(hedges) > most {
		p.note("3 budget", "%d hedges, %d queries: %.0f at most", hedges, wire, most)
	}
}

// applyChange applies the change of the scenario at its time.
func (p *dnsPlay) applyChange() {
	at := func(d time.Duration, f func()) { time.AfterFunc(p.w.way.changeAt+d, f) }
	switch p.w.way.change {
	case "resolvConf":
		at(0, p.writeConf)
	case "netdown":
		at(0, func() { p.netdown.Store(true) })
		at(networkOutage, func() { p.netdown.Store(false) })
	case "off":
		at(0, func() { p.client.SetEnabled(false) })
		at(10*time.Second, func() { p.client.SetEnabled(true) })
	case "close":
		at(0, func() { p.client.Close() })
	case "import":
		at(0, func() {
			old := p.current()
			next := p.newClient()
			var b bytes.Buffer
			if err := errors.Join(old.Export(&b), next.Import(&b)); err != nil {
				p.note("1 import", "%v", err)
			}
			p.mu.Lock()
			p.client = next
			p.mu.Unlock()
		})
	}
}

// maxDials is more sockets than any scenario needs.
const maxDials = 10_000

// networkOutage is the time for which the network is down.
const networkOutage = 3 * time.Second

func (p *dnsPlay) current() *dnshedge.Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.client
}

// DialContext is the Dialer of the Client.
func (p *dnsPlay) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if host, _, _ := net.SplitHostPort(address); p.netdown.Load() && p.w.way.dials != "" {
		return nil, &net.OpError{Op: "dial", Net: network, Err: &net.DNSError{Err: "server misbehaving", Name: host, IsTemporary: true}}
	}
	if p.netdown.Load() {
		return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ENETUNREACH)}
	}
	if n := p.dials.Add(1); n >= maxDials { // otherwise the play takes minutes
		if n == maxDials {
			p.note("3 queries", "%d sockets are opened", n)
		}
		return nil, syscall.EMFILE
	}
	c, err := p.net.Host("client").DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if p.w.way.dials == "proxy" {
		c = proxyConn{c}
	}
	return countConn(c, &p.conns), nil
}

// A proxyConn is a connection through a proxy. Its remote address is that of the proxy.
type proxyConn struct{ net.Conn }

func (proxyConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 200), Port: 3128} }

// hostOf returns the host of a server in Upstreams: an address, or a name that the Dialer resolves for each connection.
func (p *dnsPlay) hostOf(server int) string {
	if p.w.way.dials != "" {
		return p.host(server).Name()
	}
	return p.host(server).Addr().String()
}

// upstreamOf returns the Upstream of a server.
func (p *dnsPlay) upstreamOf(server int) dnshedge.Upstream {
	port := map[string]string{"tls": "853", "https": "443"}[p.w.way.net]
	return dnshedge.Upstream{
		Net: p.w.way.net, Addr: net.JoinHostPort(p.hostOf(server), cmp.Or(port, "53")),
		ServerName: map[bool]string{true: dnstest.Name}[port != ""], TrustAD: p.w.client.trustAD,
	}
}

// newClient makes a Client with the settings of the scenario.
func (p *dnsPlay) newClient() *dnshedge.Client {
	w := p.w
	c := &dnshedge.Client{Dialer: p, Timeout: w.client.timeout, SpecialUse: dnshedge.SpecialUseOff}
	_, c.TLSConfig = dnstest.Certificate()
	switch w.client.hedge {
	case "off":
		c.Hedge.Off = true
	case "shadow":
		c.Hedge.Shadow = true
	case "30ms":
		c.Hedge.Fixed = 30 * ms
	case "three":
		c.Hedge.MaxHedges = 3
	}
	c.Trace = p.newTrace()
	var ups []dnshedge.Upstream
	for i := range w.servers {
		if !w.way.others || slices.Contains(w.serversAt(p.since(), ""), i) {
			ups = append(ups, p.upstreamOf(i))
		}
	}
	last := len(ups) - 1
	switch w.way.by {
	case "resolvConf":
		p.writeConf()
		c.ResolvConf = filepath.Join(p.dir, "resolv.conf")
	case "strict":
		c.Upstreams, c.Order = ups, dnshedge.OrderStrict
	case "fallback":
		c.Upstreams, c.Fallback = ups[:1], ups[1:]
	case "exchanger":
		inner := &dnshedge.Client{Dialer: p, TLSConfig: c.TLSConfig, Timeout: c.Timeout, SpecialUse: c.SpecialUse, Upstreams: ups, Hedge: c.Hedge, Trace: c.Trace}
		p.addClient(inner)
		c.Exchanger = retainingExchanger{p, inner}
	case "route":
		inner := &dnshedge.Client{Dialer: p, TLSConfig: c.TLSConfig, Timeout: c.Timeout, SpecialUse: c.SpecialUse, Upstreams: ups[last:], Hedge: c.Hedge, Trace: c.Trace}
		p.addClient(inner)
		c.Upstreams, c.Routes = ups[:max(1, last)], map[string]dnshedge.Exchanger{"bad.example": retainingExchanger{p, inner}}
	case "loop":
		c.Upstreams = []dnshedge.Upstream{{Addr: netip.AddrPortFrom(p.net.Host("client").Addr(), 53).String()}}
	default:
		c.Upstreams = ups
	}
	if w.client.cache {
		c.Cache = &dnshedge.Cache{
			MinTTL: w.client.minTTL, MaxTTL: w.client.maxTTL, MaxNegativeTTL: w.client.maxNegative,
			StaleAfter: w.client.staleAfter, MaxStale: w.client.maxStale, NoRefresh: w.client.noRefresh,
		}
	}
	if strings.HasPrefix(w.way.files, "hosts") {
		c.Hosts = filepath.Join(p.dir, "hosts")
	}
	p.addClient(c)
	return c
}

func (p *dnsPlay) addClient(c *dnshedge.Client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clients = append(p.clients, c)
}

// newTrace returns a Trace that counts and records attempts.
func (p *dnsPlay) newTrace() *dnshedge.Trace {
	return &dnshedge.Trace{
		Attempt: func(_ context.Context, i dnshedge.AttemptInfo) {
			p.started.Add(1)
			p.mu.Lock()
			defer p.mu.Unlock()
			p.tries = append(p.tries, dnsTracedQuery{began: p.since(), AttemptInfo: i})
		},
		Done: func(_ context.Context, i dnshedge.AttemptInfo, took time.Duration, err error) {
			p.done.Add(1)
			p.mu.Lock()
			defer p.mu.Unlock()
			now := p.since()
			for n := range p.tries {
				if t := &p.tries[n]; t.end == 0 && t.began == now-took && reflect.DeepEqual(t.AttemptInfo, i) {
					t.end, t.err = now, err
					break
				}
			}
		},
	}
}

// A retainingExchanger is an Exchanger that retains its responses, as a cache does.
type retainingExchanger struct {
	p     *dnsPlay
	inner *dnshedge.Client
}

func (k retainingExchanger) ExchangeContext(ctx context.Context, m *dns.Msg, address string) (*dns.Msg, time.Duration, error) {
	r, took, err := k.inner.ExchangeContext(ctx, m, address)
	if err == nil {
		if opt := r.IsEdns0(); opt != nil && k.p.w.way.odd {
			opt.Hdr.Ttl |= 1 << 24 // which package dns mends when it packs the message
		}
		k.p.mu.Lock()
		defer k.p.mu.Unlock()
		k.p.kept = append(k.p.kept, [2]*dns.Msg{r, r.Copy()})
	}
	return r, took, err
}

// writeConf writes resolv.conf with the first half of the servers, and after a change with the second half.
func (p *dnsPlay) writeConf() {
	var b strings.Builder
	for _, s := range p.w.serversAt(p.since(), "") {
		fmt.Fprintf(&b, "nameserver %s\n", p.host(s).Addr())
	}
	path := filepath.Join(p.dir, "resolv.conf")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		panic(err)
	}
	now := time.Now()
	if err := os.Chtimes(path, now, now); err != nil {
		panic(err)
	}
}

// serversAt returns the servers for a name at a time, in their order.
func (w *dnsScenario) serversAt(at time.Duration, name string) (all []int) {
	for i := range w.servers {
		all = append(all, i)
	}
	last := len(all) - 1
	if (w.way.change == "resolvConf" || w.way.others) && last > 0 {
		half := len(all) / 2
		if at >= w.way.changeAt {
			return all[half:]
		}
		return all[:half]
	}
	switch w.way.by {
	case "resolvConf":
		return all[:min(3, len(all))] // resolv.conf(5)
	case "route":
		if strings.HasSuffix(name, ".bad.example.") {
			return all[last:]
		}
		return all[:max(1, last)]
	case "loop":
		return nil
	}
	return all
}

// hasStrictOrder reports whether the Client asks the first server first, and the next server after a failure.
func (w *dnsScenario) hasStrictOrder() bool {
	return w.way.by == "resolvConf" || w.way.by == "strict" || w.way.by == "fallback"
}
