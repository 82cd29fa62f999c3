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
	maxOthers   = 4           // upstreams that are asked each by itself because an answer is bogus
	maxUpstream = 16          // that are looked at for DNSSEC
	lookAgain   = time.Minute // after which upstreams may be looked at again
	unableTime  = 5 * time.Minute
	turnTime    = time.Second // that an upstream has which is asked by itself, if there is another one
	missTime    = time.Minute // for which one that did not answer in it is not asked by itself
)

// errTurn is why an upstream is not waited for any longer.
var errTurn = errors.New("dnssec: the upstream does not answer in its turn")

// A turn is whom a question is put to.
type turn struct {
	address string // empty: whom the Exchanger chooses
	cd      bool
	more    bool // another turn follows
}

// turns says to whom a question is put, one after the other as long as answers are bogus. Not two goroutines use one.
type turns struct {
	core *core
	name string // of the question
	all  []turn // nil: none but the first was needed yet, which is for whom the Exchanger chooses
	next int
}

// take returns the next turn. If what came before had no signatures, it is not asked for again without CD, unless
// there is nobody else: one that does not always pass signatures on may do so then.
func (t *turns) take(unsigned bool) (turn, bool) {
	if t.all == nil && t.next == 0 && !t.core.unable.some.Load() {
		t.next = 1
		return turn{cd: true}, true
	}
	if t.all == nil {
		t.fill()
	}
	if unsigned && t.next < len(t.all)-1 && t.all[t.next].again() {
		t.next++
	}
	if t.next >= len(t.all) {
		return turn{}, false
	}
	at := t.all[t.next]
	t.next++
	at.more = t.next < len(t.all)
	return at, true
}

// again reports whether it is the turn of whom the Exchanger chooses, without CD.
func (t turn) again() bool { return t.address == "" && !t.cd }

// fill finds all turns. Without CD an upstream that validates looks for a better answer than the one that it keeps.
func (t *turns) fill() {
	named := t.core.addresses(t.name)
	able := t.core.unable.without(named, time.Now())
	var each []turn
	for _, address := range able[:min(len(able), maxOthers)] {
		each = append(each, turn{address: address, cd: true})
	}
	if t.next == 0 && len(able) > 0 && len(able) < len(named) {
		t.all = append(each, turn{cd: true})
		return
	}
	t.all = append([]turn{{cd: true}, {}}, each...)
}

// give puts a question to the one whose turn it is. One that is silent does not take the time of those after it.
func (c *core) give(ctx context.Context, m *dns.Msg, at turn) (*dns.Msg, error) {
	if at.address == "" || !at.more {
		return c.put(ctx, m, at.address)
	}
	within, stop := context.WithTimeoutCause(ctx, turnTime, errTurn)
	defer stop()
	r, err := c.put(within, m, at.address)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		c.unable.miss(at.address, time.Now())
	}
	return r, err
}

// addresses returns those of the upstreams that are asked about a name, if there are several.
func (c *core) addresses(name string) []string {
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

// unable are the upstreams that know nothing of DNSSEC, or do not answer. The zero value knows of none.
type unable struct {
	some atomic.Bool // there may be some that know nothing of DNSSEC

	mu     sync.Mutex           // guards the fields below
	until  map[string]time.Time // by address; when they are believed to be able again
	missed map[string]time.Time // until when those that did not answer are not asked by themselves
	latest *look                // nil: there was none
}

// look is a search for upstreams that know nothing of DNSSEC.
type look struct {
	at    time.Time
	done  chan struct{}
	found []string // written before done is closed; "" is the only one that there is
}

// without returns those of some addresses that are not unable.
func (u *unable) without(named []string, now time.Time) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(named), func(address string) bool {
		return now.Before(u.until[address]) || now.Before(u.missed[address])
	})
}

// look looks for upstreams that know nothing of DNSSEC, among those that are asked about a name, once in a while: they answer with the SOA record of a
// zone that an anchor says is signed, without a signature.
func (c *core) look(zone, name string) *look {
	u, now := &c.unable, time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	if l := u.latest; l != nil && now.Sub(l.at) < lookAgain {
		return l
	}
	l := &look{at: now, done: make(chan struct{})}
	u.latest = l
	named := c.addresses(name)
	if named == nil {
		named = []string{""}
	}
	named = named[:min(len(named), maxUpstream)]
	c.running.Go(func() {
		defer close(l.done)
		ctx, stop := context.WithTimeout(c.ctx, chain.QuestionTime/2)
		defer stop()
		is := make([]bool, len(named))
		var wait sync.WaitGroup
		for i, address := range named {
			wait.Go(func() {
				r, err := c.put(ctx, question{name: zone, qtype: dns.TypeSOA}.message(true), address)
				is[i] = err == nil && r.Rcode == dns.RcodeSuccess && len(r.Answer) > 0 && !hasSignatures(r)
			})
		}
		wait.Wait()
		for i, address := range named {
			if is[i] {
				l.found = append(l.found, address)
			}
		}
		u.note(l.found, time.Now())
	})
	return l
}

// learn begins to look for upstreams that know nothing of DNSSEC, because an answer had no signatures. It is no use to know that of the only one.
func (c *core) learn(q question) {
	if zone := c.chains.Start(q.name, q.qtype); zone != nil && c.addresses(q.name) != nil {
		c.look(zone.Name, q.name)
	}
}

// note takes the upstreams that know nothing of DNSSEC.
func (u *unable) note(found []string, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.until = make(map[string]time.Time)
	for _, address := range found {
		u.until[address] = now.Add(unableTime)
	}
	u.some.Store(len(found) > 0)
}

// miss takes that an upstream that was asked by itself did not answer.
func (u *unable) miss(address string, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for other, until := range u.missed {
		if !now.Before(until) {
			delete(u.missed, other)
		}
	}
	if u.missed == nil {
		u.missed = make(map[string]time.Time)
	}
	u.missed[address] = now.Add(missTime)
}

// explained returns why an answer is bogus, with the upstreams that know nothing of DNSSEC if that may be why.
func (c *core) explained(ctx context.Context, q question, why *validate.Reason) *validate.Reason {
	zone := c.chains.Start(q.name, q.qtype)
	switch why.EDE {
	case dns.ExtendedErrorCodeDNSKEYMissing, dns.ExtendedErrorCodeRRSIGsMissing, dns.ExtendedErrorCodeNSECMissing:
	default:
		zone = nil
	}
	if zone == nil || why.Limit != "" {
		return why
	}
	l := c.look(zone.Name, q.name)
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
