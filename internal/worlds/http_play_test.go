package worlds_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/netsim"
)

// A httpPlay is one play of a httpScenario with its observations.
type httpPlay struct {
	w       *httpScenario
	hedged  bool
	shift   int // the server treats attempt n as n + shift
	only    int // the number of the call that is made, or everyCall
	start   time.Time
	network *netsim.Network
	client  http.RoundTripper
	hedge   *hedge.Transport // nil: the plain client
	limiter *hedge.Limiter   // nil: there is none
	bases   []*http.Transport
	places  chan struct{} // of the bulkhead
	open    atomic.Int64  // bodies of responses, if the base is wrapped

	present  atomic.Bool  // the past is over
	prepared atomic.Int64 // bodies that Prepare has set, and that are open

	results  []*httpResult
	next     *httpResult // of a call when all is over
	openLate int64       // open, when all is over
	stats    *hedge.Stats
	counter  countingObserver
	memory   latencyMemory
	broken   string // error of the bubble

	mu       sync.Mutex // guards the fields below
	arrivals map[int][]*arrival
	hedges   int
	spent    int // sum of their costs
	notes    []finding
	conns    map[string]int // that are open, by host
	connsEnd int            // after the client has closed idle connections
	peak     int            // of conns
	turn     int            // of the replicas
}

func (p *httpPlay) note(promise, detail string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notes = append(p.notes, finding{promise, detail})
}

const everyCall = 0

// playHTTP plays a scenario once.
func playHTTP(s *stage, w *httpScenario, hedged bool, shift, only int) *httpPlay {
	p := &httpPlay{w: w, hedged: hedged, shift: shift, only: only, arrivals: make(map[int][]*arrival), conns: make(map[string]int)}
	p.broken = s.runInBubble(p.run)
	return p
}

func (p *httpPlay) run() {
	p.start = time.Now()
	srv := p.startServer()
	p.newClient()
	root, cancel := context.WithCancel(context.Background())
	giveUp := time.AfterFunc(stuckAfter, cancel)
	for i := range p.w.past.calls {
		past := &httpCall{number: -i, method: "GET", path: "/items/1", cancel: -1, host: i % p.w.past.hosts}
		if p.w.past.outage > 0 {
			past.delay = 20 * ms
		}
		p.makeCall(root, past)
		time.Sleep(p.w.past.gap)
	}
	p.present.Store(true)
	p.startDisturbances(root)
	p.results = make([]*httpResult, len(p.w.calls))
	callAll(p.w.calls, giveUp, func(i int, c *httpCall) {
		p.results[i] = &httpResult{later: func() {}}
		if p.only == everyCall || p.only == c.number {
			time.Sleep(c.at)
			p.results[i] = p.makeCall(root, c)
		}
	})
	time.Sleep(10 * time.Second)
	synctest.Wait()
	p.openLate = p.open.Load()
	for _, r := range p.results {
		r.later()
	}
	p.next = p.makeCall(root, &httpCall{method: "GET", path: "/items/1", cancel: -1, deadline: 20 * time.Second})
	cancel()
	time.Sleep(3 * time.Second) // a connection is idle when its losers have ended, and over HTTP/2 when a reset stream is acknowledged
	p.closeIdle()
	time.Sleep(2 * time.Second)
	p.mu.Lock()
	for _, n := range p.conns {
		p.connsEnd += n
	}
	p.mu.Unlock()
	srv.Close()
	p.network.Close()
	time.Sleep(2 * forever) // for handlers that run on
}

// startServer starts the server.
func (p *httpPlay) startServer() *http.Server {
	network, err := netsim.NewMemory(1, "client", "server")
	if err != nil {
		panic(err)
	}
	l, err := network.Host("server").Listen("tcp", ":80")
	if err != nil {
		panic(err)
	}
	p.network = network
	var handler http.Handler = p
	if n := p.w.server.places; n > 0 {
		p.limiter = hedge.NewLimiter(n)
		handler = p.limiter.Handler(p)
	}
	srv := &http.Server{Handler: handler, ErrorLog: log.New(io.Discard, "", 0), Protocols: new(http.Protocols)}
	srv.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, serverConnKey{}, new(serverConn))
	}
	srv.Protocols.SetHTTP1(true)
	if p.w.server.tls {
		srv.Protocols.SetHTTP2(true)
		srv.TLSConfig = serverTLS()
		go func() { _ = srv.ServeTLS(l, "", "") }()
		return srv
	}
	srv.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = srv.Serve(l) }()
	return srv
}

// newClient makes the client.
func (p *httpPlay) newClient() {
	w := p.w
	if w.way.wrapped && w.way.bulkhead > 0 {
		p.places = make(chan struct{}, w.way.bulkhead)
	}
	p.client = p.newBase()
	over := p.newBase()
	if !p.hedged {
		return
	}
	options := []hedge.HTTPOption{hedge.WithBudgetPercent(100 * w.client.share)}
	if !w.server.unmarked {
		options = append(options, hedge.WithAttemptHeader(attemptHeader))
	}
	for range w.way.layers - 1 {
		below := slices.Clip(options)
		if w.client.firstByte { // or it is the header that decides there
			below = append(below, hedge.WithFirstByte())
		}
		p.client = hedge.New(p.client, below...)
	}
	options = append(options, hedge.WithStats(&p.stats))
	if w.way.second {
		options = append(options, hedge.WithHedgeTransport(over))
	}
	if w.way.replicas {
		options = append(options, hedge.WithReplicas(replicas))
	}
	if w.client.counts {
		options = append(options, hedge.WithObserver(&p.counter))
	}
	if w.elsewhere.endpoints > 0 {
		options = append(options, w.elsewhere.newOption(p))
	}
	for _, option := range w.client.options {
		options = append(options, option())
	}
	p.hedge = hedge.New(p.client, options...)
	p.client = p.hedge
}

// newBase returns a http.Transport, wrapped or not.
func (p *httpPlay) newBase() http.RoundTripper {
	y := &p.w.way
	t := &http.Transport{DialContext: p.dial, Protocols: new(http.Protocols), MaxConnsPerHost: y.maxConns, DisableKeepAlives: y.noKeepAlives, ResponseHeaderTimeout: y.headerTimeout}
	if p.w.server.tls { // the protocol follows from the TLS connection
		t.TLSClientConfig = clientTLS()
		t.Protocols.SetHTTP1(true)
		t.Protocols.SetHTTP2(p.w.http2)
	} else {
		t.Protocols.SetHTTP1(!p.w.http2)
		t.Protocols.SetUnencryptedHTTP2(p.w.http2)
	}
	p.bases = append(p.bases, t)
	if y.registered {
		outer := &http.Transport{DialContext: p.dial, Protocols: new(http.Protocols)}
		outer.Protocols.SetHTTP1(true)
		outer.RegisterProtocol(p.w.scheme(), t)
		p.bases, t = append(p.bases, outer), outer
	}
	if !y.wrapped {
		return t
	}
	outer := &middleware{p: p, base: t}
	if y.upgraded {
		outer.before = t.Clone()
		outer.before.Protocols.SetHTTP1(true)
		outer.before.Protocols.SetHTTP2(false)
		outer.before.Protocols.SetUnencryptedHTTP2(false)
		p.bases = append(p.bases, outer.before)
	}
	return outer
}

func (p *httpPlay) closeIdle() {
	for _, t := range p.bases {
		t.CloseIdleConnections()
	}
	if p.hedge != nil {
		p.hedge.CloseIdleConnections()
	}
}

type addresses []netip.Addr

func (a addresses) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) { return a, nil }

var replicas = addresses{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3"), netip.MustParseAddr("192.0.2.4")}

// dial connects to the server for any address.
func (p *httpPlay) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if d := p.w.way.dialling; d > 0 {
		if err := doubles.Sleep(ctx, d); err != nil {
			return nil, err
		}
	}
	inner, err := p.network.Host("client").DialContext(ctx, network, "server:80")
	if err != nil {
		return nil, err
	}
	time.Sleep(time.Nanosecond) // net/http dials for a free place of MaxConnsPerHost before it closes the connection that had the place
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &clientConn{Conn: inner, p: p, host: "shop"}
	if strings.HasPrefix(address, "host") || strings.HasPrefix(address, "endpoint") {
		c.host = address
	}
	p.conns[c.host]++
	p.peak = max(p.peak, p.conns[c.host])
	if p.w.way.replicas {
		peer, err := netip.ParseAddrPort(address)
		if err != nil {
			p.turn++
			peer = netip.AddrPortFrom(replicas[p.turn%len(replicas)], 80)
		}
		c.peer = net.TCPAddrFromAddrPort(peer)
	}
	return c, nil
}

// A clientConn is a connection that is counted while it is open.
type clientConn struct {
	net.Conn
	p    *httpPlay
	peer net.Addr
	host string
	once sync.Once
}

func (c *clientConn) RemoteAddr() net.Addr {
	if c.peer != nil {
		return c.peer
	}
	return c.Conn.RemoteAddr()
}

func (c *clientConn) Close() error {
	c.once.Do(func() {
		c.p.mu.Lock()
		defer c.p.mu.Unlock()
		c.p.conns[c.host]--
	})
	return c.Conn.Close()
}

// startDisturbances starts the changes of the client while calls run.
func (p *httpPlay) startDisturbances(root context.Context) {
	if p.hedge == nil {
		return
	}
	if n := p.w.client.warm; n > 0 {
		go func() {
			defer func() { _ = recover() }()
			_ = p.hedge.Warm(root, n, p.w.scheme()+"://shop.test/warm")
		}()
	}
	if p.w.client.change != "" {
		time.AfterFunc(13*ms, func() { applyChange(p.hedge, p.w.client.change) })
	}
}

func (w *httpScenario) scheme() string {
	if w.server.tls {
		return "https"
	}
	return "http"
}

func (c *httpCall) url(scheme string) string {
	if c.host > 0 {
		return fmt.Sprintf("%s://host%d.test%s", scheme, c.host, c.path)
	}
	return scheme + "://shop.test" + c.path
}
