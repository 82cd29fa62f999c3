package validate

import "slices"

// An nsec is an NSEC record that is evidence: verified, of the zone, not made of a wildcard.
type nsec struct {
	owner, next name
	types       typeBitmap
	evidence
}

// nsecSet are the NSEC records of a response, or those of a zone that Denials keep: then they are sorted.
type nsecSet struct {
	records []*nsec
	sorted  bool
}

// evidence is a record that proves something.
type evidence struct {
	verified Verified
	cached   *cachedRRset // nil: it is of a response
}

// proofResult is what records prove, and which of them are needed.
type proofResult struct {
	kind   DenialKind
	optOut bool
	used   []*evidence
}

// addRecord reads data of a record that was verified, if it is as RFC 4034 §4.1 has it.
func (s *nsecSet) addRecord(owner name, data []byte, zone name, v Verified) {
	n, ok := scanName(data)
	if !ok || !typeBitmap(data[n:]).isWellFormed() {
		return
	}
	next := append([]byte(nil), data[:n]...) // the case is kept where it is signed: RFC 6840 §5.1
	lowercase(next)
	if name(next).isWithin(zone) {
		s.records = append(s.records, &nsec{owner, name(next), data[n:], evidence{verified: v}})
	}
}

// coversName reports whether the record proves that a name of its zone has no records: it is between the owner and the next name. The last
// record's next name is the apex.
func (n *nsec) coversName(q, zone name) bool {
	if compareCanonical(n.owner, q) >= 0 || n.next != zone && compareCanonical(q, n.next) >= 0 {
		return false
	}
	return !q.isBelow(n.owner) || !n.types.isDelegationOrDNAME()
}

// encloserLabels returns the number of labels of the closest encloser of a name that the record covers.
func (n *nsec) encloserLabels(q name) int {
	return max(countCommonLabels(q, n.owner), countCommonLabels(q, n.next))
}

// recordsNear returns the records among which there is that of a name, or one that covers it, if there is any.
func (s nsecSet) recordsNear(q name) []*nsec {
	if !s.sorted {
		return s.records
	}
	i, _ := s.searchOwner(q)
	return s.records[max(0, i-1):i]
}

// searchOwner returns how many of the records, which are sorted, are of names up to q, and whether the last of them is q's.
func (s nsecSet) searchOwner(q name) (n int, found bool) {
	n, found = slices.BinarySearchFunc(s.records, q, func(r *nsec, q name) int { return compareCanonical(r.owner, q) })
	if found {
		n++
	}
	return n, found
}

// matchingRecord returns the record of a name.
func (s nsecSet) matchingRecord(q name) *nsec {
	for _, n := range s.recordsNear(q) {
		if n.owner == q {
			return n
		}
	}
	return nil
}

// coveringRecord returns a record that covers a name.
func (s nsecSet) coveringRecord(q, zone name) *nsec {
	for _, n := range s.recordsNear(q) {
		if n.coversName(q, zone) {
			return n
		}
	}
	return nil
}

// denies says what is proven of a question (RFC 4035 §5.4).
func (s nsecSet) proveDenial(q name, qtype uint16, zone name) proofResult {
	if n := s.matchingRecord(q); n != nil {
		return proofResult{kind: n.types.proofAtOwner(q, qtype), used: []*evidence{&n.evidence}}
	}
	n := s.coveringRecord(q, zone)
	if n == nil {
		return proofResult{}
	}
	f := proofResult{kind: NoData, used: []*evidence{&n.evidence}}
	if n.next.isBelow(q) { // an empty non-terminal
		return f
	}
	wild, ok := q.ancestorWithLabels(n.encloserLabels(q)).wildcardName()
	if !ok {
		f.kind = NameError
		return f
	}
	if m := s.matchingRecord(wild); m != nil {
		f.used = append(f.used, &m.evidence)
		if m.types.isDelegation() || !m.types.deniesType(qtype) {
			return proofResult{}
		}
		return f
	}
	m := s.coveringRecord(wild, zone)
	if m == nil {
		return proofResult{}
	}
	f.used = append(f.used, &m.evidence)
	if !m.next.isBelow(wild) { // otherwise the wildcard is an empty non-terminal
		f.kind = NameError
	}
	return f
}

// proveNoCloserName says whether no name is closer to q than the encloser with so many labels.
func (s nsecSet) proveNoCloserName(q name, encloser int, zone name) proofResult {
	n := s.coveringRecord(q, zone)
	if n == nil || n.encloserLabels(q) > encloser {
		return proofResult{}
	}
	return proofResult{kind: NoCloserName, used: []*evidence{&n.evidence}}
}
