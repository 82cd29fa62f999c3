package recursor

import (
	"context"
	"errors"
	"time"

	"github.com/miekg/dns"
)

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
	done chan struct{}

	waiting int // besides the one who asks; guarded by flights.mu

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
	if r.cut != nil {
		cut := *r.cut
		c.cut = &cut
	}
	return &c
}

// ask has the servers of a zone answer q, unless somebody else does already.
func (l *lookup) ask(ctx context.Context, z *delegation, q question, whole bool) (said, error) {
	c := l.core
	for {
		s, leads := c.enter(l, stepKey{z.zone, q, whole})
		if s == nil { // whoever asks waits for this lookup
			return l.askServers(ctx, z, q, whole, new(step), l.node())
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
		if s.err != nil && s.mine {
			continue
		}
		if s.err != nil {
			return said{}, s.err
		}
		return s.said.clone(), nil
	}
}

// lead asks for all who wait for s.
func (l *lookup) lead(ctx context.Context, z *delegation, s *step) (r said, err error) {
	err = errLong // if this function does not return
	defer func() { l.core.conclude(l, s, r, err, ctx.Err() != nil || err == errLong) }()
	r, err = l.askServers(ctx, z, s.key.question, s.key.whole, s, &s.node)
	return r, err
}

// enter returns the step with a key, and whether l is the one who asks; otherwise it waits. It is nil if
// the one who asks waits for l.
func (c *core) enter(l *lookup, k stepKey) (s *step, leads bool) {
	fs := &c.flights
	fs.mu.Lock()
	defer fs.mu.Unlock()
	s = fs.steps[k]
	switch {
	case s == nil:
		s, leads = &step{key: k, done: make(chan struct{})}, true
		if fs.steps == nil {
			fs.steps = make(map[stepKey]*step)
		}
		fs.steps[k] = s
	case l.flight != nil && s.reaches(&l.flight.node, make(map[*node]bool)):
		return nil, false
	default:
		s.waiting++
	}
	l.node().await(&s.node)
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
	delete(fs.steps, s.key)
	l.node().leave(&s.node)
	shared := s.waiting > 0
	fs.mu.Unlock()
	if err == nil && shared {
		s.said = r.clone() // the caller may change its response
	}
	s.err = err
	s.mine = s.mine || left || errors.As(err, new(*limitError))
	close(s.done)
}

// hearsayOf returns what a response of z's servers says of the target of the alias that it is: to be believed
// if nobody else answers, and if it is of the same zone. It is nil if that is nothing, or too large to be kept.
func (l *lookup) hearsayOf(m *dns.Msg, z *delegation, q question, r *verdict) *verdict {
	if r.next == "" || !within(r.next, z.zone) || l.core.stub(r.next) != l.core.stub(z.zone) {
		return nil
	}
	q.name = r.next
	h := read(m, z, q, true, time.Now())
	if h.kind != isAnswer || len(h.answer) == 0 || h.memory() > smallHeld {
		return nil
	}
	return h
}
