package dnssec

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/usercode"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

const (
	maxOtherUpstreams = 4               // upstreams that are asked by address while answers are bogus
	maxSearched       = 16              // upstreams that one test examines for DNSSEC
	searchInterval    = time.Minute     // minimum time between two tests of the upstreams
	noDNSSECTime      = 5 * time.Minute // time for which an upstream without DNSSEC is avoided
	attemptTimeout    = time.Second     // timeout of a query to one upstream by address, unless it is the last attempt
	silentTime        = time.Minute     // time for which an upstream that did not respond in time is avoided
)

// errAttemptTimeout is the context cause of an attempt that was not answered in time.
var errAttemptTimeout = errors.New("dnssec: the upstream does not answer in its turn")

// An upstreamAttempt describes one attempt to get a valid answer to a question: the upstream to query, and whether the
// query has the CD flag.
type upstreamAttempt struct {
	address string // address of the upstream; "" if the Exchanger selects the upstream
	cd      bool   // the query has the CD flag
	hasNext bool   // another attempt follows if this one fails
}

// An upstreamPlan lists the attempts to get a valid answer to one question: the upstreams to query one after the other,
// while their answers are bogus. It must not be used by several goroutines at the same time.
type upstreamPlan struct {
	core     *core
	question question
	planned  []upstreamAttempt // all attempts; nil while only the first attempt was needed
	next     int               // number of attempts so far, the index of the next attempt in planned
}

// nextAttempt returns the next attempt for the question. The boolean is false if no attempt is left.
//
// unsigned must be true if the last response had no signatures. The attempt in which the upstream itself validates
// (without the CD flag) is then skipped, because it would not add signatures. It is not skipped if it is the last
// attempt: some upstreams include signatures only sometimes.
func (p *upstreamPlan) nextAttempt(unsigned bool) (upstreamAttempt, bool) {
	if p.planned == nil && p.next == 0 && !p.shouldAvoidUnsigned() {
		p.next = 1
		return upstreamAttempt{cd: true}, true
	}
	if p.planned == nil {
		p.planAttempts()
	}
	if unsigned && p.next < len(p.planned)-1 && p.planned[p.next].letsUpstreamValidate() {
		p.next++
	}
	if p.next >= len(p.planned) {
		return upstreamAttempt{}, false
	}
	at := p.planned[p.next]
	p.next++
	at.hasNext = p.next < len(p.planned)
	return at, true
}

// shouldAvoidUnsigned reports whether even the first attempt must avoid upstreams that are known to lack DNSSEC. It is
// false if the name needs no signatures. Any upstream can then be right, because some may not know a private name.
func (p *upstreamPlan) shouldAvoidUnsigned() bool {
	return p.core.avoided.hasWithoutDNSSEC.Load() && p.core.validator.ShouldValidate(p.question.name, p.question.qtype)
}

// letsUpstreamValidate reports whether this is the attempt in which the upstream itself validates, because the query
// lacks the CD flag. The Exchanger selects the upstream.
func (a upstreamAttempt) letsUpstreamValidate() bool { return a.address == "" && !a.cd }

// planAttempts determines all attempts for the question. They usually are: the upstream that the Exchanger selects, with
// CD and then without CD, and up to maxOtherUpstreams upstreams that are addressed directly.
//
// The attempt without CD is useful if a validating upstream has a bogus answer in its cache: the upstream then fetches
// the answer again.
//
// If some upstreams are known to lack DNSSEC or not to respond, the other upstreams are queried first, by address.
// Upstreams without DNSSEC are queried last. Unresponsive ones are queried only if all upstreams are unresponsive or
// without DNSSEC: an upstream that did not answer for the name of an earlier question may still answer this one.
func (p *upstreamPlan) planAttempts() {
	named := p.core.upstreamAddresses(p.question.name)
	usable, silent, withoutDNSSEC := p.core.avoided.partitionUpstreams(named, time.Now())
	first := usable
	if len(usable) == 0 {
		first = silent
	}
	count := min(len(first), maxOtherUpstreams)
	var each []upstreamAttempt
	for _, address := range slices.Concat(first[:count], withoutDNSSEC[:min(len(withoutDNSSEC), maxOtherUpstreams-count)]) {
		each = append(each, upstreamAttempt{address: address, cd: true})
	}
	if p.next == 0 && len(usable) > 0 && len(usable) < len(named) {
		p.planned = slices.Insert(each, count, upstreamAttempt{cd: true})
		return
	}
	p.planned = append([]upstreamAttempt{{cd: true}, {}}, each...)
}

// sendToUpstream sends the query m to the upstream of the attempt at, and returns the response.
//
// If the attempt has an upstream address and another attempt follows, it has a short timeout. An upstream that exceeds
// the timeout is avoided for silentTime, or until it responds.
func (c *core) sendToUpstream(ctx context.Context, m *dns.Msg, at upstreamAttempt) (*dns.Msg, error) {
	if at.address == "" || !at.hasNext {
		return c.sendToExchanger(ctx, m, at.address)
	}
	within, stop := context.WithTimeoutCause(ctx, attemptTimeout, errAttemptTimeout)
	defer stop()
	r, err := c.sendToExchanger(within, m, at.address)
	switch {
	case err == nil:
		c.avoided.recordResponsive(at.address)
	case within.Err() != nil && ctx.Err() == nil:
		c.avoided.recordUnresponsive(at.address, time.Now())
	}
	return r, err
}

// upstreamAddresses returns the addresses of the Exchanger's upstreams for a name. It returns nil if the Exchanger has
// only one upstream for the name, or no method Addresses.
func (c *core) upstreamAddresses(name string) []string {
	e, ok := c.conf.Exchanger.(interface{ Addresses(name string) []string })
	if !ok {
		return nil
	}
	var all []string
	usercode.RunGuarded(func() { all = e.Addresses(name) })
	if len(all) < 2 {
		return nil
	}
	return all
}

// An avoidedUpstreams holds the upstreams to avoid, because they lack DNSSEC or do not respond. The zero value is
// empty. It is safe for concurrent use.
type avoidedUpstreams struct {
	hasWithoutDNSSEC atomic.Bool // the last test of a signed zone found upstreams without DNSSEC

	mu            sync.Mutex           // guards the following fields
	noDNSSECUntil map[string]time.Time // by address: an upstream without DNSSEC is avoided until this time
	silentUntil   map[string]time.Time // by address: an unresponsive upstream is avoided until this time
	latestTest    *dnssecTest          // running or last test; nil if there was none
}

// A dnssecTest is a test of the upstreams for DNSSEC support. Several questions may wait for the same test.
type dnssecTest struct {
	startedAt time.Time     // start of the test
	zone      string        // name of the zone that the upstreams are queried for
	done      chan struct{} // closed at the end of the test

	// The following fields are valid once done is closed.

	unsigned []string // addresses of the upstreams that responded without signatures; "" is an upstream with unknown address
	isSigned bool     // another upstream responded with signatures, so the upstreams in unsigned lack DNSSEC
}

// partitionUpstreams divides upstream addresses into those that may be used at the time now, unresponsive ones
// (silent), and those without DNSSEC. It does not modify addresses.
func (u *avoidedUpstreams) partitionUpstreams(addresses []string, now time.Time) (usable, silent, withoutDNSSEC []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, address := range addresses {
		switch {
		case now.Before(u.silentUntil[address]):
			silent = append(silent, address)
		case now.Before(u.noDNSSECUntil[address]):
			withoutDNSSEC = append(withoutDNSSEC, address)
		default:
			usable = append(usable, address)
		}
	}
	return usable, silent, withoutDNSSEC
}

// startDNSSECTest starts a test that finds the upstreams without DNSSEC support, and returns it without waiting. If the
// last test is more recent than searchInterval, it returns that test instead.
//
// The test sends an SOA query for zone, which must have a trust anchor, to the upstreams for name. An upstream that
// responds without signatures lacks DNSSEC if another upstream responds with signatures. Otherwise the zone may be
// unsigned, and the test does not change which upstreams are avoided.
func (c *core) startDNSSECTest(zone, name string) *dnssecTest {
	u, now := &c.avoided, time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	if l := u.latestTest; l != nil && now.Sub(l.startedAt) < searchInterval {
		return l
	}
	l := &dnssecTest{startedAt: now, zone: zone, done: make(chan struct{})}
	u.latestTest = l
	named := c.upstreamAddresses(name)
	if named == nil {
		named = []string{""}
	}
	named = named[:min(len(named), maxSearched)]
	c.running.Go(func() {
		defer close(l.done)
		ctx, stop := context.WithTimeout(c.ctx, chain.QuestionTimeout/2)
		defer stop()
		responses := make([]*dns.Msg, len(named)) // nil: the upstream failed
		var wait sync.WaitGroup
		for i, address := range named {
			wait.Go(func() {
				r, err := c.sendToExchanger(ctx, question{name: zone, qtype: dns.TypeSOA}.newMessage(true), address)
				if err == nil && r.Rcode == dns.RcodeSuccess && len(r.Answer) > 0 {
					responses[i] = r
				}
			})
		}
		wait.Wait()
		for i, r := range responses {
			switch {
			case r == nil:
			case hasSignatures(r):
				l.isSigned = true
			default:
				l.unsigned = append(l.unsigned, named[i])
			}
		}
		if l.isSigned {
			u.setWithoutDNSSEC(l.unsigned, time.Now())
		}
	})
	return l
}

// testAfterUnsignedAnswer starts a test of the upstreams for DNSSEC, because the answer to q had no signatures. It does
// not wait for the result. It does nothing if there is only one upstream.
func (c *core) testAfterUnsignedAnswer(q question) {
	if zone := c.validator.AnchorZone(q.name, q.qtype); zone != nil && c.upstreamAddresses(q.name) != nil {
		c.startDNSSECTest(zone.Name, q.name)
	}
}

// setWithoutDNSSEC stores the result of a test: the addresses of the upstreams that lack DNSSEC. They are avoided for
// noDNSSECTime, and replace the result of the previous test.
func (u *avoidedUpstreams) setWithoutDNSSEC(found []string, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.noDNSSECUntil = make(map[string]time.Time)
	for _, address := range found {
		u.noDNSSECUntil[address] = now.Add(noDNSSECTime)
	}
	u.hasWithoutDNSSEC.Store(len(found) > 0)
}

// recordUnresponsive records that an upstream did not respond before the timeout of its attempt. It is then avoided for
// silentTime, counted from now.
func (u *avoidedUpstreams) recordUnresponsive(address string, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for other, until := range u.silentUntil {
		if !now.Before(until) {
			delete(u.silentUntil, other)
		}
	}
	if u.silentUntil == nil {
		u.silentUntil = make(map[string]time.Time)
	}
	u.silentUntil[address] = now.Add(silentTime)
}

// recordResponsive records that an upstream has responded. It is then no longer avoided as unresponsive.
func (u *avoidedUpstreams) recordResponsive(address string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.silentUntil, address)
}

// explainBogus adds possible causes to why, the reason of a bogus answer to q. If signatures or keys are missing, it
// waits for a test of the upstreams. If the test finds upstreams without DNSSEC, it returns a copy of why that names
// them. Otherwise it returns why.
//
// If the test found no signatures at all, the copy also names an unsigned zone as a possible cause.
func (c *core) explainBogus(ctx context.Context, q question, why *validate.Reason) *validate.Reason {
	zone := c.validator.AnchorZone(q.name, q.qtype)
	switch why.EDE {
	case dns.ExtendedErrorCodeDNSKEYMissing, dns.ExtendedErrorCodeRRSIGsMissing, dns.ExtendedErrorCodeNSECMissing:
	default:
		zone = nil
	}
	if zone == nil || why.Limit != "" {
		return why
	}
	l := c.startDNSSECTest(zone.Name, q.name)
	select {
	case <-l.done:
	case <-ctx.Done():
		return why
	}
	if len(l.unsigned) == 0 || !l.isSigned && l.zone != zone.Name {
		return why
	}
	named := *why
	if named.Text += "; an upstream without DNSSEC"; l.unsigned[0] != "" {
		named.Text += ": " + strings.Join(l.unsigned, ", ")
	}
	if !l.isSigned {
		named.Text += ", or an unsigned zone"
	}
	return &named
}

// hasSignatures reports whether the answer or authority section of a response has RRSIG records.
func hasSignatures(r *dns.Msg) bool {
	signs := func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeRRSIG }
	return slices.ContainsFunc(r.Answer, signs) || slices.ContainsFunc(r.Ns, signs)
}
