package recursor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/recursor/internal/fleet"
)

// maxTime is how long a question may take, which is less than a Client's default timeout: then
// the caller has a response, which can be kept.
const maxTime = 4500 * time.Millisecond

// errLong is why a question ends that takes too long.
var errLong = errors.New("recursor: no answer in time")

// resolve looks up what a caller asks. It ends a little before ctx does.
func (c *core) resolve(ctx context.Context, q question, b *bill) (*result, error) {
	limit := maxTime
	if end, ok := ctx.Deadline(); ok {
		left := time.Until(end)
		limit = min(limit, left-left/10)
	}
	ctx, stop := context.WithTimeoutCause(ctx, limit, errLong)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.ctx, func() { cancel(net.ErrClosed) })()
	return (&lookup{core: c, bill: b, until: time.Now().Add(limit - limit/20)}).run(ctx, q)
}

// lookup finds out what a caller, or another lookup, asks.
type lookup struct {
	// Not changed once it runs.
	core   *core
	bill   *bill
	flight *flight   // that it is the lookup of; nil: a caller's question
	depth  int       // how many lookups wait for it, one after the other
	until  time.Time // how long answers of slow servers are awaited; zero: not longer than those that lose

	// Of the goroutine that runs it.
	queries   atomic.Int32 // sent for its own name, or the alias that it has come to
	referrals int
	hearsay   *verdict // what the server of the last alias has said of its target; nil: nothing
}

// node is who waits for what the lookup needs: its flight.
func (l *lookup) node() *node {
	if l.flight == nil {
		return nil
	}
	return &l.flight.node
}

// result is what there is to tell a caller.
type result struct {
	rcode             int
	answer, authority []dns.RR
}

// run answers q.
func (l *lookup) run(ctx context.Context, q question) (*result, error) {
	res := new(result)
	names := []string{q.name}
	var held int64
	defer func() { l.core.letGo(held) }()
	for {
		hearsay := l.hearsay
		if l.hearsay = nil; hearsay != nil {
			l.until = time.Time{}
		}
		r, err := l.link(ctx, q, l.flight != nil || len(names) > 1)
		if hearsay != nil && errors.Is(err, fleet.ErrNoServers) {
			r, err = hearsay, nil // which is better than nothing
		}
		if err != nil {
			return nil, err
		}
		res.rcode = r.rcode
		res.answer = append(res.answer, r.answer...)
		res.authority = append(res.authority, r.authority...)
		if len(names) > 1 {
			res.answer = dns.Dedup(res.answer, nil) // a DNAME record may make several of the aliases
		}
		if !res.fits() {
			return nil, errLarge
		}
		if r.next == "" {
			return res, nil
		}
		if len(names) > l.bill.limits.Aliases {
			return nil, &limitError{"Aliases", l.bill.limits.Aliases}
		}
		if slices.Contains(names, r.next) {
			return nil, &loopError{r.next}
		}
		l.core.letGo(held)
		if held = memoryOf(res.answer, res.authority); !l.core.hold(held) {
			held = 0
			return nil, errLarge
		}
		names = append(names, r.next)
		q.name = r.next
		l.queries.Store(0)
	}
}

// errLarge is why a question ends whose answer is too large, or whose aliases are for a question that waits. What servers say of aliases may fill a
// message each, and one message may become longer than messages are, as others must not compress all names
// that its sender has compressed (RFC 3597 §4).
var errLarge = errors.New("recursor: the answer does not fit a message")

// fits reports whether a message has room for a result, a question and an OPT record.
func (r *result) fits() bool {
	const most = dns.MaxMsgSize - 512
	n := 0
	for _, rrs := range [...][]dns.RR{r.answer, r.authority} {
		for _, rr := range rrs {
			n += dns.Len(rr)
		}
	}
	return n <= most || (&dns.Msg{Compress: true, Answer: r.answer, Ns: r.authority}).Len() <= most
}

// loopError is why a question ends whose aliases lead back to where they come from.
type loopError struct{ name string }

func (e *loopError) Error() string {
	return fmt.Sprintf("recursor: aliases of %s lead back to it", e.name)
}

// link answers q up to the next alias that leads elsewhere. What is shared is looked up in the
// cache before, and kept there. So is what a caller cannot keep, as it has no TTL.
func (l *lookup) link(ctx context.Context, q question, shared bool) (*verdict, error) {
	c := l.core
	if r := c.cache.reply(q, time.Now()); r != nil && (shared || r.bare()) {
		return r, nil
	}
	if shared {
		if r := c.special(q); r != nil {
			return r, nil
		}
	}
	z, err := c.closest(ctx, q, l.bill)
	if err != nil {
		return nil, err
	}
	parts := &minimiser{q: q, off: c.conf.NoMinimise}
	for {
		step, whole := parts.next(z.zone)
		r, err := l.ask(ctx, z, step, whole)
		switch {
		case err != nil && !whole && (errors.Is(err, errImpatient) || errors.Is(err, fleet.ErrNoServers)):
			parts.off = true
		case err != nil:
			if errors.Is(err, fleet.ErrNoServers) || errors.Is(err, errLong) {
				c.doubt(z)
			}
			return nil, err
		case r.kind == isReferral:
			if l.referrals++; l.referrals > l.bill.limits.Referrals {
				return nil, &limitError{"Referrals", l.bill.limits.Referrals}
			}
			z = c.learn(z, r.cut)
			if f := l.flight; f != nil && f.gluedBy(z) {
				return nil, errGlued
			}
		case !whole && (r.kind == isRefused || r.rcode != dns.RcodeSuccess):
			parts.off = true
		case !whole: // one label more
		default:
			if shared || r.bare() {
				c.cache.addReply(q, r.verdict, time.Now())
			}
			l.hearsay = r.hearsay
			return r.verdict, nil
		}
	}
}

// learn keeps a zone that its parent referred to. It ends with its parent at the latest, so
// that a zone which is gone keeps none below it alive.
func (c *core) learn(parent, z *delegation) *delegation {
	if parent.zone != "." && !parent.stub && parent.expires.Before(z.expires) {
		z.expires = parent.expires
	}
	c.cache.addZone(z, time.Now())
	return z
}

// closest returns the zone nearest to what is asked whose servers are known. The parent of a
// zone is asked for its DS records (RFC 4035 §3.1.4.1).
func (c *core) closest(ctx context.Context, q question, b *bill) (*delegation, error) {
	now := time.Now()
	name := q.name
	if q.qtype == dns.TypeDS {
		name = parent(name)
	}
	for ; name != "."; name = parent(name) {
		if z := c.stubs[name]; z != nil {
			return z, nil
		}
		if z := c.cache.zone(name, now); z != nil {
			return z, nil
		}
	}
	if z := c.stubs["."]; z != nil {
		return z, nil
	}
	return c.root(ctx, b)
}

// errImpatient is why no more servers are asked for a part of a name.
var errImpatient = errors.New("recursor: no answer to a minimised question")

// askServers asks the servers of a zone. Names of servers are looked up for n.
func (l *lookup) askServers(ctx context.Context, z *delegation, q question, whole bool, s *step, n *node) (said, error) {
	var tries atomic.Int32
	j := &judge{core: l.core, zone: z, q: q, whole: whole}
	t := &fleet.Task{
		Name: q.name, Type: q.qtype, DO: q.do, CD: q.cd, Zone: z.zone, Servers: z.addrs, Any: z.any,
		Part: !whole, Brief: !whole, Until: l.until, Judge: j.judge,
		Hedge: func() bool { return l.core.isHedge(n) },
		Spend: func(hedge bool) error {
			if tries.Add(1) > maxPatience && !whole {
				return errImpatient
			}
			return l.spend(hedge)
		},
	}
	if !z.any {
		f := newFinder(l, z, j, n)
		t.Servers, t.More = f.found, f.more
	}
	defer j.letGo()
	m, err := l.core.fleet.Ask(ctx, t)
	var r said
	switch {
	case err == nil:
		r.verdict = j.taken
		if whole {
			r.hearsay = l.hearsayOf(m, z, q, j.taken)
		}
	case ctx.Err() == nil && j.poor.Load() != nil:
		r.verdict = j.poor.Load()
	default:
		s.mine = j.mine.Load()
		return said{}, fmt.Errorf("%w: zone %s", err, z.zone)
	}
	l.core.count.scrubbed.Add(int64(r.scrubbed))
	return r, nil
}

// spend pays for a query.
func (l *lookup) spend(hedge bool) error {
	if !hedge {
		if err := charge(&l.queries, "ChainQueries", l.bill.limits.ChainQueries); err != nil {
			return err
		}
	}
	return l.bill.spend(hedge)
}
