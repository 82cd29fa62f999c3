package validate

import (
	"errors"
	"fmt"
	"time"

	"github.com/miekg/dns"
)

// A Denial is the result of verifying NSEC or NSEC3 records.
type Denial struct {
	Kind DenialKind
	// Status is Secure; Insecure if the proof has an opt-out span or more iterations than the policy allows; Unchecked if
	// the keys are not trusted yet.
	Status Status
	// OptOut is set if the next closer name lies in a span that may have insecure delegations (RFC 5155 §6). The answer
	// has no AD.
	OptOut bool
	// Insecure is the reason why the zone's denials are not evaluated, EDE 27. Kind is then Unproven, Status is Insecure,
	// and the response is believed as insecure data, also for a delegation without DS.
	Insecure *Reason
	// TTL and Expires are the lowest of the records that the proof needs, as in Verified.
	TTL     uint32
	Expires time.Time
}

// VerifyDenial returns the proof that the NSEC and NSEC3 records among sets give for a question, verified with the keys of
// the zone that was asked. qname must be in this zone; for DS below it, except for the root's. Other records among sets
// are ignored. The error is a *Reason: the proof is missing, EDE 12, or a signature that it needs is invalid.
//
// The response's rcode is ignored, because no signature covers it: NameError means NXDOMAIN and NoData means NOERROR.
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

// VerifyNoCloserName verifies that an RRset named qname may have been expanded from a wildcard: no name closer than the
// closest encloser exists. encloser is its number of labels, from Verified.Encloser. The kind is NoCloserName (RFC 4035
// §5.3.4, RFC 5155 §8.8).
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

// A denialProof collects the records of one Denial.
type denialProof struct {
	work   *Validation
	keys   *Keys
	qname  string
	qtype  uint16
	nsecs  nsecSet
	nsec3s nsec3Set
	reason Reason // why records were rejected; without text: no record was
}

// evaluateRecords collects the verified records among sets and evaluates them, NSEC first: a zone that changes from one
// type to the other has both.
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

// limitLifetime lowers TTL and Expires to those of a record that the proof needs.
func (d *Denial) limitLifetime(v *Verified) {
	d.TTL = min(d.TTL, v.TTL)
	if d.Expires.IsZero() || v.Expires.Before(d.Expires) {
		d.Expires = v.Expires
	}
}

// setStatus sets the security status of the denial.
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

// insecureDenial returns the denial of a zone whose NSEC3 records have valid signatures and must not be evaluated, with
// the reason.
func (p *denialProof) insecureDenial(ede uint16, text string) Denial {
	p.setReason(ede, text)
	d := Denial{Insecure: &p.reason, TTL: maxTTL}
	for i := range p.nsec3s.records {
		d.limitLifetime(&p.nsec3s.records[i].verified)
	}
	p.setStatus(&d)
	return d
}

func (p *denialProof) setReason(ede uint16, text string) {
	p.reason = Reason{EDE: ede, Text: text, Zone: p.keys.Zone(), Name: p.qname, Type: p.qtype}
}

// failWithReason sets the reason and returns it as the error.
func (p *denialProof) failWithReason(ede uint16, text string) (Denial, error) {
	p.setReason(ede, text)
	return Denial{}, &p.reason
}

// maxNeededProofs is the number of NSEC or NSEC3 RRsets that an answer needs at most: for the closest encloser, the next
// closer name, the wildcard, and an alias before them.
const maxNeededProofs = 4

// collectEvidence verifies the NSEC and NSEC3 records of the zone. It leaves out records that were expanded from a
// wildcard or are malformed. It reports whether a limit was reached.
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
