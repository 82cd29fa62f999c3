package fleet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/race"
)

// Task is a question to the servers of one zone.
type Task struct {
	Name string // absolute, in lower case, as dns.CanonicalName returns it
	Type uint16
	DO   bool // the caller understands DNSSEC
	CD   bool

	Zone string // absolute, in lower case
	Any  bool   // servers may have addresses that mean something in one network only
	Part bool   // there is another question if nobody answers this one: silence is no reason to let the zone rest

	// Servers are the addresses known at first, in no order. When none is known, or all have
	// failed, more is asked for others. It blocks until it has some. It returns none if there
	// are no more with that effort, or an error that ends the task. It is called by a goroutine of its own,
	// once at a time, while the functions below may be called by that of ask. Its context
	// is one for all calls, and ends some time after the task. Nil: there are no more.
	Servers []netip.AddrPort
	More    func(ctx context.Context, e Effort) ([]netip.AddrPort, error)

	// Judge reads a response, which has the ID and the question that were sent and is not cut. Nil
	// means that it is an answer. ErrLame: the server does not serve the zone, or cannot answer, so
	// that the next one is asked at once, and this one is not asked about the zone for a while.
	// Any other error: the next one is asked at once.
	Judge func(m *dns.Msg, server netip.AddrPort) error

	// Spend is asked before each query, whatever it is for. After an error nothing more is
	// sent, and the task ends with that error unless an answer comes in time. Nil: all is paid for.
	Spend func() error
}

// Effort is how hard more servers are looked for.
type Effort int

const (
	// An answer is late. Only names of servers of which no address is known are worth a lookup.
	Glueless Effort = 1 + iota
	// All servers are silent. It is no use to look up names within the zone, for they would be asked.
	Outside
	Everything
)

// ErrLame is why a response is not taken: see task.
var ErrLame = errors.New("recursor: server does not serve the zone")

// ErrNoServers is the error of a task whose servers have all failed.
var ErrNoServers = errors.New("recursor: no server answers")

const (
	maxQueries = 8                       // of a task, unless its servers are more
	maxMore    = 16                      // times that a task asks for more servers
	askTime    = 4500 * time.Millisecond // after which a task sends no more queries

	maxLate = 5 * time.Millisecond // how late a timer may strike: then the process is busy, and not the server
)

// Ask has the servers of a zone answer t. It returns the first response that Judge takes, as it
// came, or the error of Spend or More, ErrNoServers, or the cause of ctx.
//
// It is no race of package race: which server is asked next and when depends on how those asked
// before have answered, there is no bound of four attempts, and losers are of use.
func (f *Fleet) Ask(ctx context.Context, t *Task) (*dns.Msg, error) {
	q, err := wire.NewDirect(t.Name, t.Type, t.DO, t.CD)
	if err != nil {
		return nil, err
	}
	a := &asking{Fleet: f, Task: t, ctx: ctx, wire: q, began: f.now(), wake: make(chan struct{}, 1)}
	f.mu.Lock()
	if err = f.refuses(t.Zone, a.began); err == nil {
		a.zone = f.zoneOf(t.Zone)
	}
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	a.all = f.candidates(t, nil, t.Servers)
	a.timer = time.NewTimer(time.Hour)
	err = ErrNoServers // unless run returns
	defer func() { a.end(err) }()
	var m *dns.Msg
	m, err = a.run()
	return m, err
}

// refuses returns why a zone's servers are not asked. The caller holds mu.
func (f *Fleet) refuses(name string, now time.Duration) error {
	if f.closed {
		return net.ErrClosed
	}
	if z := f.zones[name]; z != nil && now < z.until {
		return ErrNoServers
	}
	return nil
}

// asking is a task that is under way. Its fields belong to the goroutine that asks.
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
	timer   *time.Timer
	gone    chan struct{} // closed at the end; nil: nobody waits for a place
	reached bool          // a query has left this machine
	stuck   error         // why one has not
	heard   bool          // a response came
	fatal   error         // why no more is sent

	looked  int // times that more was asked
	looking bool
	needed  bool            // the servers found are to be asked at once
	paid    bool            // the budget has paid for a hedge to one of them
	vain    Effort          // that finds no more
	why     error           // of more, for that
	found   chan found      // what more returned
	lookCtx context.Context // more's
	unlook  func()          // ends it

	wake chan struct{} // capacity 1: there are events

	mu     sync.Mutex // guards events
	events []event
}

// event is what happened to a query.
type event struct {
	*query
	ended bool // otherwise, it has been sent after a wait
}

// found is what more returned.
type found struct {
	servers []netip.AddrPort
	err     error
	effort  Effort
}

// tell adds an event.
func (a *asking) tell(e event) {
	a.mu.Lock()
	a.events = append(a.events, e)
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// run asks until there is an answer or no hope.
func (a *asking) run() (*dns.Msg, error) {
	a.next(atFirst)
	var events []event
	for {
		if len(a.queries) == 0 && !a.looking || a.latest() == nil && a.spent() {
			return nil, a.fail()
		}
		a.arm()
		select {
		case <-a.wake:
			a.mu.Lock()
			events, a.events = a.events, events[:0]
			a.mu.Unlock()
			for _, e := range events {
				if m := a.take(e); m != nil {
					return m, nil
				}
			}
		case <-a.timer.C:
			a.strike()
		case x := <-a.found:
			a.looking = false
			a.add(x)
		case <-a.ctx.Done():
			return nil, context.Cause(a.ctx)
		case <-a.Fleet.ctx.Done():
			return nil, net.ErrClosed
		}
	}
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
	c := a.choose(a.all)
	if c != nil && c.tries > 0 && a.n >= maxQueries {
		c = nil
	}
	if c == nil || c.tries > 0 {
		if a.look(a.effort()) {
			a.needed = true
		}
	}
	if c == nil || why == afterFailure && c.tries > 0 && a.latest() != nil {
		return
	}
	a.send(c, why, nil)
}

// spent reports whether no more queries are sent.
func (a *asking) spent() bool { return a.fatal != nil || a.now()-a.began > askTime }

// latest returns the query that was sent last, of those whose answer is not overdue.
func (a *asking) latest() *query {
	for i := len(a.queries) - 1; i >= 0; i-- {
		if q := a.queries[i]; !q.overdue {
			return q
		}
	}
	return nil
}

// arm sets the timer.
func (a *asking) arm() {
	q := a.latest()
	if q == nil || !q.entered {
		a.timer.Stop()
		return
	}
	a.timer.Reset(time.Until(q.due()))
}

// strike does what is to be done when the time of the latest query is up.
func (a *asking) strike() {
	q := a.latest()
	if q == nil || !q.entered {
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
	a.Fleet.mu.Lock()
	left := a.queries[:0]
	for _, q := range a.queries {
		if q.entered && !q.overdue {
			q.overdue = true
			a.loosen(q)
		}
		if q.evicted {
			ended = append(ended, q)
		} else {
			left = append(left, q)
		}
	}
	clear(a.queries[len(left):])
	a.queries = left
	a.Fleet.mu.Unlock()
	for _, q := range ended {
		a.done(q, q.err)
	}
}

// done notes that q has ended.
func (a *asking) done(q *query, err error) {
	if q.wrote.IsZero() {
		a.stuck = err
	} else {
		a.reached = true
	}
	if f := a.conf.Ended; f != nil {
		f(a.ctx, q.info(), time.Since(q.began), err)
	}
}

// hedge asks another server because the answer of the one before is late.
func (a *asking) hedge() {
	if a.spent() {
		return
	}
	c := a.chooseHedge(a.all)
	looks := (c == nil || c.tries > 0) && a.looks(Glueless)
	switch {
	case c == nil && !looks || !a.Fleet.Spend():
	case looks:
		a.paid = a.look(Glueless)
	default:
		a.send(c, asHedge, nil)
	}
}

// effort returns how hard to look for more servers because one is needed.
func (a *asking) effort() Effort {
	if a.heard || len(a.all) == 0 {
		return Everything
	}
	return Outside
}

// send sends a query to c. If it repeats another one in another form, that is old.
func (a *asking) send(c *candidate, why reason, old *query) {
	if a.Task.Spend != nil {
		if err := a.Task.Spend(); err != nil {
			if why == asHedge {
				a.bucket.GiveBack()
				return
			}
			a.fatal = err
			return
		}
	}
	now := a.now()
	a.Fleet.mu.Lock()
	if why != asHedge && old == nil && !c.slots.free(a.perServer) {
		c = a.best(a.all, now) // others have taken the last places since it was chosen
	}
	q := a.queryTo(c, why == asHedge, old)
	c.asked = now
	ok := !a.closed && q.tryEnter()
	q.line = !ok && !a.closed && why != asHedge
	if ok || q.line {
		a.wg.Add(1)
	}
	if ok && why == afterTimeout {
		a.loosen(q) // there is little hope
	}
	a.Fleet.mu.Unlock()
	if !ok && !q.line {
		if why == asHedge {
			a.bucket.GiveBack()
			a.counts.denied.Add(1)
		}
		return
	}
	if old == nil {
		a.n++
	}
	if !q.tcp {
		c.tries++
	}
	if q.plain {
		if a.bare == nil {
			a.bare = a.wire.Plain()
		}
		q.wire = a.bare
	}
	if q.line && a.gone == nil {
		a.gone = make(chan struct{})
	}
	switch why {
	case asHedge:
		a.counts.hedges.Add(1)
	case afterFailure:
		a.counts.failovers.Add(1)
	case afterTimeout:
		a.counts.timeouts.Add(1)
	}
	if why != asHedge {
		a.bucket.Earn()
	}
	a.queries = append(a.queries, q)
	defer func() { go q.run() }() // also if the trace panics
	if f := a.conf.Began; f != nil {
		f(a.ctx, q.info())
	}
}

// queryTo returns a query to c. If it repeats another one in another form, that is old. The caller
// holds fleet.mu.
func (a *asking) queryTo(c *candidate, hedge bool, old *query) *query {
	q := &query{
		Fleet: a.Fleet, asking: a, zone: a.zone, server: c.server, addr: c.addr, wire: a.wire,
		number: a.n, hedge: hedge, began: time.Now(), hedgeable: !a.conf.Hedge.Off, late: c.late, plain: a.now() < c.server.plain,
	}
	if old != nil {
		q.number, q.hedge, q.tcp, q.plain = old.number, old.hedge, old.tcp, old.plain
	}
	if c.slow && len(a.all) == 1 && a.looks(Glueless) {
		q.late = min(q.late, c.strange) // there may be a better one
	}
	if q.tcp {
		q.late, q.rto = 3*q.late, min(max(3*c.rto, coldRTO), 3*maxRTO) // a connection takes two round trips more
	} else {
		q.rto = min(c.rto<<c.tries, max(maxRTO, c.rto))
	}
	q.hedgeable = q.hedgeable && q.late < q.rto
	return q
}

// candidateOf returns the candidate that q asked.
func (a *asking) candidateOf(q *query) *candidate {
	for i := range a.all {
		if a.all[i].addr == q.addr {
			return &a.all[i]
		}
	}
	return nil // not reached: candidates stay
}

// take takes an event, and returns the answer if it is one.
func (a *asking) take(e event) *dns.Msg {
	q := e.query
	if !e.ended {
		q.entered = true
		return nil
	}
	if q.err == errEvicted && !q.overdue {
		q.evicted = true // until it is overdue, as if it had a socket
		return nil
	}
	for i := range a.queries {
		if a.queries[i] == q {
			a.queries = append(a.queries[:i], a.queries[i+1:]...)
			break
		}
	}
	c := a.candidateOf(q)
	err := q.err
	if q.msg != nil {
		a.heard = true
		err = a.read(c, q)
	}
	a.done(q, err)
	switch {
	case err == nil:
		if q.hedge {
			a.counts.hedgeWins.Add(1)
		}
		return q.msg
	case err == errAgain && (q.tcp || c.tries < maxTries):
		a.send(c, asRepetition, &query{number: q.number, hedge: q.hedge, tcp: q.tcp, plain: true})
	case err == errCut && !q.tcp:
		a.heard = true
		a.send(c, asRepetition, &query{number: q.number, hedge: q.hedge, tcp: true, plain: q.plain})
	case errors.Is(err, os.ErrDeadlineExceeded) && !q.tcp || err == errForgers || err == errEvicted:
		if a.latest() == nil && !q.overdue {
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
	if !q.plain && rejected(q.msg) {
		return errAgain
	}
	if q.plain && !rejected(q.msg) { // otherwise it is the question that the server does not understand
		now := a.now()
		a.Fleet.mu.Lock()
		if c.server.plain <= now {
			c.server.plain = now + plainTime
		}
		a.Fleet.mu.Unlock()
	}
	err := a.Judge(q.msg, c.addr)
	lame := err == ErrLame
	if lame {
		a.counts.lame.Add(1)
	}
	if lame || c.lame && err == nil {
		key := lameKey{a.Task.Zone, c.addr}
		a.Fleet.mu.Lock()
		if lame && !rejected(q.msg) {
			a.mark(key, a.now())
		} else if !lame {
			delete(a.Fleet.lame, key)
		}
		a.Fleet.mu.Unlock()
		c.lame = lame
	}
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

// look asks for more servers, and reports whether that is under way.
func (a *asking) look(e Effort) bool {
	if a.looking {
		return true
	}
	if !a.looks(e) {
		return false
	}
	a.Fleet.mu.Lock()
	closed := a.closed
	if !closed {
		a.wg.Add(1)
	}
	a.Fleet.mu.Unlock()
	if closed {
		return false
	}
	if a.found == nil {
		a.found = make(chan found, 1)
		var cancel context.CancelFunc
		a.lookCtx, cancel = context.WithCancel(context.WithoutCancel(a.ctx))
		stop := context.AfterFunc(a.Fleet.ctx, cancel)
		a.unlook = func() { stop(); cancel() }
	}
	a.looked++
	a.looking = true
	go func() {
		defer a.wg.Done()
		servers, err := a.More(a.lookCtx, e)
		a.found <- found{servers, err, e}
	}()
	return true
}

// looks reports whether there may be more servers, and nobody looks for them.
func (a *asking) looks(e Effort) bool {
	return a.More != nil && e > a.vain && !a.looking && a.looked < maxMore
}

// add adds the servers that more has found.
func (a *asking) add(x found) {
	n := len(a.all)
	a.all = a.candidates(a.Task, a.all, x.servers)
	switch {
	case len(x.servers) == 0:
		a.vain, a.why = x.effort, x.err
	case len(a.all) == n: // none that may be asked
		if a.look(x.effort) {
			return
		}
	}
	paid, needed := a.paid, a.needed
	a.paid, a.needed = false, false
	if paid && (len(a.all) == n || needed) {
		a.bucket.GiveBack()
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

// fail returns the error of a task that no server has answered. If they were all asked, and all
// silent, the zone rests.
func (a *asking) fail() error {
	silent := a.silent()
	if silent && !a.Part {
		a.Fleet.mu.Lock()
		a.zone.until = a.now() + zoneRest
		a.Fleet.mu.Unlock()
	}
	switch {
	case a.fatal != nil:
		return a.fatal
	case a.why != nil && !silent:
		return a.why
	case a.stuck != nil && !a.reached:
		return &StuckError{a.stuck}
	}
	return ErrNoServers
}

// StuckError is ErrNoServers if nothing has left this machine, as when it has no network or no
// descriptors: that says nothing of the question.
type StuckError struct{ err error }

func (e *StuckError) Error() string   { return "recursor: no server can be asked: " + e.err.Error() }
func (e *StuckError) Unwrap() []error { return []error{ErrNoServers, e.err} }

// silent reports whether all servers were asked, and none has said anything, not even to others. Of one that
// was met, another question must have had no answer before: servers drop what they do not understand.
func (a *asking) silent() bool {
	if a.heard || !a.reached || len(a.all) == 0 {
		return false
	}
	a.Fleet.mu.Lock()
	defer a.Fleet.mu.Unlock()
	for i := range a.all {
		c := &a.all[i]
		if c.tries == 0 || c.seen > a.began || c.met && int(c.server.silent) <= c.tries {
			return false
		}
	}
	return true
}

// end leaves the queries that are still in flight to themselves.
func (a *asking) end(err error) {
	a.timer.Stop()
	if a.unlook != nil {
		// What is looked up is of use for others, as losers are.
		time.AfterFunc(answerTime, a.unlook)
	}
	if a.gone != nil {
		close(a.gone)
	}
	now := a.now()
	a.Fleet.mu.Lock()
	for _, q := range a.queries {
		a.lose(q)
	}
	a.leaveZone(a.zone, now)
	a.Fleet.mu.Unlock()
	if f := a.conf.Ended; f != nil {
		if err == nil {
			err = race.ErrLost
		}
		for _, q := range a.queries {
			f(a.ctx, q.info(), time.Since(q.began), err)
		}
	}
}
