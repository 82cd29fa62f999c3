package dnshedge

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/domain"
	"github.com/gohedge/hedge/dnshedge/internal/flight"
	"github.com/gohedge/hedge/dnshedge/internal/group"
	"github.com/gohedge/hedge/dnshedge/internal/localerror"
	"github.com/gohedge/hedge/dnshedge/internal/lookup"
	"github.com/gohedge/hedge/dnshedge/internal/special"
	"github.com/gohedge/hedge/dnshedge/internal/system"
	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/usercode"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/budget"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// A core is the internal state of a Client, created when the Client is first used. It is safe for concurrent use. All
// fields except flights may be used without a lock.
type core struct {
	conf          *Client
	trace         *tracer // nil: there is no Client.Trace
	cacheClient   uint16  // the Client's number in the Cache; 0: there is no Cache
	servers       *clientServers
	hosts         *system.Hosts                       // nil: there is no hosts file
	refreshes     *budget.Bucket                      // budget of cache refreshes, separate from the hedge budget
	queryQueue    fairQueue                           // questions that wait for servers
	clientQueues  *clientQueues                       // questions of DNS clients, in ServeDNS and Server
	flightsMu     sync.Mutex                          // guards flights and its Flights
	flights       flight.Group[string, *sharedFlight] // running exchanges that callers with the same question share, by question and by whether hedging is allowed
	systemServers func() []*system.Servers            // the operating system's servers that are queried, directly or through Exchangers; called only if there is a Cache
	search        *system.SearchDomains               // domains that a net.Resolver may have appended to names
	systemVersion atomic.Uint64                       // sum of the versions of systemServers when cache entries were last invalidated; 0: not yet determined
	count         *counters

	identifying atomic.Int32 // number of running calls of Client.Identity
	clientSettings
	backgroundTasks
}

// counters holds the event counts that Client.Stats returns.
type counters struct {
	queries, hits, stale, shared, refreshes atomic.Int64
	local, fallbacks, failures, dropped     atomic.Int64
	searchMisses, observerPanics            atomic.Int64
	group                                   group.Counters
}

func newCore(conf *Client) (*core, error) {
	if err := conf.validate(); err != nil {
		return nil, err
	}
	hedging := conf.Hedge.groupHedging()
	c := &core{
		conf:       conf,
		refreshes:  budget.NewBucket(hedging.Share, group.Burst),
		queryQueue: fairQueue{max: cmp.Or(conf.MaxInFlight, defaultInFlight)},
		flights:    make(flight.Group[string, *sharedFlight]),
		search:     system.NewSearchDomains(conf.ResolvConf),
		count:      new(counters),
	}
	c.clientQueues = newClientQueues(conf.MaxInFlight)
	if conf.Hosts != "" {
		c.hosts = system.NewHosts(conf.Hosts, c.spawnGoroutine)
	}
	engineConfig := hedging.PolicyConfig()
	engineConfig.Shadow = conf.Hedge.Shadow
	if err := c.clientSettings.init(engineConfig, conf.Name, conf.Observers, conf.Logger, &c.count.observerPanics); err != nil {
		return nil, err
	}
	if conf.Trace != nil {
		c.trace = &tracer{*conf.Trace, c.log}
	}
	if conf.Cache != nil {
		c.cacheClient = conf.Cache.addClient()
	}
	c.backgroundTasks.init()
	c.systemServers = sync.OnceValue(c.findSystemServers)
	c.servers = c.newClientServers(hedging)
	if err := c.servers.init(); err != nil {
		return nil, err
	}
	c.registerWithObservers()
	return c, nil
}

// registerWithObservers gives the observers a function that returns the present state of the Client's servers. The
// function does not keep an unused Client in memory: after Close or a garbage collection it reports that the Client no
// longer exists.
func (c *core) registerWithObservers() {
	client := weak.Make(c)
	c.engine.ReportClient(func() (keys []observe.KeyState, exists bool) {
		c := client.Value()
		if c == nil || c.isClosed.Load() {
			return nil, false
		}
		for _, s := range c.servers.pool.AllServers() {
			if s.WasUsedFirst() {
				keys = append(keys, s.State())
			}
		}
		return keys, true
	})
}

// newClientServers returns the clientServers of this Client with its settings, such as the timeout and the Dialer, and
// without servers. The caller must then call clientServers.init, which adds the servers and the routes.
func (c *core) newClientServers(hedging group.Hedging) *clientServers {
	timeout := cmp.Or(c.conf.Timeout, defaultTimeout)
	conf := group.Config{
		Hedging: hedging, Timeout: timeout, IsOff: c.isHedgingOff, IsShadow: c.shadow,
		Engine: c.engine, Counters: &c.count.group, Observers: c.watcher, Log: c.log, Spawn: c.spawnGoroutine,
	}
	if c.trace != nil {
		conf.Tracer = c.trace
	}
	return &clientServers{
		conf:    c.conf,
		pool:    group.NewPool(conf),
		timeout: timeout,
		spawn:   c.spawnGoroutine,
		dialing: &dialConfig{with: c.conf.Dialer, conf: c.conf.TLSConfig, sessions: tls.NewLRUClientSessionCache(0)},
		udpSize: cmp.Or(c.conf.UDPSize, wire.DefaultUDPSize),
		count:   c.count,
	}
}

// isHedgingOff reports whether hedging is off. It is off if Hedge.Off is set, if Hedge.BudgetPercent is NoBudget, or if
// Client.SetEnabled or an environment variable has turned it off.
func (c *core) isHedgingOff() bool {
	return c.conf.Hedge.Off || c.conf.Hedge.BudgetPercent == NoBudget || c.off.Load()
}

// closeAll closes all connections and cancels the background goroutines, for Client.Close. It waits until the
// goroutines have returned and all log records are passed to the logger.
func (c *core) closeAll() {
	servers := c.servers.pool.RemoveAllServers()
	c.cancelAll()
	for _, s := range servers {
		s.Close()
	}
	c.wg.Wait()
	c.records.closeQueue()
}

// answerFromFreshCache returns the cached answer to q if it has not expired and needs no refresh. It sends no query and
// waits for none. ctx is only passed to Trace. If ok is false, the caller must call answerQuestion.
func (c *core) answerFromFreshCache(ctx context.Context, q *wire.Query) (cached cachedAnswer, ok bool) {
	now := time.Now()
	if c.conf.Cache == nil || c.isClosed.Load() || c.hosts != nil && c.hosts.Find(q, now) != nil { // the hosts file has precedence
		return cached, false
	}
	if q.HasOptions() {
		q = c.findDomainRoute(q).Query
	}
	c.expireOnSystemChange(now)
	if cached, ok = c.conf.Cache.getFreshAnswer(q, now); ok {
		c.count.queries.Add(1)
		c.count.hits.Add(1)
		c.refreshes.Deposit()
		c.trace.reportLocalAnswer(ctx, q, FromCache, nil)
		if c.trace.hasLookupTrace() {
			a, _, err := cached.toAnswer(q)
			c.trace.reportLookup(ctx, q, now, a, err)
		}
	}
	return cached, ok
}

// answerQuestion answers a query locally, from the cache, or from the servers, and reports it to Trace. If address is
// set, only the server at address is queried. If inlineCtx is not nil, the calling goroutine may query the servers,
// until inlineCtx (not ctx) ends.
func (c *core) answerQuestion(ctx, inlineCtx context.Context, query *wire.Query, address string) *result {
	if !c.trace.hasLookupTrace() {
		return c.answerWithoutTrace(ctx, inlineCtx, query, address)
	}
	start := time.Now()
	r := c.answerWithoutTrace(ctx, nil, query, address) // not inlineCtx, because the call must not outlast ctx
	c.trace.reportLookup(ctx, query, start, r.answer, r.err)
	return r
}

// answerWithoutTrace answers a query locally, from the cache, or from the servers. It does not call Trace.Lookup. If
// address is set, only the server at address is queried. If inlineCtx is not nil, the calling goroutine may query the
// servers, until inlineCtx (not ctx) ends.
func (c *core) answerWithoutTrace(ctx, inlineCtx context.Context, query *wire.Query, address string) *result {
	c.count.queries.Add(1)
	c.refreshes.Deposit()
	switch {
	case c.isClosed.Load():
		return &result{err: newError(query, transport.ErrClosed)}
	case address != "":
		return c.queryServerAt(ctx, query, address)
	}
	q := c.findRoute(query)
	if r := c.answerLocally(ctx, q); r != nil {
		return r
	}
	cached, isUsable := c.findCachedAnswer(ctx, q)
	if !isUsable {
		return c.resolveShared(ctx, inlineCtx, q, cached)
	}
	if cached.isRefreshDue {
		c.startRefresh(q, cached)
	}
	return c.cachedResult(ctx, q, cached)
}

// A question is a query of a client together with its route, which determines the source of the answer.
type question struct {
	*wire.Query
	route
}

// A route determines where answers for the names in a domain come from: this machine, an Exchanger, or servers.
type route struct {
	local     *dns.Msg  // response from the hosts file or a special-use zone; nil: there is none
	exchanger Exchanger // Exchanger of the longest domain in Client.Routes, or else Client.Exchanger; nil: servers are asked
	isRouted  bool      // exchanger is in Client.Routes, or the operating system has separate servers for the domain
	domainLen int       // length of the domain in wire format; 0: no domain matches
}

// findRoute returns the query with its route, the source of the answer. It selects the first source that applies: the
// hosts file, the route of a domain below the root, a special-use zone (RFC 6761), or else the default Exchanger or
// servers.
func (c *core) findRoute(query *wire.Query) question {
	isLocal := query.IsStandard() && query.Class == dns.ClassINET // the hosts file and special-use zones may apply
	if isLocal && c.hosts != nil {
		if h := c.hosts.Find(query, time.Now()); h != nil {
			return question{Query: query, route: route{local: h.Answer(query), exchanger: c.conf.Exchanger}}
		}
	}
	q := c.findDomainRoute(query)
	if use := c.conf.SpecialUse; isLocal && q.domainLen <= 1 && use != SpecialUseOff {
		var buf [wire.MaxKey]byte
		if z := special.FindZone(query.AppendKey(buf[:0])[:len(query.Name)], use == SpecialUseForwarder); z != nil {
			q.local = z.Answer(query.PresentationName(), query.Type)
		}
	}
	return q
}

// findDomainRoute returns the query with the route for its name: the Exchanger of the longest domain in Client.Routes
// that contains the name, or the operating system's separate servers for it, or else Client.Exchanger or the default
// servers. It ignores the hosts file and special-use zones.
func (c *core) findDomainRoute(query *wire.Query) question {
	q := question{Query: query}
	q.exchanger, q.domainLen = domain.LongestMatch(c.servers.routes, query)
	if q.isRouted = q.exchanger != nil; !q.isRouted {
		servers, n := c.servers.system.FindDomainServers(query, time.Now())
		q.exchanger, q.isRouted, q.domainLen = c.conf.Exchanger, servers != nil, max(q.domainLen, n)
	}
	if query.HasOptions() {
		if _, unused := q.exchanger.(interface{ IgnoresOptions() }); unused {
			q.Query = query.WithoutOptions()
		}
	}
	return q
}

// answerLocally answers q without a query, or returns nil. The answer is q.local, from the hosts file or a special-use
// zone. If q.local is nil, a standard query without the flag RD (recursion desired) gets REFUSED, except if
// Client.Routes has an Exchanger for it.
func (c *core) answerLocally(ctx context.Context, q question) *result {
	m := q.local
	if m == nil && q.IsStandard() && !q.WantsRecursion() && (q.exchanger == nil || !q.isRouted) {
		m = new(dns.Msg) // not a cached answer, which would reveal the questions of other clients
		m.Rcode = dns.RcodeRefused
		m.SetEdns0(dns.MinMsgSize, false)
		m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_EDE{InfoCode: edeNotAuthoritative}} // RFC 8914 §4.21
	}
	if m == nil {
		return nil
	}
	c.count.local.Add(1)
	r := newLocalResult(q, m)
	c.trace.reportLocalAnswer(ctx, q.Query, FromLocal, r.err)
	return r
}

// newLocalResult returns the result for q with the response m, which this Client has created without asking a server.
// It sets the header flags and the question of m.
func newLocalResult(q question, m *dns.Msg) *result {
	m.Response, m.RecursionAvailable = true, true
	m.Question = []dns.Question{{Name: q.PresentationName(), Qtype: q.Type, Qclass: q.Class}}
	r := new(result)
	b, err := m.Pack()
	if err != nil {
		r.err = err
		return r
	}
	r.answer, r.err = wire.ParseAnswer(b, q.Query)
	return r
}

// findCachedAnswer searches the cache for an answer to q. If isUsable is true, the caller may return cached, and must
// call startRefresh if cached.isRefreshDue. Otherwise it must query the servers, and may return an expired answer
// (entryStale) in cached if they fail.
func (c *core) findCachedAnswer(ctx context.Context, q question) (cached cachedAnswer, isUsable bool) {
	cache := c.conf.Cache
	if !c.isCacheable(q) || lookup.HasCacheBypass(ctx) {
		return cachedAnswer{}, false
	}
	cached = cache.getAnswer(q.Query, time.Now(), q.domainLen)
	switch {
	case cached.freshness == entryFresh, cached.freshness == entryStale && cached.isRefreshPostponed(q.Type): // a refresh failed or was slow in the last 30 s
		return cached, true
	case cached.freshness == entryStale && cache.staleAfter() == 0:
		cached.isRefreshDue = cached.claimRefresh()
		return cached, true
	}
	return cached, false
}

// startRefresh queries the servers in the background for a new answer to q, which replaces cached. If cached has not
// expired, this costs a token of the refresh budget, and no query is sent if there is none.
func (c *core) startRefresh(q question, cached cachedAnswer) {
	purpose := callerFlight
	if cached.freshness == entryFresh {
		if !c.refreshes.Spend() {
			cached.releaseRefresh() // a later caller can start the refresh
			return
		}
		c.count.refreshes.Add(1)
		purpose = explorationFlight
	}
	c.joinOrStartFlight(c.ctx, nil, q, purpose)
}

// resolveShared queries the servers for q. Callers with the same question share one exchange. An expired answer in
// cached is returned if the servers fail or are slow. If inlineCtx is not nil, the calling goroutine may query the
// servers, until inlineCtx (not ctx) ends.
func (c *core) resolveShared(ctx, inlineCtx context.Context, q question, cached cachedAnswer) *result {
	deadline, hasDeadline := ctx.Deadline()
	// Not shared with an early deadline: a shared exchange may query the second server too late for this caller.
	if !q.IsStandard() || !c.isCacheable(q) && hasDeadline && time.Until(deadline) < c.servers.timeout {
		return c.trace.reportAnswer(ctx, q.Query, c.runFlight(ctx, nil, &sharedFlight{question: q}))
	}
	end := time.Now().Add(c.servers.timeout)
	var slow <-chan time.Time
	if cached.freshness == entryStale {
		t := time.NewTimer(c.conf.Cache.staleAfter())
		defer t.Stop()
		slow, inlineCtx = t.C, nil
	}
	f := c.joinOrStartFlight(ctx, inlineCtx, q, callerFlight)
	var left <-chan struct{}
	select {
	case <-f.Done: // it ran in this goroutine
	default:
		left = ctx.Done()
	}
	select {
	case <-f.Done:
		r := f.r
		if f.Query != q.Query && f.purpose != secondFlight && (errors.Is(r.err, context.DeadlineExceeded) || errors.Is(r.err, context.Canceled)) {
			// The flight's first caller has timed out or left, but this caller still waits.
			r = c.joinSecondFlight(ctx, q, end, f)
		}
		if cached.freshness == entryStale && r.isFailure(q.Query) && !r.isFinalFailure() && !c.isClosed.Load() {
			return c.cachedResult(ctx, q, cached)
		}
		if f.IsShared {
			c.count.shared.Add(1)
		}
		return c.trace.reportAnswer(ctx, q.Query, r)
	case <-slow:
		// The servers are slow. Their answer will be cached. Until then callers get the
		// stale answer without waiting.
		cached.postponeRefresh(cached.at, q.Type)
		return c.cachedResult(ctx, q, cached)
	case <-left:
		c.leaveFlight(ctx, f)
		return &result{err: newError(q.Query, context.Cause(ctx))}
	}
}

// isCacheable reports whether the answer to q may come from the cache and be stored there. This requires a Cache, and a
// standard query of class IN with the flag RD (recursion desired), without EDNS options, and of a type other than ANY.
func (c *core) isCacheable(q question) bool { return c.conf.Cache != nil && q.IsCacheable() }

// joinSecondFlight queries the servers again for q, because first, an exchange that callers shared, was cancelled or
// timed out. It returns the new result, or the result of first if ctx ends or deadline passes earlier. The second
// exchange is shared, too.
func (c *core) joinSecondFlight(ctx context.Context, q question, deadline time.Time, first *sharedFlight) *result {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if ctx.Err() != nil {
		return first.r
	}
	q = c.findDomainRoute(q.Query)                      // the system's servers may have changed
	f := c.joinOrStartFlight(ctx, nil, q, secondFlight) // there is no third flight, so that a forwarding loop ends
	select {
	case <-f.Done:
		return f.r
	case <-ctx.Done():
		c.leaveFlight(ctx, f)
		return first.r
	}
}

// cachedResult converts the cached entry f to the result for q. It counts a cache hit, or the use of an expired answer,
// and reports the answer to Trace.
func (c *core) cachedResult(ctx context.Context, q question, f cachedAnswer) *result {
	from := FromCache
	if f.freshness == entryStale {
		from = FromStale
		c.count.stale.Add(1)
	} else {
		c.count.hits.Add(1)
	}
	c.trace.reportLocalAnswer(ctx, q.Query, from, f.err)
	r := new(result)
	r.answer, r.view, r.err = f.toAnswer(q.Query)
	return r
}

// joinOrStartFlight joins the running exchange for q, or starts one for the reason purpose, and returns it. A new
// exchange has the values of ctx, but not its end. If inlineCtx is not nil, it runs in the calling goroutine, until
// inlineCtx ends.
func (c *core) joinOrStartFlight(ctx, inlineCtx context.Context, q question, purpose flightPurpose) *sharedFlight {
	var buf [wire.MaxKey + 16]byte
	key := q.AppendExchangeKey(buf[:0])
	if c.conf.Cache != nil && len(c.systemServers()) > 0 { // also for a route, because aliases in its answers may lead to the system's servers
		key = binary.BigEndian.AppendUint16(key, c.conf.Cache.systemGeneration())
	}
	isUnhedged := policy.Eligibility{}.Reason(race.OverridesFrom(ctx)) != policy.None
	c.flightsMu.Lock()
	f := c.flights[string(key)]
	if isUnhedged && f == nil { // its own flight is joined only by callers that do not allow hedging either
		key = append(key, 1)
		f = c.flights[string(key)]
	}
	if f != nil {
		f.AddCaller()
		c.flightsMu.Unlock()
		return f
	}
	f = &sharedFlight{question: q, purpose: purpose}
	f.Key = string(key)
	f.AddCaller()
	c.flights[f.Key] = f
	var untilAbandoned context.Context // ends when the last caller has left; nil: the flight then continues
	if inlineCtx == nil && !c.isCacheable(q) {
		untilAbandoned, f.Cancel = context.WithCancelCause(context.Background())
	}
	c.flightsMu.Unlock()
	if inlineCtx != nil {
		c.runFlight(detachContext(c.ctx, ctx), inlineCtx, f)
	} else {
		go c.runFlight(detachContext(c.ctx, ctx), untilAbandoned, f)
	}
	return f
}

// runFlight queries the servers for the question of f, and returns the result. If callers share f, it stores the result
// in f.r and closes f.Done. The query is cancelled after Timeout, or when ctx or inlineCtx ends. inlineCtx may be nil.
func (c *core) runFlight(ctx, inlineCtx context.Context, f *sharedFlight) (r *result) {
	if f.Done != nil {
		defer func() {
			if r == nil { // an Exchanger or a Dialer has ended the goroutine
				r = &result{err: context.Canceled}
			}
			f.r = r
			c.flightsMu.Lock()
			c.flights.RemoveOperation(f)
			if f.Cancel != nil {
				f.Cancel(nil)
			}
			c.flightsMu.Unlock()
			close(f.Done)
		}()
		if !c.addGoroutine() {
			return &result{err: newError(f.Query, transport.ErrClosed)}
		}
		defer c.wg.Done()
	}
	f.span.Begin(ctx, c.servers.timeout) // with the values of ctx, for Exchangers and Dialers
	defer f.span.Cancel()
	if f.inlineCtx = inlineCtx; inlineCtx != nil && inlineCtx.Done() != nil {
		defer context.AfterFunc(inlineCtx, f.span.Cancel)()
	}
	c.queryQueue.enqueue(&f.queueEntry, &f.span, f.ApproximateZone()) // a full queue cancels the span of its oldest flight
	defer c.queryQueue.dequeue(&f.queueEntry)
	return c.resolveFlight(f)
}

// resolveFlight queries the servers or the Exchanger for the question of f. It limits the TTLs of the result, stores it
// in the cache, and returns it. If f.server is set, only that server is queried, and nothing is stored.
func (c *core) resolveFlight(f *sharedFlight) (r *result) {
	if f.server != nil {
		r = c.servers.retryUntilAvailable(&f.span, f.question, func(q question) *result {
			return c.servers.queryGroup(&f.span, new(groupQuery), q, group.Servers{f.server})
		})
	} else {
		c.expireOnSystemChange(time.Now())
		f.origin = c.currentOrigin(f.question) // before the servers can change
		r = c.servers.resolveByRoute(&f.span, f.question, f.purpose == explorationFlight)
		r = c.followAliases(&f.span, f.question, r, &f.origin)
	}
	c.dequeueFlight(f, r)
	c.storeResult(f, r)
	return r
}

// dequeueFlight removes the exchange f with the result r from the queue of waiting questions. If this Client caused the
// failure, r gets the error context.Canceled (f.inlineCtx has ended), ErrTooManyQuestions (newer questions displaced f)
// or transport.ErrClosed (Client.Close).
func (c *core) dequeueFlight(f *sharedFlight, r *result) {
	if f.inlineCtx != nil && f.inlineCtx.Err() != nil && r.isFailure(f.Query) { // even if a server has failed, because another server might have answered
		r.answer, r.err = nil, newError(f.Query, context.Canceled)
	}
	if c.queryQueue.dequeue(&f.queueEntry) && r.err != nil {
		c.count.dropped.Add(1)
		r.err = newError(f.Query, ErrTooManyQuestions)
	}
	if f.Done != nil && c.ctx.Err() != nil && errors.Is(r.err, context.Canceled) {
		r.err = newError(f.Query, transport.ErrClosed)
	}
}

// storeResult limits the TTLs of r, the result of the exchange f, and stores r in the Cache. It stores nothing after
// Client.Close, for a query to one given server, or if the question or the error cannot be cached.
func (c *core) storeResult(f *sharedFlight, r *result) {
	q, cache := f.question, c.conf.Cache
	ttl := r.limitTTL(q.Query, cache)
	now := time.Now()
	switch {
	case f.server != nil || !c.isCacheable(q):
	case isUncacheable(r.err) || c.ctx.Err() != nil:
	case r.err != nil || r.answer.Outcome >= wire.FinalFailure:
		keep := serverFailureTTL
		if r.err == nil && q.exchanger != nil && !q.isRouted {
			keep = exchangerFailureTTL
		}
		cache.storeFailure(q.Query, r.answer, r.err, now, q.domainLen, keep, f.origin)
	default:
		f.origin.validated = r.answer.IsAuthentic() && c.deniesNamesBelow(q, r)
		cache.storeAnswer(q.Query, r.answer, ttl, now, f.origin)
	}
}

// deniesNamesBelow reports whether the NXDOMAIN answer r also denies all names below q's name (RFC 8020 §2). This holds
// if the server has Upstream.TrustAD, or if the Exchanger's method NothingBelow returns true. The caller must check
// that r has the flag AD.
func (c *core) deniesNamesBelow(q question, r *result) bool {
	if r.from != nil {
		return upstreamOf(r.from).TrustAD
	}
	e, ok := q.exchanger.(interface{ NothingBelow(name string) bool })
	nothing := false
	if ok {
		usercode.RunGuarded(func() { nothing = e.NothingBelow(q.PresentationName()) })
	}
	return nothing
}

// queryServerAt sends a question only to the server at address, with hedging, and returns the result. The answer is
// neither taken from the cache nor stored in it. The result is an error if address is invalid.
func (c *core) queryServerAt(ctx context.Context, query *wire.Query, address string) *result {
	s, err := c.servers.findServerByAddress(address)
	if err != nil {
		return &result{err: err}
	}
	defer c.servers.pool.Release(s)
	q := question{Query: query}
	if c.conf.RebindFilter != nil {
		q.route = c.findDomainRoute(query).route
	}
	return c.trace.reportAnswer(ctx, query, c.runFlight(ctx, nil, &sharedFlight{question: q, server: s}))
}

// isUncacheable reports whether err must not be cached, because it says nothing about the servers. This holds for a
// cancellation, Client.Close, ErrTooManyQuestions, a local error (no route, for example), and an unreadable list of the
// operating system's servers. The result is false for nil.
func isUncacheable(err error) bool {
	return err != nil && (errors.As(err, new(*systemError)) || errors.Is(err, transport.ErrClosed) || errors.Is(err, ErrTooManyQuestions) ||
		localerror.IsLocal(err) || errors.Is(err, context.Canceled))
}

// expireOnSystemChange invalidates the cached answers of the operating system's DNS servers if the list of these
// servers has changed since the last call. The first call invalidates nothing. Without a Cache, expireOnSystemChange
// does nothing. now is the present time.
func (c *core) expireOnSystemChange(now time.Time) {
	if c.conf.Cache == nil {
		return
	}
	var v uint64
	for _, s := range c.systemServers() {
		v += s.Version(now)
	}
	known := c.systemVersion.Load()
	if v != known && c.systemVersion.CompareAndSwap(known, v) && known != 0 {
		c.conf.Cache.systemChanges.Add(1)
	}
}

// findSystemServers returns the operating system's servers that the Client queries, directly or through Exchangers.
// newCore must not call it: two Clients that are each other's Exchanger would wait for each other.
func (c *core) findSystemServers() []*system.Servers {
	f := systemServerFinder{visited: map[*Client]bool{c.conf: true}}
	f.visitClient(c.servers)
	return f.servers
}

// isInLoop reports whether the Client is asked by its own Exchanger or by an Exchanger in its Routes, directly or
// through other Clients and Exchangers with a method Unwrap.
func (c *core) isInLoop() bool {
	f := systemServerFinder{visited: make(map[*Client]bool)}
	f.visitClient(c.servers)
	return f.visited[c.conf]
}

// isAskedBy reports whether the Exchanger e asks this Client, directly or through other Clients and Exchangers with a
// method Unwrap. e has the type any, so that it may be an interface with one of the optional methods.
func (c *core) isAskedBy(e any) bool {
	f := systemServerFinder{visited: make(map[*Client]bool)}
	f.visitExchanger(e)
	return f.visited[c.conf]
}

// currentOrigin returns the origin with which the cache stores an answer to q: the Client's number in the Cache, the
// length of the route's domain, and a number that changes with the operating system's servers. The caller must call it
// before it queries the servers.
func (c *core) currentOrigin(q question) (origin answerOrigin) {
	origin.domainLen, origin.client = uint8(q.domainLen), c.cacheClient // of MaxName bytes at most
	if c.conf.Cache == nil {
		return origin
	}
	isSystem := c.servers.system != nil
	if q.exchanger != nil && len(c.systemServers()) > 0 {
		f := systemServerFinder{visited: make(map[*Client]bool)}
		f.visitExchanger(q.exchanger)
		isSystem = len(f.servers) > 0
	}
	if isSystem {
		origin.system = c.conf.Cache.systemGeneration()
	}
	return origin
}

// A result is the answer to a question, or the error if there is no answer, and data for retries and Trace. Several
// callers may share it, so it must not be changed after the function that creates it has returned.
type result struct {
	answer        *wire.Answer
	view          wire.ResponseOptions // how the answer is presented: age and rotation
	err           error                // set if there is no answer
	from          *group.Server        // the server that answered or, after an error, was asked first; nil: no server
	isHedged      bool                 // a hedge gave the answer
	isPartlyLocal bool                 // a part of the answer comes from the hosts file or a special-use zone, so it is not cached
	attempts      int                  // attempts made

	refusingSince time.Time // if err is not nil: when the last server that refuses connections began to refuse; zero: none
	hasRefused    bool      // if err is not nil: a server has refused a connection for this question

	isUnavailable bool          // if err is not nil: the server may be queried again soon
	endedByQuery  bool          // if err is not nil: the question may have caused the end of a connection
	pause         time.Duration // time that the server has asked the client to wait before the next query
}

// isFailure reports whether another server may give a better result for q. It is true for an error. For a standard
// query (opcode QUERY), it is also true for a failure response, such as SERVFAIL, but not for a final failure
// (isFinalFailure).
func (r *result) isFailure(q *wire.Query) bool {
	return r.err != nil || q.IsStandard() && r.answer.Outcome == wire.Failure
}

// isFinalFailure reports whether the result is a failure response that no other server and no expired answer may
// replace. In this case DNSSEC or a filter forbids an answer, or a DNAME would make the name too long (YXDOMAIN).
func (r *result) isFinalFailure() bool { return r.err == nil && r.answer.Outcome == wire.FinalFailure }

// limitTTL raises or lowers the TTLs of the answer to the limits of the cache c, and returns how long c may store the
// answer. The result is 0 if it must not be stored, or c is nil. Callers must not share r yet.
func (r *result) limitTTL(q *wire.Query, c *Cache) time.Duration {
	if r.err != nil {
		return 0
	}
	var limits *wire.TTLLimits
	if c != nil && q.IsStandard() {
		limits = c.ttlLimits()
	}
	ttl := r.answer.LimitTTLs(limits)
	if r.isPartlyLocal {
		return 0
	}
	return ttl
}

// A flightPurpose is the reason for an exchange with the servers: a waiting caller, the measurement of other servers,
// or a second try after an exchange that has ended without an answer.
type flightPurpose uint8

const (
	callerFlight      flightPurpose = iota // the first flight for a waiting caller
	explorationFlight                      // no caller waits, so any server of the group may be asked first
	secondFlight                           // the flight repeats a flight that ended without an answer
)

// A sharedFlight is one exchange with the servers, whose result all callers with the same question share (single
// flight). The goroutine that starts it sets question, server and purpose. Other goroutines may read the remaining
// fields only after Done is closed.
type sharedFlight struct {
	flight.Flight[string] // without callers: the flight is not shared

	// span is the context of the exchange. It ends after Timeout, or when a newer question displaces this question from the
	// full queue of questions that wait for servers.
	span       transport.EmbeddedContext
	queueEntry queuedQuery
	question                   // of the caller that started the flight
	server     *group.Server   // the only server that is queried; nil: the servers of the route
	purpose    flightPurpose   // why the servers are asked
	inlineCtx  context.Context // a further context that ends the exchange; may be nil
	origin     answerOrigin    // where the answer comes from
	r          *result         // the result
}

// leaveFlight removes a caller, whose context ctx has ended, from the shared exchange f. Without callers f is
// cancelled, but not if its answer can be cached or if it runs in a caller's goroutine.
func (c *core) leaveFlight(ctx context.Context, f *sharedFlight) {
	c.flightsMu.Lock()
	defer c.flightsMu.Unlock()
	c.flights.RemoveCaller(f, context.Cause(ctx))
}

const maxTargets = 16 // limit of alias targets that are followed for one question

// followAliases resolves an alias (CNAME) at the end of the answer r by the route of its target (RFC 1034 §5.3.3). It
// adds the target's records to r, and their origin to origin. Aliases in a loop or without an answer give SERVFAIL.
func (c *core) followAliases(ctx context.Context, q question, r *result, origin *answerOrigin) *result {
	if r.err != nil || !q.IsStandard() || !q.WantsRecursion() || !q.isRouted { // !isRouted: the domain has no Exchanger or servers of its own
		return r
	}
	asked, last := []*wire.Query{q.Query}, r.answer
	for {
		target, ok := last.UnresolvedAlias()
		if !ok {
			return r
		}
		next := c.findRoute(q.WithName(target))
		for _, before := range asked {
			if next.Key() == before.Key() {
				return newAliasFailure(q)
			}
		}
		if asked = append(asked, next.Query); len(asked) > 1+maxTargets { // q and its targets
			return newAliasFailure(q)
		}
		more := c.answerLocally(ctx, next)
		if r.isPartlyLocal = r.isPartlyLocal || more != nil; more == nil {
			origin.mergeOrigin(c.currentOrigin(next)) // before the servers can change
			more = c.servers.resolveByRoute(ctx, next, false)
		}
		switch {
		case more.err != nil:
			return more
		case more.isFailure(next.Query) || r.answer.AppendAliasTarget(more.answer) != nil:
			return newAliasFailure(q)
		}
		last = more.answer
	}
}

// newAliasFailure returns a SERVFAIL result for the question q, whose aliases (CNAME) form a loop or end without an
// answer.
func newAliasFailure(q question) *result {
	m := new(dns.Msg)
	m.Rcode = dns.RcodeServerFailure
	return newLocalResult(q, m)
}
