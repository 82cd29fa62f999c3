package worlds_test

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/internal/signer"
)

// recRaisers are the faults by which a server raises TTLs, and recHarmless those of them that keep no validator from an answer: what is added
// costs no verification.
var (
	recRaisers  = []string{"raises", "raisesSets", "addsTag", "addsAlgorithm", "addsForged", "addsEnded", "addsStranger"}
	recHarmless = []string{"raises", "raisesSets", "addsTag", "addsAlgorithm", "addsEnded", "addsStranger"}
)

// raised reports whether a server of the world raises TTLs.
func (c *recCase) raised() bool {
	return slices.ContainsFunc(slices.Concat(c.w.servers, c.w.upstreams), func(s *recServer) bool { return s.fault != nil && slices.Contains(recRaisers, s.fault.kind) })
}

// checkTTLs judges the TTLs of a secure answer: none is above the original TTL of its record, nor above the rest of the longest signature that
// its zone can have made (RFC 4035 §5.3.3).
func (c *recCase) checkTTLs() {
	for _, rr := range slices.Concat(c.r.msg.Answer, c.r.msg.Ns) {
		if most := c.longestTTL(rr); rr.Header().Ttl > most {
			c.say("7 TTL", "%v: %d at most", rr, most)
			return
		}
	}
}

// judgeKept judges an answer of the Client above the Resolver, which keeps answers: it is the zones', and outlives no signature.
func (c *recCase) judgeKept() {
	if !c.r.good() || c.lied() || c.t.loops {
		return
	}
	// A name in the data of a record that is compressed with the question has the question's case.
	if got := recordsOf(c.r.msg.Answer); c.r.msg.Rcode != c.t.rcode || !slices.EqualFunc(got, c.t.records, strings.EqualFold) {
		c.say("7 data (Client)", "it is not what the zones have")
	}
	if !c.r.msg.AuthenticatedData {
		return
	}
	c.checkTTLs()
	if !c.validated() || c.t.security != isSecure {
		c.say("3 AD (Client)", "it is not secure")
	} else if wrong := c.unproven(); c.a.do && wrong != "" {
		c.say("3 proof (Client)", "%s", wrong)
	}
}

// longestTTL returns the highest TTL that a record of a secure answer may have.
func (c *recCase) longestTTL(rr dns.RR) uint32 {
	name, typ := strings.ToLower(rr.Header().Name), rr.Header().Rrtype
	if sig, ok := rr.(*dns.RRSIG); ok {
		typ = sig.TypeCovered
	}
	z := c.w.zoneOf(name, typ)
	most := c.restOf(z)
	if typ == dns.TypeNSEC && z.name == name && z.parent != nil { // it may be one of the parent's
		most = max(most, c.restOf(z.parent))
	}
	return min(most, c.p.data.originalTTL(name, typ))
}

// restOf returns the highest TTL that a zone's signatures allow.
func (c *recCase) restOf(z *recZone) uint32 {
	most := uint32(math.MaxUint32)
	if z.sigTTL > 0 && !c.raised() {
		most = z.sigTTL
	}
	if now := c.now(); z.life > 0 {
		most = min(most, uint32(z.expiry(c.p.start.Add(c.r.end)).Sub(now)/time.Second)+1)
	}
	return most
}

// now is the time at which the question was asked: a TTL counts from when its response came, which may be long before that of the target of an alias.
func (c *recCase) now() time.Time { return c.p.start.Add(c.r.began) }

// originalTTL returns the TTL that a set has in its zone. Sets that are not listed are proofs, or made of wildcards and DNAME records.
func (d *recData) originalTTL(name string, typ uint16) (ttl uint32) {
	for _, z := range d.w.zones {
		if set := d.sets[z][name][typ]; len(set) > 0 {
			ttl = max(ttl, set[0].Header().Ttl)
		}
	}
	if ttl == 0 {
		return 300
	}
	return ttl
}

// remaining returns the TTL that a signature allows: one second where it has ended and is taken within the allowance for clocks.
func (c *recCase) remaining(sig *dns.RRSIG) uint32 {
	return min(sig.OrigTtl, uint32(max(1, int64(sig.Expiration)-c.now().Unix())))
}

// signsOddly reports whether a zone whose keys package dns cannot use makes the same signature of a set.
func (z *recZone) signsOddly(k *recKeys, sig *dns.RRSIG, set []dns.RR) bool {
	if !strings.HasPrefix(z.keys, "rsa") {
		return false
	}
	var right []dns.RR
	for _, rr := range set {
		rr = dns.Copy(rr)
		h := rr.Header()
		h.Ttl, h.Name = sig.OrigTtl, strings.ToLower(h.Name)
		if labels := dns.CountLabel(h.Name); int(sig.Labels) < labels && !strings.HasPrefix(h.Name, "*.") {
			all := dns.SplitDomainName(h.Name)
			h.Name = "*." + strings.Join(all[labels-int(sig.Labels):], ".") + "."
		}
		right = append(right, rr)
	}
	return slices.ContainsFunc(slices.Concat(k.ksk, k.zsk), func(key *signer.Key) bool {
		return key.KeyTag() == sig.KeyTag && key.Sign(right, signer.SignatureOptions{From: sig.Inception, To: sig.Expiration}).Signature == sig.Signature
	})
}
