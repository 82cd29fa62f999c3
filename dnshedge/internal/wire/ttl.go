package wire

import (
	"encoding/binary"
	"math"
	"slices"
	"time"

	"github.com/miekg/dns"
)

// TTLLimits are limits for the time for which an Answer may be cached. They are rounded down to whole seconds.
type TTLLimits struct {
	Min         time.Duration // minimum TTL in responses with records; a TTL of 0 stays 0
	Max         time.Duration // maximum TTL in all responses
	MaxNegative time.Duration // maximum TTL of responses that say that a name or a record does not exist
}

// LimitTTLs makes the TTLs of the records lie within limits and be equal within each RRset. It returns how long the
// Answer may be cached. 0 means that it must not be cached. If limits is nil, it leaves the TTLs unchanged and returns
// 0.
func (a *Answer) LimitTTLs(limits *TTLLimits) time.Duration {
	a.Cookie = nil
	if limits == nil || a.isTruncated() {
		return 0
	}
	m := a.packed
	low, high := uint32(0), toSeconds(limits.Max)
	if a.Outcome == Positive {
		low = toSeconds(limits.Min)
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
			ttl := min(soa.negativeTTL(m), toSeconds(limits.MaxNegative))
			binary.BigEndian.PutUint32(m[soa.ttl:], ttl)
			return time.Duration(min(least, ttl)) * time.Second
		}
	}
	return 0
}

// equalizeTTLs sets the TTLs of the records of each RRset, and of their signatures, to the lowest TTL among them. The
// rules are in RFC 2181 §5.2, RFC 4034 §3, and RFC 4035 §5.3.3.
func (a *Answer) equalizeTTLs() {
	if len(a.ttls) < 2 {
		return
	}
	m := a.packed
	s := newNameIDs(m)
	defer s.release()
	type set struct {
		name       uint64
		typ, class uint16
	}
	of := func(r messageRecord) set {
		typ := r.typ
		if typ == dns.TypeRRSIG && len(r.data) >= 2 {
			typ = binary.BigEndian.Uint16(r.data) // type of the records that the signature covers
		}
		return set{s.nameIDAt(m, r.name), typ, r.class}
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

// findSOA returns the SOA record that determines how long a negative response may be cached. The record's zone contains
// the question's name or, if the name is an alias, the final target of the CNAME records. ok is false without such a
// record.
func (a *Answer) findSOA() (soa messageRecord, ok bool) {
	m := a.packed
	s := newNameIDs(m)
	defer s.release()
	var aliases map[uint64]int // offset of the first target, by owner ID
	_ = walkRecords(m, func(r messageRecord) {
		if r.section != answer || r.typ != dns.TypeCNAME || r.class != dns.ClassINET || len(r.data) == 0 { // an UPDATE may have no data
			return
		}
		if aliases == nil {
			aliases = make(map[uint64]int)
		}
		if owner := s.nameIDAt(m, r.name); aliases[owner] == 0 {
			aliases[owner] = r.ttl + 6
		}
	})
	end := HeaderLen
	for range maxAliases + 1 {
		to, alias := aliases[s.nameIDAt(m, end)]
		if !alias {
			break
		}
		end = to
	}
	zones := s.ancestorIDs(m, end)
	_ = walkRecords(m, func(r messageRecord) {
		if !ok && r.section == authority && r.typ == dns.TypeSOA && len(r.data) >= soaLen && slices.Contains(zones, s.nameIDAt(m, r.name)) {
			soa, ok = r, true
		}
	})
	return soa, ok
}

// soaLen is the minimum length in bytes of the data of an SOA record.
const soaLen = 2 + 20

// negativeTTL returns how long a negative response with the SOA record r may be cached, in seconds (RFC 2308 §5). m
// must be the message of r.
func (r *messageRecord) negativeTTL(m []byte) uint32 {
	return min(binary.BigEndian.Uint32(m[r.ttl:]), binary.BigEndian.Uint32(r.data[len(r.data)-4:]))
}

// SubtractTTL subtracts d, in whole seconds, from the TTLs of all records, down to 0. It is for responses that were
// held for the time d, for example in an HTTP cache. It must be called before LimitTTLs.
func (a *Answer) SubtractTTL(d time.Duration) {
	n := toSeconds(d)
	if n == 0 {
		return
	}
	m := a.packed
	if a.Outcome == NoData || a.Outcome == NXDomain {
		if soa, ok := a.findSOA(); ok {
			binary.BigEndian.PutUint32(m[soa.ttl:], soa.negativeTTL(m)) // HTTP caches count this TTL down (RFC 2308 §5)
		}
	}
	for _, off := range a.ttls {
		ttl := binary.BigEndian.Uint32(m[off:])
		binary.BigEndian.PutUint32(m[off:], ttl-min(ttl, n))
	}
}

// HTTPMaxAge returns how long an HTTP cache may store the response b, in seconds (RFC 8484 §5.1): the lowest TTL of the
// answer records and the SOA record. It is 0 if b is malformed, truncated, a failure, or without these records.
func HTTPMaxAge(b []byte) uint32 {
	if len(b) < HeaderLen || b[2]&(flagTC>>8) != 0 || b[3]&15 != dns.RcodeSuccess && b[3]&15 != dns.RcodeNameError {
		return 0
	}
	age, known, complete := uint32(math.MaxInt32), false, b[3]&15 == dns.RcodeSuccess
	err := walkRecords(b, func(r messageRecord) {
		switch {
		case r.section == answer:
			age, known = min(age, binary.BigEndian.Uint32(b[r.ttl:])), true
		case r.section == authority && r.typ == dns.TypeSOA && len(r.data) >= soaLen:
			age, known, complete = min(age, r.negativeTTL(b)), true, true
		}
	})
	if err != nil || !known || !complete { // complete is false for NXDOMAIN without an SOA record
		return 0
	}
	return age
}

// toSeconds returns d rounded down to whole seconds, but at most the largest valid TTL. d must not be negative.
func toSeconds(d time.Duration) uint32 { return uint32(min(d/time.Second, 1<<31-1)) }
