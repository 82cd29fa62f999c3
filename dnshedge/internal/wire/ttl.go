package wire

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/miekg/dns"
)

// TTLLimits say how long answers may be kept at most, and positive ones at least.
// They are rounded down to whole seconds.
type TTLLimits struct {
	Min         time.Duration // for positive answers, those with a TTL of 0 excepted
	Max         time.Duration
	MaxNegative time.Duration // for answers that a name or a type does not exist
}

// Limit changes the answer's TTLs as the limits and the RFCs demand, and returns how
// long the answer may be kept; 0 means not at all. Without limits (nil) the TTLs stay
// as they are, and it returns 0.
func (a *Answer) Limit(l *TTLLimits) time.Duration {
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

// equalizeTTLs gives the records of a set the lowest of their TTLs (RFC 2181 §5.2), and
// to their signatures as well (RFC 4034 §3, RFC 4035 §5.3.3).
func (a *Answer) equalizeTTLs() {
	if len(a.ttls) < 2 {
		return
	}
	m := a.packed
	s := numberNames(m)
	defer s.freeNumbers()
	type set struct {
		name       uint64
		typ, class uint16
	}
	of := func(r messageRecord) set {
		typ := r.typ
		if typ == dns.TypeRRSIG && len(r.data) >= 2 {
			typ = binary.BigEndian.Uint16(r.data) // the type that it covers
		}
		return set{s.numberAt(m, r.name), typ, r.class}
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

// findSOA returns the record that says how long a negative answer may be kept, and whether
// there is one: the SOA of a zone that the name belongs to, or the name at the end of
// its aliases.
func (a *Answer) findSOA() (soa messageRecord, ok bool) {
	m := a.packed
	s := numberNames(m)
	defer s.freeNumbers()
	var aliases map[uint64]int // by their names: where the first target is
	_ = walkRecords(m, func(r messageRecord) {
		if r.section != answer || r.typ != dns.TypeCNAME || r.class != dns.ClassINET || len(r.data) == 0 { // in updates there may be no data
			return
		}
		if aliases == nil {
			aliases = make(map[uint64]int)
		}
		if owner := s.numberAt(m, r.name); aliases[owner] == 0 {
			aliases[owner] = r.ttl + 6
		}
	})
	end := HeaderLen
	for range maxAliases + 1 {
		to, alias := aliases[s.numberAt(m, end)]
		if !alias {
			break
		}
		end = to
	}
	zones := s.numbersAbove(m, end)
	_ = walkRecords(m, func(r messageRecord) {
		if !ok && r.section == authority && r.typ == dns.TypeSOA && len(r.data) >= soaLen && slices.Contains(zones, s.numberAt(m, r.name)) {
			soa, ok = r, true
		}
	})
	return soa, ok
}

// soaLen is the length of the shortest data of a SOA record.
const soaLen = 2 + 20

// negativeTTL returns how long a negative answer with this SOA record may be kept, in
// seconds (RFC 2308 §5).
func (r *messageRecord) negativeTTL(m []byte) uint32 {
	return min(binary.BigEndian.Uint32(m[r.ttl:]), binary.BigEndian.Uint32(r.data[len(r.data)-4:]))
}

// SubtractTTL takes d off all TTLs, which do not fall below 0. It is for responses that
// have been in another cache, and must come before Limit.
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

// toSeconds returns whole seconds, as many as a TTL can have.
func toSeconds(d time.Duration) uint32 { return uint32(min(d/time.Second, 1<<31-1)) }
