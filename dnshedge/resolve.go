package dnshedge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/lookup"
	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// result is what came of a question. It may be shared once it is returned.
type result struct {
	answer *wire.Answer
	view   wire.View   // of the answer
	err    error       // instead of an answer
	leader *wire.Query // who began the flight that this is the result of; nil: nobody
	again  bool        // after another flight had ended without an answer

	from  *upstreamState // that gave the answer, or was asked first; nil: a cache, or none
	kind  kind           // of the attempt that gave the answer
	tries int            // attempts made
	setup time.Duration  // how long the answer waited for a handshake
	keep  time.Duration  // how long the answer may be kept; 0: not at all
}

// failed reports whether another server may do better.
func (r *result) failed(q *wire.Query) bool {
	return r.err != nil || q.Standard() && r.answer.Outcome == wire.Failure
}

// final reports whether the result is a failure that an older answer must not hide.
func (r *result) final() bool { return r.err == nil && r.answer.Outcome == wire.FinalFailure }

// answer answers a question from the cache or by asking servers; if address is not
// empty, only by asking the one server there. When ctx ends, it returns. But if stay is
// not nil, it may stay until the servers have answered, or stay ends: that takes no second
// goroutine.
func (c *core) answer(ctx, stay context.Context, q *wire.Query, address string) *result {
	c.count.queries.Add(1)
	c.refreshes.Earn()
	cache := c.conf.Cache
	if address != "" {
		s, err := c.serverAt(address)
		if err != nil {
			return &result{err: err}
		}
		defer c.release(s)
		ctx, cancel := context.WithTimeout(ctx, c.timeout())
		defer cancel()
		return c.traceResult(ctx, q, c.ask(ctx, q, []*upstreamState{s}))
	}
	if r, ok := c.local(ctx, q); ok {
		return r
	}
	if cache == nil || !q.Shared() {
		return c.traceResult(ctx, q, c.resolve(ctx, nil, q, false))
	}
	now := time.Now()
	var had found
	if q.Cacheable() && !lookup.IsFromServers(ctx) {
		_, domain := c.domain(q)
		had = cache.get(q, now, domain)
	}
	if had.refresh {
		if c.refreshes.Spend() {
			c.count.refreshes.Add(1)
			c.flight(q, true, false, nil)
		} else {
			had.release()
		}
	}
	var timer <-chan time.Time
	switch had.freshness {
	case fresh:
		return c.fromCache(ctx, q, had)
	case stale:
		if had.waiting() {
			return c.fromCache(ctx, q, had)
		}
		wait := orDefault(cache.StaleAfter, defaultStaleAfter)
		if wait == 0 {
			if had.claim() {
				c.flight(q, false, false, nil)
			}
			return c.fromCache(ctx, q, had)
		}
		t := time.NewTimer(wait)
		defer t.Stop()
		timer, stay = t.C, nil
	}
	f := c.flight(q, false, false, stay)
	select {
	case <-f.done:
		r := f.r
		if r.leader != q && !r.again && (errors.Is(r.err, context.DeadlineExceeded) || errors.Is(r.err, context.Canceled)) {
			// Its time was over, or who asked has left, and not this caller.
			r = c.askAgain(ctx, q, now.Add(c.timeout()), r)
		}
		if had.freshness == stale && r.failed(q) && !r.final() {
			return c.fromCache(ctx, q, had)
		}
		if f.shared {
			c.count.shared.Add(1)
		}
		return c.traceResult(ctx, q, r)
	case <-timer:
		// The servers are slow. Their answer will be kept; until then callers get the
		// stale one without waiting.
		had.postponeRefresh(had.at)
		return c.fromCache(ctx, q, had)
	case <-ctx.Done():
		return &result{err: &Error{Name: q.Text(), Type: q.Type, Err: context.Cause(ctx)}}
	}
}

// A flight is one exchange for all who have the same question at a time.
type flight struct {
	done   chan struct{} // closed when it has ended
	r      *result       // then
	shared bool          // by several callers; guarded by core.flying until then
}

// flight returns the flight of a question: the one that is under way, or else a new one.
// That one goes on without its callers, unless stay is not nil: then it is made in this
// goroutine, and ends when stay does.
func (c *core) flight(q *wire.Query, explore, again bool, stay context.Context) *flight {
	var buf [wire.MaxKey]byte
	b := q.AppendKey(buf[:0])
	c.flying.Lock()
	if f := c.flights[string(b)]; f != nil {
		f.shared = true
		c.flying.Unlock()
		return f
	}
	f, key := &flight{done: make(chan struct{})}, string(b)
	c.flights[key] = f
	c.flying.Unlock()
	if stay != nil {
		c.fly(f, key, q, explore, again, stay)
	} else {
		go c.fly(f, key, q, explore, again, nil)
	}
	return f
}

// fly asks on behalf of a flight.
func (c *core) fly(f *flight, key string, q *wire.Query, explore, again bool, stay context.Context) {
	r := &result{err: context.Canceled} // unless resolve returns
	defer func() {
		r.leader, r.again = q, again
		f.r = r
		c.flying.Lock()
		delete(c.flights, key)
		c.flying.Unlock()
		close(f.done)
	}()
	if !c.begin() {
		r.err = &Error{Name: q.Text(), Type: q.Type, Err: transport.ErrClosed}
		return
	}
	defer c.wg.Done()
	r = c.resolve(c.ctx, stay, q, explore)
}

// askAgain asks in another flight, until the caller's time ends; then r is returned.
// Those who join that flight do not ask again: a question that comes back from the
// servers that it is put to would never end.
func (c *core) askAgain(ctx context.Context, q *wire.Query, end time.Time, r *result) *result {
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	if ctx.Err() != nil {
		return r
	}
	f := c.flight(q, false, true, nil)
	select {
	case <-f.done:
		return f.r
	case <-ctx.Done():
		return r
	}
}

// fromCache answers a question with what is kept.
func (c *core) fromCache(ctx context.Context, q *wire.Query, f found) *result {
	from := FromCache
	if f.freshness == stale {
		from = FromStale
		c.count.stale.Add(1)
	} else {
		c.count.hits.Add(1)
	}
	c.traceHit(ctx, q, from, f.err)
	r := new(result)
	r.answer, r.view, r.err = f.answer(q)
	return r
}

// resolve asks the group, and the fallback servers if the group fails, until ctx ends, or
// stay, if that is not nil. If explore, no caller waits, and any server of the group may
// be asked first.
func (c *core) resolve(ctx, stay context.Context, q *wire.Query, explore bool) *result {
	span := new(transport.Span)
	span.Begin(ctx, c.timeout())
	defer span.Cancel()
	if stay != nil && stay.Done() != nil {
		defer context.AfterFunc(stay, span.Cancel)()
	}
	place := c.waiting.enter(span)
	r := c.resolveNow(span, q, explore)
	if stay != nil && stay.Err() != nil && r.failed(q) { // also if a server has failed: another one might have answered
		r.answer, r.err = nil, &Error{Name: q.Text(), Type: q.Type, Err: context.Canceled}
	}
	if c.waiting.leave(place) && r.err != nil {
		c.count.dropped.Add(1)
		r.err = &Error{Name: q.Text(), Type: q.Type, Err: ErrTooManyQuestions}
	}
	return c.kept(q, r)
}

// resolveNow is resolve within the time of ctx, and keeps nothing.
func (c *core) resolveNow(ctx context.Context, q *wire.Query, explore bool) *result {
	if e := cmp.Or(c.route(q), c.conf.Exchanger); e != nil {
		return c.delegate(ctx, q, e)
	}
	if ups := c.systemRoute(q); ups != nil {
		group, err := c.all(ups)
		if err != nil {
			return &result{err: err}
		}
		return c.inTurn(ctx, q, inOrder(group), 1)
	}
	group, err := c.upstreams()
	if err != nil {
		return &result{err: err}
	}
	now := time.Now()
	if len(group)+len(c.fallback) > 1 && (!all(group, isSilent) || !all(c.fallback, isSilent)) {
		for _, list := range [...][]*upstreamState{group, c.fallback} {
			for _, s := range list {
				s.probeIfDue(now)
			}
		}
	}
	down := len(c.fallback) > 0 && all(group, isDown)
	if down {
		if r := c.fallBack(ctx, q, len(c.fallback)+1); r != nil {
			return r
		}
	}
	parts := 1 // of the time that is left; the group gets the first
	if len(c.fallback) > 0 && !down {
		parts = 2
	}
	var r *result
	if c.strict() {
		r = c.inTurn(ctx, q, inOrder(group), parts)
	} else {
		measure(group, now)
		r = c.try(ctx, q, order(group, explore), parts)
	}
	if parts > 1 && r.failed(q) && !r.decided(group, now) && ctx.Err() == nil {
		if other := c.fallBack(ctx, q, len(c.fallback)); other != nil {
			r = other
		}
	}
	return r
}

// decided reports whether a failure is the decision of a healthy server, which no
// other server must undo. A filter says REFUSED or SERVFAIL, and a validating server
// SERVFAIL, and not all of them say why. Some say nothing about a name, and answer
// others: the group was asked at start.
func (r *result) decided(group []*upstreamState, start time.Time) bool {
	switch {
	case r.err != nil:
		return aliveSince(group, start)
	case r.from.down.Load():
		return false
	}
	return r.answer.Rcode() == dns.RcodeServerFailure || r.from.good.Load()
}

// try asks a group for one of the parts of the time that is left, but for all of it if
// the group answers anything, for which it is probed: then it is the name that is slow,
// and not a server that is dead.
func (c *core) try(ctx context.Context, q *wire.Query, group []*upstreamState, parts int) *result {
	end, ok := ctx.Deadline()
	if parts <= 1 || !ok {
		return c.ask(ctx, q, group)
	}
	start := time.Now()
	share, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	part := end.Sub(start) / time.Duration(parts)
	defer time.AfterFunc(part, func() {
		if !aliveSince(group, start) {
			cancel(context.DeadlineExceeded)
		}
	}).Stop()
	defer time.AfterFunc(part/2, func() {
		if !aliveSince(group, start) {
			for _, s := range group {
				s.startProbe(time.Now())
			}
		}
	}).Stop()
	return c.ask(share, q, group)
}

// aliveSince reports whether a server has answered any query after t.
func aliveSince(group []*upstreamState, t time.Time) bool {
	return slices.ContainsFunc(group, func(s *upstreamState) bool { return s.answeredSince(t) })
}

// inTurn asks the servers one after another, each after the one before it has failed.
// Besides them, the time that is left has more parts.
func (c *core) inTurn(ctx context.Context, q *wire.Query, servers []*upstreamState, parts int) *result {
	var first *result
	for i, s := range servers {
		start := time.Now()
		r := c.try(ctx, q, []*upstreamState{s}, len(servers)-i+parts-1)
		if !r.failed(q) {
			return r
		}
		if i == 0 || first.err != nil && r.err == nil {
			first = r // a response rather than none
		}
		if ctx.Err() != nil || r.err != nil && s.answeredSince(start) {
			break
		}
	}
	return first
}

// fallBack asks the fallback servers one after another. The time that is left has
// the given number of parts; each server gets the next one. It returns nil if all
// failed.
func (c *core) fallBack(ctx context.Context, q *wire.Query, parts int) *result {
	servers := c.fallback
	if all(servers, isSilent) {
		servers = order(servers, false)
		slices.Reverse(servers) // because the last one is asked although it is silent
	}
	for i, s := range servers {
		if s.silent.Load() && i < len(servers)-1 {
			continue
		}
		c.count.fallbacks.Add(1)
		share, done := part(ctx, parts-i)
		r := c.ask(share, q, []*upstreamState{s})
		done()
		if !r.failed(q) {
			return r
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil
}

// part returns a context that ends after the n-th part of the time that is left of ctx.
func part(ctx context.Context, n int) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok || n <= 1 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Until(end)/time.Duration(n))
}

// kept returns r, which the cache keeps if there is one and it may.
func (c *core) kept(q *wire.Query, r *result) *result {
	now := time.Now()
	switch cache := c.conf.Cache; {
	case cache == nil || !q.Cacheable():
	case errors.Is(r.err, transport.ErrClosed) || errors.Is(r.err, ErrTooManyQuestions) || ours(r.err) || c.ctx.Err() != nil:
	case errors.Is(r.err, context.Canceled): // who asked has left
	case r.err != nil || r.answer.Outcome >= wire.FinalFailure:
		route, domain := c.domain(q)
		keep := ofServers
		if r.err == nil && route == nil && c.conf.Exchanger != nil {
			keep = ofExchanger
		}
		cache.fail(q, r.answer, r.err, now, domain, keep)
	default:
		cache.put(q, r.answer, r.keep, now)
	}
	return r
}

// upstreams returns the servers to ask: the Upstreams, or the system's.
func (c *core) upstreams() ([]*upstreamState, error) {
	if c.system == nil {
		return c.group, nil
	}
	group, err := c.all(c.system.upstreams(time.Now()))
	if err != nil && !errors.Is(err, transport.ErrClosed) {
		err = fmt.Errorf("dnshedge: %s: %w", cmp.Or(c.system.path, "the system's servers"), err)
	}
	return group, err
}

// serverAt returns the server at an address: a host and port, or what ParseUpstream
// reads. The caller must call release.
func (c *core) serverAt(address string) (*upstreamState, error) {
	if !strings.Contains(address, "://") {
		if _, err := ParseUpstream(address); err != nil {
			address = defaultNet + "://" + address
		}
	}
	up, err := ParseUpstream(address)
	if err != nil {
		return nil, err
	}
	return c.server(up, true)
}
