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
	maxQueries          = 8                       // of a task, unless it has more servers
	maxUnansweredHedges = 2                       // hedges of a task without any response
	maxQueryTime        = 4500 * time.Millisecond // after which a task sends no more queries
	earlyEndTime        = time.Second             // after which a Brief task sends no more queries

	noEDNSTime       = time.Hour            // how long a server that rejects EDNS is asked without it
	maxTimerLateness = 5 * time.Millisecond // a timer that fires later means that the process is busy; the answer may be unread
)

// QueryServers asks the servers of a zone the question of t. It returns the first response that Judge accepts, unchanged. The
// error is that of Spend or FindMore, ErrNoServers, or the cause of ctx.
//
// It does not use package race: the next server and its delay depend on the responses so far, there are more than four
// attempts, and the answers of losers are of use.
func (f *Pool) QueryServers(ctx context.Context, t *Task) (_ *dns.Msg, err error) {
	q, err := wire.NewDirect(t.Name, t.Type, t.DO, t.CD)
	if err != nil {
		return nil, err
	}
	a := &queryLoop{Pool: f, Task: t, ctx: ctx, wire: q, began: f.elapsed()}
	a.inbox.wake = make(chan struct{}, 1)
	a.search = serverSearch{pool: f, findServers: t.FindServers}
	if err := a.enterZone(); err != nil {
		return nil, err
	}
	a.candidates = f.addCandidates(t, nil, t.Servers)
	a.timer = time.NewTimer(time.Hour)
	err = ErrNoServers // unless this function returns
	defer func() { a.abandonQueries(err) }()
	a.queryNextServer(reasonFirst)
	var events []queryEvent
	for {
		if a.isFinished() {
			return nil, a.taskError()
		}
		a.setTimer()
		select {
		case <-a.inbox.wake:
			events = a.inbox.takeEvents(events)
			for _, e := range events {
				if m := a.handleEvent(e); m != nil {
					return m, nil
				}
			}
		case <-a.timer.C:
			a.handleTimer()
		case x := <-a.search.results:
			a.search.running = false
			a.addServers(x)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-f.ctx.Done():
			return nil, net.ErrClosed
		}
	}
}

// A queryLoop is the state of one Query call. Its fields belong to the goroutine of Query; inbox has its own lock.
type queryLoop struct {
	*Pool
	*Task
	ctx        context.Context
	wire       *wire.Query
	plainWire  *wire.Query // without EDNS; nil: not needed yet
	zone       *zoneState
	began      time.Duration
	candidates []candidate
	queries    []*query // in flight or overdue, in the order of sending
	attempts   int      // queries sent, without repetitions in another form
	hedgesSent int      // of these, hedges
	timer      *time.Timer
	ended      chan struct{} // closed at the end; nil: no query waits for a slot
	inbox      eventQueue
	search     serverSearch
	outcome    loopOutcome
}

// loopOutcome collects the facts that determine the error of a task.
type loopOutcome struct {
	sentAny     bool  // a query has left this machine
	localErr    error // why a query could not be sent
	gotResponse bool  // a response came
	fatal       error // why no more queries are sent
	backedOff   bool  // the silence of the zone's servers is recorded
}

// enterZone registers the task as a user of its zone. It returns ErrNoServers while the zone is in backoff.
func (a *queryLoop) enterZone() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return net.ErrClosed
	}
	if z := a.zones.all[a.Zone]; z != nil && a.began < z.backoffs[groupQtype(a.Type)].avoidUntil {
		return ErrNoServers
	}
	a.zone = a.zones.acquireZone(a.Zone)
	return nil
}

// queryReason says why a query is sent.
type queryReason int

const (
	reasonFirst   queryReason = iota
	reasonFailure             // a server cannot answer
	reasonTimeout             // no answer before the retransmission timeout
	reasonHedge               // an answer is late
	reasonRepeat              // the previous query was rejected, or its answer truncated
)

// queryNextServer sends a query to the next server, or searches for more servers.
func (a *queryLoop) queryNextServer(why queryReason) {
	if a.hasStoppedSending() {
		return
	}
	a.mu.Lock()
	c := a.selectServer(a.candidates, a.elapsed())
	a.mu.Unlock()
	if c != nil && c.attempts > 0 && a.attempts >= maxQueries {
		c = nil
	}
	switch {
	case c == nil || c.attempts > 0:
		a.search.requireServers(a.ctx, a.selectSearchScope())
	case c.avoided:
		a.search.requireServers(a.ctx, GluelessNames)
	}
	switch {
	case c == nil, why == reasonFailure && c.attempts > 0 && a.latestQuery() != nil:
		return
	case c.avoided && a.search.running: // a server that is looked up now comes before it
		return
	}
	a.sendQuery(c, why, nil)
}

// selectSearchScope returns how far to search for more servers.
func (a *queryLoop) selectSearchScope() SearchScope {
	if a.outcome.gotResponse || len(a.candidates) == 0 {
		return AllNames
	}
	return OutOfDomainNames
}

// hasStoppedSending reports whether no more queries may be sent.
func (a *queryLoop) hasStoppedSending() bool {
	passed := a.elapsed() - a.began
	return a.outcome.fatal != nil || passed > maxQueryTime || a.EndEarly && passed >= earlyEndTime
}

// isFinished reports whether no answer can be expected any more.
func (a *queryLoop) isFinished() bool {
	switch {
	case len(a.queries) == 0 && !a.search.running:
		return true
	case a.latestQuery() != nil:
		return false
	case a.hasStoppedSending():
		return true
	case a.search.running:
		return false
	case a.EndEarly:
		return true
	case time.Now().Before(a.lastDeadline()):
		return false
	}
	a.backOffZone()
	return a.outcome.gotResponse || !time.Now().Before(a.awaitDeadline())
}

// awaitDeadline returns the time of Task.AwaitUntil.
func (a *queryLoop) awaitDeadline() time.Time {
	if a.AwaitUntil == nil {
		return time.Time{}
	}
	return a.AwaitUntil()
}

// lastDeadline returns when the last of the queries ends as a loser.
func (a *queryLoop) lastDeadline() (last time.Time) {
	for _, q := range a.queries {
		if at := q.loserDeadline(); at.After(last) {
			last = at
		}
	}
	return last
}

// latestQuery returns the last sent query that is not overdue, or nil.
func (a *queryLoop) latestQuery() *query {
	for i := len(a.queries) - 1; i >= 0; i-- {
		if q := a.queries[i]; q.state != stateOverdue {
			return q
		}
	}
	return nil
}

// setTimer sets the timer for the next event without a response.
func (a *queryLoop) setTimer() {
	q := a.latestQuery()
	switch {
	case q == nil && len(a.queries) > 0 && !a.search.running:
		at := a.lastDeadline()
		if !time.Now().Before(at) {
			at = a.awaitDeadline()
		}
		a.timer.Reset(time.Until(at))
	case q == nil || q.state == stateWaiting:
		a.timer.Stop()
	default:
		a.timer.Reset(time.Until(q.nextTimer()))
	}
}

// handleTimer hedges the latest query or, after its retransmission timeout, asks the next server.
func (a *queryLoop) handleTimer() {
	q := a.latestQuery()
	if q == nil || q.state == stateWaiting {
		return
	}
	over := time.Since(q.nextTimer())
	switch {
	case over < 0:
	case over > maxTimerLateness:
		q.processDelay += over + maxTimerLateness // the answer may have arrived unread
	case q.hedgeable:
		q.hedgeable = false
		a.sendHedge()
	default:
		a.markQueriesOverdue()
		a.queryNextServer(reasonTimeout)
	}
}

// markQueriesOverdue marks all queries as overdue. Their answers are still accepted.
func (a *queryLoop) markQueriesOverdue() {
	var ended []*query
	a.mu.Lock()
	left := a.queries[:0]
	for _, q := range a.queries {
		switch q.state {
		case stateEvicted:
			ended = append(ended, q)
			continue
		case stateSent:
			q.state = stateOverdue
			q.markExpendable()
		}
		left = append(left, q)
	}
	clear(a.queries[len(left):])
	a.queries = left
	a.mu.Unlock()
	for _, q := range ended {
		a.reportEnd(q, q.err)
	}
}

// sendHedge asks another server because the latest answer is late.
func (a *queryLoop) sendHedge() {
	if a.hasStoppedSending() || a.hedgesSent >= maxUnansweredHedges && !a.outcome.gotResponse {
		return // hedges do not help, and other tasks share the budget
	}
	c := a.selectHedgeServer(a.candidates)
	looks := (c == nil || c.attempts > 0) && a.search.canSearch(GluelessNames)
	switch {
	case c == nil && !looks || !a.hedgeBudget.spendToken():
	case looks:
		a.search.paidByBudget = a.search.startSearch(a.ctx, GluelessNames)
	default:
		a.sendQuery(c, reasonHedge, nil)
	}
}

// sendQuery sends a query to c. A repetition has the form again.
func (a *queryLoop) sendQuery(c *candidate, why queryReason, again *queryOptions) {
	paid := why == reasonHedge // by the budget
	if !paid && a.IsHedge != nil && a.IsHedge() {
		if paid = a.hedgeBudget.spendToken(); !paid {
			a.outcome.fatal = ErrNoHedgeBudget
			return
		}
	}
	if !a.spendQuery(why, paid) {
		return
	}
	c, q := a.acquireSlots(c, why, again)
	if q == nil {
		if paid {
			a.hedgeBudget.refundToken()
			a.hedgeBudget.denied.Add(1)
		}
		return
	}
	q.paidByBudget = paid
	a.countQuery(c, q, why)
	var gone chan struct{}
	if q.state == stateWaiting {
		if a.ended == nil {
			a.ended = make(chan struct{})
		}
		gone = a.ended
	}
	a.queries = append(a.queries, q)
	defer func() { go q.sendAndReceive(gone) }() // also if Config.Began panics
	if began := a.conf.OnQueryStart; began != nil {
		began(a.ctx, a.attemptInfo(q))
	}
}

// spendQuery calls Task.Spend. If it refuses, the task sends nothing more; a refused hedge is only left out.
func (a *queryLoop) spendQuery(why queryReason, paid bool) bool {
	if a.Task.SpendQuery == nil {
		return true
	}
	err := a.Task.SpendQuery(paid)
	if err != nil && paid {
		a.hedgeBudget.refundToken()
	}
	if err != nil && why != reasonHedge {
		a.outcome.fatal = err
	}
	return err == nil
}

// acquireSlots returns a query with slots or one that waits for them, and its candidate. That is c, unless other tasks
// have taken its last slots. A hedge does not wait. The query is nil if none can be sent.
func (a *queryLoop) acquireSlots(c *candidate, why queryReason, again *queryOptions) (*candidate, *query) {
	now := a.elapsed()
	a.mu.Lock()
	defer a.mu.Unlock()
	if why != reasonHedge && why != reasonRepeat && !c.slots.isFree(a.maxPerServer) {
		c = a.selectServer(a.candidates, now)
	}
	q := a.newQuery(c, why, again)
	c.lastQuery = now
	c.zoneHealth = q.zoneHealth
	switch {
	case a.closed:
		return c, nil
	case q.tryAcquireSlots():
		q.state = stateSent
		if why == reasonTimeout {
			q.markExpendable() // it will probably be lost like the query before
		}
	case why == reasonHedge:
		return c, nil
	}
	a.wg.Add(1)
	return c, q
}

// newQuery returns a query to c. The caller holds mu.
func (a *queryLoop) newQuery(c *candidate, why queryReason, again *queryOptions) *query {
	about := a.healthByZone.newZoneQtypeID(a.Zone, groupQtype(a.Type))
	q := &query{
		Pool: a.Pool, queryOptions: queryOptions{number: a.attempts, hedge: why == reasonHedge, withoutEDNS: !a.RequireSignatures && a.elapsed() < c.server.noEDNSUntil},
		queryZoneState: queryZoneState{a.zone, about, &a.zone.backoffs[groupQtype(a.Type)], a.healthByZone.getOrCreateHealth(healthKey{c.addr, about}, a.elapsed())},
		server:         c.server, addr: c.addr, wire: a.wire, inbox: &a.inbox,
		started: time.Now(), hedgeDelay: c.hedgeDelay,
	}
	if again != nil {
		q.queryOptions = *again
	}
	if c.slow && len(a.candidates) == 1 && a.search.canSearch(GluelessNames) {
		q.hedgeDelay = min(q.hedgeDelay, c.firstHedgeDelay) // FindMore may return a faster server
	}
	if q.tcp {
		q.hedgeDelay, q.rto = 3*q.hedgeDelay, min(max(3*c.rto, initialRTO), 3*maxRTO) // a connection takes two round trips more
	} else {
		q.rto = min(c.rto<<c.attempts, max(maxRTO, c.rto))
	}
	q.hedgeable = !a.hedgeBudget.off && q.hedgeDelay < q.rto
	if q.withoutEDNS {
		if a.plainWire == nil {
			a.plainWire = a.wire.Plain()
		}
		q.wire = a.plainWire
	}
	return q
}

// countQuery counts a query in the task and in Stats.
func (a *queryLoop) countQuery(c *candidate, q *query, why queryReason) {
	if why != reasonRepeat {
		a.attempts++
	}
	if !q.tcp {
		c.attempts++
	}
	switch why {
	case reasonHedge:
		a.hedgesSent++
	case reasonFailure:
		a.counters.failovers.Add(1)
	case reasonTimeout:
		a.counters.timeouts.Add(1)
	}
	if q.paidByBudget {
		a.counters.hedges.Add(1)
	} else {
		a.hedgeBudget.account.Earn()
	}
}

func (a *queryLoop) attemptInfo(q *query) Attempt {
	return Attempt{
		Name: a.Name, Type: a.Type, Zone: a.Zone, Server: q.addr,
		TCP: q.tcp, Attempt: q.number, Hedge: q.hedge || q.paidByBudget,
	}
}

// handleEvent processes an event and returns the accepted response, if it has one.
func (a *queryLoop) handleEvent(e queryEvent) *dns.Msg {
	q := e.query
	if !e.ended {
		q.state = stateSent
		return nil
	}
	if q.err == errEvicted && q.state != stateOverdue {
		q.state = stateEvicted
		return nil
	}
	for i := range a.queries {
		if a.queries[i] == q {
			a.queries = append(a.queries[:i], a.queries[i+1:]...)
			break
		}
	}
	c := findCandidate(a.candidates, q.addr)
	err := q.err
	if q.msg != nil {
		a.outcome.gotResponse = true
		err = a.evaluateResponse(c, q)
	}
	m := q.msg
	q.msg = nil // it may be large, and abandoned queries keep it reachable
	a.reportEnd(q, err)
	switch {
	case err == nil:
		if q.hedge {
			a.counters.hedgeWins.Add(1)
		}
		return m
	case err == errEDNSRejected && (q.tcp || c.attempts < maxAttempts):
		again := q.queryOptions
		again.withoutEDNS = true
		a.sendQuery(c, reasonRepeat, &again)
	case err == errTruncated && !q.tcp:
		a.outcome.gotResponse = true
		again := q.queryOptions
		again.tcp = true
		a.sendQuery(c, reasonRepeat, &again)
	case errors.Is(err, os.ErrDeadlineExceeded) && !q.tcp || err == errTooManyForgeries || err == errEvicted:
		if a.latestQuery() == nil && q.state != stateOverdue {
			a.queryNextServer(reasonTimeout)
		}
	default:
		c.failed = true
		a.queryNextServer(reasonFailure)
	}
	return nil
}

// evaluateResponse returns nil if the response is accepted, otherwise why not.
func (a *queryLoop) evaluateResponse(c *candidate, q *query) error {
	switch {
	case q.withoutEDNS || !isEDNSRejected(q.msg):
	case a.RequireSignatures:
		return a.updateLameness(c, ErrUnsigned)
	default:
		return errEDNSRejected
	}
	if q.withoutEDNS && !isEDNSRejected(q.msg) { // otherwise the server rejects the question itself
		now := a.elapsed()
		a.mu.Lock()
		if c.server.noEDNSUntil <= now {
			c.server.noEDNSUntil = now + noEDNSTime
		}
		a.mu.Unlock()
	}
	err := a.CheckResponse(q.msg, c.addr)
	if err == ErrLame {
		a.counters.lame.Add(1)
	}
	if err == nil && !c.hasLameRecord || isEDNSRejected(q.msg) {
		return err
	}
	return a.updateLameness(c, err)
}

// updateLameness records err, the result of Task.Judge for a response of the server, and returns it. After ErrLame, ErrUnsigned
// or ErrFailed the server is asked for the name later than others, and after several names it is lame for the zone. After nil it is lame no more.
func (a *queryLoop) updateLameness(c *candidate, err error) error {
	key, now := lameKey{a.Zone, c.addr}, a.elapsed()
	a.mu.Lock()
	c.lame = a.lame.recordResponse(key, a.Name, err, now)
	a.mu.Unlock()
	c.hasLameRecord = err != nil
	return err
}

// isEDNSRejected reports whether a server did not understand a query with EDNS (RFC 6891 §7).
func isEDNSRejected(m *dns.Msg) bool {
	switch m.Rcode {
	case dns.RcodeFormatError, dns.RcodeBadVers:
		return true
	case dns.RcodeNotImplemented:
		return m.IsEdns0() == nil
	}
	return false
}

// reportEnd records the end of a query and calls Config.Ended.
func (a *queryLoop) reportEnd(q *query, err error) {
	switch {
	case !q.wrote.IsZero():
		a.outcome.sentAny = true
	case err != ErrNoServers: // ErrNoServers: it has waited for a slot in vain
		a.outcome.localErr = err
	}
	if ended := a.conf.OnQueryEnd; ended != nil {
		ended(a.ctx, a.attemptInfo(q), time.Since(q.started), err)
	}
}

// addServers adds the servers that a search has found, and asks one if that is needed.
func (a *queryLoop) addServers(x searchResult) {
	s := &a.search
	n := len(a.candidates)
	a.candidates = a.addCandidates(a.Task, a.candidates, x.servers)
	switch {
	case len(x.servers) == 0:
		s.exhaustedScope, s.err = x.scope, x.err
	case len(a.candidates) == n: // no allowed address
		if s.startSearch(a.ctx, x.scope) {
			return
		}
	}
	paid, needed := s.paidByBudget, s.needed
	s.paidByBudget, s.needed = false, false
	if paid && (len(a.candidates) == n || needed) {
		a.hedgeBudget.refundToken()
	}
	switch {
	case a.hasStoppedSending():
	case needed && (len(a.candidates) > n || len(a.queries) == 0):
		a.queryNextServer(reasonFailure)
	case paid && len(a.candidates) > n:
		if c := a.selectHedgeServer(a.candidates); c != nil {
			a.sendQuery(c, reasonHedge, nil)
		}
	}
}

// taskError returns the error of a task without an accepted response.
func (a *queryLoop) taskError() error {
	if a.outcome.fatal == ErrNoHedgeBudget || errors.Is(a.search.err, ErrNoHedgeBudget) {
		return ErrNoHedgeBudget // it says nothing of the servers
	}
	silent := a.backOffZone()
	o := &a.outcome
	switch {
	case o.fatal != nil:
		return o.fatal
	case a.search.err != nil && !silent:
		return a.search.err
	case o.localErr != nil && !o.sentAny:
		return &LocalError{o.localErr}
	}
	return ErrNoServers
}

// backOffZone records that all servers of the zone are silent, which may put the zone into backoff. It reports whether
// they are.
func (a *queryLoop) backOffZone() bool {
	if !a.areAllUnresponsive() {
		return false
	}
	if a.Minimised {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now, r := a.elapsed(), &a.zone.backoffs[groupQtype(a.Type)]
	switch {
	case !a.outcome.backedOff:
		a.outcome.backedOff = true
		r.recordUnansweredName(a.Name, slices.ContainsFunc(a.candidates, func(c candidate) bool { return c.hasAnswered }), now)
	case r.avoidUntil > now:
		r.avoidUntil = now + zoneBackoffTime // all are still silent
	}
	return true
}

// areAllUnresponsive reports whether all servers were asked and none has answered this task or another one since.
func (a *queryLoop) areAllUnresponsive() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if slices.ContainsFunc(a.queries, func(q *query) bool { return q.conn != nil }) {
		a.outcome.sentAny = true
	}
	if a.outcome.gotResponse || !a.outcome.sentAny || len(a.candidates) == 0 {
		return false
	}
	for i := range a.candidates {
		c := &a.candidates[i]
		if c.attempts == 0 || c.lastAnswer > a.began {
			return false
		}
	}
	return true
}

// abandonQueries abandons the queries in flight at the end of the task.
func (a *queryLoop) abandonQueries(err error) {
	a.timer.Stop()
	if a.search.running && a.search.paidByBudget {
		a.hedgeBudget.refundToken() // the search was paid for a hedge that is not sent
	}
	a.search.stopLater()
	if a.ended != nil {
		close(a.ended)
	}
	now := a.elapsed()
	a.mu.Lock()
	for _, q := range a.queries {
		q.abandonByTask()
	}
	a.zones.releaseZone(a.zone, now)
	a.mu.Unlock()
	if ended := a.conf.OnQueryEnd; ended != nil {
		if err == nil {
			err = race.ErrLost
		}
		for _, q := range a.queries {
			ended(a.ctx, a.attemptInfo(q), time.Since(q.started), err)
		}
	}
}
