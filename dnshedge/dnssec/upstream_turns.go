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
	maxSearched       = 16              // upstreams that are tested for DNSSEC
	searchInterval    = time.Minute     // time between two tests of the upstreams
	unableTime        = 5 * time.Minute // how long an upstream without DNSSEC is avoided
	turnTimeout       = time.Second     // timeout of an upstream that is asked by address, if another turn follows
	silentTime        = time.Minute     // how long an upstream is avoided after turnTimeout
)

// errTurnTimeout is the cause of the end of a query after turnTimeout.
var errTurnTimeout = errors.New("dnssec: the upstream does not answer in its turn")

// An upstreamTurn is one try of a question: its upstream and the CD flag.
type upstreamTurn struct {
	address string // empty: the Exchanger selects the upstream
	cd      bool
	more    bool // another turn follows
}

// An upstreamTurns is the sequence of tries of a question while answers are bogus. It must not be used by several
// goroutines at a time.
type upstreamTurns struct {
	core    *core
	name    string         // name of the question
	planned []upstreamTurn // nil: not planned yet, because only the first turn was needed
	next    int            // number of turns so far
}

// nextTurn returns the next turn, and false if there is none. unsigned reports that the last response had no
// signatures. The turn without CD is then skipped, unless it is the last one: an upstream that includes signatures only
// sometimes may do so then.
func (t *upstreamTurns) nextTurn(unsigned bool) (upstreamTurn, bool) {
	if t.planned == nil && t.next == 0 && !t.core.unable.hasUnable.Load() {
		t.next = 1
		return upstreamTurn{cd: true}, true
	}
	if t.planned == nil {
		t.planTurns()
	}
	if unsigned && t.next < len(t.planned)-1 && t.planned[t.next].isExchangerWithoutCD() {
		t.next++
	}
	if t.next >= len(t.planned) {
		return upstreamTurn{}, false
	}
	at := t.planned[t.next]
	t.next++
	at.more = t.next < len(t.planned)
	return at, true
}

// isExchangerWithoutCD reports whether the Exchanger selects the upstream and CD is not set.
func (t upstreamTurn) isExchangerWithoutCD() bool { return t.address == "" && !t.cd }

// planTurns plans all turns. The turn without CD makes a validating upstream look for a better answer than a bogus one
// in its cache.
func (t *upstreamTurns) planTurns() {
	named := t.core.upstreamAddresses(t.name)
	able := t.core.unable.filterAble(named, time.Now())
	var each []upstreamTurn
	for _, address := range able[:min(len(able), maxOtherUpstreams)] {
		each = append(each, upstreamTurn{address: address, cd: true})
	}
	if t.next == 0 && len(able) > 0 && len(able) < len(named) {
		t.planned = append(each, upstreamTurn{cd: true})
		return
	}
	t.planned = append([]upstreamTurn{{cd: true}, {}}, each...)
}

// sendToUpstream sends a message to the upstream of a turn. If another turn follows, the wait is limited to turnTimeout.
func (c *core) sendToUpstream(ctx context.Context, m *dns.Msg, at upstreamTurn) (*dns.Msg, error) {
	if at.address == "" || !at.more {
		return c.sendToExchanger(ctx, m, at.address)
	}
	within, stop := context.WithTimeoutCause(ctx, turnTimeout, errTurnTimeout)
	defer stop()
	r, err := c.sendToExchanger(within, m, at.address)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		c.unable.recordSilent(at.address, time.Now())
	}
	return r, err
}

// upstreamAddresses returns the addresses of the Exchanger's upstreams for a name. It returns nil if there is only one
// or they are unknown.
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

// An unableUpstreams records the upstreams that lack DNSSEC or do not answer. The zero value is empty.
type unableUpstreams struct {
	hasUnable atomic.Bool // the last test has found upstreams without DNSSEC

	mu          sync.Mutex           // guards the fields below
	unableUntil map[string]time.Time // by address; end of the time for which an upstream without DNSSEC is avoided
	silentUntil map[string]time.Time // by address; end of the time for which a silent upstream is avoided
	latest      *upstreamTest        // last test; nil: none
}

// A upstreamTest is a test of the upstreams for DNSSEC.
type upstreamTest struct {
	at            time.Time
	done          chan struct{}
	withoutDNSSEC []string // upstreams without DNSSEC, set before done is closed; "" is an upstream with unknown address
}

// filterAble returns the addresses of the upstreams that are not avoided.
func (u *unableUpstreams) filterAble(named []string, now time.Time) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(named), func(address string) bool {
		return now.Before(u.unableUntil[address]) || now.Before(u.silentUntil[address])
	})
}

// testUpstreams starts a test of the upstreams for a name, or returns the last one if that is recent. It asks for the
// SOA record of zone, which has a trust anchor. An upstream without DNSSEC returns it unsigned.
func (c *core) testUpstreams(zone, name string) *upstreamTest {
	u, now := &c.unable, time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	if l := u.latest; l != nil && now.Sub(l.at) < searchInterval {
		return l
	}
	l := &upstreamTest{at: now, done: make(chan struct{})}
	u.latest = l
	named := c.upstreamAddresses(name)
	if named == nil {
		named = []string{""}
	}
	named = named[:min(len(named), maxSearched)]
	c.running.Go(func() {
		defer close(l.done)
		ctx, stop := context.WithTimeout(c.ctx, chain.QuestionTimeout/2)
		defer stop()
		is := make([]bool, len(named))
		var wait sync.WaitGroup
		for i, address := range named {
			wait.Go(func() {
				r, err := c.sendToExchanger(ctx, question{name: zone, qtype: dns.TypeSOA}.newMessage(true), address)
				is[i] = err == nil && r.Rcode == dns.RcodeSuccess && len(r.Answer) > 0 && !hasSignatures(r)
			})
		}
		wait.Wait()
		for i, address := range named {
			if is[i] {
				l.withoutDNSSEC = append(l.withoutDNSSEC, address)
			}
		}
		u.recordUnable(l.withoutDNSSEC, time.Now())
	})
	return l
}

// testUpstreamsAfterUnsigned starts a test of the upstreams for DNSSEC, because the answer to q had no signatures. It
// does nothing if there is only one upstream.
func (c *core) testUpstreamsAfterUnsigned(q question) {
	if zone := c.validator.AnchorZone(q.name, q.qtype); zone != nil && c.upstreamAddresses(q.name) != nil {
		c.testUpstreams(zone.Name, q.name)
	}
}

// recordUnable stores the upstreams that a test has found to lack DNSSEC, in place of those of the last test.
func (u *unableUpstreams) recordUnable(found []string, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.unableUntil = make(map[string]time.Time)
	for _, address := range found {
		u.unableUntil[address] = now.Add(unableTime)
	}
	u.hasUnable.Store(len(found) > 0)
}

// recordSilent records that an upstream did not answer within turnTimeout.
func (u *unableUpstreams) recordSilent(address string, now time.Time) {
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

// explainBogus returns the reason of a bogus answer. If upstreams without DNSSEC may be the cause, it adds their
// addresses to the text.
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
	l := c.testUpstreams(zone.Name, q.name)
	select {
	case <-l.done:
	case <-ctx.Done():
		return why
	}
	if len(l.withoutDNSSEC) == 0 {
		return why
	}
	named := *why
	if named.Text += "; an upstream without DNSSEC"; l.withoutDNSSEC[0] != "" {
		named.Text += ": " + strings.Join(l.withoutDNSSEC, ", ")
	}
	return &named
}

// hasSignatures reports whether a response has RRSIG records.
func hasSignatures(r *dns.Msg) bool {
	signs := func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeRRSIG }
	return slices.ContainsFunc(r.Answer, signs) || slices.ContainsFunc(r.Ns, signs)
}
