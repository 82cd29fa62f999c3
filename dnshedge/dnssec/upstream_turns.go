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
	maxOtherUpstreams = 4           // upstreams that are asked each by itself because an answer is bogus
	maxSearched       = 16          // that are looked at for DNSSEC
	searchInterval    = time.Minute // after which upstreams may be looked at again
	unableTime        = 5 * time.Minute
	turnTimeout       = time.Second // that an upstream has which is asked by itself, if there is another one
	silentTime        = time.Minute // for which one that did not answer in it is not asked by itself
)

// errTurnTimeout is why an upstream is not waited for any longer.
var errTurnTimeout = errors.New("dnssec: the upstream does not answer in its turn")

// A upstreamTurn is whom a question is put to.
type upstreamTurn struct {
	address string // empty: whom the Exchanger chooses
	cd      bool
	more    bool // another turn follows
}

// upstreamTurns says to whom a question is put, one after the other as long as answers are bogus. Not two goroutines use one.
type upstreamTurns struct {
	core    *core
	name    string         // of the question
	planned []upstreamTurn // nil: none but the first was needed yet, which is for whom the Exchanger chooses
	next    int
}

// nextTurn returns the next turn. If what came before had no signatures, it is not asked for again without CD, unless
// there is nobody else: one that does not always pass signatures on may do so then.
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

// isExchangerWithoutCD reports whether it is the turn of whom the Exchanger chooses, without CD.
func (t upstreamTurn) isExchangerWithoutCD() bool { return t.address == "" && !t.cd }

// planTurns finds all turns. Without CD an upstream that validates looks for a better answer than the one that it keeps.
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

// sendInTurn puts a question to the one whose turn it is. One that is silent does not take the time of those after it.
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

// upstreamAddresses returns those of the upstreams that are asked about a name, if there are several.
func (c *core) upstreamAddresses(name string) []string {
	e, ok := c.conf.Exchanger.(interface{ Addresses(name string) []string })
	if !ok {
		return nil
	}
	var all []string
	usercode.Run(func() { all = e.Addresses(name) })
	if len(all) < 2 {
		return nil
	}
	return all
}

// unableUpstreams are the upstreams that know nothing of DNSSEC, or do not answer. The zero value knows of none.
type unableUpstreams struct {
	hasUnable atomic.Bool // there may be some that know nothing of DNSSEC

	mu          sync.Mutex           // guards the fields below
	unableUntil map[string]time.Time // by address; when they are believed to be able again
	silentUntil map[string]time.Time // until when those that did not answer are not asked by themselves
	latest      *capabilitySearch    // nil: there was none
}

// look is a search for upstreams that know nothing of DNSSEC.
type capabilitySearch struct {
	at    time.Time
	done  chan struct{}
	found []string // written before done is closed; "" is the only one that there is
}

// filterAble returns those of some addresses that are not unable.
func (u *unableUpstreams) filterAble(named []string, now time.Time) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(named), func(address string) bool {
		return now.Before(u.unableUntil[address]) || now.Before(u.silentUntil[address])
	})
}

// searchUnable looks for upstreams that know nothing of DNSSEC, among those that are asked about a name, once in a while: they answer with the SOA record of a
// zone that an anchor says is signed, without a signature.
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

// noteUnsigned begins to look for upstreams that know nothing of DNSSEC, because an answer had no signatures. It is no use to know that of the only one.
func (c *core) noteUnsigned(q question) {
	if zone := c.validator.AnchorZone(q.name, q.qtype); zone != nil && c.upstreamAddresses(q.name) != nil {
		c.searchUnable(zone.Name, q.name)
	}
}

// recordUnable takes the upstreams that know nothing of DNSSEC.
func (u *unableUpstreams) recordUnable(found []string, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.unableUntil = make(map[string]time.Time)
	for _, address := range found {
		u.unableUntil[address] = now.Add(unableTime)
	}
	u.hasUnable.Store(len(found) > 0)
}

// recordSilent takes that an upstream that was asked by itself did not answer.
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

// explainBogus returns why an answer is bogus, with the upstreams that know nothing of DNSSEC if that may be why.
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

// hasSignatures reports whether there are signatures in a response.
func hasSignatures(r *dns.Msg) bool {
	signs := func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeRRSIG }
	return slices.ContainsFunc(r.Answer, signs) || slices.ContainsFunc(r.Ns, signs)
}
