package validate

import (
	"errors"
	"fmt"
	"time"

	"github.com/miekg/dns"
)

// A Denial is the conclusion from the verified NSEC or NSEC3 records of a response: which name or type does not exist,
// and the security status of that conclusion.
type Denial struct {
	Kind DenialKind
	// Status is Secure if the keys are trusted, and Unchecked if they are not trusted yet. It is Insecure if OptOut is
	// true or the field Insecure is not nil.
	Status Status
	// OptOut is true if an opt-out span covers the next closer name. The span may contain insecure delegations (RFC 5155
	// §6), so that the answer must not have AD.
	OptOut bool
	// Insecure is the reason why the NSEC3 records of the zone cannot be evaluated, for example too many iterations (EDE
	// 27). Otherwise it is nil.
	//
	// If it is set, Kind is Unproven, and the response must be accepted as insecure data, even if it denies DS.
	Insecure *Reason
	// TTL, in seconds, and Expires are the minimums over the records that the proof uses, see Verified.
	TTL     uint32
	Expires time.Time
}

// VerifyDenial verifies that a response denies a name, or the records of type qtype at the name. It returns the
// conclusion from the NSEC and NSEC3 records in sets, and ignores other records.
//
// k must be the keys of the zone whose server has sent the response. qname must be in this zone. For DS it must be
// below the apex, except for the root.
//
// The error is a *Reason: the proof is missing (EDE 12), or the signature of a record that the proof needs is invalid.
//
// The response code is not considered, because signatures do not cover it. NameError corresponds to NXDOMAIN, and
// NoData to NOERROR.
func (v *Validation) VerifyDenial(qname string, qtype uint16, sets []*RRset, k *Keys, now time.Time) (Denial, error) {
	e := &denialEvidence{work: v, keys: k, qname: qname, qtype: qtype}
	q, ok := parseName(qname)
	if !ok || !q.isWithin(k.zone) || qtype == dns.TypeDS && q == k.zone && q != root {
		return e.failWithReason(dns.ExtendedErrorCodeDNSBogus, "the zone does not have the name")
	}
	return e.evaluateRecords(sets, now,
		func() proofResult { return e.nsecs.proveDenial(q, qtype, k.zone) },
		func() proofResult { return e.nsec3s.proveDenial(q, qtype, k.zone) })
}

// VerifyNoCloserMatch verifies that an RRset with the owner name qname may be the expansion of a wildcard. The NSEC or
// NSEC3 records in sets must prove that qname has no closer match than the wildcard (RFC 4035 §5.3.4, RFC 5155 §8.8):
// the next closer name, which is one label longer than the closest encloser, does not exist.
//
// encloser is the number of labels of the closest encloser, see Verification.Encloser. If the proof is valid, the Kind
// of the result is NoCloserMatch. Otherwise the error is a *Reason.
func (v *Validation) VerifyNoCloserMatch(qname string, encloser int, sets []*RRset, k *Keys, now time.Time) (Denial, error) {
	e := &denialEvidence{work: v, keys: k, qname: qname}
	q, ok := parseName(qname)
	if !ok || !q.isBelow(k.zone) || encloser < k.zone.countLabels() || encloser >= q.countLabels() {
		return e.failWithReason(dns.ExtendedErrorCodeDNSBogus, "the name was not synthesized from a wildcard of the zone")
	}
	return e.evaluateRecords(sets, now,
		func() proofResult { return e.nsecs.proveNoCloserMatch(q, encloser, k.zone) },
		func() proofResult { return e.nsec3s.proveNoCloserMatch(q, encloser) })
}

// A denialEvidence holds the verified NSEC and NSEC3 records of a response, from which a Denial is concluded.
type denialEvidence struct {
	work   *Validation
	keys   *Keys
	qname  string
	qtype  uint16
	nsecs  nsecSet
	nsec3s nsec3Set
	reason Reason // why a record was rejected; Text is empty if all records were accepted
}

// evaluateRecords verifies the NSEC and NSEC3 records in sets, and returns the conclusion from them. byNSEC must draw
// the conclusion from e.nsecs, and byNSEC3 that from e.nsec3s.
//
// byNSEC3 is called only if the NSEC records prove nothing. A zone that changes from NSEC to NSEC3 can have both.
func (e *denialEvidence) evaluateRecords(sets []*RRset, now time.Time, byNSEC, byNSEC3 func() proofResult) (Denial, error) {
	if limit := e.addRecords(sets, now); limit {
		return Denial{}, &e.reason
	}
	f := byNSEC()
	if f.kind == Unproven && len(e.nsec3s.records) > 0 {
		insecure, _ := e.work.Policy.nsec3IterationLimits()
		switch {
		case e.nsec3s.hasMixedParameters:
			return e.failWithReason(dns.ExtendedErrorCodeDNSBogus, "the NSEC3 records have several sets of parameters")
		case e.nsec3s.iterations > insecure:
			return e.insecureDenial(dns.ExtendedErrorCodeUnsupportedNSEC3IterValue, fmt.Sprintf("NSEC3 records have %d iterations", e.nsec3s.iterations)), nil
		case !sha1Allowed():
			return e.insecureDenial(dns.ExtendedErrorCodeOther, "NSEC3 records need SHA-1, which this process may not use"), nil
		}
		e.nsec3s.work = e.work
		f = byNSEC3()
		if limit := e.nsec3s.limit; limit != "" {
			e.setFailureReason(dns.ExtendedErrorCodeDNSBogus, "the limit of "+limit+" was reached")
			e.reason.Limit = limit
			return Denial{}, &e.reason
		}
	}
	if f.kind == Unproven {
		if e.reason.Text == "" {
			return e.failWithReason(dns.ExtendedErrorCodeNSECMissing, "nothing denies it")
		}
		return Denial{}, &e.reason
	}
	d := Denial{Kind: f.kind, OptOut: f.optOut, TTL: maxTTL}
	e.setStatus(&d)
	for _, record := range f.usedRecords {
		d.limitLifetime(&record.verified)
	}
	return d, nil
}

// limitLifetime lowers TTL and Expires of the denial to those of v. v is the result of verifying a record on which the
// denial depends.
func (d *Denial) limitLifetime(v *Verification) {
	d.TTL = min(d.TTL, v.TTL)
	if d.Expires.IsZero() || v.Expires.Before(d.Expires) {
		d.Expires = v.Expires
	}
}

// setStatus sets d.Status: Unchecked if the keys are not trusted, Insecure if d has opt-out or a reason in d.Insecure,
// and otherwise Secure.
func (e *denialEvidence) setStatus(d *Denial) {
	switch {
	case !e.keys.IsTrusted():
		d.Status = Unchecked
	case d.OptOut || d.Insecure != nil:
		d.Status = Insecure
	default:
		d.Status = Secure
	}
}

// insecureDenial returns the Denial for a proof whose NSEC3 records have valid signatures, but cannot be evaluated, for
// example because of too many iterations. ede and text become its reason.
func (e *denialEvidence) insecureDenial(ede uint16, text string) Denial {
	e.setFailureReason(ede, text)
	d := Denial{Insecure: &e.reason, TTL: maxTTL}
	for i := range e.nsec3s.records {
		d.limitLifetime(&e.nsec3s.records[i].verified)
	}
	e.setStatus(&d)
	return d
}

// setFailureReason stores in e.reason why the proof fails: an extended error code and a text, with the names of the
// question and the zone.
func (e *denialEvidence) setFailureReason(ede uint16, text string) {
	e.reason = Reason{EDE: ede, Text: text, Zone: e.keys.Zone(), Name: e.qname, Type: e.qtype}
}

// failWithReason returns the results of a failed proof: no denial, and a *Reason with an extended error code and a
// text.
func (e *denialEvidence) failWithReason(ede uint16, text string) (Denial, error) {
	e.setFailureReason(ede, text)
	return Denial{}, &e.reason
}

// maxNeededProofs is the maximum number of NSEC or NSEC3 RRsets that an answer needs. They concern the closest
// encloser, the next closer name, the wildcard, and an alias.
const maxNeededProofs = 4

// addRecords verifies the NSEC and NSEC3 RRsets in sets, and adds their records to e.nsecs and e.nsec3s. It skips
// malformed records, records without a valid signature, and records that were expanded from a wildcard.
//
// limit is true if a limit of the Validation was reached. e.reason then describes the limit.
func (e *denialEvidence) addRecords(sets []*RRset, now time.Time) (limit bool) {
	_, bogus := e.work.Policy.nsec3IterationLimits()
	signed := 0
	for _, s := range sets {
		if s.Type != dns.TypeNSEC && s.Type != dns.TypeNSEC3 {
			continue
		}
		if len(s.Sigs) == 0 {
			if e.reason.Text == "" {
				e.setFailureReason(dns.ExtendedErrorCodeRRSIGsMissing, textUnsigned)
				e.reason.Name, e.reason.Type = s.Name, s.Type
			}
			continue
		}
		c := s.canonicalForm()
		if n := maxNSEC3Iterations(s.Type, c); n > bogus {
			e.setFailureReason(dns.ExtendedErrorCodeUnsupportedNSEC3IterValue, fmt.Sprintf("NSEC3 records have %d iterations", n))
			continue
		}
		signed++
		v, err := e.work.verifyRRset(s, e.keys, now, signed > maxNeededProofs)
		var r *Reason
		if errors.As(err, &r) {
			if e.reason.Text == "" || r.Limit != "" {
				e.reason = *r
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
				e.nsecs.addRecord(c.owner, data, e.keys.zone, v)
			} else {
				e.nsec3s.addRecord(c.owner, data, e.keys.zone, v)
			}
		}
	}
	return false
}
