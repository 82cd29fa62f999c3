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

// answerFromFreshCache returns a cached answer to q that has not expired and needs no refresh. It sends no query and
// waits for none, so that callers can answer cache hits without a goroutine. ctx is only passed to Trace.
//
// If ok is false, the lookup has not been counted or reported to Trace, and the caller must call answerQuestion. ok is
// false for every name in the hosts file, because the file has precedence over the cache.
func (c *core) answerFromFreshCache(ctx context.Context, q *wire.Query) (f cachedAnswer, ok bool) {
	now := time.Now()
	if c.conf.Cache == nil || c.isClosed.Load() || c.hosts != nil && c.hosts.Find(q, now) != nil {
		return f, false
	}
	if q.HasOptions() {
		q = c.findDomainRoute(q).Query
	}
	c.expireOnSystemChange(now)
	if f, ok = c.conf.Cache.getFreshAnswer(q, now); ok {
		c.count.queries.Add(1)
		c.count.hits.Add(1)
		c.refreshes.Deposit()
		c.trace.reportLocalAnswer(ctx, q, FromCache, nil)
		if c.trace.hasLookupTrace() {
			a, _, err := f.toAnswer(q)
			c.trace.reportLookup(ctx, q, now, a, err)
		}
	}
	return f, ok
}

// answerQuestion answers a question locally, from the cache, or from the servers, and reports the lookup to Trace. If
// address is not empty, only the server at that address is queried.
//
// If inlineCtx is nil, the call returns when ctx ends, or before. If inlineCtx is not nil, the calling goroutine may
// query the servers itself, which saves a goroutine. The call then returns when that exchange has ended, even if ctx
// ends earlier, and the end of inlineCtx cancels the exchange. If Trace.Lookup is set, inlineCtx is ignored.
func (c *core) answerQuestion(ctx, inlineCtx context.Context, query *wire.Query, address string) *result {
	if !c.trace.hasLookupTrace() {
		return c.answerWithoutTrace(ctx, inlineCtx, query, address)
	}
	start := time.Now()
	r := c.answerWithoutTrace(ctx, nil, query, address) // not inlineCtx, because the call must not outlast ctx
	c.trace.reportLookup(ctx, query, start, r.answer, r.err)
	return r
}

// answerWithoutTrace answers a question locally, from the cache, or from the servers, and does not call Trace.Lookup.
// If address is not empty, only the server at that address is queried.
//
// If inlineCtx is not nil, the calling goroutine may query the servers itself, which saves a goroutine. The call then
// returns when that exchange has ended, even if ctx ends earlier, and the end of inlineCtx cancels the exchange.
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

// findRoute determines the source of the answer to a query, and returns the query with this source as its route. It
// selects the first of these sources that applies:
//
//  1. the hosts file
//  2. the route of a domain other than ".", from Client.Routes or the operating system's configuration
//  3. a special-use zone (RFC 6761), for which the Client itself creates the response
//  4. the route of ".", Client.Exchanger, or the servers for all names
//
// The hosts file and special-use zones only apply to standard queries (opcode QUERY) of the class IN.
func (c *core) findRoute(query *wire.Query) question {
	isLocal := query.IsStandard() && query.Class == dns.ClassINET
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

// findDomainRoute returns a query with the route for its name. It ignores the hosts file and special-use zones.
//
// The route is the Exchanger of the longest domain in Client.Routes that contains the name. Without an Exchanger, it is
// the operating system's separate servers for a domain that contains the name. Without these, it is Client.Exchanger or
// the servers for all names.
//
// The parent of the name determines the route of a DS question. If the Exchanger has a method IgnoresOptions, the
// returned question has no EDNS options.
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

// answerLocally returns the response in q.local, from the hosts file or a special-use zone, and reports it to Trace. If
// q.local is nil, a standard query without the flag RD (recursion desired) gets the response REFUSED, unless
// Client.Routes has an Exchanger for its name. For any other question answerLocally returns nil.
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

// findCachedAnswer searches the cache for an answer to q.
//
// If isUsable is true, the caller may return cached at once. cached has not expired, or it may be used without a query
// although it has expired: Cache.StaleAfter is negative, or a refresh failed or was slow in the last 30 s. If
// cached.isRefreshDue is also true, the caller must call startRefresh.
//
// If isUsable is false, the caller must query the servers. If cached.freshness is entryStale, cached is an expired
// answer to return if the servers fail or are slow. If the freshness is entryMissing, there is no answer to return.
func (c *core) findCachedAnswer(ctx context.Context, q question) (cached cachedAnswer, isUsable bool) {
	cache := c.conf.Cache
	if !c.isCacheable(q) || lookup.HasCacheBypass(ctx) {
		return cachedAnswer{}, false
	}
	cached = cache.getAnswer(q.Query, time.Now(), q.domainLen)
	switch {
	case cached.freshness == entryFresh, cached.freshness == entryStale && cached.isRefreshPostponed(q.Type):
		return cached, true
	case cached.freshness == entryStale && cache.staleAfter() == 0:
		cached.isRefreshDue = cached.claimRefresh()
		return cached, true
	}
	return cached, false
}

// startRefresh queries the servers in the background for a new answer to q, which replaces the answer in the cache.
//
// If the cached answer has not expired, this exchange costs a token of the refresh budget. If the budget has no token,
// startRefresh sends no query and calls cached.releaseRefresh, so that a later caller can start the refresh.
func (c *core) startRefresh(q question, cached cachedAnswer) {
	purpose := callerFlight
	if cached.freshness == entryFresh {
		if !c.refreshes.Spend() {
			cached.releaseRefresh()
			return
		}
		c.count.refreshes.Add(1)
		purpose = explorationFlight
	}
	c.joinOrStartFlight(c.ctx, nil, q, purpose)
}

// resolveShared queries the servers for q and returns the result. Callers with the same question at the same time share
// one exchange. If cached is an expired answer, resolveShared returns it when the servers fail, or take longer than
// Cache.StaleAfter.
//
// A message that is not a standard query has an exchange of its own. The same holds for a question that cannot be
// cached, if ctx ends before Timeout: a shared exchange may query the second server too late for this caller.
//
// If inlineCtx is not nil, the calling goroutine may query the servers itself, which saves a goroutine. The call then
// returns when that exchange has ended, even if ctx ends earlier, and the end of inlineCtx cancels the exchange.
func (c *core) resolveShared(ctx, inlineCtx context.Context, q question, cached cachedAnswer) *result {
	deadline, hasDeadline := ctx.Deadline()
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

// isCacheable reports whether the Client searches its cache for an answer to q, and stores the answer there. It is
// false without a Cache, and for messages that are not standard queries.
//
// It is also false for a query without RD, of type ANY, or of a class other than IN. A query with EDNS options is not
// cacheable either, because the answer may suit only one client.
func (c *core) isCacheable(q question) bool { return c.conf.Cache != nil && q.IsCacheable() }

// joinSecondFlight queries the servers again for q, and returns the result. It is called if first, an exchange that
// this caller shared, ended without an answer because the caller that started it has timed out or left.
//
// The second exchange is also shared with other callers. If ctx ends, or there is no new result before the time end,
// joinSecondFlight returns the result of first.
//
// There is no third exchange. So a forwarding loop that sends each question back to this Client comes to an end.
func (c *core) joinSecondFlight(ctx context.Context, q question, end time.Time, first *sharedFlight) *result {
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	if ctx.Err() != nil {
		return first.r
	}
	q = c.findDomainRoute(q.Query) // the system's servers may have changed
	f := c.joinOrStartFlight(ctx, nil, q, secondFlight)
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

// joinOrStartFlight adds the caller to the running exchange (flight) for the question q, and returns this flight. If
// there is none, it starts one for the reason purpose. A new flight has the values of ctx, but does not end with ctx.
// Client.Close cancels it.
//
// If inlineCtx is nil, a new flight runs in a goroutine of its own. It is cancelled when its last caller leaves, unless
// its answer can be cached. If inlineCtx is not nil, a new flight runs in the calling goroutine, and joinOrStartFlight
// returns when the flight has ended. The end of inlineCtx then cancels the flight.
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

// runFlight queries the servers for the question of f, and returns the result. If callers share f, it also stores the
// result in f.r and closes f.Done, which wakes these callers. Exchangers and Dialers get the values of ctx.
//
// The exchange is cancelled when ctx ends, when inlineCtx ends, after Timeout, or when a newer question displaces its
// question from the full queue. inlineCtx may be nil.
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
	f.span.Begin(ctx, c.servers.timeout)
	defer f.span.Cancel()
	if f.inlineCtx = inlineCtx; inlineCtx != nil && inlineCtx.Done() != nil {
		defer context.AfterFunc(inlineCtx, f.span.Cancel)()
	}
	c.queryQueue.enqueue(&f.queueEntry, &f.span, f.ApproximateZone())
	defer c.queryQueue.dequeue(&f.queueEntry)
	return c.resolveFlight(f)
}

// resolveFlight queries the servers for the question of f, and applies the TTL limits of the cache to the answer. If
// f.server is set, it queries only that server and stores nothing in the cache.
//
// Otherwise it queries the Exchanger or servers of the question's route, and stores the result in the cache. If the
// answer is an alias (CNAME) without its target, followAliases resolves the target.
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

// dequeueFlight removes f, an exchange that has ended with the result r, from the queue of questions that wait for
// servers. It also replaces an error in r that the Client itself has caused.
//
// If f.inlineCtx has ended, an error or a failure response becomes context.Canceled. If a newer question has displaced
// f, an error becomes ErrTooManyQuestions. If the Client was closed and callers share f, a cancellation becomes
// transport.ErrClosed.
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

// storeResult applies the TTL limits of the Cache to r, the result of the exchange f, and stores its answer or failure
// in the Cache. It stores nothing after Client.Close, for a question or an error that cannot be cached (isCacheable,
// isUncacheable), or if f.server is set.
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

// deniesNamesBelow reports whether the source of the NXDOMAIN answer r to q is trusted to deny all names below q's name
// as well (RFC 8020 §2). A server is trusted if its Upstream.TrustAD is set. An Exchanger is trusted if its optional
// method NothingBelow returns true for q's name. The caller must check that r has the flag AD.
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

// isUncacheable reports whether an error must not be cached, because it says nothing about the servers. These errors
// are a cancellation, Client.Close, ErrTooManyQuestions, and a list of the operating system's servers that cannot be
// read. A lack of resources, routes or permissions on this machine is uncacheable, too. The result is false if err is
// nil.
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
// Answers in the Cache become invalid when these servers change.
//
// newCore must not call findSystemServers, because this function creates the cores of other Clients that are Exchangers
// of this Client. If two Clients were each other's Exchanger, each newCore would wait for the other.
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

// currentOrigin returns the origin with which an answer to q is cached. It consists of the Client's number in the
// Cache, the length of the domain of q's route, and the generation of the operating system's servers. The generation is
// a number that changes with these servers. It is 0 if none of them may be queried for q.
//
// The caller must call currentOrigin before it queries the servers, because the system's servers may change meanwhile.
func (c *core) currentOrigin(q question) (from answerOrigin) {
	from.domainLen, from.client = uint8(q.domainLen), c.cacheClient // of MaxName bytes at most
	if c.conf.Cache == nil {
		return from
	}
	isSystem := c.servers.system != nil
	if q.exchanger != nil && len(c.systemServers()) > 0 {
		f := systemServerFinder{visited: make(map[*Client]bool)}
		f.visitExchanger(q.exchanger)
		isSystem = len(f.servers) > 0
	}
	if isSystem {
		from.system = c.conf.Cache.systemGeneration()
	}
	return from
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
// answer. It changes the answer, so it must be called before several callers share r.
//
// If c is nil, or q is not a standard query, no TTL is changed and the result is 0. It is also 0 for an error, and for
// an answer with a part from the hosts file or a special-use zone.
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

// A sharedFlight is one exchange of a question with the servers, whose result all callers with the same question share
// (single flight). A question that must not be shared has a sharedFlight with a single caller.
//
// The goroutine that starts the flight sets question, server and purpose. The goroutine that runs it sets the other
// fields, and then closes Done. Other goroutines may read these fields only after Done is closed.
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

// leaveFlight removes one caller, whose context ctx has ended, from the shared exchange f (a flight). If no caller is
// left, f is cancelled, and new callers with the question start another flight. f is not cancelled if its answer can be
// cached, or if it runs in a caller's goroutine.
func (c *core) leaveFlight(ctx context.Context, f *sharedFlight) {
	c.flightsMu.Lock()
	defer c.flightsMu.Unlock()
	c.flights.RemoveCaller(f, context.Cause(ctx))
}

const maxTargets = 16 // limit of alias targets that are followed for one question

// followAliases completes the answer r to q if r ends with an alias (CNAME) whose target the server did not resolve
// (RFC 1034 §5.3.3). It resolves each target by the route of the target's name. It adds the origin of the target's
// answer to from, which is the origin of r.
//
// It returns r unchanged unless q is a standard query with the flag RD (recursion desired) and q.isRouted is true: q's
// domain has an Exchanger or servers of its own.
//
// The result is SERVFAIL if a target has no answer, if the aliases form a loop, or if there are too many of them
// (maxTargets). If a query for a target ends with an error, the result is that error.
func (c *core) followAliases(ctx context.Context, q question, r *result, from *answerOrigin) *result {
	if r.err != nil || !q.IsStandard() || !q.WantsRecursion() || !q.isRouted {
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
			from.mergeOrigin(c.currentOrigin(next)) // before the servers can change
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
