package validate

import "slices"

// An nsec is a verified NSEC record of the zone that was not expanded from a wildcard.
type nsec struct {
	owner, next name
	types       typeBitmap
	evidence
}

// nsecSet holds the NSEC records of a response or of an AggressiveCache. Only the latter are sorted.
type nsecSet struct {
	records []*nsec
	sorted  bool
}

// evidence is the lifetime of a record that a proof uses.
type evidence struct {
	verified Verified
	cached   *cachedRRset // nil: the record is of a response
}

// proofResult is the conclusion of a proof and the records that it needs.
type proofResult struct {
	kind   DenialKind
	optOut bool
	used   []*evidence
}

// addRecord adds a verified record if its data is well-formed (RFC 4034 §4.1) and its next name is in the zone.
func (s *nsecSet) addRecord(owner name, data []byte, zone name, v Verified) {
	n, ok := scanName(data)
	if !ok || !typeBitmap(data[n:]).isWellFormed() {
		return
	}
	next := append([]byte(nil), data[:n]...) // data keeps its case, because it is signed (RFC 6840 §5.1)
	lowercase(next)
	if name(next).isWithin(zone) {
		s.records = append(s.records, &nsec{owner, name(next), data[n:], evidence{verified: v}})
	}
}

// coversName reports whether the record proves that the name q of its zone does not exist: q is between the owner and the
// next name. The next name of the last record is the apex.
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

// recordsNear returns the records among which the matching or covering record of q is, if there is one.
func (s nsecSet) recordsNear(q name) []*nsec {
	if !s.sorted {
		return s.records
	}
	i, _ := s.searchOwner(q)
	return s.records[max(0, i-1):i]
}

// searchOwner returns the number of sorted records with owners up to q, and whether the last of them is that of q.
func (s nsecSet) searchOwner(q name) (n int, found bool) {
	n, found = slices.BinarySearchFunc(s.records, q, func(r *nsec, q name) int { return compareCanonical(r.owner, q) })
	if found {
		n++
	}
	return n, found
}

// matchingRecord returns the record whose owner is q, or nil.
func (s nsecSet) matchingRecord(q name) *nsec {
	for _, n := range s.recordsNear(q) {
		if n.owner == q {
			return n
		}
	}
	return nil
}

// coveringRecord returns a record that covers q, or nil.
func (s nsecSet) coveringRecord(q, zone name) *nsec {
	for _, n := range s.recordsNear(q) {
		if n.coversName(q, zone) {
			return n
		}
	}
	return nil
}

// proveDenial returns the proof that the records give for a question (RFC 4035 §5.4).
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

// proveNoCloserName proves that no name closer to q exists than the encloser with the given number of labels.
func (s nsecSet) proveNoCloserName(q name, encloser int, zone name) proofResult {
	n := s.coveringRecord(q, zone)
	if n == nil || n.encloserLabels(q) > encloser {
		return proofResult{}
	}
	return proofResult{kind: NoCloserName, used: []*evidence{&n.evidence}}
}
