package validate

import "slices"

// An nsec is an NSEC record that is evidence: verified, of the zone, not made of a wildcard.
type nsec struct {
	owner, next name
	types       bitmap
	evidence
}

// nsecs are the NSEC records of a response, or those of a zone that Denials keep: then they are sorted.
type nsecs struct {
	records []*nsec
	sorted  bool
}

// evidence is a record that proves something.
type evidence struct {
	verified Verified
	kept     *kept // nil: it is of a response
}

// found is what records prove, and which of them are needed.
type found struct {
	kind   Kind
	optOut bool
	used   []*evidence
}

// add reads data of a record that was verified, if it is as RFC 4034 §4.1 has it.
func (s *nsecs) add(owner name, data []byte, zone name, v Verified) {
	n, ok := readName(data)
	if !ok || !bitmap(data[n:]).whole() {
		return
	}
	next := append([]byte(nil), data[:n]...) // the case is kept where it is signed: RFC 6840 §5.1
	lower(next)
	if name(next).within(zone) {
		s.records = append(s.records, &nsec{owner, name(next), data[n:], evidence{verified: v}})
	}
}

// covers reports whether the record proves that a name of its zone has no records: it is between the owner and the next name. The last
// record's next name is the apex.
func (n *nsec) covers(q, zone name) bool {
	if compare(n.owner, q) >= 0 || n.next != zone && compare(q, n.next) >= 0 {
		return false
	}
	return !q.below(n.owner) || !n.types.silent()
}

// encloser returns the number of labels of the closest encloser of a name that the record covers.
func (n *nsec) encloser(q name) int { return max(common(q, n.owner), common(q, n.next)) }

// near returns the records among which there is that of a name, or one that covers it, if there is any.
func (s nsecs) near(q name) []*nsec {
	if !s.sorted {
		return s.records
	}
	i, _ := s.search(q)
	return s.records[max(0, i-1):i]
}

// search returns how many of the records, which are sorted, are of names up to q, and whether the last of them is q's.
func (s nsecs) search(q name) (n int, found bool) {
	n, found = slices.BinarySearchFunc(s.records, q, func(r *nsec, q name) int { return compare(r.owner, q) })
	if found {
		n++
	}
	return n, found
}

// at returns the record of a name.
func (s nsecs) at(q name) *nsec {
	for _, n := range s.near(q) {
		if n.owner == q {
			return n
		}
	}
	return nil
}

// covering returns a record that covers a name.
func (s nsecs) covering(q, zone name) *nsec {
	for _, n := range s.near(q) {
		if n.covers(q, zone) {
			return n
		}
	}
	return nil
}

// denies says what is proven of a question (RFC 4035 §5.4).
func (s nsecs) denies(q name, qtype uint16, zone name) found {
	if n := s.at(q); n != nil {
		return found{kind: n.types.own(q, qtype), used: []*evidence{&n.evidence}}
	}
	n := s.covering(q, zone)
	if n == nil {
		return found{}
	}
	f := found{kind: NoData, used: []*evidence{&n.evidence}}
	if n.next.below(q) { // an empty non-terminal
		return f
	}
	wild, ok := q.ancestor(n.encloser(q)).wildcard()
	if !ok {
		f.kind = NoName
		return f
	}
	if m := s.at(wild); m != nil {
		f.used = append(f.used, &m.evidence)
		if m.types.cut() || !m.types.denies(qtype) {
			return found{}
		}
		return f
	}
	m := s.covering(wild, zone)
	if m == nil {
		return found{}
	}
	f.used = append(f.used, &m.evidence)
	if !m.next.below(wild) { // otherwise the wildcard is an empty non-terminal
		f.kind = NoName
	}
	return f
}

// noCloser says whether no name is closer to q than the encloser with so many labels.
func (s nsecs) noCloser(q name, encloser int, zone name) found {
	n := s.covering(q, zone)
	if n == nil || n.encloser(q) > encloser {
		return found{}
	}
	return found{kind: NoCloser, used: []*evidence{&n.evidence}}
}
