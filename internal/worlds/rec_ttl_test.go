package worlds_test

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/internal/signer"
)

// recTTLRaisers are the faults by which a server raises TTLs. recHarmlessTTLRaisers are those of them that do not prevent
// validation: the added records cost no verification.
var (
	recTTLRaisers         = []string{"raises", "raisesSets", "addsTag", "addsAlgorithm", "addsForged", "addsEnded", "addsStranger"}
	recHarmlessTTLRaisers = []string{"raises", "raisesSets", "addsTag", "addsAlgorithm", "addsEnded", "addsStranger"}
)

// hasRaisedTTLs reports whether a server raises TTLs.
func (c *recCase) hasRaisedTTLs() bool {
	return slices.ContainsFunc(slices.Concat(c.w.servers, c.w.upstreams), func(s *recServer) bool { return s.fault != nil && slices.Contains(recTTLRaisers, s.fault.kind) })
}

// checkTTLs checks the TTLs of a secure answer. No TTL exceeds the original TTL of its record, or the remaining
// validity of the longest signature of its zone (RFC 4035 §5.3.3).
func (c *recCase) checkTTLs() {
	for _, rr := range slices.Concat(c.r.msg.Answer, c.r.msg.Ns) {
		if most := c.maxTTL(rr); rr.Header().Ttl > most {
			c.say("7 TTL", "%v: %d at most", rr, most)
			return
		}
	}
}

// checkCached checks an answer of the caching Client above the Resolver. It has the data of the zones, and outlives no
// signature.
func (c *recCase) checkCached() {
	if !c.r.succeeded() || c.mayBeForged() || c.t.loops {
		return
	}
	// A name in the data of a record that is compressed with the question has the case of the question.
	if got := formatRecords(c.r.msg.Answer); c.r.msg.Rcode != c.t.rcode || !slices.EqualFunc(got, c.t.records, strings.EqualFold) {
		c.say("7 data (Client)", "it is not what the zones have")
	}
	if !c.r.msg.AuthenticatedData {
		return
	}
	c.checkTTLs()
	if !c.isValidated() || c.t.security != isSecure {
		c.say("3 AD (Client)", "it is not secure")
	} else if wrong := c.findUnproven(); c.a.do && wrong != "" {
		c.say("3 proof (Client)", "%s", wrong)
	}
}

// maxTTL returns the highest TTL of a record in a secure answer.
func (c *recCase) maxTTL(rr dns.RR) uint32 {
	name, typ := strings.ToLower(rr.Header().Name), rr.Header().Rrtype
	if sig, ok := rr.(*dns.RRSIG); ok {
		typ = sig.TypeCovered
	}
	z := c.w.zoneOf(name, typ)
	most := c.remainingValidity(z)
	if typ == dns.TypeNSEC && z.name == name && z.parent != nil { // it may be one of the parent's
		most = max(most, c.remainingValidity(z.parent))
	}
	return min(most, c.p.data.originalTTL(name, typ))
}

// remainingValidity returns the highest TTL that the signatures of a zone allow.
func (c *recCase) remainingValidity(z *recZone) uint32 {
	most := uint32(math.MaxUint32)
	if z.sigTTL > 0 && !c.hasRaisedTTLs() {
		most = z.sigTTL
	}
	if now := c.questionTime(); z.life > 0 {
		most = min(most, uint32(z.expirationOf(c.p.start.Add(c.r.end)).Sub(now)/time.Second)+1)
	}
	return most
}

// questionTime returns the time of the question. A TTL starts with its response, which may be long before that of the
// target of an alias.
func (c *recCase) questionTime() time.Time { return c.p.start.Add(c.r.began) }

// originalTTL returns the TTL of a record set in its zone. Sets that are not listed are proofs, or expansions of
// wildcards and DNAME records.
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

// signatureTTL returns the TTL that a signature allows. It is one second if the signature has expired and is accepted
// within the allowance for clocks.
func (c *recCase) signatureTTL(sig *dns.RRSIG) uint32 {
	return min(sig.OrigTtl, uint32(max(1, int64(sig.Expiration)-c.questionTime().Unix())))
}

// makesSameSignature reports whether the zone, with keys that package dns does not support, would make the same
// signature of a record set.
func (z *recZone) makesSameSignature(k *recKeys, sig *dns.RRSIG, set []dns.RR) bool {
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
