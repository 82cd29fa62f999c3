package worlds_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/internal/dnstest"
)

// recUpstreamFaults are the faults of upstreams of a Validator.
var recUpstreamFaults = []string{
	"silent", "drops1", "late1s", "cut", "refused", "servfail",
	"strips", "noSigs", "expired", "forgedSigs", "oldKeys",
	"forges", "forgesBare", "nx", "nodata",
	"raises", "raisesSets", "addsTag", "addsAlgorithm", "addsForged", "addsEnded", "addsStranger",
}

// newRecUpstreams draws the Exchanger of the Validator: the Resolver, or a Client of upstreams.
func newRecUpstreams(d *generator, w *recScenario) {
	w.validator = drawPart(d, "validator", .4, "", "resolver", "upstreams", "upstreams")
	if w.validator != "upstreams" {
		return
	}
	for i := range drawPart(d, "upstreams", .7, 1, 2, 2, 3) {
		name := func(s string) string { return fmt.Sprintf("upstream%d.%s", i, s) }
		w.upstreams = append(w.upstreams, &recServer{number: i, fault: newRecFault(d, name, .3, w, recUpstreamFaults)})
	}
}

func upstreamName(n int) string { return fmt.Sprintf("u%d", n) }

// newValidator makes the Validator, if the scenario has one.
func (p *recPlay) newValidator() {
	if p.w.validator == "" {
		return
	}
	below := recExchanger{play: p}
	if p.w.validator == "upstreams" {
		p.inner = &dnshedge.Client{Dialer: p, SpecialUse: dnshedge.SpecialUseOff}
		for _, u := range p.w.upstreams {
			p.inner.Upstreams = append(p.inner.Upstreams, dnshedge.Upstream{Addr: netip.AddrPortFrom(p.net.Host(upstreamName(u.number)).Addr(), 53).String()})
		}
		below.client = p.inner
	}
	p.validator = &dnssec.Validator{Exchanger: below, Trust: p.newTrust()}
}

// A recExchanger is the Exchanger of a Validator, or of the Client above the Resolver. It counts the questions of the
// Validator.
type recExchanger struct {
	play   *recPlay
	client *dnshedge.Client // nil: the Resolver is asked
	above  bool             // the Client above the Resolver asks
}

func (e recExchanger) ExchangeContext(ctx context.Context, m *dns.Msg, address string) (*dns.Msg, time.Duration, error) {
	if !e.above {
		e.play.put.Add(1)
	}
	if e.client != nil {
		return e.client.ExchangeContext(ctx, m, address)
	}
	return e.play.current().ExchangeContext(ctx, m, address)
}

// Addresses returns the upstreams for a name.
func (e recExchanger) Addresses(name string) []string {
	if e.client == nil {
		return nil
	}
	return e.client.Addresses(name)
}

// closeValidator closes the Validator and its Client, and checks the number of their questions.
func (p *recPlay) closeValidator() {
	if p.validator == nil {
		return
	}
	most := int64(0)
	for _, a := range p.w.asks {
		cost := 64
		if t := p.data.correctAnswerOf(a.name, a.typ); p.w.isFlawless() && p.w.upstreamsHealthy() && !t.loops {
			cost = t.links + 2*len(p.w.zones) + 2
		}
		most += int64(cost)
	}
	if n := p.put.Load(); n > most {
		p.note("5 queries (Validator)", "%d questions, %d at most", n, most)
	}
	if err := p.validator.Close(); err != nil {
		p.note("6 close", "%v", err)
	}
	if p.inner != nil {
		if err := p.inner.Close(); err != nil {
			p.note("6 close", "%v", err)
		}
	}
}

// answerAsUpstream is the handler of an upstream. It follows aliases through all zones, and does not validate.
func (p *recPlay) answerAsUpstream(u *recServer, q dnstest.Query) dnstest.Reply {
	ask := q.Question[0]
	seen := recReceivedQuery{at: p.since(), server: u.number, net: q.Net, name: strings.ToLower(ask.Name), typ: ask.Qtype, do: q.IsEdns0() != nil && q.IsEdns0().Do()}
	if f := u.fault; f != nil && f.isActiveDuring(seen.at, seen.at) && (f.on == "" || f.on == dns.TypeToString[ask.Qtype]) {
		seen.fault = f.kind
	}
	p.mu.Lock()
	before := 0
	for _, o := range p.heard {
		if o.server == seen.server && o.name == seen.name && o.typ == seen.typ {
			before++
		}
	}
	p.heard = append(p.heard, seen)
	p.mu.Unlock()
	r := dnstest.Reply{Msg: p.resolveAsUpstream(q, seen)}
	seen.applyFault(&r, q, before)
	if r.Msg == nil {
		return r
	}
	r.Msg.Compress, r.Msg.RecursionAvailable, r.Msg.Authoritative = true, true, false
	size := dns.MinMsgSize
	if opt := q.IsEdns0(); opt != nil {
		size = int(opt.UDPSize())
	}
	if q.Net == "udp" && r.Msg.Len() > size {
		r.Msg = newTruncatedReply(q)
		r.Msg.RecursionAvailable = true
	}
	return r
}

// resolveAsUpstream returns the records of a name and of the targets of its aliases.
func (p *recPlay) resolveAsUpstream(q dnstest.Query, o recReceivedQuery) *dns.Msg {
	m := dnstest.Answer(q)
	name := o.name
	for range 12 {
		t := recResponse{p: p, m: m, z: p.w.zoneOf(name, o.typ), fault: o.fault, do: o.do && o.fault != "strips"}
		f := t.addRecords(name, o.typ)
		if f.next == "" {
			m.Answer, m.Ns = dns.Dedup(m.Answer, nil), dns.Dedup(m.Ns, nil)
			for _, rr := range m.Answer {
				if strings.EqualFold(rr.Header().Name, q.Question[0].Name) {
					rr.Header().Name = q.Question[0].Name
				}
			}
			return m
		}
		name = f.next
	}
	return dnstest.Rcode(q, dns.RcodeServerFailure)
}

// upstreamsHealthy reports whether no upstream has a fault.
func (w *recScenario) upstreamsHealthy() bool {
	return !slices.ContainsFunc(w.upstreams, func(u *recServer) bool { return u.fault != nil })
}

// mayBeForgedByUpstream reports whether an upstream may forge an answer undetected, because not all of the answer is
// signed.
func (c *recCase) mayBeForgedByUpstream() bool {
	return !c.needsSignatures() && slices.ContainsFunc(c.w.upstreams, func(u *recServer) bool {
		return u.fault != nil && slices.Contains([]string{"forges", "forgesBare", "nx", "nodata", "strips", "noSigs", "oldKeys"}, u.fault.kind)
	})
}

// validatorMustAnswer reports whether the Validator must have an answer.
func (c *recCase) validatorMustAnswer(took time.Duration) bool {
	switch {
	case c.t.loops, c.r.closed, c.isValidated() && c.t.security == isBogus && c.w.client.trust != "report":
		return false
	case c.a.deadline > 0, c.a.cancel >= 0:
		return false
	case c.w.validator == "resolver":
		return c.w.serversHealthy() && c.w.client.limit == "" && c.w.client.change == ""
	case !c.isValidated():
		return c.w.upstreamsHealthy()
	}
	good, slow := false, 0
	for _, u := range c.w.upstreams {
		switch f := u.fault; {
		case f == nil || slices.Contains(recHarmlessTTLRaisers, f.kind):
			good = true
		case f.kind == "silent" || f.kind == "late1s" || f.kind == "drops1":
			slow++
		}
	}
	return good && slow == 0 && c.w.client.trust != "report" && !c.lacksFailoverBudget()
}

// lacksFailoverBudget reports whether the budget of the Client may not pay for a query to the good upstream, after two
// upstreams report that they cannot answer. Questions about a loop of aliases fail at all upstreams, and use it up.
func (c *recCase) lacksFailoverBudget() bool {
	failing := 0
	for _, u := range c.w.upstreams {
		if f := u.fault; f != nil && (f.kind == "refused" || f.kind == "servfail") {
			failing++
		}
	}
	return failing >= 2 && slices.ContainsFunc(c.w.asks, func(a *recQuestion) bool { return c.p.data.correctAnswerOf(a.name, a.typ).loops })
}
