package validate

import "slices"

// An nsec is an NSEC record with a valid signature that was not expanded from a wildcard.
type nsec struct {
	owner, next name
	types       typeBitmap
	denialRecord
}

// An nsecSet holds NSEC records of one zone, from which it draws conclusions about names and types that do not exist.
// The records are sorted by owner name in an AggressiveCache, but not in a response.
type nsecSet struct {
	records []*nsec
	sorted  bool
}

// A denialRecord holds the fields that nsec and nsec3 have in common: how long the record may be used in a proof, and
// its cached form.
type denialRecord struct {
	verified Verification // result of the record's verification
	cached   *cachedRRset // nil if the record is from a response and not from an AggressiveCache
}

// A proofResult is the conclusion from NSEC or NSEC3 records about a question. The zero value means that the records
// prove nothing.
type proofResult struct {
	kind        DenialKind
	optOut      bool            // an opt-out span covers the next closer name
	usedRecords []*denialRecord // records that the proof needs
}

// addRecord parses an NSEC record of the zone, and adds it to the set. v is the result of its verification. It ignores
// a record whose data is malformed (RFC 4034 §4.1), or whose next name is not in the zone.
func (s *nsecSet) addRecord(owner name, data []byte, zone name, v Verification) {
	n, ok := scanName(data)
	if !ok || !typeBitmap(data[n:]).isWellFormed() {
		return
	}
	next := append([]byte(nil), data[:n]...) // data keeps its case, because it is signed (RFC 6840 §5.1)
	lowercase(next)
	if name(next).isWithin(zone) {
		s.records = append(s.records, &nsec{owner, name(next), data[n:], denialRecord{verified: v}})
	}
}

// coversName reports whether the record proves that q, a name of the zone, does not exist. The name q is then between
// the owner name and the next name in canonical order. In the last record of a zone, the next name is the apex, which
// means the end of the zone.
func (n *nsec) coversName(q, zone name) bool {
	if compareCanonical(n.owner, q) >= 0 || n.next != zone && compareCanonical(q, n.next) >= 0 {
		return false
	}
	return !q.isBelow(n.owner) || !n.types.isDelegationOrDNAME()
}

// countEncloserLabels returns the number of labels of the closest encloser of q. The record must cover q.
func (n *nsec) countEncloserLabels(q name) int {
	return max(countCommonLabels(q, n.owner), countCommonLabels(q, n.next))
}

// candidateRecords returns the records that may match or cover q. If the set is sorted, this is at most one record,
// otherwise all records.
func (s nsecSet) candidateRecords(q name) []*nsec {
	if !s.sorted {
		return s.records
	}
	i, _ := s.searchOwnerName(q)
	return s.records[max(0, i-1):i]
}

// searchOwnerName returns the number of records whose owner name is q or comes before q in canonical order. This is the
// index at which a record with the owner name q is to be inserted. found is true if the last of these records has the
// owner name q. The set must be sorted.
func (s nsecSet) searchOwnerName(q name) (n int, found bool) {
	n, found = slices.BinarySearchFunc(s.records, q, func(r *nsec, q name) int { return compareCanonical(r.owner, q) })
	if found {
		n++
	}
	return n, found
}

// matchingRecord returns the record whose owner name is q, or nil if there is none.
func (s nsecSet) matchingRecord(q name) *nsec {
	for _, n := range s.candidateRecords(q) {
		if n.owner == q {
			return n
		}
	}
	return nil
}

// coveringRecord returns a record that proves that q, a name of the zone, does not exist: its owner name and its next
// name are before and after q (see coversName). It returns nil if there is none.
func (s nsecSet) coveringRecord(q, zone name) *nsec {
	for _, n := range s.candidateRecords(q) {
		if n.coversName(q, zone) {
			return n
		}
	}
	return nil
}

// proveDenial determines whether the NSEC records prove that the name q, or the records of type qtype at q, do not
// exist (RFC 4035 §5.4). zone is the zone of q. The kind of the result is NameError, NoData, NoDS or Unproven.
func (s nsecSet) proveDenial(q name, qtype uint16, zone name) proofResult {
	if n := s.matchingRecord(q); n != nil {
		return proofResult{kind: n.types.denialAtOwner(q, qtype), usedRecords: []*denialRecord{&n.denialRecord}}
	}
	n := s.coveringRecord(q, zone)
	if n == nil {
		return proofResult{}
	}
	f := proofResult{kind: NoData, usedRecords: []*denialRecord{&n.denialRecord}}
	if n.next.isBelow(q) { // an empty non-terminal
		return f
	}
	wild, ok := q.trimToLabels(n.countEncloserLabels(q)).wildcardName()
	if !ok {
		f.kind = NameError
		return f
	}
	if m := s.matchingRecord(wild); m != nil {
		f.usedRecords = append(f.usedRecords, &m.denialRecord)
		if m.types.isDelegation() || !m.types.deniesType(qtype) {
			return proofResult{}
		}
		return f
	}
	m := s.coveringRecord(wild, zone)
	if m == nil {
		return proofResult{}
	}
	f.usedRecords = append(f.usedRecords, &m.denialRecord)
	if !m.next.isBelow(wild) { // otherwise the wildcard is an empty non-terminal
		f.kind = NameError
	}
	return f
}

// proveNoCloserMatch determines whether the records prove that q has no closer match than a wildcard: the next closer
// name, which has one label more than the closest encloser, does not exist. q may then be the expansion of the
// wildcard. encloser is the number of labels of the closest encloser.
//
// The kind of the result is NoCloserMatch, or Unproven if there is no proof.
func (s nsecSet) proveNoCloserMatch(q name, encloser int, zone name) proofResult {
	n := s.coveringRecord(q, zone)
	if n == nil || n.countEncloserLabels(q) > encloser {
		return proofResult{}
	}
	return proofResult{kind: NoCloserMatch, usedRecords: []*denialRecord{&n.denialRecord}}
}
