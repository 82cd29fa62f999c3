// Package dnshedge is a DNS client that hides lost packets, stalled connections
// and slow servers from its callers.
//
// A [Client] sends a query to the best of a group of equivalent servers. If the
// answer is late, it sends a hedge: the same question from another socket or over
// another connection, to another server if there is one. When an answer is late
// is learned (see [Hedge]); a budget bounds the hedges to 5 % of the queries. A
// Client speaks UDP, TCP, TLS and HTTPS, keeps connections open, and may have a
// [Cache].
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
//	// As a forwarder, see [Server]; or with package dns:
//	dns.ListenAndServe(":53", "udp", dns.HandlerFunc(c.ServeDNS))
//
// # What hedging must not change
//
// The first answer wins, but a failure does not. After SERVFAIL, REFUSED, NOTIMP,
// FORMERR or a lame answer the Client asks the next server at once; it returns the
// failure only if no server does better. A SERVFAIL whose extended error (RFC 8914)
// names DNSSEC or a filter is final, because a server that does not validate or
// filter would give the answer that this one withholds. For the same reason
// Upstreams must be equivalent: they must answer the same questions in the same
// way. Put other servers into Fallback.
//
// # Operation
//
// A Client is operated as the clients of package hedge are. Its Observers are told of
// attempts, answers and refusals, in terms that all protocols share (package observe), and
// Trace in those of DNS. Logger tells what changed. Stats says what is known and was done,
// and package debug shows it on a page. SetEnabled switches hedging off and on.
//
// HEDGE_DISABLED and HEDGE_MODE in the environment have the values that the doc of package
// hedge lists. They are read when the Client is first used; HEDGE_MODE=shadow does what
// Hedge.Shadow does, and HEDGE_MODE=audit has no effect.
//
// # When it does not help
//
// Hedging does not help with a single upstream if a name is slow for every server,
// because the server already works on it. Such questions are hedged less and less:
// hedges that do not win lower their own budget. Nor does it help with a single
// server on the same machine, which is never late.
package dnshedge

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/lookup"
	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/budget"
	"github.com/gohedge/hedge/internal/engine"
	"github.com/gohedge/hedge/internal/ops"
	"github.com/gohedge/hedge/internal/watch"
	"github.com/gohedge/hedge/observe"
)

const (
	defaultTimeout  = 5 * time.Second
	defaultInFlight = 2048

	maxServers   = 256              // that a Client remembers, besides those that are being asked
	forgetServer = 30 * time.Second // a server of the system may be forgotten if no question could go to it for so long
)

// Client asks DNS servers. The zero value asks those of the system, with defaults and
// without a cache. Its fields must not be changed after first use.
// A Client is safe for concurrent use.
type Client struct {
	// Upstreams is a group of equivalent servers, in the order of preference, which
	// holds until their round trip times are known. Empty: the system's servers, which are
	// read again when they change. On Windows they are those of the network adapters, by
	// the adapters' metrics. On macOS they are those that scutil names, also for the names in
	// some domains only, as a VPN and files in /etc/resolver set them. Elsewhere, and where
	// there is no scutil, they are in /etc/resolv.conf.
	Upstreams []Upstream

	// Order says which of the Upstreams is asked first. Zero: OrderAuto.
	Order Order

	// Fallback lists servers for the case that all Upstreams fail. They are asked in
	// order, each after the one before it has failed. Upstreams get half of Timeout, or
	// all of it while they answer other questions, and Fallback shares the rest. A failure
	// that a healthy server reports is its decision, as that of a filter or of a server
	// that validates, and is not put to Fallback. While all Upstreams are down, which
	// takes three failures in a row and a failed probe, Fallback is asked first.
	Fallback []Upstream

	// Exchanger is asked instead of Upstreams and Fallback, which must be empty, once for
	// each question. A Cache keeps its SERVFAIL for 5 s, and for twice as long each time it is
	// repeated, 5 minutes at most (RFC 9520); those of servers for 1 to 5 s. Nil: the servers are asked.
	Exchanger Exchanger

	// Routes are asked instead of all others about the names in a domain, itself included.
	// The longest domain counts, and "." is the one of all names. Nil as a domain's
	// Exchanger: its names are asked as if there were no Routes.
	Routes map[string]Exchanger

	// Hedge says when a question is asked a second time.
	Hedge Hedge

	// Cache keeps answers. With a Cache, callers that have the same question at the
	// same time share one exchange. Nil: no answer is kept or shared.
	Cache *Cache

	// Timeout bounds an exchange with all its attempts. Zero: 5 s. It must not be
	// negative.
	Timeout time.Duration

	// MaxInFlight bounds the questions that wait for servers at a time. One more, and the
	// one that has waited longest ends with ErrTooManyQuestions, or SERVFAIL through
	// ServeDNS: names whose servers are dead must not hold up those whose are not. Zero:
	// 2048, which take some 40 MB. It must not be negative.
	MaxInFlight int

	// UDPSize is the longest datagram that servers may send, 512 to 4096 bytes.
	// Zero: 1232, which every path carries without fragments.
	UDPSize int

	// TLSConfig is for upstreams with a certificate: "tls" and "https". Nil: the
	// system's roots.
	TLSConfig *tls.Config

	// Dialer opens connections to upstreams. Nil: a net.Dialer. It must not resolve
	// names through this Client.
	Dialer Dialer

	// ResolvConf is where the system's servers are read if Upstreams is empty.
	// Empty: /etc/resolv.conf; on Windows the network adapters, on macOS scutil.
	ResolvConf string

	// SpecialUse says which special-use names are answered without asking a server. Zero:
	// SpecialUseLibrary.
	SpecialUse SpecialUse

	// Hosts is a file of addresses and their names, as /etc/hosts, that is asked before
	// anything else. It is read again within 5 s of a change. Names in it have no other
	// addresses; the TTL is 30 s. Empty: none. Resolver needs none, for Go reads /etc/hosts
	// by itself.
	Hosts string

	// RebindFilter keeps private addresses out of answers. Nil: all answers pass.
	RebindFilter *RebindFilter

	// Trace is told of attempts and answers, in the terms of DNS: names, types,
	// upstreams, caches. Nil: nobody is told.
	Trace *Trace

	// Name names the Client for Observers, metrics and the log. Empty: no name.
	Name string

	// Observers are told what happens to every question that is put to servers, in the
	// terms that HTTP and gRPC share: hedgeprom and hedgeotel have observers. What an
	// Exchanger does is for its own observers. They must not be nil. Empty: nobody is
	// told, and that costs nothing.
	Observers []observe.Observer

	// Logger logs changes of state, and never single questions: hedging of an upstream
	// is paused or resumed; its budget is exhausted, or at least half full again; an upstream
	// is silent or fails, or answers again; hedging is switched off or on; Import learns; and a
	// panic of an observer. The same message for the same upstream is logged at most once in ten
	// seconds. One goroutine calls the handler's Handle, in order, so that it may be slow or ask
	// this Client; while 1024 messages wait, others are dropped. Close waits for the messages,
	// and so a handler must not call it. Nil: only such a panic and a variable of the
	// environment that cannot be understood are logged, to slog.Default.
	Logger *slog.Logger

	once sync.Once
	core *core
	err  error // why the fields are invalid
}

// core is a Client in use.
type core struct {
	conf      *Client
	engine    *engine.Engine
	bucket    *budget.Bucket
	refreshes *budget.Bucket // of refreshes, which thus cost no hedge
	waiting   line           // of questions, for servers
	spending  sync.Mutex     // makes asking the Client's bucket and a server's one step
	sessions  tls.ClientSessionCache
	system    *resolvConf // nil if there are Upstreams
	hosts     *hostsFile  // nil if there is none
	group     []*upstreamState
	fallback  []*upstreamState
	routes    map[string]Exchanger // by domain, in wire format and lower case
	count     counters
	watcher   *watch.Watcher // nil: there are no observers
	log       *ops.Log
	records   logQueue    // of log
	off       atomic.Bool // by SetEnabled or the environment
	shadow    bool        // hedges are only counted

	flying  sync.Mutex         // guards flights
	flights map[string]*flight // by question

	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	mu      sync.Mutex // guards the fields below
	servers map[string]*upstreamState
	closed  bool
	wg      sync.WaitGroup // of what runs in the background
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
	case conf.MaxInFlight < 0:
		return nil, fmt.Errorf("dnshedge: Client.MaxInFlight is %d; want 0 or more", conf.MaxInFlight)
	case conf.UDPSize != 0 && (conf.UDPSize < dns.MinMsgSize || conf.UDPSize > transport.MaxDatagram):
		return nil, fmt.Errorf("dnshedge: Client.UDPSize is %d; want 0, or 512 to 4096", conf.UDPSize)
	case conf.Exchanger != nil && len(conf.Upstreams)+len(conf.Fallback) > 0:
		return nil, errors.New("dnshedge: Client.Exchanger is set, and so are Upstreams or Fallback; want one of them")
	}
	if err := cmp.Or(conf.Hedge.validate(), conf.Order.validate()); err != nil {
		return nil, err
	}
	if err := conf.SpecialUse.validate(); err != nil {
		return nil, err
	}
	if conf.RebindFilter != nil {
		if err := conf.RebindFilter.validate(); err != nil {
			return nil, err
		}
	}
	if conf.Cache != nil {
		if err := conf.Cache.validate(); err != nil {
			return nil, err
		}
	}
	c := &core{
		conf:      conf,
		bucket:    budget.NewBucket(conf.Hedge.share(), budgetBurst),
		sessions:  tls.NewLRUClientSessionCache(0),
		servers:   make(map[string]*upstreamState),
		flights:   make(map[string]*flight),
		refreshes: budget.NewBucket(conf.Hedge.share(), budgetBurst),
		waiting:   line{max: cmp.Or(conf.MaxInFlight, defaultInFlight)},
	}
	if conf.Hosts != "" {
		f, err := newHostsFile(conf.Hosts)
		if err != nil {
			return nil, fmt.Errorf("dnshedge: Client.Hosts: %w", err)
		}
		c.hosts = f
	}
	if err := c.observe(); err != nil {
		return nil, err
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	var err error
	if c.group, err = c.all(conf.Upstreams); err != nil {
		return nil, err
	}
	if c.fallback, err = c.all(conf.Fallback); err != nil {
		return nil, err
	}
	if c.routes, err = newRoutes(conf.Routes); err != nil {
		return nil, err
	}
	if len(c.group) == 0 && conf.Exchanger == nil {
		c.system = &resolvConf{path: conf.ResolvConf}
		if conf.ResolvConf == "" {
			c.system.ask, c.system.path = askSystem, systemConf
		}
	}
	return c, nil
}

func (c *core) timeout() time.Duration { return cmp.Or(c.conf.Timeout, defaultTimeout) }

// all returns the state of each upstream. One that is given twice is one: what it could not
// answer it will not answer when it is asked as another server.
func (c *core) all(ups []Upstream) ([]*upstreamState, error) {
	var out []*upstreamState
	for _, up := range ups {
		s, err := c.server(up, false)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out, nil
}

// server returns the state of an upstream, a new one if it was not asked before. If it is
// asked alone, by its address, the caller must call release.
func (c *core) server(up Upstream, alone bool) (*upstreamState, error) {
	name := up.key()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, transport.ErrClosed
	}
	s := c.servers[name]
	if s == nil {
		var err error
		if s, err = newUpstreamState(c, up); err != nil {
			return nil, err
		}
		s.used.Store(time.Now().UnixNano())
		s.alone = true
		for len(c.servers) >= maxServers && c.forget() {
		}
		c.servers[name] = s
	}
	if alone {
		s.callers++
	} else {
		s.alone, s.wanted = false, time.Now()
	}
	return s, nil
}

// release ends the use of a server that was asked alone.
func (c *core) release(s *upstreamState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.callers--
}

// forget closes the server that was asked least recently, unless somebody waits for it,
// it belongs to Upstreams or Fallback, or is the system's and a question that may still be
// put to it came within forgetServer. It reports false if there is none. The caller holds mu.
func (c *core) forget() bool {
	var oldest *upstreamState
	patience := max(forgetServer, c.timeout())
	for _, s := range c.servers {
		if oldest != nil && s.used.Load() >= oldest.used.Load() {
			continue
		}
		keep := s.callers > 0 || slices.Contains(c.group, s) || slices.Contains(c.fallback, s)
		if !keep && (s.alone || time.Since(s.wanted) >= patience) {
			oldest = s
		}
	}
	if oldest == nil {
		return false
	}
	delete(c.servers, oldest.name)
	c.wg.Go(oldest.close)
	return true
}

// begin counts a goroutine that Close waits for, and that must call c.wg.Done, or
// reports false if the Client is closed.
func (c *core) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.wg.Add(1)
	}
	return !c.closed
}

// spawn calls f in a goroutine that Close waits for, with a context that Close
// ends, or reports false if the Client is closed.
func (c *core) spawn(f func(context.Context)) bool {
	if !c.begin() {
		return false
	}
	go func() {
		defer c.wg.Done()
		f(c.ctx)
	}()
	return true
}

// Close closes all connections, ends everything that runs in the background, and
// waits until it has ended. Exchanges that still wait fail, or end when their
// servers answer. Close always returns nil. Exchanges after Close fail.
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
		s.close()
	}
	core.wg.Wait()
	core.records.close()
	return nil
}

// Exchange is ExchangeContext without a context.
func (c *Client) Exchange(m *dns.Msg, address string) (r *dns.Msg, rtt time.Duration, err error) {
	return c.ExchangeContext(context.Background(), m, address)
}

// ExchangeContext answers the question of m, which it does not change. The
// response has m's ID and spelling, and an OPT record if and only if m has one; it
// shares no memory with the cache. The duration is how long the exchange took, 0 if
// the answer was in the cache.
//
// If address is empty, the Client's servers are asked. Otherwise only the server at
// address is asked, which is a host and port for UDP, or whatever ParseUpstream
// reads; a hedge goes to the same server, from another socket or over a second
// connection, and the answer is not kept.
//
// EDNS options of m are sent, except those that concern one path: cookies, padding and
// how long a connection may be idle. The server's are then in the response, which is
// not kept.
//
// As with dns.Client, a response that reports a failure is no error. Errors of an
// exchange are of type *Error, and wrap the cause; that of a context is not
// changed. Messages whose opcode is not QUERY (updates, notifications) are sent
// once, as they are, except for the ID. Zone transfers and TSIG are refused.
func (c *Client) ExchangeContext(ctx context.Context, m *dns.Msg, address string) (r *dns.Msg, rtt time.Duration, err error) {
	core, err := c.init()
	if err != nil {
		return nil, 0, err
	}
	q, err := wire.NewQuery(m)
	if err != nil {
		return nil, 0, err
	}
	if address == "" && !lookup.IsFromServers(ctx) {
		if f, ok := core.hit(ctx, q); ok {
			a, view, _ := f.answer(q)
			return a.Message(m, q, view), 0, nil
		}
	}
	start := time.Now()
	var stay context.Context
	if ctx.Done() == nil {
		stay = ctx
	}
	out := core.answer(ctx, stay, q, address)
	if out.err != nil {
		return nil, time.Since(start), out.err
	}
	r = out.answer.Message(m, q, out.view)
	return r, time.Since(start), nil
}
