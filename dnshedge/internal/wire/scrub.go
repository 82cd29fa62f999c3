package wire

import (
	"slices"

	"github.com/miekg/dns"
)

const (
	maxAliases      = 16             // maximum number of aliases in a row that are followed; resolvers stop earlier
	maxAliasTargets = 4 * maxAliases // maximum number of alias targets that are examined for one response
)

// removeUnrelatedRecords removes answer records of m that do not belong to the question, and reports whether it removed
// any. Records of the question's name and of its alias targets belong, and so do DNAME records used. b is the message
// from which m was parsed.
func removeUnrelatedRecords(m *dns.Msg, b []byte) bool {
	if len(m.Answer) == 0 {
		return false
	}
	s := newNameIDs(b)
	defer s.release()
	owners := make([]uint64, 0, len(m.Answer))
	clean := true
	ask := s.nameIDAt(b, HeaderLen)
	// Records may be in any order, so the targets are collected first.
	aliases, subtrees := make(map[uint64][]int), make(map[uint64][]int) // offsets of the targets, by owner ID
	_ = walkRecords(b, func(r messageRecord) {
		if r.section != answer || len(owners) == len(m.Answer) {
			return
		}
		owner := s.nameIDAt(b, r.name)
		clean = clean && owner == ask
		switch m.Answer[len(owners)].(type) {
		case *dns.CNAME:
			aliases[owner] = append(aliases[owner], r.ttl+6)
		case *dns.DNAME:
			subtrees[owner] = append(subtrees[owner], r.ttl+6)
		}
		owners = append(owners, owner)
	})
	if clean || len(owners) != len(m.Answer) {
		return false
	}
	known, dnameOwners := s.followAliases(b, aliases, subtrees)
	kept := m.Answer[:0]
	for i, rr := range m.Answer {
		if known[owners[i]] || dnameOwners[owners[i]] && isDNAME(rr) {
			kept = append(kept, rr)
		}
	}
	dropped := len(kept) < len(m.Answer)
	m.Answer = kept
	return dropped
}

// followAliases finds the names to which aliases lead from the question's name. aliases and subtrees hold the offsets
// in b of CNAME and DNAME targets, by owner. known has the names, dnameOwners the owners of the DNAME records used.
// Keys are name IDs.
func (s *nameIDTable) followAliases(b []byte, aliases, subtrees map[uint64][]int) (known, dnameOwners map[uint64]bool) {
	known, dnameOwners = make(map[uint64]bool), make(map[uint64]bool)
	var queue []nameLabels
	add := func(l nameLabels) {
		if !known[l.nameID()] && len(known) <= maxAliases {
			known[l.nameID()] = true
			queue = append(queue, l)
		}
	}
	left := maxAliasTargets
	// targets calls f for the names at the offsets offs, up to the limits.
	targets := func(offs []int, f func(nameLabels)) {
		offs = offs[:min(len(offs), maxAliases, left)]
		left -= len(offs)
		for _, off := range offs {
			f(s.labelsAt(b, off))
		}
	}
	add(s.labelsAt(b, HeaderLen))
	for i := 0; i < len(queue); i++ {
		l := queue[i]
		targets(aliases[l.nameID()], add)
		for n := 1; n <= len(l) && left > 0; n++ {
			owner := l[n:].nameID()
			if len(subtrees[owner]) == 0 {
				continue
			}
			dnameOwners[owner] = true
			targets(subtrees[owner], func(to nameLabels) {
				if name, ok := l.replaceSuffix(n, to); ok {
					add(name)
				}
			})
		}
	}
	return known, dnameOwners
}

// isDNAME reports whether rr is a DNAME record, or a signature (RRSIG) of DNAME records.
func isDNAME(rr dns.RR) bool {
	if sig, ok := rr.(*dns.RRSIG); ok {
		return sig.TypeCovered == dns.TypeDNAME
	}
	return rr.Header().Rrtype == dns.TypeDNAME
}

// hasOnlyRelevantRecords reports whether all records in the answer section of m belong to the question. The owner of
// each record must be the question's name or the target of an earlier CNAME record. checkStorable must have accepted m.
func hasOnlyRelevantRecords(m []byte) bool {
	plain := true
	_ = walkRecords(m, func(r messageRecord) {
		plain = plain && (r.section != answer || m[r.name] == 0xc0 && m[r.name+1] == HeaderLen)
	})
	if plain {
		return true
	}
	s := newNameIDs(m)
	defer s.release()
	known := make([]uint64, 1, 1+maxAliases)
	known[0] = s.nameIDAt(m, HeaderLen)
	ok := true
	_ = walkRecords(m, func(r messageRecord) {
		switch {
		case !ok || r.section != answer:
		case !slices.Contains(known, s.nameIDAt(m, r.name)):
			ok = false
		case r.typ == dns.TypeCNAME:
			if to := s.nameIDAt(m, r.ttl+6); !slices.Contains(known, to) {
				ok = len(known) <= maxAliases
				known = append(known, to)
			}
		}
	})
	return ok
}
