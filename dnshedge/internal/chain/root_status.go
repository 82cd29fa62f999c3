package chain

import (
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// A rootKeyStatus records observations of the root's keys for the statistics: which of them have a trust anchor, and
// whether this machine's clock is right. The clock is right if it is within the validity period of the root's
// signatures. A rootKeyStatus is safe for concurrent use.
type rootKeyStatus struct {
	mu           sync.Mutex    // guards the following fields
	unknownTags  []uint16      // key tags of SEP keys without a trust anchor
	anchoredTags []uint16      // key tags of SEP keys with a trust anchor
	signingTags  []uint16      // key tags of the keys with a trust anchor that sign the DNSKEY RRset
	clockOff     time.Duration // distance of the clock from the validity period of the root's signatures; negative if the clock is slow, 0 if it is right
}

// observeKeys updates the status from set, the DNSKEY RRset of the root: which trust anchors are in it and have signed
// it. d are the trust anchors, and err is the error of VerifyDNSKEY. If err is not nil, only clockOff is set.
func (r *rootKeyStatus) observeKeys(set *validate.RRset, d *validate.DSSet, err error, now time.Time, p validate.Policy) {
	signers, off := d.SigningKeyTags(p, set, now)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.clockOff = off; err != nil {
		return
	}
	r.anchoredTags, r.unknownTags, r.signingTags = nil, nil, signers
	for _, rr := range set.Records {
		k, ok := rr.(*dns.DNSKEY)
		if !ok || k.Flags&dns.SEP == 0 || k.Flags&dns.REVOKE != 0 {
			continue
		}
		if tag := k.KeyTag(); slices.Contains(d.KeyTags(), tag) {
			r.anchoredTags = append(r.anchoredTags, tag)
		} else {
			r.unknownTags = append(r.unknownTags, tag)
		}
	}
}
