package chain

import (
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// rootStatus has the observations of the root's keys about the trust anchors and the clock.
type rootStatus struct {
	mu           sync.Mutex    // guards the fields below
	unknownTags  []uint16      // SEP keys without a trust anchor
	anchoredTags []uint16      // SEP keys with a trust anchor
	signingTags  []uint16      // of these, keys that sign the DNSKEY RRset
	clockOff     time.Duration // see observe.RecursorStats.ClockOff
}

// observeKeys stores the observations of a DNSKEY RRset of the root. err is the result of its verification. Only
// signatures that are valid, apart from their validity period, count.
func (r *rootStatus) observeKeys(set *validate.RRset, d *validate.DSSet, err error, now time.Time, p validate.Policy) {
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
		if tag := k.KeyTag(); hasAnchorFor(d, k) {
			r.anchoredTags = append(r.anchoredTags, tag)
		} else {
			r.unknownTags = append(r.unknownTags, tag)
		}
	}
}

// hasAnchorFor reports whether a trust anchor has the key's tag.
func hasAnchorFor(d *validate.DSSet, k *dns.DNSKEY) bool {
	return slices.Contains(d.KeyTags(), k.KeyTag())
}
