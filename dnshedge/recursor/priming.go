package recursor

import (
	"context"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/nameservers"
)

// A primingBudget limits the work for priming, the query for the names and addresses of the root servers (RFC 9609). It
// is the budget of the question that starts priming.
type primingBudget interface {
	chain.ValidationBudget
	spendQuery(hedge bool, chainQueries *atomic.Int32) error
}

// primingRetryTime is the time after failed priming until the next attempt. Until then, the hints are used.
const primingRetryTime = time.Minute

// rootDelegation returns the delegation of the root, which comes from the priming response (RFC 9609 §3). If the root
// is not primed, it starts priming and waits for it. The queries count against the budget b.
//
// If the delegation has expired, it returns the old delegation and primes the root again in the background. The error
// is the cause of ctx.
func (c *core) rootDelegation(ctx context.Context, b primingBudget) (*delegation, error) {
	c.primeMu.Lock()
	now := time.Now()
	z := c.rootZone
	if z != nil && now.Before(z.expires) && z.expires.Before(now.Add(maxTTL+maxClockSkew)) { // a later expiry means that the clock was set back
		c.primeMu.Unlock()
		return z, nil
	}
	f := c.primingDone
	if f == nil {
		f = make(chan struct{})
		c.primingDone = f
		c.running.Go(func() { c.primeRoot(b) })
	}
	c.primeMu.Unlock()
	if z != nil {
		return z, nil
	}
	select {
	case <-f:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	c.primeMu.Lock()
	defer c.primeMu.Unlock()
	return c.rootZone, nil
}

// expireRootDelegation makes the next question query the root servers for their names and addresses again (priming). It
// is called when the servers in z, the delegation of the root, do not answer: the priming response or the import may be
// wrong. It does nothing if z is not the current delegation of the root.
func (c *core) expireRootDelegation(z *delegation) {
	c.primeMu.Lock()
	defer c.primeMu.Unlock()
	if c.rootZone == z && len(z.names) > 0 { // hints expire soon anyway
		old := *z
		old.expires = time.Now()
		c.rootZone = &old
	}
}

// primeRoot queries the root servers for their names and addresses (priming), validates the response, and sets
// rootZone. The queries count against the budget b. If priming fails, the previous servers or the hints are used for
// primingRetryTime.
//
// If the response has no addresses, the hints remain in use. An addressFinder looks up the names of the root servers
// when further servers are needed (RFC 9609 §4.2).
func (c *core) primeRoot(b primingBudget) {
	ctx, cancel := context.WithTimeout(c.ctx, maxNameLookupTime)
	defer cancel()
	z := c.newHintsDelegation()
	var unvalidated *chain.Response // the response to validate; nil: validation is off
	m, err := c.pool.QueryServers(ctx, &nameservers.Task{
		Name: ".", Type: dns.TypeNS, DO: c.validator != nil, Zone: ".", Minimised: true, Servers: c.hints, PrivateOK: true,
		CheckResponse: func(m *dns.Msg, from netip.AddrPort) (err error) {
			if m.Rcode != dns.RcodeSuccess {
				return nameservers.ErrLame
			}
			if c.validator != nil {
				unvalidated, err = c.checkPrimingResponse(b, m, from)
			}
			return err
		},
		SpendQuery: func(hedge bool) error { return b.spendQuery(hedge, nil) },
	})
	var primed *delegation
	if err == nil {
		primed = parseDelegation(".", ".", m.Answer, m.Extra, time.Now())
	}
	if primed == nil {
		unvalidated = nil
	} else {
		primed.privateOK = true
		if len(primed.addrs) == 0 {
			primed.addrs = c.hints
		}
	}
	if unvalidated != nil { // the keys are already being queried
		short, stop := context.WithTimeout(ctx, primingKeysTimeout)
		_ = c.validator.ValidateResponse(short, b, unvalidated) // if the keys arrive later, the response is validated at the end
		switch end := time.Now().Add(time.Duration(unvalidated.TTL) * time.Second).Round(0); {
		case unvalidated.Status == validate.Bogus:
			primed = nil
		case unvalidated.Status == validate.Secure && end.Before(primed.expires):
			primed.expires = end
		}
		stop()
	}
	c.primeMu.Lock()
	if primed != nil {
		z = primed
	} else if c.rootZone != nil {
		z.addrs = c.rootZone.addrs // the previous servers are better than hints
	}
	c.rootZone = z
	close(c.primingDone)
	c.primingDone = nil
	c.primeMu.Unlock()
	if unvalidated == nil || unvalidated.Status != validate.Unchecked || c.validator.ValidateResponse(ctx, b, unvalidated) != nil || unvalidated.Status != validate.Bogus {
		return
	}
	c.primeMu.Lock()
	defer c.primeMu.Unlock()
	if c.rootZone == z {
		c.rootZone = c.newHintsDelegation()
	}
}

// primingKeysTimeout is the time for which a priming response waits for the root's keys. If the keys arrive later, the
// response is used without validation until then.
const primingKeysTimeout = 250 * time.Millisecond

// newHintsDelegation returns a delegation of the root whose servers are the hints. It expires after primingRetryTime.
func (c *core) newHintsDelegation() *delegation {
	z := newEmptyDelegation(".")
	z.addrs, z.expires, z.privateOK = c.hints, time.Now().Add(primingRetryTime), true
	return z
}

// checkPrimingResponse checks the signature of the root's NS records in the priming response m, as far as the cached
// keys allow. from is the server that sent m. After an error, another server must be queried.
//
// It returns the response in the form of package chain, for validation when the keys have arrived. Validation must be
// on.
func (c *core) checkPrimingResponse(b primingBudget, m *dns.Msg, from netip.AddrPort) (*chain.Response, error) {
	q := question{name: ".", qtype: dns.TypeNS, do: true}
	r := readResponse(m, c.hintsZone, q, true, time.Now())
	r.From = from
	if c.validator.CheckResponse(b.Validation(), &r.Response, nil) != nil {
		return nil, nameservers.ErrUnsigned
	}
	return &r.Response, nil
}
