package wire

import (
	"strings"
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
	low, high := uint32(0), seconds(l.Max)
	if a.Outcome == Positive {
		low = seconds(l.Min)
	}
	least := uint32(1<<32 - 1)
	a.records(func(rr dns.RR) {
		h := rr.Header()
		if h.Ttl > 0 {
			h.Ttl = min(max(h.Ttl, low), high) // also if the high bit is set (RFC 8767 §4)
		}
		least = min(least, h.Ttl)
	})
	a.levelSets()
	switch a.Outcome {
	case Positive:
		return time.Duration(least) * time.Second
	case NoData, NXDomain:
		if soa := a.soa(); soa != nil {
			soa.Hdr.Ttl = min(negativeTTL(soa), seconds(l.MaxNegative))
			return time.Duration(min(least, soa.Hdr.Ttl)) * time.Second
		}
	}
	return 0
}

// levelSets gives the records of a set the lowest of their TTLs (RFC 2181 §5.2), and
// to their signatures as well (RFC 4034 §3, RFC 4035 §5.3.3).
func (a *Answer) levelSets() {
	type set struct {
		name       string
		typ, class uint16
	}
	of := func(rr dns.RR) set {
		h := rr.Header()
		s := set{dns.CanonicalName(h.Name), h.Rrtype, h.Class}
		if sig, ok := rr.(*dns.RRSIG); ok {
			s.typ = sig.TypeCovered
		}
		return s
	}
	if len(a.Msg.Answer)+len(a.Msg.Ns)+len(a.Msg.Extra) < 2 {
		return
	}
	lowest := make(map[set]uint32)
	a.records(func(rr dns.RR) {
		k := of(rr)
		if t, ok := lowest[k]; !ok || rr.Header().Ttl < t {
			lowest[k] = rr.Header().Ttl
		}
	})
	a.records(func(rr dns.RR) { rr.Header().Ttl = lowest[of(rr)] })
}

// soa returns the record that says how long a negative answer may be kept, or nil: the
// SOA of a zone that the name belongs to, or the name at the end of its aliases.
func (a *Answer) soa() *dns.SOA {
	end := a.Msg.Question[0].Name
	for range a.Msg.Answer {
		for _, rr := range a.Msg.Answer {
			if alias, ok := rr.(*dns.CNAME); ok && equalNames(alias.Hdr.Name, end) {
				end = alias.Target
				break
			}
		}
	}
	for _, rr := range a.Msg.Ns {
		if soa, ok := rr.(*dns.SOA); ok && dns.IsSubDomain(soa.Hdr.Name, end) {
			return soa
		}
	}
	return nil
}

// equalNames reports whether two names, as package dns unpacks them, are the same but
// for case. They hold nothing but ASCII.
func equalNames(a, b string) bool { return strings.EqualFold(a, b) }

// negativeTTL returns how long a negative answer with this record may be kept, in
// seconds (RFC 2308 §5).
func negativeTTL(soa *dns.SOA) uint32 { return min(soa.Hdr.Ttl, soa.Minttl) }

// seconds returns whole seconds, as many as a TTL can have.
func seconds(d time.Duration) uint32 { return uint32(min(d/time.Second, 1<<31-1)) }
