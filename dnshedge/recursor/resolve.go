package recursor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/fleet"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/stack"
)

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
	avoid     []netip.AddrPort // servers whose answers to the question were bogus
	hearsay   *verdict         // what the server of the last alias has said of its target; nil: nothing
	moved     bool             // a parent was asked once more where a zone is served
}

// node is who waits for what the lookup needs: its flight.
func (l *lookup) node() *node {
	if l.flight == nil {
		return nil
	}
	return &l.flight.node
}

// descend answers q from the nearest zone that is known down. What is shared is looked up in the
// cache before, and kept there. So is what a caller cannot keep, as it has no TTL.
func (l *lookup) descend(ctx context.Context, q question, shared bool) (*verdict, error) {
	c := l.core
	if r := c.cache.reply(q, time.Now()); r != nil && (shared || r.bare()) && !(q.cd && c.chains != nil) {
		return r, nil
	}
	if shared {
		if r := c.special(q); r != nil {
			return r, nil
		}
	}
	z, err := l.closest(ctx, q)
	if err != nil {
		return nil, err
	}
	known := l.known(q)
	if r := known.answer(z); r != nil {
		return r, nil
	}
	l.askKeys(q, z)
	parts := &minimiser{q: q, do: c.signed(), off: c.conf.NoMinimise || c.hasAskedWholeName(z, q)}
	for {
		step, whole := parts.next(z.zone)
		if !whole && known.part(step, z) {
			continue
		}
		r, err := l.ask(ctx, z, step, whole)
		switch {
		case err != nil && !whole && (errors.Is(err, errImpatient) || errors.Is(err, fleet.ErrNoServers)):
			parts.off = true
		case err != nil:
			if errors.Is(err, fleet.ErrNoServers) && !isStuck(err) || errors.Is(err, errLong) {
				c.doubt(z)
			}
			return nil, err
		case r.kind == isReferral:
			if l.referrals++; l.referrals > l.bill.limits.Referrals {
				return nil, &limitError{"Referrals", l.bill.limits.Referrals}
			}
			z = c.learn(r.cut)
			if r := known.answer(z); r != nil {
				return r, nil
			}
			l.askKeys(q, z)
			if f := l.flight; f != nil && f.gluedBy(z) {
				return nil, errGlued
			}
		case !whole:
			if r := known.after(ctx, step, z, r.verdict); r != nil {
				return r, nil
			}
			parts.off = r.kind == isRefused || r.rcode != dns.RcodeSuccess // otherwise, one label more
		default:
			if (shared || r.bare()) && (c.chains == nil || l.flight != nil) {
				c.cache.addReply(q, r.verdict, time.Now())
			}
			l.hearsay = r.hearsay
			return r.verdict, nil
		}
	}
}

// hasAskedWholeName reports whether a server of z has answered for the other kind of address of q's name. Then shorter names hide
// nothing from z's servers.
func (c *core) hasAskedWholeName(z *delegation, q question) bool {
	return slices.ContainsFunc(c.types, func(t uint16) bool {
		e := c.cache.get(keyOf(c.questionFor(q.name, t)), time.Now())
		return e != nil && slices.Contains(z.addrs, e.reply.from)
	})
}

// known returns what answers q without asking: for callers who want no more than what is right.
func (l *lookup) known(q question) *known {
	k := &known{pay: payer{l.bill, l.core}, bill: l.bill, q: q}
	if l.flight == nil && !q.cd {
		k.chains = l.core.chains
	}
	return k
}

// learn keeps a zone that its parent referred to.
func (c *core) learn(z *delegation) *delegation {
	c.cache.addZone(z, time.Now())
	return z
}

// closest returns the zone nearest to what is asked whose servers are known. The parent of a
// zone is asked for its DS records (RFC 4035 §3.1.4.1).
func (l *lookup) closest(ctx context.Context, q question) (*delegation, error) {
	c, now := l.core, time.Now()
	name := q.name
	if q.qtype == dns.TypeDS {
		name = dnsname.Parent(name)
	}
	for ; name != "."; name = dnsname.Parent(name) {
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
	l.askKeys(q, c.hinted)
	return c.root(ctx, payer{l.bill, c})
}

// errLong is why a question ends that takes too long.
var errLong = errors.New("recursor: no answer in time")

// errImpatient is why no more servers are asked for a part of a name.
var errImpatient = errors.New("recursor: no answer to a minimised question")

// askServers asks the servers of a zone. Names of servers are looked up for n.
func (l *lookup) askServers(ctx context.Context, z *delegation, q question, whole bool, s *step, n *node) (said, error) {
	var tries atomic.Int32
	j := &judge{core: l.core, bill: l.bill, zone: z, q: q, whole: whole}
	t := &fleet.Task{
		Name: q.name, Type: q.qtype, DO: q.do, CD: q.cd, Signed: l.core.promised(z), Zone: z.zone, Servers: z.addrs, Any: z.any, Avoid: l.avoid,
		Part: !whole, Brief: !whole, Until: func() time.Time { return l.core.untilOf(s) }, Judge: j.judge,
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
	j.task = t
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
		s.mine = j.mine.Load() || j.own.Load()
		err = fmt.Errorf("%w: zone %s", err, z.zone)
		if z.stub && j.refused {
			err = fmt.Errorf("%w: a server of Resolver.Zones has refused a query without RD", err)
		}
		if j.own.Load() {
			err = &ownError{err}
		}
		return said{}, err
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

// askKeys begins to ask for the keys of a zone, beside a question to it that is to be validated.
func (l *lookup) askKeys(q question, z *delegation) {
	if c := l.core; c.chains != nil && l.flight == nil && !q.cd && c.chains.Covers(q.name, q.qtype) {
		c.chains.Begin(payer{l.bill, c}, z.chain)
	}
}

// promised reports whether the parent of a zone says that it is signed.
func (c *core) promised(z *delegation) bool { return c.chains != nil && c.chains.Promised(z.chain) }

// payer has asked what validation needs, and a question pays for that.
type payer struct {
	*bill
	core *core
}

// Ask is chain.Bill's.
func (p payer) Ask(ctx context.Context, z *chain.Zone, name string, qtype uint16, avoid []netip.AddrPort) (*chain.Said, error) {
	stack.Grow16()
	l := &lookup{core: p.core, bill: p.bill, until: time.Now().Add(askTime), avoid: avoid}
	at, q := z.Servers.(*delegation), question{name: name, qtype: qtype, do: true}
	r, err := l.ask(ctx, at, q, true)
	for ; err == nil && r.kind == isReferral && l.referrals < p.limits.Referrals; l.referrals++ { // some of its servers are those of a zone below
		at = p.core.learn(r.cut)
		r, err = l.ask(ctx, at, q, true)
	}
	limit := (*limitError)(nil)
	switch {
	case errors.As(err, &limit):
		return nil, &validate.Reason{EDE: dns.ExtendedErrorCodeOther, Text: strings.TrimPrefix(err.Error(), "recursor: "), Zone: z.Name, Name: name, Type: qtype, Limit: limit.field}
	case isOwn(err):
		return nil, &validate.Reason{EDE: dns.ExtendedErrorCodeNoReachableAuthority, Text: strings.TrimPrefix(err.Error(), "recursor: "), Zone: z.Name, Name: name, Type: qtype, Limit: "ServerNames"}
	case err != nil:
		return nil, err
	case r.kind != isAnswer:
		return nil, fmt.Errorf("recursor: no answer to %s %s at the servers of %s", name, dns.Type(qtype), z.Name)
	}
	s := r.said(name, qtype)
	s.Zone = z
	if r.bad {
		s.Status = validate.Bogus
	}
	return s, nil
}

// askTime is how long keys are awaited, from servers that are slow.
const askTime = 4500 * time.Millisecond
