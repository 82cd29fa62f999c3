package validate

import (
	"errors"
	"fmt"
	"time"

	"github.com/miekg/dns"
)

// A Denial is the verified conclusion from the NSEC or NSEC3 records of a response.
type Denial struct {
	Kind DenialKind
	// Status is Secure with trusted keys, and Unchecked before the keys are trusted. It is Insecure if the proof has an
	// opt-out span, or if Insecure is set.
	Status Status
	// OptOut is set if the next closer name is in an opt-out span, which may contain insecure delegations (RFC 5155 §6).
	// The answer must not have AD.
	OptOut bool
	// Insecure is the reason why the NSEC3 records of the zone are not evaluated, for example EDE 27. Kind is then
	// Unproven. The response is accepted as insecure data, even if it denies DS.
	Insecure *Reason
	// TTL and Expires are the minimums of the records that the proof uses, see Verified.
	TTL     uint32
	Expires time.Time
}

// VerifyDenial returns what the NSEC and NSEC3 records among sets prove about a question. k are the keys of the zone
// that was asked. qname must be in this zone; for DS it must be below the apex, except for the root. Other records
// among sets are ignored.
//
// The error is a *Reason: the proof is missing (EDE 12), or a needed signature is invalid. The response code is not
// considered, because no signature covers it: NameError corresponds to NXDOMAIN and NoData to NOERROR.
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

// VerifyNoCloserName verifies that an RRset named qname may be the expansion of a wildcard. For that, no name closer to
// qname than the closest encloser may exist (RFC 4035 §5.3.4, RFC 5155 §8.8). encloser is the number of labels of the
// closest encloser, see Verified.Encloser. The Kind of the result is NoCloserName.
func (w *Validation) VerifyNoCloserName(qname string, encloser int, sets []*RRset, k *Keys, now time.Time) (Denial, error) {
	p := &denialProof{work: w, keys: k, qname: qname}
	q, ok := parseName(qname)
	if !ok || !q.isBelow(k.zone) || encloser < k.zone.labelCount() || encloser >= q.labelCount() {
		return p.failWithReason(dns.ExtendedErrorCodeDNSBogus, "the name was not synthesized from a wildcard of the zone")
	}
	return p.evaluateRecords(sets, now,
		func() proofResult { return p.nsecs.proveNoCloserName(q, encloser, k.zone) },
		func() proofResult { return p.nsec3s.proveNoCloserName(q, encloser) })
}

// A denialProof collects the records for a Denial.
type denialProof struct {
	work   *Validation
	keys   *Keys
	qname  string
	qtype  uint16
	nsecs  nsecSet
	nsec3s nsec3Set
	reason Reason // why a record was rejected; Text is empty if none was
}

// evaluateRecords verifies the records among sets and evaluates them: first NSEC by byNSEC, then NSEC3 by byNSEC3. A
// zone that changes from one kind to the other has both.
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

// limitLifetime lowers TTL and Expires to those of a record that the proof uses.
func (d *Denial) limitLifetime(v *Verified) {
	d.TTL = min(d.TTL, v.TTL)
	if d.Expires.IsZero() || v.Expires.Before(d.Expires) {
		d.Expires = v.Expires
	}
}

// setStatus sets d.Status from the trust in the keys, d.OptOut and d.Insecure.
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

// insecureDenial returns the Denial for NSEC3 records that have valid signatures and must not be evaluated. ede and
// text are the reason.
func (p *denialProof) insecureDenial(ede uint16, text string) Denial {
	p.setReason(ede, text)
	d := Denial{Insecure: &p.reason, TTL: maxTTL}
	for i := range p.nsec3s.records {
		d.limitLifetime(&p.nsec3s.records[i].verified)
	}
	p.setStatus(&d)
	return d
}

// setReason sets the reason for the question and the zone.
func (p *denialProof) setReason(ede uint16, text string) {
	p.reason = Reason{EDE: ede, Text: text, Zone: p.keys.Zone(), Name: p.qname, Type: p.qtype}
}

// failWithReason sets the reason and returns it as the error.
func (p *denialProof) failWithReason(ede uint16, text string) (Denial, error) {
	p.setReason(ede, text)
	return Denial{}, &p.reason
}

// maxNeededProofs is the maximum number of NSEC or NSEC3 RRsets that an answer needs. They are for the closest
// encloser, the next closer name, the wildcard, and an alias before them.
const maxNeededProofs = 4

// collectEvidence verifies the NSEC and NSEC3 RRsets among sets and adds their records. It skips records that were
// expanded from a wildcard or are malformed. It reports whether a limit of the Validation was reached; reason is then
// set.
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
