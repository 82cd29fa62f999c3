// Package dnshedge asks DNS questions so that a lost packet, a stalled
// connection or one slow server does not show.
//
// A [Client] sends a query to the best of a group of equivalent servers, and if
// the answer is late, a hedge: the same question from another socket or over
// another connection, to another server where there is one. How late is learned
// (see [Hedge]); what hedges may cost is bounded by a budget, 5 % of the queries.
// It speaks UDP, TCP, TLS and HTTPS, keeps connections, and may have a [Cache].
//
// There are three ways to use it:
//
//	c := &dnshedge.Client{Cache: new(dnshedge.Cache)} // the system's servers
//
//	// Every net.Dialer, http.Transport, gRPC or database client of a program:
//	net.DefaultResolver = c.Resolver()
//
//	// In place of a *dns.Client of github.com/miekg/dns:
//	r, rtt, err := c.ExchangeContext(ctx, m, "")
//
//	// As a forwarder:
//	dns.ListenAndServe(":53", "udp", dns.HandlerFunc(c.ServeDNS))
//
// # What hedging must not change
//
// The first answer wins, but a failure does not: SERVFAIL, REFUSED, NOTIMP,
// FORMERR and a lame answer make the next server be asked at once, and are
// returned only if none does better. A SERVFAIL that says it is meant (DNSSEC or
// a filter, RFC 8914) is an answer, because asking a server that does not
// validate or filter would undo what this one is there for. For the same reason
// Upstreams must be equivalent: what answers the same questions in the same way.
// Others belong into Fallback.
//
// # When it does not help
//
// A name that is slow for every server, with one upstream: the server already
// works on it. Such questions are hedged less and less, for hedges that do not
// win lower their own budget. A single server on the same machine.
package dnshedge

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/singleflight"

	"github.com/gohedge/hedge/internal/engine"
)

const (
	defaultTimeout = 5 * time.Second

	// maxServers is how many servers a Client remembers that were given by address.
	maxServers = 256
	serverRest = 30 * time.Second // an unused server may be forgotten after
)

// Client asks DNS servers. The zero value asks those of /etc/resolv.conf, with
// defaults and without a cache. Its fields must not be changed after first use.
// A Client is safe for concurrent use.
type Client struct {
	// Upstreams is a group of equivalent servers, in order of preference until
	// their round trip times are known. Empty: the system's, read again when the
	// file changes.
	Upstreams []Upstream

	// Fallback are servers asked one after another, each only once all before it
	// failed, and all of Upstreams. They share what remains of Timeout, of which
	// Upstreams get half. While all Upstreams are silent, Fallback comes first.
	Fallback []Upstream

	// Hedge says when a question is asked twice.
	Hedge Hedge

	// Cache keeps answers, and makes callers with the same question wait for one
	// exchange. Nil: neither.
	Cache *Cache

	// Timeout bounds an exchange with all its attempts. Zero: 5 s.
	Timeout time.Duration

	// UDPSize is the largest datagram that servers may send, 512 to 4096.
	// Zero: 1232, which fits every path without fragments.
	UDPSize int

	// TLSConfig is for "tls" and "https" upstreams. Nil: the system's roots.
	TLSConfig *tls.Config

	// Dialer opens connections to upstreams. Nil: a net.Dialer. It must not resolve
	// names through this Client.
	Dialer Dialer

	// ResolvConf is where the system's servers are read if Upstreams is empty.
	// Empty: /etc/resolv.conf.
	ResolvConf string

	// Trace is told what happens. Nil: nothing is.
	Trace *Trace

	once sync.Once
	core *core
	err  error // what is wrong with the fields
}

// core is a Client in use.
type core struct {
	conf     *Client
	engine   *engine.Engine
	bucket   *engine.Bucket
	spending sync.Mutex // makes asking both buckets one step
	sessions tls.ClientSessionCache
	system   *resolvConf // nil if there are Upstreams
	group    []*server
	fallback []*server
	flights  singleflight.Group
	count    counters

	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex // guards the fields below
	servers map[string]*server
	closed  bool
	wg      sync.WaitGroup // of what no caller waits for
}

// init makes the core when the Client is first used.
func (c *Client) init() (*core, error) {
	c.once.Do(func() { c.core, c.err = newCore(c) })
	return c.core, c.err
}

func newCore(conf *Client) (*core, error) {
	switch {
	case conf.Timeout < 0:
		return nil, fmt.Errorf("dnshedge: Client.Timeout is %v; want 0 or more", conf.Timeout)
	case conf.UDPSize != 0 && (conf.UDPSize < dns.MinMsgSize || conf.UDPSize > maxDatagram):
		return nil, fmt.Errorf("dnshedge: Client.UDPSize is %d; want 0, or 512 to 4096", conf.UDPSize)
	}
	if err := conf.Hedge.validate(); err != nil {
		return nil, err
	}
	if conf.Cache != nil {
		if err := conf.Cache.validate(); err != nil {
			return nil, err
		}
	}
	c := &core{
		conf:     conf,
		engine:   engine.New(conf.Hedge.engine()),
		bucket:   engine.NewBucket(conf.Hedge.share(), budgetBurst),
		sessions: tls.NewLRUClientSessionCache(0),
		servers:  make(map[string]*server),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	var err error
	if c.group, err = c.all(conf.Upstreams); err != nil {
		return nil, err
	}
	if c.fallback, err = c.all(conf.Fallback); err != nil {
		return nil, err
	}
	if len(c.group) == 0 {
		c.system = &resolvConf{path: cmp.Or(conf.ResolvConf, "/etc/resolv.conf")}
	}
	return c, nil
}

func (c *core) timeout() time.Duration { return cmp.Or(c.conf.Timeout, defaultTimeout) }

func (c *core) dialer() Dialer {
	if c.conf.Dialer != nil {
		return c.conf.Dialer
	}
	return new(net.Dialer)
}

// tls returns the configuration for connections to an upstream.
func (c *core) tls(up Upstream, protocols ...string) *tls.Config {
	t := c.conf.TLSConfig.Clone()
	if t == nil {
		t = new(tls.Config)
	}
	if up.ServerName != "" || t.ServerName == "" {
		t.ServerName = up.serverName()
	}
	if t.ClientSessionCache == nil {
		t.ClientSessionCache = c.sessions
	}
	t.NextProtos = protocols
	return t
}

// all returns the servers of upstreams.
func (c *core) all(ups []Upstream) ([]*server, error) {
	var out []*server
	for _, up := range ups {
		s, err := c.server(up)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// server returns the server of an upstream, a new one if it was not asked before.
func (c *core) server(up Upstream) (*server, error) {
	name := up.String()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed
	}
	if s := c.servers[name]; s != nil {
		return s, nil
	}
	s, err := newServer(c, up)
	if err != nil {
		return nil, err
	}
	s.used.Store(time.Now().UnixNano())
	if len(c.servers) >= maxServers {
		c.forget()
	}
	c.servers[name] = s
	return s, nil
}

// forget closes the server that was not asked for longest, if it rests. The
// caller holds mu.
func (c *core) forget() {
	var oldest *server
	for _, s := range c.servers {
		fixed := false
		for _, f := range append(c.group[:len(c.group):len(c.group)], c.fallback...) {
			fixed = fixed || f == s
		}
		if !fixed && (oldest == nil || s.used.Load() < oldest.used.Load()) {
			oldest = s
		}
	}
	if oldest != nil && time.Since(time.Unix(0, oldest.used.Load())) >= serverRest {
		delete(c.servers, oldest.name)
		c.wg.Go(oldest.transport.close)
	}
}

// spawn calls f in a goroutine that Close waits for, with a context that Close
// ends, or reports false if the Client is closed.
func (c *core) spawn(f func(context.Context)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.wg.Go(func() { f(c.ctx) })
	return true
}

// Close closes all connections, ends what runs in the background, and waits for
// it. Exchanges that still wait fail, or end when their servers answer. Close
// always returns nil; using the Client afterwards is an error.
func (c *Client) Close() error {
	core, err := c.init()
	if err != nil {
		return nil
	}
	core.mu.Lock()
	core.closed = true
	servers := core.servers
	core.servers = nil
	core.mu.Unlock()
	core.cancel()
	for _, s := range servers {
		s.transport.close()
	}
	core.wg.Wait()
	return nil
}

// Exchange is ExchangeContext without a context.
func (c *Client) Exchange(m *dns.Msg, address string) (r *dns.Msg, rtt time.Duration, err error) {
	return c.ExchangeContext(context.Background(), m, address)
}

// ExchangeContext answers the question of m, which it does not change. The
// response has m's ID and spelling, an OPT record if and only if m has one, and
// is the caller's own. The duration is how long it took, nearly 0 if the answer
// was in the cache.
//
// An empty address asks the Client's servers. Another is a host and port to ask
// over UDP, or whatever ParseUpstream reads: that server is asked alone, a hedge
// goes to it from another socket or over a second connection, and the answer is
// not kept.
//
// As with dns.Client, a response that reports a failure is no error. Errors are
// of type *Error, and wrap what went wrong: a context's error as it is. Messages
// that are no plain queries (updates, notifications) are sent once, as they are,
// except for the ID. Zone transfers and TSIG are refused.
func (c *Client) ExchangeContext(ctx context.Context, m *dns.Msg, address string) (r *dns.Msg, rtt time.Duration, err error) {
	core, err := c.init()
	if err != nil {
		return nil, 0, err
	}
	q, err := newQuery(m)
	if err != nil {
		return nil, 0, err
	}
	start := time.Now()
	a, v, err := core.exchange(ctx, q, address)
	if err != nil {
		return nil, time.Since(start), err
	}
	r = a.message(m, q, v)
	return r, time.Since(start), nil
}

// exchange answers a question from the cache or by asking.
func (c *core) exchange(ctx context.Context, q *query, address string) (*answer, view, error) {
	c.count.queries.Add(1)
	if address != "" {
		a, err := c.exchangeWith(ctx, q, address)
		return a, view{}, err
	}
	if c.conf.Cache == nil || !q.cacheable() {
		ctx, cancel := context.WithTimeout(ctx, c.timeout())
		defer cancel()
		f := c.resolve(ctx, q, false)
		c.traceAnswer(ctx, q, f, FromServer)
		return f.answer, view{}, f.err
	}
	return c.cached(ctx, q)
}

// exchangeWith asks one server.
func (c *core) exchangeWith(ctx context.Context, q *query, address string) (*answer, error) {
	if !strings.Contains(address, "://") {
		if _, err := ParseUpstream(address); err != nil {
			address = "udp://" + address
		}
	}
	up, err := ParseUpstream(address)
	if err != nil {
		return nil, err
	}
	s, err := c.server(up)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout())
	defer cancel()
	f := c.finish(q, []*server{s}, ctx)
	c.traceAnswer(ctx, q, f, FromServer)
	return f.answer, f.err
}

// found is what an exchange with servers came to.
type found struct {
	*answer
	won   won
	tries int
	ttl   time.Duration // how long the answer may be kept; 0: not
	err   error
}

// failed reports whether another server may do better.
func (f *found) failed(q *query) bool {
	return f.err != nil || q.raw == nil && outcome(f.answer, q) == failed
}

// finish asks a group and makes what it says ready to be shared.
func (c *core) finish(q *query, group []*server, ctx context.Context) found {
	w, tries, err := c.ask(ctx, q, group)
	f := found{won: w, tries: tries}
	if err == nil {
		f.answer = w.answer
		if up := seconds(w.age); up > 0 {
			f.records(func(rr dns.RR) { h := rr.Header(); h.Ttl -= min(h.Ttl, up) })
		}
		if q.raw == nil && c.conf.Cache != nil {
			if ttl, ok := c.conf.Cache.adopt(f.answer, q); ok {
				f.ttl = ttl
			}
		}
		err = f.seal()
	}
	if err != nil {
		c.count.failures.Add(1)
		f.answer, f.err = nil, w.from.fail(q, err)
	}
	return f
}

// resolve asks the group, and the fallback servers if that fails.
func (c *core) resolve(ctx context.Context, q *query, explore bool) found {
	group, err := c.upstreams()
	if err != nil {
		return found{err: err}
	}
	now := time.Now()
	silent := allSilent(group)
	if !silent || !allSilent(c.fallback) {
		for _, list := range [...][]*server{group, c.fallback} {
			for _, s := range list {
				s.probe(now)
			}
		}
	}
	ordered := order(group, now, explore)
	if len(c.fallback) == 0 {
		return c.finish(q, ordered, ctx)
	}
	if silent {
		if f, ok := c.fallBack(ctx, q, len(c.fallback)+1); ok {
			return f
		}
		return c.finish(q, ordered, ctx)
	}
	half, cancel := part(ctx, 2)
	f := c.finish(q, ordered, half)
	cancel()
	if !f.failed(q) || ctx.Err() != nil {
		return f
	}
	if g, ok := c.fallBack(ctx, q, len(c.fallback)); ok {
		return g
	}
	return f
}

// fallBack asks the fallback servers one after another. Each gets its share of
// what is left of the time, of which there are n at first.
func (c *core) fallBack(ctx context.Context, q *query, n int) (found, bool) {
	servers := c.fallback
	if allSilent(servers) {
		servers = order(servers, time.Now(), false)
		slices.Reverse(servers) // for the last is asked in any case
	}
	for i, s := range servers {
		if s.silent() && i < len(servers)-1 {
			continue
		}
		c.count.fallbacks.Add(1)
		share, cancel := part(ctx, n-i)
		f := c.finish(q, []*server{s}, share)
		cancel()
		if !f.failed(q) {
			return f, true
		}
		if ctx.Err() != nil {
			break
		}
	}
	return found{}, false
}

// part returns a context that ends after the n-th part of what is left of ctx.
func part(ctx context.Context, n int) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok || n <= 1 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(end)/time.Duration(n))
}

// upstreams returns the servers to ask: the Upstreams, or the system's.
func (c *core) upstreams() ([]*server, error) {
	if c.system == nil {
		return c.group, nil
	}
	ups := c.system.upstreams(time.Now())
	group, err := c.all(ups)
	if err != nil && !errors.Is(err, errClosed) {
		err = fmt.Errorf("dnshedge: %s: %w", c.system.path, err)
	}
	return group, err
}

// cached answers a question that may be in the cache.
func (c *core) cached(ctx context.Context, q *query) (*answer, view, error) {
	now := time.Now()
	cache := c.conf.Cache
	e, s, refresh := cache.get(q, now)
	if refresh {
		c.refresh(q, e)
	}
	if s == fresh {
		c.count.hits.Add(1)
		c.traceHit(ctx, q, e, FromCache)
		if e.answer == nil {
			return nil, view{}, e.err
		}
		return e.answer, e.view(now, s), nil
	}
	stale := func() (*answer, view, error) {
		c.count.stale.Add(1)
		c.traceHit(ctx, q, e, FromStale)
		return e.answer, e.view(now, old), nil
	}
	var timer <-chan time.Time
	if s == old {
		if now.UnixNano() < e.recheck.Load() {
			return stale()
		}
		wait := or(cache.StaleAfter, defaultStaleAfter)
		if wait == 0 {
			if e.refreshing.CompareAndSwap(false, true) {
				c.flight(q, false)
			}
			return stale()
		}
		t := time.NewTimer(wait)
		defer t.Stop()
		timer = t.C
	}
	ch := c.flight(q, false)
	select {
	case r := <-ch:
		f := r.Val.(found)
		if s == old && f.failed(q) && !f.meant(q) {
			return stale()
		}
		if r.Shared {
			c.count.shared.Add(1)
		}
		c.traceAnswer(ctx, q, f, FromServer)
		return f.answer, view{}, f.err
	case <-timer:
		// The servers are slow: what they say will be kept, and until then nobody waits.
		e.spareUntil(now.Add(staleRecheck))
		return stale()
	case <-ctx.Done():
		return nil, view{}, &Error{Name: q.text(), Type: q.typ, Err: context.Cause(ctx)}
	}
}

// meant reports whether a failure is a decision that must not be hidden by an
// older answer.
func (f *found) meant(q *query) bool { return f.err == nil && outcome(f.answer, q) == denied }

// flight asks the servers, once for all who have the same question at a time. It
// does not end with its callers.
func (c *core) flight(q *query, explore bool) <-chan singleflight.Result {
	return c.flights.DoChan(q.key(), func() (any, error) {
		done := make(chan found, 1)
		if !c.spawn(func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, c.timeout())
			defer cancel()
			f := c.resolve(ctx, q, explore)
			c.keep(q, f)
			done <- f
		}) {
			return found{err: &Error{Name: q.text(), Type: q.typ, Err: errClosed}}, nil
		}
		return <-done, nil
	})
}

// keep has the cache learn what came of a question.
func (c *core) keep(q *query, f found) {
	now := time.Now()
	switch {
	case errors.Is(f.err, errClosed) || c.ctx.Err() != nil:
	case f.ttl > 0:
		c.conf.Cache.put(q, f.answer, f.ttl, now)
	case f.err != nil || outcome(f.answer, q) >= denied:
		c.conf.Cache.fail(q, f.answer, f.err, now)
	}
}

// refresh asks anew for what will soon expire, if the hedge budget pays.
func (c *core) refresh(q *query, e *entry) {
	if !c.spend() {
		e.refreshing.Store(false)
		return
	}
	c.count.refreshes.Add(1)
	c.flight(q, true)
}

// text returns the query's name as text.
func (q *query) text() string {
	name, _, _ := dns.UnpackDomainName([]byte(q.name), 0) // was packed or parsed before
	return name
}

// answerWire appends the response to q, in wire format and at most limit bytes
// long (0: no limit). It speaks for the Client, which recurses for its clients,
// so to say, and has authority over nothing.
func (c *core) answerWire(ctx context.Context, b []byte, q *query, limit int) ([]byte, error) {
	a, v, err := c.exchange(ctx, q, "")
	if err != nil {
		return b, err
	}
	start := len(b)
	b = a.append(b, q, v, limit)
	b[start+2] &^= flagAA >> 8
	b[start+3] |= flagRA
	return b, nil
}

// ServeDNS answers r, so that a Client is a dns.Handler. What cannot be answered
// gets SERVFAIL with an extended error (RFC 8914), what cannot be understood
// FORMERR or NOTIMP. Over UDP, responses that the client cannot take are cut.
func (c *Client) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
	b := bodies.Get().(*[]byte)
	defer bodies.Put(b)
	*b = c.serve((*b)[:0], w, r)
	// A client that is gone needs no answer.
	_, _ = w.Write(*b)
}

var bodies = sync.Pool{New: func() any { b := make([]byte, 0, 2048); return &b }}

func (c *Client) serve(b []byte, w dns.ResponseWriter, r *dns.Msg) []byte {
	reject := func(code int) []byte {
		m := new(dns.Msg)
		m.SetRcode(r, code)
		b, err := m.Pack()
		if err != nil {
			b, _ = (&dns.Msg{MsgHdr: m.MsgHdr}).Pack() // a header always packs
		}
		return b
	}
	if r.Opcode != dns.OpcodeQuery {
		return reject(dns.RcodeNotImplemented)
	}
	q, err := newQuery(r)
	if err != nil {
		return reject(dns.RcodeFormatError)
	}
	core, err := c.init()
	if err != nil {
		return q.failure(b, dns.RcodeServerFailure, ede{edeNoReachable, err.Error()})
	}
	limit := 0
	if _, ok := w.RemoteAddr().(*net.UDPAddr); ok {
		limit = min(q.size, maxDatagram)
	}
	out, err := core.answerWire(context.Background(), b, q, limit)
	if err != nil {
		code := uint16(edeNetwork)
		if t := (*Error)(nil); errors.As(err, &t) && t.Timeout() {
			code = edeNoReachable
		}
		return q.failure(b, dns.RcodeServerFailure, ede{code: code})
	}
	return out
}

var _ dns.Handler = (*Client)(nil)

// counters are a Client's.
type counters struct {
	queries, hits, stale, shared, refreshes   atomic.Int64
	wire, hedges, hedgeWins, denied           atomic.Int64
	resends, resendWins, failovers, fallbacks atomic.Int64
	retries, ignored, abandoned, failures     atomic.Int64
}
