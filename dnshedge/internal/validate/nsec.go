package validate

import "slices"

// An nsec is a verified NSEC record of the zone that was not expanded from a wildcard.
type nsec struct {
	owner, next name
	types       typeBitmap
	evidence
}

// An nsecSet holds the NSEC records of a response, unsorted, or of an AggressiveCache, sorted by owner.
type nsecSet struct {
	records []*nsec
	sorted  bool
}

// An evidence holds the lifetime of a record that a proof uses.
type evidence struct {
	verified Verified
	cached   *cachedRRset // nil: the record is from a response
}

// A proofResult is the conclusion of a proof, with the records that it uses.
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

// coversName reports whether the record proves that the name q of its zone does not exist: q is between the owner and
// the next name. The next name of the last record is the apex.
func (n *nsec) coversName(q, zone name) bool {
	if compareCanonical(n.owner, q) >= 0 || n.next != zone && compareCanonical(q, n.next) >= 0 {
		return false
	}
	return !q.isBelow(n.owner) || !n.types.isDelegationOrDNAME()
}

// encloserLabels returns the number of labels of the closest encloser of q, a name that the record covers.
func (n *nsec) encloserLabels(q name) int {
	return max(countCommonLabels(q, n.owner), countCommonLabels(q, n.next))
}

// recordsNear returns the records that may match or cover q. In a sorted set that is at most one.
func (s nsecSet) recordsNear(q name) []*nsec {
	if !s.sorted {
		return s.records
	}
	i, _ := s.searchOwner(q)
	return s.records[max(0, i-1):i]
}

// searchOwner returns the number of records in the sorted set whose owner is q or comes before q. found reports whether
// the last of these has the owner q.
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

// proveDenial returns what the records prove about a question (RFC 4035 §5.4).
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

// proveNoCloserName returns a proof that no name closer to q exists than the closest encloser, which has encloser
// labels. The kind is Unproven if there is no proof.
func (s nsecSet) proveNoCloserName(q name, encloser int, zone name) proofResult {
	n := s.coveringRecord(q, zone)
	if n == nil || n.encloserLabels(q) > encloser {
		return proofResult{}
	}
	return proofResult{kind: NoCloserName, used: []*evidence{&n.evidence}}
}
