package chain

import (
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// verifiedRecords collects RRsets of an answer that were verified.
type verifiedRecords struct {
	keys     *validate.Keys
	sets     []*validate.RRset
	verified []validate.Verified
	ttl      uint32 // seconds that all of them may be kept (RFC 4035 §5.3.3)
}

func (a *verifiedRecords) addRRset(set *validate.RRset, v validate.Verified) {
	a.sets, a.verified = append(a.sets, set), append(a.verified, v)
	a.ttl = min(a.ttl, v.TTL)
}

// authenticRecords returns the records, with signatures, as they go to callers.
func (a *verifiedRecords) authenticRecords() (rrs []dns.RR) {
	for i, set := range a.sets {
		rrs = append(rrs, set.AuthenticRecords(a.keys, a.verified[i], a.ttl)...)
	}
	return rrs
}

// addProofs adds the NSEC and NSEC3 RRsets that are right.
func (a *verifiedRecords) addProofs(w *validate.Validation, sets []*validate.RRset, now time.Time) {
	for _, set := range sets {
		if set.Type != dns.TypeNSEC && set.Type != dns.TypeNSEC3 {
			continue
		}
		if v, err := w.Verify(set, a.keys, now); err == nil {
			a.addRRset(set, v)
		}
	}
}
