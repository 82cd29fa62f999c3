package wire

import (
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

// apply changes the answer's TTLs as the limits and the RFCs demand, and returns
// how long the answer may be kept; 0 means not at all.
func (l *TTLLimits) apply(a *Answer) time.Duration {
	m := a.Msg
	if m.Truncated {
		return 0
	}
	low, high := seconds(l.Min), seconds(l.Max)
	type rrset struct {
		name       string
		typ, class uint16
	}
	var sets map[rrset]uint32
	least := uint32(1<<32 - 1)
	a.records(func(rr dns.RR) {
		h := rr.Header()
		if h.Ttl > 1<<31-1 {
			h.Ttl = 0 // RFC 2181 §8
		}
		if h.Ttl > 0 {
			h.Ttl = min(max(h.Ttl, low), high)
		}
		least = min(least, h.Ttl)
		if sets == nil {
			sets = make(map[rrset]uint32)
		}
		k := rrset{dns.CanonicalName(h.Name), h.Rrtype, h.Class}
		if t, ok := sets[k]; !ok || h.Ttl < t {
			sets[k] = h.Ttl
		}
	})
	// The records of a set have the lowest of their TTLs (RFC 2181 §5.2).
	a.records(func(rr dns.RR) {
		h := rr.Header()
		h.Ttl = sets[rrset{dns.CanonicalName(h.Name), h.Rrtype, h.Class}]
	})
	switch a.Outcome {
	case Positive:
		return time.Duration(least) * time.Second
	case NoData, NXDomain:
		for _, rr := range m.Ns {
			soa, ok := rr.(*dns.SOA)
			if !ok {
				continue
			}
			soa.Hdr.Ttl = min(soa.Hdr.Ttl, soa.Minttl, seconds(l.MaxNegative)) // RFC 2308 §5
			return time.Duration(min(least, soa.Hdr.Ttl)) * time.Second
		}
	}
	return 0
}

// seconds returns whole seconds, as many as a TTL can have.
func seconds(d time.Duration) uint32 { return uint32(min(d/time.Second, 1<<31-1)) }
