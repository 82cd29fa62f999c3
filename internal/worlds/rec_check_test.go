package worlds_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/dnssec"
)

// A recChecker compares the answers of a Resolver with the correct answers.
type recChecker struct {
	w        *recScenario
	p        *recPlay
	findings []finding
}

// A recCase is a question with the correct answer and the actual result.
type recCase struct {
	*recChecker
	a *recQuestion
	r *recResult
	t recCorrectAnswer

	byValidator bool // the Validator has answered, and not the Resolver
}

const (
	maxRecTime    = 4500 * ms // that a question may take
	maxRecLatency = 25 * 40 * ms
)

// check plays the scenario and returns the broken promises.
func (w *recScenario) check(s *stage) []finding {
	j := &recChecker{w: w, p: playRec(s, w)}
	if j.p.broken != "" {
		return []finding{{"6 goroutines", j.p.broken}}
	}
	for _, q := range j.p.seen {
		s.log("server %d (%s) saw %s %s over %s at %v: %s", q.server, w.servers[q.server].of.name, q.name, dns.TypeToString[q.typ], q.net, q.at, q.fault)
	}
	for _, q := range j.p.heard {
		s.log("upstream %d saw %s %s over %s at %v: %s", q.server, q.name, dns.TypeToString[q.typ], q.net, q.at, q.fault)
	}
	for i, a := range w.asks {
		c := recCase{recChecker: j, a: a, r: j.p.results[i], t: j.p.data.correctAnswerOf(a.name, a.typ)}
		s.log("%v at %v: %v, right is %s %v %v", a, a.at, c.r, dns.RcodeToString[c.t.rcode], c.t.security, c.t.records)
		c.checkResult()
		if c.r = j.p.validated[i]; c.r != nil {
			c.byValidator = true
			s.log("the Validator: %v", c.r)
			c.checkResult()
		}
		if c.r = j.p.kept[i]; c.r != nil {
			c.byValidator = false
			s.log("the Client: %v", c.r)
			c.checkCached()
		}
	}
	j.checkFloods()
	return append(j.findings, j.p.notes...)
}

func (c *recCase) say(promise, format string, args ...any) {
	by := ""
	if c.byValidator {
		by, promise = "Validator: ", promise+" (Validator)"
	}
	c.findings = append(c.findings, finding{promise, fmt.Sprintf("%s%v at %v: %s; %v, right is %s %v %v",
		by, c.a, c.a.at, fmt.Sprintf(format, args...), c.r, dns.RcodeToString[c.t.rcode], c.t.security, c.t.records)})
}

// isValidated reports whether the Resolver validates the answer.
func (c *recCase) isValidated() bool { return c.w.client.trust != "off" && !c.a.cd }

// checkResult checks the result of the question.
func (c *recCase) checkResult() {
	took := c.r.end - c.r.began
	most := maxRecTime
	if c.a.deadline > 0 {
		most = min(most, c.a.deadline)
	}
	if c.a.cancel >= 0 {
		most = min(most, c.a.cancel)
	}
	if took > most+timeTolerance && (!c.byValidator || c.isValidated()) { // which passes other questions on
		c.say("2 held", "for %v at most", most)
	}
	if limit := c.limitOf("queries", 64); c.r.info.Queries > limit+c.r.hedges {
		c.say("5 queries", "%d at most", limit)
	}
	if c.r.msg != nil {
		c.checkForm()
	}
	switch {
	case c.r.msg == nil && !c.r.closed && !c.a.callerEndsBy(took) && (!c.byValidator || c.w.upstreamsHealthy()): // which passes the error of a Client on
		c.say("2 error", "nothing keeps it from an answer")
	case c.r.msg == nil:
	case c.r.succeeded():
		c.checkAnswer()
	case c.r.msg.Rcode != dns.RcodeServerFailure && (c.r.msg.Rcode != dns.RcodeRefused || !c.byValidator || c.w.upstreamsHealthy()): // which a Client passes on
		c.say("2 rcode", "it is none of a resolver")
	case c.byValidator && c.validatorMustAnswer(took):
		c.say("2 fails", "an upstream is good")
	case !c.byValidator && c.mustSucceed(took):
		c.say("2 fails", "all zones on the way have a good server")
	}
}

// limitOf returns the value of a limit of the Resolver.
func (c *recCase) limitOf(name string, usual int) int {
	if c.w.client.limit == name {
		return c.w.client.most
	}
	return usual
}

// checkForm checks the form of a response.
func (c *recCase) checkForm() {
	m, ask := c.r.msg, c.a.newMessage()
	opt := m.IsEdns0()
	switch {
	case !m.Response || !m.RecursionAvailable || m.Authoritative || m.Truncated || m.RecursionDesired != ask.RecursionDesired || m.CheckingDisabled != c.a.cd:
		c.say("2 form", "its flags are not those of a response to the question")
	case len(m.Question) != 1 || m.Question[0] != ask.Question[0]:
		c.say("2 form", "its question is %v", m.Question)
	case (opt != nil) != c.a.edns || opt != nil && opt.Do() != c.a.do:
		c.say("2 form", "its OPT record is %v", opt)
	case c.r.told != 1:
		c.say("6 told", "the Trace is told of it %d times", c.r.told)
	case c.r.info.Rcode != m.Rcode:
		c.say("6 told", "the Trace is told of %s", dns.RcodeToString[c.r.info.Rcode])
	case m.AuthenticatedData && !c.a.do && !c.a.ad:
		c.say("3 AD", "nobody has asked for it")
	case m.AuthenticatedData && !c.r.succeeded():
		c.say("3 AD", "it is a failure")
	}
	for _, rr := range slices.Concat(m.Answer, m.Ns) {
		switch t := rr.Header().Rrtype; t {
		case dns.TypeRRSIG, dns.TypeNSEC, dns.TypeNSEC3, dns.TypeDS, dns.TypeDNSKEY:
			if !c.a.do && t != c.a.typ {
				c.say("10 DNSSEC", "nobody has asked for %v", rr)
			}
		}
	}
}

// checkAnswer checks an answer.
func (c *recCase) checkAnswer() {
	m := c.r.msg
	s := c.t.security
	lied := c.mayBeForged()
	switch {
	case c.t.loops:
		if !lied {
			c.say("2 loop", "its aliases lead nowhere")
		}
		return
	case m.AuthenticatedData && (!c.isValidated() || s != isSecure) && !(c.a.typ == dns.TypeDS && c.isProvenByOtherDenial()):
		c.say("3 AD", "it is not secure")
	case c.isValidated() && s == isBogus && c.w.client.trust != "report" && !lied && !c.isProvenByOtherDenial():
		c.say("1 bogus", "it is answered")
	case !c.isValidated() || s != isSecure || lied || c.w.client.trust == "report" && (c.w.client.limit != "" || c.a.deadline > 0 || !c.isWellServed() || c.byValidator && !c.w.upstreamsHealthy()):
	case c.r.info.Security != dnssec.Secure && (!c.byValidator || c.a.do || c.a.ad):
		c.say("3 secure", "the Trace is told that it is %v", c.r.info.Security)
	case (c.a.do || c.a.ad) && !m.AuthenticatedData:
		c.say("3 no AD", "it is secure")
	case c.a.do:
		if wrong := c.findUnproven(); wrong != "" {
			c.say("3 proof", "%s", wrong)
		}
	}
	if lied {
		return
	}
	if got := formatRecords(m.Answer); m.Rcode != c.t.rcode || !slices.Equal(got, c.t.records) {
		c.say("7 data", "it is not what the zones have")
	}
	if m.AuthenticatedData || c.r.info.Security == dnssec.Secure {
		c.checkTTLs()
	} else if c.hasRaisedTTLs() {
		return
	}
	for _, rr := range m.Answer {
		if rr.Header().Ttl > 3600 || strings.HasPrefix(c.a.name, "short.") && rr.Header().Ttl > 5 && rr.Header().Rrtype == dns.TypeA {
			c.say("7 TTL", "%v", rr)
		}
	}
	if took := c.r.end - c.r.began; c.hasZoneFlawsOnly() && took > maxRecLatency {
		c.say("9 late", "all servers are well: %v at most", maxRecLatency)
	}
}

// mayBeForged reports whether a server of a needed zone may forge an answer undetected: not every zone is signed. A
// server without DNSSEC has no keys.
func (c *recCase) mayBeForged() bool {
	if c.byValidator && !(c.w.serversHealthy() && c.w.upstreamsHealthy()) || c.byValidator && c.t.security == isBogus {
		if len(c.t.optedOut) > 0 || slices.ContainsFunc(c.t.needs, func(z *recZone) bool { return z.denial == "iterations" }) {
			return true // the name might be a delegation that is not signed, which no server tells
		}
	}
	if c.byValidator && c.w.validator == "upstreams" {
		return c.mayBeForgedByUpstream()
	}
	trusted := c.needsSignatures()
	open := slices.ContainsFunc(c.t.needs, func(z *recZone) bool { return z.denial == "iterations" })
	for _, z := range c.t.needs {
		for _, s := range z.servers {
			if s.fault == nil {
				continue
			}
			kind := s.fault.kind
			if (open || slices.Contains(c.t.optedOut, z) && c.isFrom(kind)) && slices.Contains(recUnsigned, kind) {
				return true // the name might be a delegation that is not signed
			}
			if trusted {
				continue
			}
			if slices.Contains(recForgers, kind) || (kind == "strips" || kind == "oldKeys") && (c.a.typ == dns.TypeDNSKEY || c.a.typ == dns.TypeDS) {
				return true // unless the answer has to be signed
			}
		}
	}
	return false
}

// needsSignatures reports whether all of the answer must be signed.
func (c *recCase) needsSignatures() bool {
	return c.isValidated() && c.w.client.trust != "report" && c.t.security != isInsecure && !c.isProvenByOtherDenial() && !slices.ContainsFunc(c.t.needs, func(z *recZone) bool {
		return !c.w.isCovered(z.nameIn("x"), dns.TypeA) || c.w.zoneSecurity(z) == isInsecure
	})
}

// isFrom reports whether the answer may be an unsigned response of a server with a fault of recUnsigned.
func (c *recCase) isFrom(kind string) bool {
	m := c.r.msg
	if kind == "nx" || kind == "nodata" {
		return len(m.Answer) == 0 && (m.Rcode == dns.RcodeNameError) == (kind == "nx")
	}
	return m.Rcode == dns.RcodeSuccess && len(withoutSigs(m.Answer)) == len(m.Answer)
}

// isProvenByOtherDenial reports whether servers have proved that a needed delegation is not signed, though they withhold
// the proof where it belongs. The record that denies another name may be that of the delegation.
func (c *recCase) isProvenByOtherDenial() bool {
	return slices.ContainsFunc(c.w.zones, func(z *recZone) bool {
		return z.flaw == "noDSProof" && (z.contains(c.a.name) || slices.Contains(c.t.needs, z)) && c.p.hasSentDSDenial(z, c.r.end)
	})
}

// hasZoneFlawsOnly reports whether the scenario has no flaws except those of zones.
func (c *recCase) hasZoneFlawsOnly() bool {
	return c.w.client.limit == "" && c.w.client.change == "" && c.w.client.trust != "report" && c.w.serversHealthy() && (!c.byValidator || c.w.upstreamsHealthy())
}

// serversHealthy reports whether no server has a fault.
func (w *recScenario) serversHealthy() bool {
	return !slices.ContainsFunc(w.servers, func(s *recServer) bool { return s.fault != nil })
}

// isFlawless reports whether no zone or server has a fault, and no zone is on the servers of its parent, for which
// there is no referral.
func (w *recScenario) isFlawless() bool {
	return w.serversHealthy() && w.client.limit == "" && !slices.ContainsFunc(w.zones, func(z *recZone) bool { return z.flaw != "" || z.ns == "parent" })
}

// mustSucceed reports whether a question must have an answer.
func (c *recCase) mustSucceed(took time.Duration) bool {
	validated := c.isValidated() && c.w.client.trust != "report"
	switch {
	case c.t.loops, c.r.closed, validated && c.t.security == isBogus:
		return false
	case c.w.client.limit != "" && !strings.HasSuffix(c.w.client.limit, "nFlight"):
		return false
	case c.a.deadline > 0 && took >= c.a.deadline*8/10:
		return false
	}
	return c.isWellServed()
}

// isWellServed reports whether each needed zone has had a healthy server for long, and no server that takes much time
// or refers to other servers.
func (c *recCase) isWellServed() bool {
	slow := 0
	for _, z := range c.t.needs {
		well := false
		for _, s := range z.servers {
			f := s.fault
			switch {
			case f == nil || slices.Contains(recHarmlessTTLRaisers, f.kind):
				well = true
				continue
			case slices.Contains(recForgers, f.kind) && slices.ContainsFunc(c.t.needs, c.w.hasForeignServers):
				return false // the addresses of servers need not be signed
			case !f.isActiveDuring(c.r.began-maxRecMemory, c.r.end):
				well = true
				continue
			}
			switch f.kind {
			case "silent", "drops1", "late1s", "late3s", "wrongID", "cut", "cutDead":
				slow++
			}
		}
		if !well {
			return false
		}
	}
	// With trust "report" the Resolver also waits for bogus answers. With a limit of queries in flight, queries to
	// silent servers occupy the slots.
	return slow == 0 || slow <= 2 && c.w.client.trust != "report" && c.w.client.limit == ""
}

// findUnproven returns the record of a secure answer that another validator cannot validate, or "".
func (c *recCase) findUnproven() string {
	m := c.r.msg
	if len(m.Answer) == 0 && !slices.ContainsFunc(m.Ns, func(rr dns.RR) bool {
		return rr.Header().Rrtype == dns.TypeNSEC || rr.Header().Rrtype == dns.TypeNSEC3
	}) {
		return "nothing proves the denial"
	}
	dname := slices.ContainsFunc(m.Answer, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeDNAME })
	all := slices.Concat(m.Answer, m.Ns)
	for _, rr := range all {
		h := rr.Header()
		if h.Rrtype == dns.TypeRRSIG || dname && h.Rrtype == dns.TypeCNAME {
			continue
		}
		var set []dns.RR
		for _, o := range all {
			if o.Header().Rrtype == h.Rrtype && strings.EqualFold(o.Header().Name, h.Name) {
				set = append(set, o)
			}
		}
		longest, signed := uint32(0), false
		for _, o := range all {
			if c.isSignatureOf(o, set) {
				longest, signed = max(longest, c.signatureTTL(o.(*dns.RRSIG))), true
			}
		}
		switch {
		case !signed:
			return fmt.Sprintf("no signature of %v fits", rr)
		case h.Ttl > longest:
			return fmt.Sprintf("%v outlives its signature, of which %d s are left", rr, longest)
		}
	}
	return ""
}

// isSignatureOf reports whether a record is a signature of a record set.
func (c *recCase) isSignatureOf(rr dns.RR, set []dns.RR) bool {
	sig, ok := rr.(*dns.RRSIG)
	if !ok || sig.TypeCovered != set[0].Header().Rrtype || !strings.EqualFold(sig.Hdr.Name, set[0].Header().Name) {
		return false
	}
	for _, z := range c.w.zones {
		if k := c.p.data.keys[z]; k != nil && z.name == sig.SignerName {
			return slices.ContainsFunc(k.dnskeys, func(rr dns.RR) bool {
				key := rr.(*dns.DNSKEY)
				return key.KeyTag() == sig.KeyTag && (sig.Verify(key, set) == nil || z.makesSameSignature(k, sig, set))
			})
		}
	}
	return false
}
