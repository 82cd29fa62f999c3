package wire

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/miekg/dns"
)

// TTLLimits are the limits of the time for which answers may be cached, rounded down to whole seconds.
type TTLLimits struct {
	Min         time.Duration // minimum for positive answers; a TTL of 0 stays 0
	Max         time.Duration // maximum for all answers
	MaxNegative time.Duration // maximum for negative answers
}

// LimitTTLs adapts the answer's TTLs to the limits and the RFCs. It returns how long the answer may be cached; 0 means not
// at all. If l is nil, the TTLs do not change, and the result is 0.
func (a *Answer) LimitTTLs(l *TTLLimits) time.Duration {
	a.Cookie = nil
	if l == nil || a.isTruncated() {
		return 0
	}
	m := a.packed
	low, high := uint32(0), toSeconds(l.Max)
	if a.Outcome == Positive {
		low = toSeconds(l.Min)
	}
	least := uint32(1<<32 - 1)
	for _, off := range a.ttls {
		ttl := binary.BigEndian.Uint32(m[off:])
		if ttl > 0 {
			ttl = min(max(ttl, low), high) // also if the high bit is set (RFC 8767 §4)
			binary.BigEndian.PutUint32(m[off:], ttl)
		}
		least = min(least, ttl)
	}
	a.equalizeTTLs()
	switch a.Outcome {
	case Positive:
		return time.Duration(least) * time.Second
	case NoData, NXDomain:
		if soa, ok := a.findSOA(); ok {
			ttl := min(soa.negativeTTL(m), toSeconds(l.MaxNegative))
			binary.BigEndian.PutUint32(m[soa.ttl:], ttl)
			return time.Duration(min(least, ttl)) * time.Second
		}
	}
	return 0
}

// equalizeTTLs sets the TTLs of each RRset, and of its signatures, to the lowest one (RFC 2181 §5.2, RFC 4034 §3, RFC
// 4035 §5.3.3).
func (a *Answer) equalizeTTLs() {
	if len(a.ttls) < 2 {
		return
	}
	m := a.packed
	s := newNameIDs(m)
	defer s.releaseIDs()
	type set struct {
		name       uint64
		typ, class uint16
	}
	of := func(r messageRecord) set {
		typ := r.typ
		if typ == dns.TypeRRSIG && len(r.data) >= 2 {
			typ = binary.BigEndian.Uint16(r.data) // the type that it covers
		}
		return set{s.idAt(m, r.name), typ, r.class}
	}
	lowest := make(map[set]uint32, 8)
	_ = walkRecords(m, func(r messageRecord) {
		k, ttl := of(r), binary.BigEndian.Uint32(m[r.ttl:])
		if t, ok := lowest[k]; !ok || ttl < t {
			lowest[k] = ttl
		}
	})
	_ = walkRecords(m, func(r messageRecord) { binary.BigEndian.PutUint32(m[r.ttl:], lowest[of(r)]) })
}

// findSOA returns the SOA record that determines the TTL of a negative answer. Its owner is at or above the question's
// name, or the last target of its aliases. ok is false if there is none.
func (a *Answer) findSOA() (soa messageRecord, ok bool) {
	m := a.packed
	s := newNameIDs(m)
	defer s.releaseIDs()
	var aliases map[uint64]int // by their names: where the first target is
	_ = walkRecords(m, func(r messageRecord) {
		if r.section != answer || r.typ != dns.TypeCNAME || r.class != dns.ClassINET || len(r.data) == 0 { // in updates there may be no data
			return
		}
		if aliases == nil {
			aliases = make(map[uint64]int)
		}
		if owner := s.idAt(m, r.name); aliases[owner] == 0 {
			aliases[owner] = r.ttl + 6
		}
	})
	end := HeaderLen
	for range maxAliases + 1 {
		to, alias := aliases[s.idAt(m, end)]
		if !alias {
			break
		}
		end = to
	}
	zones := s.ancestorIDs(m, end)
	_ = walkRecords(m, func(r messageRecord) {
		if !ok && r.section == authority && r.typ == dns.TypeSOA && len(r.data) >= soaLen && slices.Contains(zones, s.idAt(m, r.name)) {
			soa, ok = r, true
		}
	})
	return soa, ok
}

// soaLen is the minimum length of the data of an SOA record.
const soaLen = 2 + 20

// negativeTTL returns the TTL in seconds of a negative answer with this SOA record (RFC 2308 §5).
func (r *messageRecord) negativeTTL(m []byte) uint32 {
	return min(binary.BigEndian.Uint32(m[r.ttl:]), binary.BigEndian.Uint32(r.data[len(r.data)-4:]))
}

// SubtractTTL subtracts d from all TTLs, down to 0. It is for responses from an HTTP cache, and must be called before
// Limit.
func (a *Answer) SubtractTTL(d time.Duration) {
	n := toSeconds(d)
	if n == 0 {
		return
	}
	m := a.packed
	if a.Outcome == NoData || a.Outcome == NXDomain {
		if soa, ok := a.findSOA(); ok {
			binary.BigEndian.PutUint32(m[soa.ttl:], soa.negativeTTL(m)) // it is that which has counted down
		}
	}
	for _, off := range a.ttls {
		ttl := binary.BigEndian.Uint32(m[off:])
		binary.BigEndian.PutUint32(m[off:], ttl-min(ttl, n))
	}
}

// toSeconds converts d to whole seconds, at most the maximum TTL.
func toSeconds(d time.Duration) uint32 { return uint32(min(d/time.Second, 1<<31-1)) }
