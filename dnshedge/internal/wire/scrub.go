package wire

import (
	"slices"

	"github.com/miekg/dns"
)

const (
	maxAliases = 16             // that are followed. Resolvers give up earlier
	maxTargets = 4 * maxAliases // of aliases that are looked at: names in one subtree share it, and an owner may have several
)

// scrub removes from the answer section of m, which was read from b, what does not answer
// the question: records whose owner is neither its name nor one that it is an alias of
// (RFC 1034 §4.3.2). It reports whether there were any.
func scrub(m *dns.Msg, b []byte) bool {
	if len(m.Answer) == 0 {
		return false
	}
	s := numberNames(b)
	defer s.free()
	owners := make([]uint64, 0, len(m.Answer))
	clean := true
	ask := s.at(b, HeaderLen)
	// The order of records means nothing.
	aliases, subtrees := make(map[uint64][]int), make(map[uint64][]int) // by owner: where their targets are
	_ = walk(b, func(r record) {
		if r.section != answer || len(owners) == len(m.Answer) {
			return
		}
		owner := s.at(b, r.name)
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
	known, above := s.follow(b, aliases, subtrees)
	kept := m.Answer[:0]
	for i, rr := range m.Answer {
		if known[owners[i]] || above[owners[i]] && isDNAME(rr) {
			kept = append(kept, rr)
		}
	}
	dropped := len(kept) < len(m.Answer)
	m.Answer = kept
	return dropped
}

// follow returns the name of the question and those that it is an alias of, and which names above these have subtrees that were looked
// at. It looks at maxTargets targets at most.
func (s *names) follow(b []byte, aliases, subtrees map[uint64][]int) (known, above map[uint64]bool) {
	known, above = make(map[uint64]bool), make(map[uint64]bool)
	var queue []lineage
	add := func(l lineage) {
		if !known[l.id()] && len(known) <= maxAliases {
			known[l.id()] = true
			queue = append(queue, l)
		}
	}
	left := maxTargets
	// targets yields those of an owner, as many as may be followed.
	targets := func(offs []int, f func(lineage)) {
		offs = offs[:min(len(offs), maxAliases, left)]
		left -= len(offs)
		for _, off := range offs {
			f(s.lineage(b, off))
		}
	}
	add(s.lineage(b, HeaderLen))
	for i := 0; i < len(queue); i++ {
		l := queue[i]
		targets(aliases[l.id()], add)
		for n := 1; n <= len(l) && left > 0; n++ {
			owner := l[n:].id()
			if len(subtrees[owner]) == 0 {
				continue
			}
			above[owner] = true
			targets(subtrees[owner], func(to lineage) {
				if name, ok := l.moved(n, to); ok {
					add(name)
				}
			})
		}
	}
	return known, above
}

// isDNAME reports whether a record is a DNAME or the signature of one.
func isDNAME(rr dns.RR) bool {
	if sig, ok := rr.(*dns.RRSIG); ok {
		return sig.TypeCovered == dns.TypeDNAME
	}
	return rr.Header().Rrtype == dns.TypeDNAME
}

// relevant reports whether each record of the answer section of a tidy message is about
// the name of the question, or about one that the records before it say it is an alias
// of.
func relevant(m []byte) bool {
	plain := true
	_ = walk(m, func(r record) {
		plain = plain && (r.section != answer || m[r.name] == 0xc0 && m[r.name+1] == HeaderLen)
	})
	if plain {
		return true
	}
	s := numberNames(m)
	defer s.free()
	known := make([]uint64, 1, 1+maxAliases)
	known[0] = s.at(m, HeaderLen)
	ok := true
	_ = walk(m, func(r record) {
		switch {
		case !ok || r.section != answer:
		case !slices.Contains(known, s.at(m, r.name)):
			ok = false
		case r.typ == dns.TypeCNAME:
			if to := s.at(m, r.ttl+6); !slices.Contains(known, to) {
				ok = len(known) <= maxAliases
				known = append(known, to)
			}
		}
	})
	return ok
}
