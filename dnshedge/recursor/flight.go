package recursor

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/fleet"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/stack"
)

// maxFlight is how long the address of a server is looked up.
const maxFlight = 10 * time.Second

// errCycle is why the lookup of a server's name is not waited for: it waits for who asks.
var errCycle = errors.New("recursor: looking up a server's name needs itself")

// errGlued is why the lookup of a server's name ends before it has asked the name's own zone: glue
// for it has come on the way.
var errGlued = errors.New("recursor: there is glue for the server's name")

// errDeep is why a server's name is not looked up.
var errDeep = errors.New("recursor: too many names of servers are served by servers whose names have to be looked up")

// errEmpty is why a server's name is not looked up: too many others of the question have no address.
var errEmpty = errors.New("recursor: too many names of servers have no address")

// ownError is why no server has answered that is about the question which has asked: for others it says nothing of the zone.
type ownError struct{ error }

func (e *ownError) Unwrap() error { return e.error }

// isOwn reports whether an error says nothing of a zone, for other questions.
func isOwn(err error) bool { return errors.As(err, new(*ownError)) }

// isStuck reports whether nothing could leave this machine, as without a network or descriptors: that says nothing of a question or a zone, and is not kept.
func isStuck(err error) bool { return errors.As(err, new(*fleet.StuckError)) }

// flights are the lookups of servers' names that are under way, and the steps, which all who need the same
// one share. None of them waits for itself, through others or not: who would close such a
// circle does not wait.
type flights struct {
	mu     sync.Mutex // guards the fields below, and nodes
	flying map[key]*flight
	steps  map[stepKey]*step
}

// node is a flight or a step in the graph of those that wait for others. It is guarded by flights.mu.
// A nil node is a caller's question, for which nobody waits.
//
// Who waits may do so as a hedge: it would have done without, had no server been late. What is looked up for hedges alone is
// paid for by their budget, and not by the question.
type node struct {
	waits  map[*node]wait
	wanted bool // a caller's question waits for it, through others or not, and not as a hedge
}

// wait is how often one node waits for another.
type wait struct{ all, hedges int }

func (n *node) await(o *node, hedge bool) {
	if n == nil {
		o.want()
		return
	}
	if n.waits == nil {
		n.waits = make(map[*node]wait)
	}
	w := n.waits[o]
	w.all++
	if hedge {
		w.hedges++
	} else if n.wanted {
		o.want()
	}
	n.waits[o] = w
}

func (n *node) leave(o *node) {
	if n == nil {
		return
	}
	w := n.waits[o]
	if w.all--; w.all <= 0 {
		delete(n.waits, o)
		return
	}
	w.hedges = min(w.hedges, w.all)
	n.waits[o] = w
}

// want takes that a caller's question waits for n.
func (n *node) want() {
	if n.wanted {
		return
	}
	n.wanted = true
	for o, w := range n.waits {
		if w.all > w.hedges {
			o.want()
		}
	}
}

// need takes that what n waits for as a hedge is needed.
func (n *node) need() {
	for o, w := range n.waits {
		n.waits[o] = wait{all: w.all}
		if n.wanted {
			o.want()
		}
	}
}

// reaches reports whether n is o or waits for it, through others or not. Those in seen have
// been looked at.
func (n *node) reaches(o *node, seen map[*node]bool) bool {
	if n == o {
		return true
	}
	seen[n] = true
	for next := range n.waits {
		if !seen[next] && next.reaches(o, seen) {
			return true
		}
	}
	return false
}

// flight is one of them. It ends with the last who waits for it.
type flight struct {
	node
	key    key
	lookup *lookup // of the flight's own goroutine
	done   chan struct{}
	cancel context.CancelCauseFunc

	waiting int // for this one; guarded by flights.mu

	// Written before done is closed.
	rrs  []dns.RR // they must not be changed
	gone bool     // the name does not exist
	err  error
}

// gluedBy reports whether a zone that f is referred to has glue that makes f needless.
func (f *flight) gluedBy(z *delegation) bool {
	return slices.ContainsFunc(z.glueOf(f.key.name), func(a netip.Addr) bool {
		return f.key.qtype == dns.TypeA && a.Is4() || f.key.qtype == dns.TypeAAAA && a.Is6()
	})
}

// find returns the records that answer q, which n, a step or a flight of l, needs to find servers, and whether the name is known not
// to exist. The records must not be changed.
func (c *core) find(ctx context.Context, l *lookup, n *node, q question, hedge bool) (rrs []dns.RR, gone bool, err error) {
	for try := 0; ; try++ {
		if rrs, gone, ok := c.cache.records(q, time.Now()); ok {
			return rrs, gone, nil
		}
		if l.bill.empty.Load() >= maxEmpty {
			return nil, false, errEmpty
		}
		f, mine, err := c.join(l, n, q, hedge)
		if err != nil {
			return nil, false, err
		}
		select {
		case <-f.done:
			c.leave(n, f, nil)
		case <-ctx.Done():
			c.leave(n, f, context.Cause(ctx))
			return nil, false, context.Cause(ctx)
		}
		var limit *limitError
		if f.err == nil || mine || try == 2 || !errors.Is(f.err, errCycle) && !errors.As(f.err, &limit) && !isOwn(f.err) && !errors.Is(f.err, errDeep) && !errors.Is(f.err, fleet.ErrUnpaid) {
			return f.rrs, f.gone, f.err
		}
		// It failed because of who else asked for it; for this one it may do better.
	}
}

// join returns the flight for q, with n, which is l's, waiting for it. It is l's own if nobody else has
// asked for it before.
func (c *core) join(l *lookup, n *node, q question, hedge bool) (f *flight, mine bool, err error) {
	k := keyOf(q)
	fs := &c.flights
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f = fs.flying[k]
	if f == nil {
		if l.depth >= maxDepth {
			return nil, false, errDeep
		}
		if !hedge && (n == nil || n.wanted) {
			if err := charge(&l.bill.names, "ServerNames", l.bill.limits.ServerNames); err != nil {
				return nil, false, err
			}
		}
		f, mine = c.start(l, k), true
	} else if n != nil && f.reaches(n, make(map[*node]bool)) {
		return nil, false, errCycle
	}
	f.waiting++
	n.await(&f.node, hedge)
	return f, mine, nil
}

// start begins a flight. The caller holds the lock.
func (c *core) start(l *lookup, k key) *flight {
	ctx, cancel := context.WithCancelCause(c.ctx)
	f := &flight{key: k, done: make(chan struct{}), cancel: cancel}
	f.lookup = &lookup{core: c, bill: l.bill, flight: f, depth: l.depth + 1}
	if c.flights.flying == nil {
		c.flights.flying = make(map[key]*flight)
	}
	c.flights.flying[k] = f
	c.count.lookups.Add(1)
	c.running.Go(func() {
		stack.Grow16()
		ctx, stop := context.WithTimeout(ctx, maxFlight)
		defer stop()
		defer cancel(nil)
		q := c.questionFor(k.name, k.qtype)
		r, err := f.lookup.run(ctx, q)
		if err == nil {
			f.rrs, f.gone = r.answer, r.rcode == dns.RcodeNameError
		}
		f.err = err
		if errors.Is(err, fleet.ErrNoServers) && !isOwn(err) && !isStuck(err) {
			c.cache.addFailure(q, time.Now())
		}
		c.flights.mu.Lock()
		if c.flights.flying[k] == f {
			delete(c.flights.flying, k)
		}
		c.flights.mu.Unlock()
		close(f.done)
	})
	return f
}

// isHedge reports whether all who wait for n do so as a hedge.
func (c *core) isHedge(n *node) bool {
	c.flights.mu.Lock()
	defer c.flights.mu.Unlock()
	return !n.wanted
}

// need takes that what n waits for is needed, and no hedge any more.
func (c *core) need(n *node) {
	c.flights.mu.Lock()
	defer c.flights.mu.Unlock()
	n.need()
}

// leave ends n's waiting for f. If nobody else waits, f ends, for the reason given.
func (c *core) leave(n *node, f *flight, why error) {
	fs := &c.flights
	fs.mu.Lock()
	defer fs.mu.Unlock()
	n.leave(&f.node)
	if f.waiting--; f.waiting == 0 && why != nil {
		if fs.flying[f.key] == f {
			delete(fs.flying, f.key)
		}
		f.cancel(why)
	}
}

// addressesOf returns the addresses in an answer.
func addressesOf(rrs []dns.RR) []netip.Addr {
	var addrs []netip.Addr
	for _, rr := range rrs {
		if a, ok := address(rr); ok && len(addrs) < fleet.MaxAddrs {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// stepKey is what a zone's servers are asked: all that changes the answer.
type stepKey struct {
	zone string
	question
	whole bool // it is all that is asked, and no part of a name
}

// step is a question to a zone's servers that is under way. All who need the answer, for whatever
// question of their callers, wait for the one who asks: a forger has one query to answer (RFC 5452 §5), and a crowd
// costs a zone and its parents as much as one.
type step struct {
	node
	key  stepKey
	zone *chain.Zone // that of the one who asks
	done chan struct{}

	waiting int       // besides the one who asks; guarded by flights.mu
	until   time.Time // the latest lookup.until of all of them; guarded by flights.mu

	// Written before done is closed.
	said said
	mine bool // the error is about the one who asked: for others it may do better
	err  error
}

// said is what the servers of a zone have answered.
type said struct {
	*verdict
	hearsay *verdict // what the same response says of the alias's target; nil: nothing that may be believed
}

// clone returns a copy that shares nothing which is changed.
func (s said) clone() said {
	return said{s.verdict.clone(), s.hearsay.clone()}
}

func (r *verdict) clone() *verdict {
	if r == nil {
		return nil
	}
	c := *r
	c.answer, c.authority = aged(r.answer, 0), aged(r.authority, 0)
	return &c
}

// ask has the servers of a zone answer q, unless somebody else does already.
func (l *lookup) ask(ctx context.Context, z *delegation, q question, whole bool) (said, error) {
	c := l.core
	for alone := 0; ; {
		s, leads := c.enter(l, z, stepKey{z.zone, q, whole})
		if s == nil { // whoever asks waits for this lookup
			return l.askServers(ctx, z, q, whole, &step{until: l.until}, l.node())
		}
		if leads {
			return l.lead(ctx, z, s)
		}
		select {
		case <-s.done:
			c.quit(l, s)
		case <-ctx.Done():
			c.quit(l, s)
			return said{}, context.Cause(ctx)
		}
		if s.err != nil && s.mine || s.zone.StrangeTo(z.chain) {
			continue
		}
		if s.err == nil && slices.Contains(l.avoid, s.said.from) && alone < maxAlone { // whose answer was bogus: the one who asked did not avoid it
			alone++
			continue
		}
		if s.err != nil {
			return said{}, s.err
		}
		return s.said.clone(), nil
	}
}

// maxAlone is how many answers of servers to avoid, for which others have asked, a lookup does not take.
const maxAlone = 4

// untilOf returns until when a step awaits the answers of slow servers: those who join it may wait longer than the one who asks.
func (c *core) untilOf(s *step) time.Time {
	c.flights.mu.Lock()
	defer c.flights.mu.Unlock()
	return s.until
}

// lead asks for all who wait for s.
func (l *lookup) lead(ctx context.Context, z *delegation, s *step) (r said, err error) {
	err = errLong // if this function does not return
	defer func() { l.core.conclude(l, s, r, err, ctx.Err() != nil || err == errLong) }()
	r, err = l.askServers(ctx, z, s.key.question, s.key.whole, s, &s.node)
	return r, err
}

// enter returns the step with a key, about a zone, and whether l is the one who asks; otherwise it waits. It is nil if
// the one who asks waits for l.
func (c *core) enter(l *lookup, z *delegation, k stepKey) (s *step, leads bool) {
	fs := &c.flights
	fs.mu.Lock()
	defer fs.mu.Unlock()
	s = fs.steps[k]
	switch {
	case s == nil, s.zone.StrangeTo(z.chain):
		s, leads = &step{key: k, zone: z.chain, done: make(chan struct{})}, true
		if fs.steps == nil {
			fs.steps = make(map[stepKey]*step)
		}
		fs.steps[k] = s
	case l.flight != nil && s.reaches(&l.flight.node, make(map[*node]bool)):
		return nil, false
	default:
		s.waiting++
	}
	if l.until.After(s.until) {
		s.until = l.until
	}
	l.node().await(&s.node, false)
	return s, leads
}

// quit ends l's waiting for s.
func (c *core) quit(l *lookup, s *step) {
	c.flights.mu.Lock()
	defer c.flights.mu.Unlock()
	s.waiting--
	l.node().leave(&s.node)
}

// conclude ends a step, with what the one who asked has found out.
func (c *core) conclude(l *lookup, s *step, r said, err error, left bool) {
	fs := &c.flights
	fs.mu.Lock()
	if fs.steps[s.key] == s {
		delete(fs.steps, s.key)
	}
	l.node().leave(&s.node)
	shared := s.waiting > 0
	fs.mu.Unlock()
	if err == nil && shared {
		s.said = r.clone() // the caller may change its response
	}
	s.err = err
	s.mine = s.mine || left || errors.As(err, new(*limitError)) || errors.Is(err, fleet.ErrUnpaid)
	close(s.done)
}

// hearsayOf returns what a response of z's servers says of the target of the alias that it is: to be believed
// if nobody else answers, and if it is of the same zone. It is nil if that is nothing, or too large to be kept.
func (l *lookup) hearsayOf(m *dns.Msg, z *delegation, q question, r *verdict) *verdict {
	if r.next == "" || !dnsname.Within(r.next, z.zone) || l.core.stub(r.next) != l.core.stub(z.zone) {
		return nil
	}
	q.name = r.next
	h := read(m, z, q, true, time.Now())
	h.zone, h.from = r.zone, r.from
	if l.core.signed() {
		h.ttl = min(h.ttl, endWithSignatures(time.Now(), most, h.answer, h.authority))
	}
	if h.kind != isAnswer || len(h.answer) == 0 || memoryOf(h.answer, h.authority) > smallHeld {
		return nil
	}
	return h
}
