package recursor

import (
	"context"
	"errors"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
	"github.com/gohedge/hedge/observe"
)

// resolveAndValidate resolves q and validates the answer, which may be an alias. While the answer is bogus, it queries
// other servers. shared is true if other lookups may need the answer too, so that it is cached.
//
// It does not validate if q has CD, or if the question is for the address of a server. A wrong server address is
// harmless, because a wrong server cannot make valid signatures.
func (l *lookup) resolveAndValidate(ctx context.Context, q question, shared bool) (*parsedResponse, error) {
	c := l.core
	if c.validator == nil || l.nameLookup != nil {
		return l.followReferrals(ctx, q, shared)
	}
	if q.cd {
		return l.followReferrals(ctx, q, false)
	}
	var bad *parsedResponse // first bogus answer; used only with Trust.Report
	var badErr error        // error of bad
	defer func() { l.avoidServers = nil }()
	for retries := 0; ; retries++ {
		r, err := l.followReferrals(ctx, q, shared)
		if err == nil {
			if r.Status != validate.Unchecked && r.cached {
				return r, nil
			}
			err = l.validateAnswer(ctx, r)
		}
		if err != nil && bad != nil && !errors.As(err, new(*dnssec.Error)) {
			r, err = bad, badErr
		} else if err != nil && r != nil {
			c.cache.removeEntry(answerCacheKey(q))
			if l.prepareRetry(ctx, q, r, err, retries) {
				if c.conf.Trust.Report && bad == nil {
					short, stop := withPartialDeadline(ctx)
					defer stop()
					ctx, bad, badErr = short, r, err
				}
				continue
			}
		}
		if err = l.applyReportMode(q, r, err); err != nil {
			return nil, err
		}
		if (shared || r.isEmpty()) && r.Zone != nil {
			c.cache.addAnswer(q, r, time.Now())
		}
		return r, nil
	}
}

// prepareRetry prepares the lookup to send the question q again, because validation of its answer r has failed with err.
// It makes the lookup avoid the server that sent r. If the known servers cannot help, it searches for newer servers of
// the zone (see recheckDelegation), unless Trust.Report is set.
//
// It returns false if q must not be sent again: after maxBogusRetries retries, if a limit has caused err, or if there
// are no newer servers.
func (l *lookup) prepareRetry(ctx context.Context, q question, r *parsedResponse, err error, retries int) bool {
	why := (*dnssec.Error)(nil)
	switch {
	case !errors.As(err, &why) || why.Limit != "" || retries >= maxBogusRetries:
		return false
	case r.invalidSignatures:
		return !l.core.conf.Trust.Report && l.recheckDelegation(ctx, q, zoneDelegation(r.Zone))
	case r.From.IsValid():
		l.core.pool.ReportBogus(r.Zone.Name, r.From, q.name)
		l.avoidServers = append(l.avoidServers, r.From)
	}
	return true
}

// applyReportMode implements the setting Trust.Report, which only reports bogus answers instead of rejecting them. With
// this setting, it counts and logs a bogus answer r to q, marks r as insecure, and returns nil. Otherwise it returns
// err, the error of validating r.
func (l *lookup) applyReportMode(q question, r *parsedResponse, err error) error {
	why := (*dnssec.Error)(nil)
	if err == nil || r == nil || !l.core.conf.Trust.Report || !errors.As(err, &why) {
		return err
	}
	l.core.recordBogus(q, why)
	r.Status, r.Reason = validate.Insecure, nil
	return nil
}

// recordBogus adds a bogus answer to q to the statistics, and logs a warning. why is the reason why its validation has
// failed.
func (c *core) recordBogus(q question, why *dnssec.Error) {
	c.validator.RecordBogus(why.EDE, observe.RecursorBogus{Name: q.name, Type: dns.Type(q.qtype).String(), Text: why.Text, Zone: why.Zone, Server: why.Server})
}

// withPartialDeadline returns a context with a quarter of the time until the deadline of ctx. The rest is left for
// returning the unvalidated answer (see Trust.Report). If ctx has no deadline, it returns ctx. The caller must call the
// returned function.
func withPartialDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Until(end)/4)
}

// recheckDelegation finds out whether a zone without valid answers has other servers than those in its delegation z. If
// it returns true, q must be sent again.
//
// NS records in a referral are unsigned. A forged referral or priming response may therefore lead to wrong servers,
// although the signatures of the parent zone are valid.
//
// It may query the parent zone, but only once for a question. It does not query it within failureTTL after
// addConfirmedReferral.
func (l *lookup) recheckDelegation(ctx context.Context, q question, z *delegation) bool {
	c := l.core
	if z.chain.IsRedelegated() { // another question has found new servers
		return true
	}
	if z = c.validator.BogusOrigin(z.chain).Servers.(*delegation); z.chain.Parent == nil && z.zone != "." {
		return false
	}
	if now := c.cache.lookUpDelegation(z.zone, time.Now()); now != nil && now.chain != z.chain { // the parent has sent a newer referral
		z.chain.MarkRedelegated()
		return true
	}
	for a := z.parentDelegation(); a != nil; a = a.parentDelegation() {
		if now := c.cache.lookUpDelegation(a.zone, time.Now()); now != nil && !now.hasSameServers(a) { // an ancestor has newer servers
			a.chain.MarkRedelegated()
			return true
		}
	}
	if l.hasRecheckedParent {
		return false
	}
	l.hasRecheckedParent = true
	if c.cache.isReferralConfirmed(z.zone, time.Now()) {
		return false
	}
	if z.zone == "." {
		c.cache.addConfirmedReferral(z.zone, time.Now())
		c.expireRootDelegation(z)
		return false
	}
	full := c.conf.NoMinimise || z.zone == q.name
	if !full {
		q = question{name: z.zone, qtype: dns.TypeA, do: true}
	}
	parent := z.parentDelegation()
	r, err := l.queryZone(ctx, parent, q, full)
	if isLocalFailure(err) || err != nil && ctx.Err() != nil || isQuestionLimit(err) { // another question may get an answer
		return false
	}
	if err != nil || r.kind != kindReferral || r.referral.hasSameServers(z) {
		c.cache.addConfirmedReferral(z.zone, time.Now())
		c.expireRootDelegation(parent)
		return false
	}
	z.chain.MarkRedelegated()
	c.cache.addDelegation(r.referral, time.Now())
	c.validator.ForgetBogus(z.zone)
	return true
}

// validateHint validates r, which readCNAMEHint has returned, as the answer to q, the question for the target of an
// alias. It does nothing if this answer need not be validated.
func (l *lookup) validateHint(ctx context.Context, q question, r *parsedResponse) error {
	if l.core.validator == nil || l.nameLookup != nil || q.cd {
		return nil
	}
	return l.applyReportMode(q, r, l.validateAnswer(ctx, r))
}

// maxBogusRetries is the maximum number of times that a question is sent again after a bogus answer.
const maxBogusRetries = 4

// validateAnswer validates r, the answer to a question, and sets its security status. If r is bogus, the error is a
// *dnssec.Error. Otherwise it is nil, the cause of ctx, or the error of a key query that could not be sent (see
// isLocalFailure).
//
// With Trust.Report, bogus answers are reported, but returned. validateAnswer then uses only a quarter of the time until
// the deadline of ctx. If the keys do not arrive in time, r is bogus, so that the caller can still return the
// unvalidated answer.
func (l *lookup) validateAnswer(ctx context.Context, r *parsedResponse) error {
	switch {
	case r.Status != validate.Unchecked: // verified when it was received
		return nil
	case r.Zone == nil: // a local answer
		r.Status = validate.Insecure
		return nil
	}
	c, within, stop := l.core, ctx, func() {}
	if c.conf.Trust.Report {
		within, stop = withPartialDeadline(ctx)
	}
	defer stop()
	err := c.validator.ValidateResponse(within, validationBudget{l.budget, c}, &r.Response)
	switch {
	case err != nil && c.conf.Trust.Report && ctx.Err() == nil:
		r.Status, r.Final = validate.Bogus, true
		r.Reason = &validate.Reason{EDE: dns.ExtendedErrorCodeDNSKEYMissing, Text: "no keys in time", Zone: r.Zone.Name, Name: r.Name, Type: r.Type}
	case err != nil:
		return err
	}
	if why := r.Reason; r.Status == validate.Bogus {
		r.invalidSignatures = r.invalidSignatures || r.Final
		return &dnssec.Error{EDE: why.EDE, Text: chain.ReasonText(why), Zone: why.Zone, Name: why.Name, Type: why.Type, Server: why.Server, Limit: why.Limit}
	}
	r.limitTTL()
	return nil
}
