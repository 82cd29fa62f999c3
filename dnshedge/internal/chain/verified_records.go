package chain

import (
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// A verifiedRecords collects RRsets of one section after their verification, and computes the TTL that they have in
// common.
type verifiedRecords struct {
	keys     *validate.Keys
	sets     []*validate.RRset
	verified []validate.Verified // results of the verification, in the order of sets
	ttl      uint32              // minimum number of seconds for which the RRsets may be cached (RFC 4035 §5.3.3)
}

// addRRset adds a verified RRset, and lowers the common TTL to that of the RRset. v is the result of its verification.
func (a *verifiedRecords) addRRset(set *validate.RRset, v validate.Verified) {
	a.sets, a.verified = append(a.sets, set), append(a.verified, v)
	a.ttl = min(a.ttl, v.TTL)
}

// authenticRecords returns copies of the records and signatures of all RRsets, with the common TTL (see
// validate.RRset.AuthenticRecords).
func (a *verifiedRecords) authenticRecords() (rrs []dns.RR) {
	for i, set := range a.sets {
		rrs = append(rrs, set.AuthenticRecords(a.keys, a.verified[i], a.ttl)...)
	}
	return rrs
}

// addProofs verifies the NSEC and NSEC3 RRsets among sets, and adds those with valid signatures.
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
