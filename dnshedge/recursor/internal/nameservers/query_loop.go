package nameservers

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/race"
)

const (
	maxQueries          = 8                       // maximum number of queries of a Task, unless the Task has more servers
	maxUnansweredHedges = 2                       // maximum number of hedges of a Task before its first response
	maxQueryTime        = 4500 * time.Millisecond // time after which a Task sends no more queries
	earlyEndTime        = time.Second             // like maxQueryTime, for a Task with EndEarly, see queryLoop.earlyEnd

	noEDNSTime       = time.Hour            // time for which a server that rejects EDNS is queried without EDNS
	maxTimerLateness = 5 * time.Millisecond // if a timer fires later than this, the process is busy and may not have read the answer
)

// QueryServers sends the question of a Task to the servers of the Task's zone, and returns the first response that
// Task.CheckResponse accepts. This is the algorithm of RFC 1035 §7.2, with hedges:
//
//   - Send a query to the best server, and wait.
//   - When a query has failed, or its response is not accepted, send one to the next server.
//   - When a response is late, send a hedge: in parallel, a query to another server. The hedge budget limits hedges.
//   - When a response is overdue, presume the query lost, and send one to the next server. A response is still accepted.
//   - When no other server is known, search for addresses of further servers.
//   - End without a response when all servers have failed, or when the time of the Task has passed.
//
// The error is the error of SpendQuery or FindServers, ErrNoServers, ErrEndedEarly, ErrNoHedgeBudget, a *LocalError,
// net.ErrClosed after Close, or the cause of ctx.
func (p *Pool) QueryServers(ctx context.Context, t *Task) (_ *dns.Msg, err error) {
	q, err := wire.NewAuthoritativeQuery(t.Name, t.Type, t.DO, t.CD)
	if err != nil {
		return nil, err
	}
	l := &queryLoop{Pool: p, Task: t, ctx: ctx, wire: q, beganAt: p.elapsed(), group: qtypeGroupOf(t.Type)}
	l.earlyEnd = l.beganAt + earlyEndTime
	l.inbox.wake = make(chan struct{}, 1)
	l.search = serverSearch{pool: p, findServers: t.FindServers}
	if err := l.registerWithZone(); err != nil {
		return nil, err
	}
	l.candidates = p.addCandidates(t, l.zoneQtype, nil, t.Servers)
	l.timer = time.NewTimer(time.Hour)
	err = ErrNoServers // unless this function returns
	defer func() { l.endTask(err) }()
	l.queryNextServer(reasonFirst)
	var events []queryEvent
	for !l.checkForFailure() {
		l.setTimer()
		select {
		case <-l.inbox.wake:
			events = l.inbox.takeEvents(events)
			for _, e := range events {
				if m := l.handleEvent(e); m != nil {
					return m, nil
				}
			}
		case <-l.timer.C:
			l.handleTimer()
		case x := <-l.search.results:
			l.search.running = false
			l.addFoundServers(x)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-p.ctx.Done():
			return nil, net.ErrClosed
		}
	}
	return nil, l.failTask()
}

// A queryLoop is the state of one Pool.QueryServers call. It sends the question of a Task to one server of the zone
// after the other, until a response is accepted or the Task fails. Only the goroutine of that call may use its fields,
// except inbox, which is safe for concurrent use.
type queryLoop struct {
	*Pool
	*Task
	ctx        context.Context
	wire       *wire.Query
	plainWire  *wire.Query // wire without EDNS; nil until it is needed
	zone       *zoneState
	group      qtypeGroup    // group of Task.Type
	zoneQtype  zoneQtypeID   // zone and group
	beganAt    time.Duration // start of the Task, since Pool.epoch
	earlyEnd   time.Duration // time after which the Task sends no more queries if it has EndEarly, since Pool.epoch
	candidates []candidate
	queries    []*query      // queries that have not ended, in the order of sending
	attempts   int           // number of queries, not counting those that repeat one over TCP or without EDNS
	hedgesSent int           // number of hedges among attempts
	timer      *time.Timer   // fires at the next action without a response
	done       chan struct{} // closed when the Task ends; nil until a query waits for a slot
	inbox      eventQueue
	search     serverSearch
	outcome    taskEvents
}

// A taskEvents records facts from which failTask later derives the error of a Task without an answer.
type taskEvents struct {
	sentAny     bool  // a query has left this machine
	localErr    error // error of a query that could not be sent; nil if there is none
	gotResponse bool  // a response was received
	fatalErr    error // error after which no more queries are sent, or nil
	backedOff   bool  // backOffIfUnresponsive has recorded the name of the Task
}

// registerWithZone gets the state of the Task's zone, and registers the Task as a user of it, so that the state is not
// removed. The error is ErrNoServers if the zone is in backoff, because its servers did not answer. It is net.ErrClosed
// after Close of the Pool.
func (l *queryLoop) registerWithZone() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return net.ErrClosed
	}
	if z := l.zones.all[l.Zone]; z != nil && l.beganAt < z.backoffs[l.group].avoidUntil {
		return ErrNoServers
	}
	l.zone, l.zoneQtype = l.zones.acquireZone(l.Zone), l.healthByZone.hashZoneQtype(l.Zone, l.group)
	return nil
}

// A queryReason is the event that causes a query: for example, the start of the Task, the failure of a server, or a
// late response.
type queryReason int

const (
	reasonFirst   queryReason = iota // the Task begins
	reasonFailure                    // a server has failed, or a search has found servers
	reasonTimeout                    // the retransmission timeout has passed without an answer
	reasonHedge                      // an answer is late
	reasonRepeat                     // the server has rejected EDNS, or has truncated its response
)

// queryNextServer sends a query to the best server for the reason why. If the Task has already queried all known
// servers, it also starts a search for further servers. It sends nothing if a limit of the Task is reached.
func (l *queryLoop) queryNextServer(why queryReason) {
	if l.hasStoppedSending() {
		return
	}
	l.mu.Lock()
	c := l.selectServer(l.candidates, l.elapsed())
	l.mu.Unlock()
	if c != nil && c.attempts > 0 && l.attempts >= maxQueries {
		c = nil
	}
	switch {
	case c == nil || c.attempts > 0:
		l.search.ensureUrgentSearch(l.ctx, l.selectSearchScope())
	case c.hasSentBogus:
		l.search.ensureUrgentSearch(l.ctx, GluelessNames)
	}
	switch {
	case c == nil, why == reasonFailure && c.attempts > 0 && l.latestQuery() != nil:
		return
	case c.hasSentBogus && l.search.running: // servers found by the search are preferred
		return
	}
	l.sendQuery(c, why, nil)
}

// selectSearchScope returns which server names to look up for addresses of further servers. If no known server of the
// zone has responded, it excludes names within the zone. Their lookup would need the same servers.
func (l *queryLoop) selectSearchScope() SearchScope {
	if l.outcome.gotResponse || len(l.candidates) == 0 {
		return AllNames
	}
	return OutOfDomainNames
}

// hasStoppedSending reports whether the Task must not send more queries. This is so after an error such as a reached
// limit, after maxQueryTime, or with EndEarly after earlyEndTime.
func (l *queryLoop) hasStoppedSending() bool {
	now := l.elapsed()
	return l.outcome.fatalErr != nil || now-l.beganAt > maxQueryTime || l.EndEarly && now >= l.earlyEnd
}

// checkForFailure returns true if the question must end without an answer, because no answer can be expected any more.
//
// When all queries have waited until lastDeadline, it also calls backOffIfUnresponsive. The queryLoop may then continue
// to wait until Task.AwaitUntil.
func (l *queryLoop) checkForFailure() bool {
	switch {
	case len(l.queries) == 0 && !l.search.running:
		return true
	case l.latestQuery() != nil:
		return false
	case l.hasStoppedSending():
		return true
	case l.search.running:
		return false
	case l.EndEarly:
		return true
	case time.Now().Before(l.lastDeadline()):
		return false
	}
	l.backOffIfUnresponsive()
	return l.outcome.gotResponse || !time.Now().Before(l.awaitDeadline())
}

// awaitDeadline returns the time until which the Task waits for overdue queries: the result of Task.AwaitUntil. It is
// zero if that function is nil.
func (l *queryLoop) awaitDeadline() time.Time {
	if l.AwaitUntil == nil {
		return time.Time{}
	}
	return l.AwaitUntil()
}

// lastDeadline returns the time at which the last of the running queries stops waiting for its answer. It is zero if
// there are no queries.
func (l *queryLoop) lastDeadline() (last time.Time) {
	for _, q := range l.queries {
		if at := q.loserDeadline(); at.After(last) {
			last = at
		}
	}
	return last
}

// latestQuery returns the query that was sent last. It ignores queries whose retransmission timeout has passed, and
// returns nil if there are no others.
func (l *queryLoop) latestQuery() *query {
	for i := len(l.queries) - 1; i >= 0; i-- {
		if q := l.queries[i]; q.state != stateOverdue {
			return q
		}
	}
	return nil
}

// setTimer sets the timer to the time at which the queryLoop must act if no response comes before. The action is a
// hedge, a query to the next server, or the end. If only an event can cause the next action, it stops the timer.
func (l *queryLoop) setTimer() {
	q := l.latestQuery()
	switch {
	case q == nil && len(l.queries) > 0 && !l.search.running:
		at := l.lastDeadline()
		if !time.Now().Before(at) {
			at = l.awaitDeadline()
		}
		l.timer.Reset(time.Until(at))
	case q == nil && l.EndEarly && l.outcome.gotResponse:
		l.timer.Reset(l.earlyEnd - l.elapsed())
	case q == nil || q.state == stateWaiting:
		l.timer.Stop()
	default:
		l.timer.Reset(time.Until(q.nextActionTime()))
	}
}

// handleTimer performs the action that is due when the timer fires. After the hedge delay of the latest query, it sends
// a hedge. After the retransmission timeout, it queries the next server.
//
// If the timer has fired more than maxTimerLateness too late, it waits longer, because this process may not have read
// the answer yet.
func (l *queryLoop) handleTimer() {
	q := l.latestQuery()
	if q == nil || q.state == stateWaiting {
		return
	}
	over := time.Since(q.nextActionTime())
	switch {
	case over < 0:
	case over > maxTimerLateness:
		q.processDelay += over + maxTimerLateness // the answer may have arrived unread
	case q.hedgeable:
		q.hedgeable = false
		l.sendHedge(&l.candidates[q.candidate])
	default:
		l.markQueriesOverdue()
		l.queryNextServer(reasonTimeout)
	}
}

// markQueriesOverdue marks all sent queries as overdue: their retransmission timeout has passed, but an answer is still
// accepted. It removes queries that were evicted, which means stopped because another query needed their slots.
func (l *queryLoop) markQueriesOverdue() {
	var ended []*query
	l.mu.Lock()
	left := l.queries[:0]
	for _, q := range l.queries {
		switch q.state {
		case stateEvicted:
			ended = append(ended, q)
			continue
		case stateSent:
			q.state = stateOverdue
			q.markEvictable()
		}
		left = append(left, q)
	}
	clear(l.queries[len(left):])
	l.queries = left
	l.mu.Unlock()
	for _, q := range ended {
		l.reportQueryEnd(q, q.err)
	}
}

// sendHedge sends a hedge, because the latest query of the Task has not been answered within its hedge delay. late is
// the candidate that was queried. The hedge is a query to another server, or a search for the addresses of further
// servers. It costs a token of the hedge budget.
func (l *queryLoop) sendHedge(late *candidate) {
	if l.hasStoppedSending() || l.hedgesSent >= maxUnansweredHedges && !l.outcome.gotResponse {
		return // hedges do not help, and other Tasks share the budget
	}
	c := l.selectHedgeServer(l.candidates)
	searches := (c == nil || c.attempts > 0) && l.search.canStart(GluelessNames)
	switch {
	case c == nil && !searches || !l.hedgeBudget.spendToken(!searches && l.isReliable(late)):
	case searches:
		l.search.paidByBudget = l.search.startSearch(l.ctx, GluelessNames)
	default:
		l.sendQuery(c, reasonHedge, nil)
	}
}

// sendQuery sends a query to the candidate c for the reason why, on a new goroutine, which may first wait for slots. If
// the query repeats an earlier one, repeated has the options of the new query. Otherwise it is nil.
//
// It sends nothing if Task.SpendQuery returns an error, or if a hedge gets no slot. It also sends nothing if the answer
// is needed only for hedges (Task.IsHedge) and the hedge budget is empty.
func (l *queryLoop) sendQuery(c *candidate, why queryReason, repeated *queryOptions) {
	paid := why == reasonHedge // by the hedge budget
	if !paid && l.IsHedge != nil && l.IsHedge() {
		if paid = l.hedgeBudget.spendToken(false); !paid {
			l.outcome.fatalErr = ErrNoHedgeBudget
			return
		}
	}
	if l.SpendQuery != nil {
		if err := l.SpendQuery(paid); err != nil {
			if paid {
				l.hedgeBudget.refundToken()
			}
			if why != reasonHedge {
				l.outcome.fatalErr = err
			}
			return
		}
	}
	c, q := l.acquireSlots(c, why, repeated)
	if q == nil {
		if paid {
			l.hedgeBudget.refundToken()
			l.hedgeBudget.denied.Add(1)
		}
		return
	}
	q.paidByBudget = paid
	l.countQuery(c, q, why)
	var taskDone chan struct{}
	if q.state == stateWaiting {
		if l.done == nil {
			l.done = make(chan struct{})
		}
		taskDone = l.done
	}
	l.queries = append(l.queries, q)
	defer func() { go q.sendAndReceive(taskDone) }() // even if Config.OnQueryStart panics
	if began := l.conf.OnQueryStart; began != nil {
		began(l.ctx, l.attemptInfo(q))
	}
}

// acquireSlots creates a query to the candidate c for the reason why, and acquires its slots. If slots are missing, the
// query has the state stateWaiting. If the query repeats an earlier one, for example over TCP, repeated has the options
// of the new query. Otherwise it is nil.
//
// It returns the query and its candidate. The candidate differs from c if the server of c has no free slot and another
// candidate is better. The query is nil if the Pool is closed, or if the query is a hedge and a slot is missing.
func (l *queryLoop) acquireSlots(c *candidate, why queryReason, repeated *queryOptions) (*candidate, *query) {
	now := l.elapsed()
	l.mu.Lock()
	defer l.mu.Unlock()
	if why != reasonHedge && why != reasonRepeat && !c.slots.hasFreeSlot(l.maxPerServer) {
		c = l.selectServer(l.candidates, now)
	}
	q := l.newQuery(c, why, repeated)
	c.lastQuery = now
	c.zoneHealth = q.zoneHealth
	switch {
	case l.closed:
		return c, nil
	case q.tryAcquireSlots():
		q.state = stateSent
		if why == reasonTimeout {
			q.markEvictable() // it will probably be lost like the previous query
		}
	case why == reasonHedge:
		return c, nil
	}
	l.wg.Add(1)
	return c, q
}

// newQuery creates a query to the candidate c, for the reason why, but does not send it. It acquires no slots. If the
// query repeats an earlier one, for example over TCP, repeated has the options of the new query. Otherwise it is nil.
// The caller must hold mu.
func (l *queryLoop) newQuery(c *candidate, why queryReason, repeated *queryOptions) *query {
	q := &query{Pool: l.Pool, querySetup: querySetup{
		queryOptions: queryOptions{number: l.attempts, hedge: why == reasonHedge, withoutEDNS: !l.RequireSignatures && !l.PreferSignatures && l.elapsed() < c.server.noEDNSUntil},
		zone:         l.zone, zoneQtype: l.zoneQtype, backoff: &l.zone.backoffs[l.group], zoneHealth: l.healthByZone.getOrCreateHealth(healthKey{c.addr, l.zoneQtype}, l.elapsed()),
		candidate: c.index, server: c.server, addr: c.addr, wire: l.wire, inbox: &l.inbox, startedAt: time.Now(), hedgeDelay: c.hedgeDelay,
	}}
	if repeated != nil {
		q.queryOptions = *repeated
	}
	if c.slow && len(l.candidates) == 1 && l.search.canStart(GluelessNames) {
		q.hedgeDelay = min(q.hedgeDelay, c.firstHedgeDelay) // FindServers may return a faster server
	}
	if q.tcp {
		q.hedgeDelay, q.rto = 3*q.hedgeDelay, min(max(3*c.rto, initialRTO), 3*maxRTO) // opening a connection takes further round trips
	} else {
		q.rto = min(c.rto<<c.attempts, max(maxRTO, c.rto))
	}
	q.hedgeable = !l.hedgeBudget.off && q.hedgeDelay < q.rto
	if q.withoutEDNS {
		if l.plainWire == nil {
			l.plainWire = l.wire.WithoutEDNS()
		}
		q.wire = l.plainWire
	}
	return q
}

// countQuery counts the query q to the candidate c against the limits of the Task, and in the statistics. why is the
// reason for the query.
//
// It also refills the hedge budget by a share of a token, unless the hedge budget has paid for the query.
func (l *queryLoop) countQuery(c *candidate, q *query, why queryReason) {
	if why != reasonRepeat {
		l.attempts++
	}
	if !q.tcp {
		c.attempts++
	}
	switch why {
	case reasonHedge:
		l.hedgesSent++
	case reasonFailure:
		l.counters.failovers.Add(1)
	case reasonTimeout:
		l.counters.timeouts.Add(1)
	}
	if q.paidByBudget {
		l.counters.hedges.Add(1)
	} else {
		l.hedgeBudget.account.Deposit()
	}
}

// attemptInfo returns a description of the query q, for Config.OnQueryStart and Config.OnQueryEnd.
func (l *queryLoop) attemptInfo(q *query) Attempt {
	return Attempt{
		Name: l.Name, Type: l.Type, Zone: l.Zone, Server: q.addr,
		TCP: q.tcp, Attempt: q.number, Hedge: q.hedge || q.paidByBudget,
	}
}

// handleEvent processes the event e of a query: it was sent, or it has ended. It returns the response of the query if
// the Task accepts it. Otherwise it returns nil, and sends another query if one is due.
func (l *queryLoop) handleEvent(e queryEvent) *dns.Msg {
	q := e.query
	if !e.ended {
		q.state = stateSent
		return nil
	}
	if q.err == errEvicted && q.state != stateOverdue {
		q.state = stateEvicted
		return nil
	}
	for i := range l.queries {
		if l.queries[i] == q {
			l.queries = append(l.queries[:i], l.queries[i+1:]...)
			break
		}
	}
	c := &l.candidates[q.candidate]
	err := q.err
	if q.msg != nil {
		l.outcome.gotResponse = true
		err = l.evaluateResponse(c, q)
	}
	m := q.msg
	q.msg = nil // it may be large, and abandoned queries keep it reachable
	l.reportQueryEnd(q, err)
	switch {
	case err == nil:
		if q.hedge {
			l.counters.hedgeWins.Add(1)
		}
		return m
	case err == errEDNSRejected && (q.tcp || c.attempts < maxAttempts):
		repeated := q.queryOptions
		repeated.withoutEDNS = true
		l.sendQuery(c, reasonRepeat, &repeated)
	case err == errTruncated && !q.tcp:
		l.outcome.gotResponse = true
		repeated := q.queryOptions
		repeated.tcp = true
		l.sendQuery(c, reasonRepeat, &repeated)
	case errors.Is(err, os.ErrDeadlineExceeded) && !q.tcp || err == errTooManyForgeries || err == errEvicted:
		if l.latestQuery() == nil && q.state != stateOverdue {
			l.queryNextServer(reasonTimeout)
		}
	default:
		c.failed = true
		l.queryNextServer(reasonFailure)
	}
	return nil
}

// evaluateResponse checks the response to the query q with Task.CheckResponse. It returns nil if the Task accepts the
// response, and otherwise the reason for the rejection. It also records whether the server of the candidate c is lame,
// and whether it supports EDNS.
func (l *queryLoop) evaluateResponse(c *candidate, q *query) error {
	switch {
	case q.withoutEDNS || !isEDNSRejected(q.msg):
	case l.RequireSignatures:
		return l.updateLameness(c, ErrUnsigned)
	default:
		return errEDNSRejected
	}
	if q.withoutEDNS && !isEDNSRejected(q.msg) { // otherwise the server rejects the question itself
		now := l.elapsed()
		l.mu.Lock()
		if c.server.noEDNSUntil <= now {
			c.server.noEDNSUntil = now + noEDNSTime
		}
		l.mu.Unlock()
	}
	endEarly := l.EndEarly
	err := l.CheckResponse(q.msg, c.addr)
	if l.EndEarly && !endEarly {
		l.earlyEnd = l.elapsed() + earlyEndTime // the time without a server to query does not count
	}
	if err == ErrLame {
		l.counters.lame.Add(1)
	}
	if err == nil && !c.hasLameRecord || isEDNSRejected(q.msg) {
		return err
	}
	return l.updateLameness(c, err)
}

// updateLameness records how the server of the candidate c has responded: err is the result of Task.CheckResponse, and
// is returned. Afterwards c.lame is true if other servers are preferred for the name of the Task.
func (l *queryLoop) updateLameness(c *candidate, err error) error {
	key, now := lameKey{l.Zone, c.addr}, l.elapsed()
	l.mu.Lock()
	c.lame = l.lame.recordResponse(key, l.Name, err, now)
	l.mu.Unlock()
	c.hasLameRecord = err != nil
	return err
}

// isEDNSRejected reports whether the response code of m means that the server does not support EDNS (RFC 6891 §7). The
// query must have had EDNS.
func isEDNSRejected(m *dns.Msg) bool {
	switch m.Rcode {
	case dns.RcodeFormatError, dns.RcodeBadVers:
		return true
	case dns.RcodeNotImplemented:
		return m.IsEdns0() == nil
	}
	return false
}

// reportQueryEnd calls Config.OnQueryEnd for a query that has ended with err. It also records whether any query has
// left this machine, because a Task without such a query ends with a LocalError.
func (l *queryLoop) reportQueryEnd(q *query, err error) {
	switch {
	case !q.writtenAt.IsZero():
		l.outcome.sentAny = true
	case err != ErrNoServers: // ErrNoServers: it has waited for slots without success
		l.outcome.localErr = err
	}
	if ended := l.conf.OnQueryEnd; ended != nil {
		ended(l.ctx, l.attemptInfo(q), time.Since(q.startedAt), err)
	}
}

// addFoundServers adds the servers that a search has found to the candidates. It then queries one of them in two cases:
// the Task needs a server now, or a token was spent for a hedge to a found server. If all found addresses are known
// or not allowed, it starts another search.
func (l *queryLoop) addFoundServers(x searchResult) {
	s := &l.search
	n := len(l.candidates)
	l.candidates = l.addCandidates(l.Task, l.zoneQtype, l.candidates, x.servers)
	switch {
	case len(x.servers) == 0:
		s.exhaustedScope, s.err = x.scope, x.err
	case len(l.candidates) == n: // no new allowed address
		if s.startSearch(l.ctx, x.scope) {
			return
		}
	}
	paid, needed := s.paidByBudget, s.isUrgent
	s.paidByBudget, s.isUrgent = false, false
	if paid && (len(l.candidates) == n || needed) {
		l.hedgeBudget.refundToken()
	}
	switch {
	case l.hasStoppedSending():
	case needed && (len(l.candidates) > n || len(l.queries) == 0):
		l.queryNextServer(reasonFailure)
	case paid && len(l.candidates) > n:
		if c := l.selectHedgeServer(l.candidates); c != nil {
			l.sendQuery(c, reasonHedge, nil)
		}
	}
}

// failTask ends a Task that has no acceptable response: it returns the error of the Task, and may start a backoff of
// the zone.
func (l *queryLoop) failTask() error {
	if l.outcome.fatalErr == ErrNoHedgeBudget || errors.Is(l.search.err, ErrNoHedgeBudget) {
		return ErrNoHedgeBudget // it does not concern the servers
	}
	unresponsive := l.backOffIfUnresponsive()
	o := &l.outcome
	switch {
	case o.fatalErr != nil:
		return o.fatalErr
	case l.EndEarly && o.gotResponse && l.hasUnqueriedServers():
		return ErrEndedEarly
	case l.search.err != nil && !unresponsive:
		return l.search.err
	case o.localErr != nil && !o.sentAny:
		return &LocalError{o.localErr}
	}
	return ErrNoServers
}

// hasUnqueriedServers reports whether the Task knows a server that it has not queried, or is searching for one.
func (l *queryLoop) hasUnqueriedServers() bool {
	return l.search.running || slices.ContainsFunc(l.candidates, func(c candidate) bool { return c.attempts == 0 })
}

// backOffIfUnresponsive starts or extends a backoff of the zone if all its known servers were queried and none has
// responded. In a backoff, the zone is not queried. The result is true if no server has responded, even if no backoff
// was started.
//
// If one of the servers has answered before, it starts none for the first unanswered name (see recordUnansweredName). It
// never starts one for a minimised name. A server may drop only such questions.
func (l *queryLoop) backOffIfUnresponsive() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recordSentQueries()
	if !l.allUnresponsive() {
		return false
	}
	if l.Minimised {
		return true
	}
	now, r := l.elapsed(), &l.zone.backoffs[l.group]
	switch {
	case !l.outcome.backedOff:
		l.outcome.backedOff = true
		r.recordUnansweredName(l.Name, slices.ContainsFunc(l.candidates, func(c candidate) bool { return c.hasAnswered }), now)
	case r.avoidUntil > now:
		r.avoidUntil = now + zoneBackoffTime // all are still unresponsive
	}
	return true
}

// recordSentQueries sets outcome.sentAny if an unfinished query has a connection. The caller must hold mu.
func (l *queryLoop) recordSentQueries() {
	if slices.ContainsFunc(l.queries, func(q *query) bool { return q.conn != nil }) {
		l.outcome.sentAny = true
	}
}

// allUnresponsive reports whether all candidates were queried, and none has responded to this Task. It is false if a
// candidate has answered another Task since the start of this one, or if no query has left this machine. The caller
// must hold mu.
func (l *queryLoop) allUnresponsive() bool {
	if l.outcome.gotResponse || !l.outcome.sentAny || len(l.candidates) == 0 {
		return false
	}
	for i := range l.candidates {
		c := &l.candidates[i]
		if c.attempts == 0 || c.lastAnswer > l.beganAt {
			return false
		}
	}
	return true
}

// endTask ends the Task, with the error err or with nil. The Task no longer counts as a user of its zone, and no longer
// waits for further servers.
//
// Its unfinished queries become losers, whose answers are not needed. They may continue for a while, to measure the
// servers. They are reported to Config.OnQueryEnd with err, or with race.ErrLost if err is nil.
func (l *queryLoop) endTask(err error) {
	l.timer.Stop()
	if l.search.running && l.search.paidByBudget {
		l.hedgeBudget.refundToken() // the search was paid for a hedge that is not sent
	}
	if stop := l.search.stop; stop != nil && (l.search.running || l.HasRunningLookups != nil && l.HasRunningLookups()) {
		time.AfterFunc(answerTimeout, stop) // until then, its result is useful for other Tasks
	} else if stop != nil {
		stop() // without a timer, which would cost more than the search
	}
	if l.done != nil {
		close(l.done)
	}
	now := l.elapsed()
	l.mu.Lock()
	for _, q := range l.queries {
		q.abandonQuery()
	}
	l.zones.releaseZone(l.zone, now)
	l.mu.Unlock()
	if ended := l.conf.OnQueryEnd; ended != nil {
		if err == nil {
			err = race.ErrLost
		}
		for _, q := range l.queries {
			ended(l.ctx, l.attemptInfo(q), time.Since(q.startedAt), err)
		}
	}
}
