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
	maxOtherUpstreams = 4               // upstreams that are asked individually because an answer is bogus
	maxSearched       = 16              // upstreams that are tested for DNSSEC
	searchInterval    = time.Minute     // between tests of the upstreams
	unableTime        = 5 * time.Minute // how long an upstream without DNSSEC is avoided
	turnTimeout       = time.Second     // of an upstream that is asked individually while another remains
	silentTime        = time.Minute     // how long an upstream that did not answer in time is avoided
)

// errTurnTimeout ends the wait for an upstream that is asked individually.
var errTurnTimeout = errors.New("dnssec: the upstream does not answer in its turn")

// An upstreamTurn is one of the attempts at a question, which go to one upstream after the other.
type upstreamTurn struct {
	address string // empty: the Exchanger chooses
	cd      bool
	more    bool // another turn follows
}

// upstreamTurns is the sequence of upstreams for a question, used while answers are bogus. It is for one goroutine at a
// time.
type upstreamTurns struct {
	core    *core
	name    string         // of the question
	planned []upstreamTurn // nil: only the first turn was needed so far, where the Exchanger chooses
	next    int
}

// nextTurn returns the next turn. After a response without signatures it skips the repetition without CD, unless no other
// upstream is left: an upstream that passes signatures on only sometimes may do so then.
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

// isExchangerWithoutCD reports whether the Exchanger chooses the upstream and CD is not set.
func (t upstreamTurn) isExchangerWithoutCD() bool { return t.address == "" && !t.cd }

// planTurns plans all turns. Without CD, a validating upstream looks for a better answer than its cached one.
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

// sendInTurn sends a message to the upstream of a turn, with a timeout if another turn follows.
func (c *core) sendInTurn(ctx context.Context, m *dns.Msg, at upstreamTurn) (*dns.Msg, error) {
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

// upstreamAddresses returns the Exchanger's upstreams for a name if there are several.
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

// unableUpstreams are the upstreams that lack DNSSEC or do not answer. The zero value is empty.
type unableUpstreams struct {
	hasUnable atomic.Bool // there may be upstreams without DNSSEC

	mu          sync.Mutex           // guards the fields below
	unableUntil map[string]time.Time // by address; until when they are assumed to lack DNSSEC
	silentUntil map[string]time.Time // by address; until when silent upstreams are not asked individually
	latest      *capabilitySearch    // nil: there was none
}

// A capabilitySearch tests upstreams for DNSSEC.
type capabilitySearch struct {
	at    time.Time
	done  chan struct{}
	found []string // upstreams without DNSSEC; written before done is closed; "": the only upstream
}

// filterAble returns the addresses that are not unable.
func (u *unableUpstreams) filterAble(named []string, now time.Time) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(named), func(address string) bool {
		return now.Before(u.unableUntil[address]) || now.Before(u.silentUntil[address])
	})
}

// searchUnable tests the upstreams for a name, once in a while. An upstream lacks DNSSEC if it answers with an unsigned
// SOA record of a zone that has a trust anchor.
func (c *core) searchUnable(zone, name string) *capabilitySearch {
	u, now := &c.unable, time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	if l := u.latest; l != nil && now.Sub(l.at) < searchInterval {
		return l
	}
	l := &capabilitySearch{at: now, done: make(chan struct{})}
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
				l.found = append(l.found, address)
			}
		}
		u.recordUnable(l.found, time.Now())
	})
	return l
}

// testUpstreamsAfterUnsigned starts a test, after an unsigned answer to q, of which upstreams return DNSSEC records. It does nothing if there
// is one upstream.
func (c *core) testUpstreamsAfterUnsigned(q question) {
	if zone := c.validator.AnchorZone(q.name, q.qtype); zone != nil && c.upstreamAddresses(q.name) != nil {
		c.searchUnable(zone.Name, q.name)
	}
}

// recordUnable stores the upstreams without DNSSEC.
func (u *unableUpstreams) recordUnable(found []string, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.unableUntil = make(map[string]time.Time)
	for _, address := range found {
		u.unableUntil[address] = now.Add(unableTime)
	}
	u.hasUnable.Store(len(found) > 0)
}

// recordSilent records that an upstream did not answer in its turn.
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

// explainBogus returns the reason of a bogus answer, extended by the upstreams without DNSSEC if they may be the cause.
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
	l := c.searchUnable(zone.Name, q.name)
	select {
	case <-l.done:
	case <-ctx.Done():
		return why
	}
	if len(l.found) == 0 {
		return why
	}
	named := *why
	if named.Text += "; an upstream without DNSSEC"; l.found[0] != "" {
		named.Text += ": " + strings.Join(l.found, ", ")
	}
	return &named
}

// hasSignatures reports whether a response has signatures.
func hasSignatures(r *dns.Msg) bool {
	signs := func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeRRSIG }
	return slices.ContainsFunc(r.Answer, signs) || slices.ContainsFunc(r.Ns, signs)
}
