package recursor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/fleet"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/stack"
)

// resolve looks up what a caller asks. It ends a little before ctx does.
func (c *core) resolve(ctx context.Context, q question, b *bill) (*result, error) {
	stack.Grow16()
	ctx, limit, stop := chain.Within(ctx, c.ctx, errLong)
	defer stop()
	return (&lookup{core: c, bill: b, until: time.Now().Add(limit - limit/20)}).run(ctx, q)
}

// result is what there is to tell a caller.
type result struct {
	rcode             int
	answer, authority []dns.RR
	status            validate.Status  // of that which is worst
	why               *validate.Reason // it is insecure; may be nil
}

// add takes what a part of the answer is worth.
func (r *result) add(v *verdict) {
	if v.status != validate.Secure && r.status != validate.Insecure || r.status == validate.Unchecked {
		r.status, r.why = v.status, v.why
	}
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
			r, err = hearsay, l.believe(ctx, q, hearsay) // which is better than nothing
		}
		if err != nil {
			return nil, err
		}
		res.rcode = r.rcode
		res.add(r)
		res.answer = append(res.answer, r.answer...)
		res.authority = append(res.authority, r.authority...)
		if len(names) > 1 {
			res.answer = unique(res.answer) // a DNAME record may make several of the aliases
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
