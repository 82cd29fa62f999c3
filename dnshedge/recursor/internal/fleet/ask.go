package fleet

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
	maxQueries = 8                       // of a task, unless its servers are more
	maxVain    = 2                       // hedges of a task that nobody answers
	askTime    = 4500 * time.Millisecond // after which a task sends no more queries
	briefTime  = time.Second             // after which a brief one sends none

	plainTime = time.Hour            // how long a server that does not understand EDNS is asked without
	maxLate   = 5 * time.Millisecond // how late a timer may strike: then the process is busy, and not the server
)

// Ask has the servers of a zone answer t. It returns the first response that Judge takes, as it
// came, or the error of Spend or More, ErrNoServers, or the cause of ctx.
//
// It is no race of package race: which server is asked next and when depends on how those asked
// before have answered, there is no bound of four attempts, and losers are of use.
func (f *Fleet) Ask(ctx context.Context, t *Task) (_ *dns.Msg, err error) {
	q, err := wire.NewDirect(t.Name, t.Type, t.DO, t.CD)
	if err != nil {
		return nil, err
	}
	a := &asking{Fleet: f, Task: t, ctx: ctx, wire: q, began: f.now()}
	a.inbox.wake = make(chan struct{}, 1)
	a.search = search{fleet: f, more: t.More}
	if err := a.enterZone(); err != nil {
		return nil, err
	}
	a.all = f.candidates(t, nil, t.Servers)
	a.timer = time.NewTimer(time.Hour)
	err = ErrNoServers // unless this function returns
	defer func() { a.end(err) }()
	a.next(atFirst)
	var events []event
	for {
		if a.over() {
			return nil, a.fail()
		}
		a.arm()
		select {
		case <-a.inbox.wake:
			events = a.inbox.take(events)
			for _, e := range events {
				if m := a.take(e); m != nil {
					return m, nil
				}
			}
		case <-a.timer.C:
			a.strike()
		case x := <-a.search.found:
			a.search.running = false
			a.add(x)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-f.ctx.Done():
			return nil, net.ErrClosed
		}
	}
}

// asking is a task that is under way. Its fields belong to the goroutine that asks; inbox has a lock of its own.
type asking struct {
	*Fleet
	*Task
	ctx     context.Context
	wire    *wire.Query
	bare    *wire.Query // without EDNS; nil: not needed yet
	zone    *zone
	began   time.Duration
	all     []candidate
	queries []*query // that were sent, in this order, and have not ended
	n       int      // queries sent, but not those that repeat an attempt in another form
	hedged  int      // of them, hedges
	timer   *time.Timer
	gone    chan struct{} // closed at the end; nil: nobody waits for a place
	inbox   inbox
	search  search
	outcome outcome
}

// outcome is what is known of a task that nobody has answered.
type outcome struct {
	reached bool  // a query has left this machine
	stuck   error // why one has not
	heard   bool  // a response came
	fatal   error // why no more is sent
	rests   bool  // it was noted that the zone's servers are silent
}

// enterZone makes the task a user of its zone, or returns why the zone's servers are not asked.
func (a *asking) enterZone() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return net.ErrClosed
	}
	if z := a.zones.all[a.Zone]; z != nil && a.began < z.rests[kindOf(a.Type)].until {
		return ErrNoServers
	}
	a.zone = a.zones.use(a.Zone)
	return nil
}

// reason is why a query is sent.
type reason int

const (
	atFirst      reason = iota
	afterFailure        // another server cannot answer
	afterTimeout        // no answer came before the retransmission timeout
	asHedge             // an answer is late
	asRepetition        // the query before was not understood, or its answer was cut
)

// next asks the next server, or looks for more.
func (a *asking) next(why reason) {
	if a.spent() {
		return
	}
	a.mu.Lock()
	c := a.best(a.all, a.now())
	a.mu.Unlock()
	if c != nil && c.tries > 0 && a.n >= maxQueries {
		c = nil
	}
	switch {
	case c == nil || c.tries > 0:
		a.search.want(a.ctx, a.effort())
	case c.avoid:
		a.search.want(a.ctx, Glueless)
	}
	switch {
	case c == nil, why == afterFailure && c.tries > 0 && a.latest() != nil:
		return
	case c.avoid && a.search.running: // a server that is looked up now comes before it
		return
	}
	a.send(c, why, nil)
}

// effort returns where to look for more servers because one is needed.
func (a *asking) effort() Effort {
	if a.outcome.heard || len(a.all) == 0 {
		return Everything
	}
	return Outside
}

// spent reports whether no more queries are sent.
func (a *asking) spent() bool {
	passed := a.now() - a.began
	return a.outcome.fatal != nil || passed > askTime || a.Brief && passed >= briefTime
}

// over reports whether no answer is awaited any more.
func (a *asking) over() bool {
	switch {
	case len(a.queries) == 0 && !a.search.running:
		return true
	case a.latest() != nil:
		return false
	case a.spent():
		return true
	case a.search.running:
		return false
	case a.Brief:
		return true
	case time.Now().Before(a.quiet()):
		return false
	}
	a.rest()
	return a.outcome.heard || !time.Now().Before(a.until())
}

// until returns Task.Until's time.
func (a *asking) until() time.Time {
	if a.Until == nil {
		return time.Time{}
	}
	return a.Until()
}

// quiet returns when all queries have had the time that losers have.
func (a *asking) quiet() (last time.Time) {
	for _, q := range a.queries {
		if at := q.ends(); at.After(last) {
			last = at
		}
	}
	return last
}

// latest returns the query that was sent last, of those whose answer is not overdue.
func (a *asking) latest() *query {
	for i := len(a.queries) - 1; i >= 0; i-- {
		if q := a.queries[i]; q.state != isOverdue {
			return q
		}
	}
	return nil
}

// arm sets the timer.
func (a *asking) arm() {
	q := a.latest()
	switch {
	case q == nil && len(a.queries) > 0 && !a.search.running:
		at := a.quiet()
		if !time.Now().Before(at) {
			at = a.until()
		}
		a.timer.Reset(time.Until(at))
	case q == nil || q.state == isWaiting:
		a.timer.Stop()
	default:
		a.timer.Reset(time.Until(q.due()))
	}
}

// strike does what is to be done when the time of the latest query is up.
func (a *asking) strike() {
	q := a.latest()
	if q == nil || q.state == isWaiting {
		return
	}
	over := time.Since(q.due())
	switch {
	case over < 0:
	case over > maxLate:
		q.delay += over + maxLate // the answer may be here already, but not read
	case q.hedgeable:
		q.hedgeable = false
		a.hedge()
	default:
		a.giveUp()
		a.next(afterTimeout)
	}
}

// giveUp notes that the answers to all queries are overdue. They are still taken if they come.
func (a *asking) giveUp() {
	var ended []*query
	a.mu.Lock()
	left := a.queries[:0]
	for _, q := range a.queries {
		switch q.state {
		case isEvicted:
			ended = append(ended, q)
			continue
		case isSent:
			q.state = isOverdue
			q.demote()
		}
		left = append(left, q)
	}
	clear(a.queries[len(left):])
	a.queries = left
	a.mu.Unlock()
	for _, q := range ended {
		a.done(q, q.err)
	}
}

// hedge asks another server because the answer of the one before is late.
func (a *asking) hedge() {
	if a.spent() || a.hedged >= maxVain && !a.outcome.heard {
		return // they do not help, and others have the same budget
	}
	c := a.chooseHedge(a.all)
	looks := (c == nil || c.tries > 0) && a.search.useful(Glueless)
	switch {
	case c == nil && !looks || !a.hedges.spend():
	case looks:
		a.search.paid = a.search.start(a.ctx, Glueless)
	default:
		a.send(c, asHedge, nil)
	}
}

// send sends a query to c. If it repeats another one in another form, that form is again.
func (a *asking) send(c *candidate, why reason, again *form) {
	paid := why == asHedge // by the budget
	if !paid && a.Hedge != nil && a.Hedge() {
		if paid = a.hedges.spend(); !paid {
			a.outcome.fatal = ErrUnpaid
			return
		}
	}
	if !a.pay(why, paid) {
		return
	}
	c, q := a.place(c, why, again)
	if q == nil {
		if paid {
			a.hedges.refund()
			a.hedges.denied.Add(1)
		}
		return
	}
	q.paid = paid
	a.count(c, q, why)
	var gone chan struct{}
	if q.state == isWaiting {
		if a.gone == nil {
			a.gone = make(chan struct{})
		}
		gone = a.gone
	}
	a.queries = append(a.queries, q)
	defer func() { go q.run(gone) }() // also if Config.Began panics
	if began := a.conf.Began; began != nil {
		began(a.ctx, a.attempt(q))
	}
}

// pay reports whether a query is paid for. If it is not, nothing more is sent, unless it is a hedge: the
// task goes on without.
func (a *asking) pay(why reason, paid bool) bool {
	if a.Task.Spend == nil {
		return true
	}
	err := a.Task.Spend(paid)
	if err != nil && paid {
		a.hedges.refund()
	}
	if err != nil && why != asHedge {
		a.outcome.fatal = err
	}
	return err == nil
}

// place returns a query that has places, or that waits for them, and whom it asks: c, unless others have
// taken its last places since it was chosen. A hedge does not wait. The query is nil if none can be sent.
func (a *asking) place(c *candidate, why reason, again *form) (*candidate, *query) {
	now := a.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if why != asHedge && why != asRepetition && !c.slots.free(a.perServer) {
		c = a.best(a.all, now)
	}
	q := a.queryTo(c, why, again)
	c.asked = now
	c.stand = q.stand
	switch {
	case a.closed:
		return c, nil
	case q.tryEnter():
		q.state = isSent
		if why == afterTimeout {
			q.demote() // it will hardly be answered
		}
	case why == asHedge:
		return c, nil
	}
	a.wg.Add(1)
	return c, q
}

// queryTo returns a query to c. The caller holds mu.
func (a *asking) queryTo(c *candidate, why reason, again *form) *query {
	about := a.stands.topicOf(a.Zone, kindOf(a.Type))
	q := &query{
		Fleet: a.Fleet, form: form{number: a.n, hedge: why == asHedge, plain: !a.Signed && a.now() < c.server.plain},
		matter: matter{a.zone, about, &a.zone.rests[kindOf(a.Type)], a.stands.use(standingKey{c.addr, about}, a.now())},
		server: c.server, addr: c.addr, wire: a.wire, inbox: &a.inbox,
		began: time.Now(), late: c.late,
	}
	if again != nil {
		q.form = *again
	}
	if c.slow && len(a.all) == 1 && a.search.useful(Glueless) {
		q.late = min(q.late, c.strange) // there may be a better one
	}
	if q.tcp {
		q.late, q.rto = 3*q.late, min(max(3*c.rto, coldRTO), 3*maxRTO) // a connection takes two round trips more
	} else {
		q.rto = min(c.rto<<c.tries, max(maxRTO, c.rto))
	}
	q.hedgeable = !a.hedges.off && q.late < q.rto
	if q.plain {
		if a.bare == nil {
			a.bare = a.wire.Plain()
		}
		q.wire = a.bare
	}
	return q
}

// count counts a query to c.
func (a *asking) count(c *candidate, q *query, why reason) {
	if why != asRepetition {
		a.n++
	}
	if !q.tcp {
		c.tries++
	}
	switch why {
	case asHedge:
		a.hedged++
	case afterFailure:
		a.counts.failovers.Add(1)
	case afterTimeout:
		a.counts.timeouts.Add(1)
	}
	if q.paid {
		a.counts.hedges.Add(1)
	} else {
		a.hedges.account.Earn()
	}
}

func (a *asking) attempt(q *query) Attempt {
	return Attempt{
		Name: a.Name, Type: a.Type, Zone: a.Zone, Server: q.addr,
		TCP: q.tcp, Attempt: q.number, Hedge: q.hedge || q.paid,
	}
}

// take takes an event, and returns the answer if it is one.
func (a *asking) take(e event) *dns.Msg {
	q := e.query
	if !e.ended {
		q.state = isSent
		return nil
	}
	if q.err == errEvicted && q.state != isOverdue {
		q.state = isEvicted
		return nil
	}
	for i := range a.queries {
		if a.queries[i] == q {
			a.queries = append(a.queries[:i], a.queries[i+1:]...)
			break
		}
	}
	c := candidateOf(a.all, q.addr)
	err := q.err
	if q.msg != nil {
		a.outcome.heard = true
		err = a.read(c, q)
	}
	m := q.msg
	q.msg = nil // it may be large, and other queries of the task, which refer to this one, may take long
	a.done(q, err)
	switch {
	case err == nil:
		if q.hedge {
			a.counts.hedgeWins.Add(1)
		}
		return m
	case err == errAgain && (q.tcp || c.tries < maxTries):
		again := q.form
		again.plain = true
		a.send(c, asRepetition, &again)
	case err == errCut && !q.tcp:
		a.outcome.heard = true
		again := q.form
		again.tcp = true
		a.send(c, asRepetition, &again)
	case errors.Is(err, os.ErrDeadlineExceeded) && !q.tcp || err == errForgers || err == errEvicted:
		if a.latest() == nil && q.state != isOverdue {
			a.next(afterTimeout)
		}
	default:
		c.failed = true
		a.next(afterFailure)
	}
	return nil
}

// read reads a response, and returns an error if it is none that helps.
func (a *asking) read(c *candidate, q *query) error {
	switch {
	case q.plain || !rejected(q.msg):
	case a.Signed:
		return a.mark(c, ErrUnsigned)
	default:
		return errAgain
	}
	if q.plain && !rejected(q.msg) { // otherwise it is the question that the server does not understand
		now := a.now()
		a.mu.Lock()
		if c.server.plain <= now {
			c.server.plain = now + plainTime
		}
		a.mu.Unlock()
	}
	err := a.Judge(q.msg, c.addr)
	if err == ErrLame {
		a.counts.lame.Add(1)
	}
	if err == nil && !c.marked || rejected(q.msg) {
		return err
	}
	return a.mark(c, err)
}

// mark notes what a server has said, as Task.Judge does, and returns it.
func (a *asking) mark(c *candidate, err error) error {
	key, now := lameKey{a.Zone, c.addr}, a.now()
	a.mu.Lock()
	c.lame = a.lame.note(key, a.Name, err, now)
	a.mu.Unlock()
	c.marked = err != nil
	return err
}

// rejected reports whether a server did not understand a query with EDNS (RFC 6891 §7).
func rejected(m *dns.Msg) bool {
	switch m.Rcode {
	case dns.RcodeFormatError, dns.RcodeBadVers:
		return true
	case dns.RcodeNotImplemented:
		return m.IsEdns0() == nil
	}
	return false
}

// done notes that q has ended.
func (a *asking) done(q *query, err error) {
	switch {
	case !q.wrote.IsZero():
		a.outcome.reached = true
	case err != ErrNoServers: // it has waited for a place in vain
		a.outcome.stuck = err
	}
	if ended := a.conf.Ended; ended != nil {
		ended(a.ctx, a.attempt(q), time.Since(q.began), err)
	}
}

// add adds the servers that were found.
func (a *asking) add(x found) {
	s := &a.search
	n := len(a.all)
	a.all = a.candidates(a.Task, a.all, x.servers)
	switch {
	case len(x.servers) == 0:
		s.exhausted, s.why = x.effort, x.err
	case len(a.all) == n: // none that may be asked
		if s.start(a.ctx, x.effort) {
			return
		}
	}
	paid, needed := s.paid, s.needed
	s.paid, s.needed = false, false
	if paid && (len(a.all) == n || needed) {
		a.hedges.refund()
	}
	switch {
	case a.spent():
	case needed && (len(a.all) > n || len(a.queries) == 0):
		a.next(afterFailure)
	case paid && len(a.all) > n:
		if c := a.chooseHedge(a.all); c != nil {
			a.send(c, asHedge, nil)
		}
	}
}

// fail returns the error of a task that no server has answered.
func (a *asking) fail() error {
	if a.outcome.fatal == ErrUnpaid || errors.Is(a.search.why, ErrUnpaid) {
		return ErrUnpaid // which says nothing of servers
	}
	silent := a.rest()
	o := &a.outcome
	switch {
	case o.fatal != nil:
		return o.fatal
	case a.search.why != nil && !silent:
		return a.search.why
	case o.stuck != nil && !o.reached:
		return &StuckError{o.stuck}
	}
	return ErrNoServers
}

// rest has the zone rest, perhaps, if all servers were asked and were silent. It reports whether they were.
func (a *asking) rest() bool {
	if !a.silent() {
		return false
	}
	if a.Part {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now, r := a.now(), &a.zone.rests[kindOf(a.Type)]
	switch {
	case !a.outcome.rests:
		a.outcome.rests = true
		r.silent(a.Name, slices.ContainsFunc(a.all, func(c candidate) bool { return c.met }), now)
	case r.until > now:
		r.until = now + zoneRest // they still are
	}
	return true
}

// silent reports whether all servers were asked, and none has said anything, not even to others.
func (a *asking) silent() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if slices.ContainsFunc(a.queries, func(q *query) bool { return q.conn != nil }) {
		a.outcome.reached = true
	}
	if a.outcome.heard || !a.outcome.reached || len(a.all) == 0 {
		return false
	}
	for i := range a.all {
		c := &a.all[i]
		if c.tries == 0 || c.seen > a.began {
			return false
		}
	}
	return true
}

// end leaves the queries that are still in flight to themselves.
func (a *asking) end(err error) {
	a.timer.Stop()
	if a.search.running && a.search.paid {
		a.hedges.refund() // nobody will be asked
	}
	a.search.end()
	if a.gone != nil {
		close(a.gone)
	}
	now := a.now()
	a.mu.Lock()
	for _, q := range a.queries {
		q.lose()
	}
	a.zones.leave(a.zone, now)
	a.mu.Unlock()
	if ended := a.conf.Ended; ended != nil {
		if err == nil {
			err = race.ErrLost
		}
		for _, q := range a.queries {
			ended(a.ctx, a.attempt(q), time.Since(q.began), err)
		}
	}
}
