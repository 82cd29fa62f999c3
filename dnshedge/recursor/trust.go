package recursor

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// link answers q up to the next alias that leads elsewhere, and says what that is worth. Names of servers are not validated: a wrong
// server cannot sign.
func (l *lookup) link(ctx context.Context, q question, shared bool) (*verdict, error) {
	c := l.core
	if c.chains == nil || l.flight != nil {
		return l.descend(ctx, q, shared)
	}
	if q.cd {
		return l.descend(ctx, q, false)
	}
	var bad *verdict // that is bogus, of those who only report that
	var why error
	defer func() { l.avoid = nil }()
	for again := 0; ; again++ {
		r, err := l.descend(ctx, q, shared)
		if err == nil {
			if r.status != validate.Unchecked && r.kept {
				return r, nil
			}
			err = l.prove(ctx, q, r)
		}
		if err != nil && bad != nil && !errors.As(err, new(*dnssec.Error)) {
			r, err = bad, why
		} else if err != nil && r != nil {
			c.cache.drop(keyOf(q))
			if l.another(ctx, q, r, err, again) {
				if c.conf.Trust.Report && bad == nil {
					hurried, stop := hurry(ctx)
					defer stop()
					ctx, bad, why = hurried, r, err
				}
				continue
			}
		}
		if err = l.report(q, r, err); err != nil {
			return nil, err
		}
		if (shared || r.bare()) && r.zone != nil {
			c.cache.addReply(q, r, time.Now())
		}
		return r, nil
	}
}

// another reports whether another server may be right after an answer that is not.
func (l *lookup) another(ctx context.Context, q question, r *verdict, err error, again int) bool {
	why := (*dnssec.Error)(nil)
	switch {
	case !errors.As(err, &why) || why.Limit != "" || again >= maxAgain:
		return false
	case r.bad:
		return !l.core.conf.Trust.Report && l.elsewhere(ctx, q, r.zone)
	case r.from.IsValid():
		l.core.fleet.Blame(r.zone.zone, r.from, q.name)
		l.avoid = append(l.avoid, r.from)
	}
	return true
}

// report returns why an answer is of no use. For those who have what is bogus reported only, it is of use, and insecure.
func (l *lookup) report(q question, r *verdict, err error) error {
	why := (*dnssec.Error)(nil)
	if err == nil || r == nil || !l.core.conf.Trust.Report || !errors.As(err, &why) {
		return err
	}
	l.core.chains.Counts.Bogus(why.EDE)
	l.core.note(q.name, q.qtype, why)
	r.status, r.why = validate.Insecure, nil
	return nil
}

// hurry returns a context that leaves time for what else there is to do.
func hurry(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Until(end)/4)
}

// elsewhere finds out whether a zone, none of whose servers is right, is served elsewhere: one forged referral leads to a stranger's, with signatures of
// others that are right, as nobody signs where a zone is served; so does one forged answer about the root's servers, who are looked for again. The parent is asked once more, for a question once, and not again for a while
// if it says what it has said.
func (l *lookup) elsewhere(ctx context.Context, q question, z *delegation) bool {
	c := l.core
	if z.chain.Disowned() { // another question has found that out
		return true
	}
	if z = c.chains.Culprit(z.chain).Servers.(*delegation); z.chain.Above == nil && z.zone != "." {
		return false
	}
	if now := c.cache.zone(z.zone, time.Now()); now != nil && now.chain != z.chain { // its parent has been asked again since
		z.chain.Disown()
		return true
	}
	for a := z.above(); a != nil; a = a.above() {
		if now := c.cache.zone(a.zone, time.Now()); now != nil && !now.servedAs(a) { // the parent of one above says otherwise since
			a.chain.Disown()
			return true
		}
	}
	if l.moved {
		return false
	}
	l.moved = true
	if c.cache.stays(z.zone, time.Now()) {
		return false
	}
	if z.zone == "." {
		c.cache.addStays(z.zone, time.Now())
		c.doubt(z)
		return false
	}
	whole := c.conf.NoMinimise || z.zone == q.name
	if !whole {
		q = question{name: z.zone, qtype: dns.TypeA, do: c.signed()}
	}
	above := z.above()
	r, err := l.ask(ctx, above, q, whole)
	if isStuck(err) {
		return false
	}
	if err != nil || r.kind != isReferral || r.cut.servedAs(z) {
		c.cache.addStays(z.zone, time.Now())
		c.doubt(above)
		return false
	}
	z.chain.Disown()
	c.learn(r.cut)
	c.chains.Doubt(z.zone)
	return true
}

// believe proves what a server has said of something that is not its own, if anything is to be validated.
func (l *lookup) believe(ctx context.Context, q question, r *verdict) error {
	if l.core.chains == nil || l.flight != nil || q.cd {
		return nil
	}
	return l.report(q, r, l.prove(ctx, q, r))
}

// maxAgain is how often servers are asked again because an answer is bogus.
const maxAgain = 4

// prove finds out what r is worth, which answers q. The error is a *dnssec.Error if it is bogus.
func (l *lookup) prove(ctx context.Context, q question, r *verdict) error {
	switch {
	case r.status != validate.Unchecked: // when it came
		return nil
	case r.zone == nil: // of this machine
		r.status = validate.Insecure
		return nil
	}
	s := r.said(q.name, q.qtype)
	if err := l.core.proveIn(ctx, payer{l.bill, l.core}, s); err != nil {
		return err
	}
	if s.Status == validate.Bogus {
		r.bad = r.bad || s.Final
		return &dnssec.Error{EDE: s.Why.EDE, Text: textOf(s.Why), Zone: s.Why.Zone, Name: s.Why.Name, Type: s.Why.Type, Server: s.Why.Server, Limit: s.Why.Limit}
	}
	r.judged(s)
	return nil
}

// proveIn proves what a server has said. Who has what fails reported only does not wait for keys until it is too late.
func (c *core) proveIn(ctx context.Context, p payer, s *chain.Said) error {
	if !c.conf.Trust.Report {
		return c.chains.Prove(ctx, p, s)
	}
	short, stop := hurry(ctx)
	defer stop()
	err := c.chains.Prove(short, p, s)
	if err != nil && ctx.Err() == nil {
		s.Status, s.Final = validate.Bogus, true
		s.Why = &validate.Reason{EDE: dns.ExtendedErrorCodeDNSKEYMissing, Text: "no keys in time", Zone: s.Zone.Name, Name: s.Name, Type: s.Type}
		return nil
	}
	return err
}

// textOf returns a reason in one line.
func textOf(why *validate.Reason) string { return strings.TrimPrefix(why.Error(), "dnssec: ") }
