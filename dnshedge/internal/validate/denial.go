package validate

import (
	"errors"
	"fmt"
	"time"

	"github.com/miekg/dns"
)

// A Denial is what verified NSEC or NSEC3 records prove.
type Denial struct {
	Kind DenialKind
	// Status is Secure; Insecure if the proof has an opt-out span, or more iterations than the policy allows; Unchecked if the keys are not trusted
	// yet.
	Status Status
	// OptOut: the next closer name is in a span that may have insecure delegations (RFC 5155 §6). The answer has no AD.
	OptOut bool
	// Insecure is why the zone's denials are not judged at all: EDE 27. Then Kind is Nothing, Status is Insecure, and whatever
	// the response says does not exist is taken as it says, as insecure: also a delegation without DS.
	Insecure *Reason
	// TTL and Expires are the lowest of the records that are needed, as Verified has them.
	TTL     uint32
	Expires time.Time
}

// VerifyDenial says what the NSEC and NSEC3 records among sets prove of a question, with the keys of the zone that was asked. The
// name must be in this zone; for DS below it, but for the root's. Other records among sets do not count. The
// error is a *Reason: the proof is not there, EDE 12, or what signatures it needs are not right.
//
// It does not look at the response's rcode, which nobody signs: NoName is NXDOMAIN and NoData is NOERROR whatever the server said.
func (w *Validation) VerifyDenial(qname string, qtype uint16, sets []*RRset, k *Keys, now time.Time) (Denial, error) {
	p := &denialProof{work: w, keys: k, qname: qname, qtype: qtype}
	q, ok := parseName(qname)
	if !ok || !q.isWithin(k.zone) || qtype == dns.TypeDS && q == k.zone && q != root {
		return p.failWithReason(dns.ExtendedErrorCodeDNSBogus, "the zone does not have the name")
	}
	return p.evaluateRecords(sets, now,
		func() proofResult { return p.nsecs.proveDenial(q, qtype, k.zone) },
		func() proofResult { return p.nsec3s.proveDenial(q, qtype, k.zone) })
}

// VerifyNoCloserName says whether records prove that an RRset of this name was rightly made of a wildcard: that there is no
// name closer than the closest encloser, whose labels Verified.Encloser has. The kind is NoCloser (RFC 4035 §5.3.4, RFC 5155 §8.8).
func (w *Validation) VerifyNoCloserName(qname string, encloser int, sets []*RRset, k *Keys, now time.Time) (Denial, error) {
	p := &denialProof{work: w, keys: k, qname: qname}
	q, ok := parseName(qname)
	if !ok || !q.isBelow(k.zone) || encloser < k.zone.labelCount() || encloser >= q.labelCount() {
		return p.failWithReason(dns.ExtendedErrorCodeDNSBogus, "the name was not made of a wildcard of the zone")
	}
	return p.evaluateRecords(sets, now,
		func() proofResult { return p.nsecs.proveNoCloserName(q, encloser, k.zone) },
		func() proofResult { return p.nsec3s.proveNoCloserName(q, encloser) })
}

// A denialProof is what is known of a Denial while it is looked for.
type denialProof struct {
	work   *Validation
	keys   *Keys
	qname  string
	qtype  uint16
	nsecs  nsecSet
	nsec3s nsec3Set
	reason Reason // why a record is no evidence; without text: none is
}

// evaluateRecords collects the evidence among sets, and has it judged: NSEC first, for a zone that goes from one to the other has both.
func (p *denialProof) evaluateRecords(sets []*RRset, now time.Time, byNSEC, byNSEC3 func() proofResult) (Denial, error) {
	if limit := p.collectEvidence(sets, now); limit {
		return Denial{}, &p.reason
	}
	f := byNSEC()
	if f.kind == Unproven && len(p.nsec3s.records) > 0 {
		insecure, _ := p.work.Policy.iterationLimits()
		switch {
		case p.nsec3s.hasMixedParameters:
			return p.failWithReason(dns.ExtendedErrorCodeDNSBogus, "the NSEC3 records have several sets of parameters")
		case p.nsec3s.iterations > insecure:
			return p.insecureDenial(dns.ExtendedErrorCodeUnsupportedNSEC3IterValue, fmt.Sprintf("NSEC3 records have %d iterations", p.nsec3s.iterations)), nil
		case !sha1Allowed():
			return p.insecureDenial(dns.ExtendedErrorCodeOther, "NSEC3 records need SHA-1, which this process may not use"), nil
		}
		p.nsec3s.work = p.work
		f = byNSEC3()
		if limit := p.nsec3s.limit; limit != "" {
			p.setReason(dns.ExtendedErrorCodeDNSBogus, "the limit of "+limit+" was reached")
			p.reason.Limit = limit
			return Denial{}, &p.reason
		}
	}
	if f.kind == Unproven {
		if p.reason.Text == "" {
			return p.failWithReason(dns.ExtendedErrorCodeNSECMissing, "nothing denies it")
		}
		return Denial{}, &p.reason
	}
	d := Denial{Kind: f.kind, OptOut: f.optOut, TTL: maxTTL}
	p.setStatus(&d)
	for _, e := range f.used {
		d.limitLifetime(&e.verified)
	}
	return d, nil
}

// limit makes the denial last no longer than a record that it needs.
func (d *Denial) limitLifetime(v *Verified) {
	d.TTL = min(d.TTL, v.TTL)
	if d.Expires.IsZero() || v.Expires.Before(d.Expires) {
		d.Expires = v.Expires
	}
}

// setStatus sets what the denial is worth.
func (p *denialProof) setStatus(d *Denial) {
	switch {
	case !p.keys.Trusted():
		d.Status = Unchecked
	case d.OptOut || d.Insecure != nil:
		d.Status = Insecure
	default:
		d.Status = Secure
	}
}

// insecureDenial returns the denial of a zone whose NSEC3 records, with signatures that are right, prove nothing, for a reason.
func (p *denialProof) insecureDenial(ede uint16, text string) Denial {
	p.setReason(ede, text)
	d := Denial{Insecure: &p.reason, TTL: maxTTL}
	for i := range p.nsec3s.records {
		d.limitLifetime(&p.nsec3s.records[i].verified)
	}
	p.setStatus(&d)
	return d
}

// setReason sets the reason.
func (p *denialProof) setReason(ede uint16, text string) {
	p.reason = Reason{EDE: ede, Text: text, Zone: p.keys.Zone(), Name: p.qname, Type: p.qtype}
}

// failWithReason returns an error.
func (p *denialProof) failWithReason(ede uint16, text string) (Denial, error) {
	p.setReason(ede, text)
	return Denial{}, &p.reason
}

// maxNeededProofs is how many NSEC or NSEC3 RRsets an answer needs at most: those of the closest encloser, of the next closer name and of the wildcard, and one
// of an alias before it.
const maxNeededProofs = 4

// collectEvidence verifies the NSEC and NSEC3 records of the zone. Those that are made of a wildcard, or not as they should be, are left out. It reports
// whether a limit was reached.
func (p *denialProof) collectEvidence(sets []*RRset, now time.Time) (limit bool) {
	_, bogus := p.work.Policy.iterationLimits()
	signed := 0
	for _, s := range sets {
		if s.Type != dns.TypeNSEC && s.Type != dns.TypeNSEC3 {
			continue
		}
		if len(s.Sigs) == 0 {
			if p.reason.Text == "" {
				p.setReason(dns.ExtendedErrorCodeRRSIGsMissing, textUnsigned)
				p.reason.Name, p.reason.Type = s.Name, s.Type
			}
			continue
		}
		c := s.canonicalForm()
		if n := maxNSEC3Iterations(s.Type, c); n > bogus {
			p.setReason(dns.ExtendedErrorCodeUnsupportedNSEC3IterValue, fmt.Sprintf("NSEC3 records have %d iterations", n))
			continue
		}
		signed++
		v, err := p.work.verifyRRset(s, p.keys, now, signed > maxNeededProofs)
		var r *Reason
		if errors.As(err, &r) {
			if p.reason.Text == "" || r.Limit != "" {
				p.reason = *r
			}
			if r.Limit != "" {
				return true
			}
			continue
		}
		if v.Encloser >= 0 {
			continue
		}
		for _, data := range c.rdata {
			if s.Type == dns.TypeNSEC {
				p.nsecs.addRecord(c.owner, data, p.keys.zone, v)
			} else {
				p.nsec3s.addRecord(c.owner, data, p.keys.zone, v)
			}
		}
	}
	return false
}
