package chain

import (
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// A rootStatus holds observations of the root's DNSKEY RRset: which keys have trust anchors, and whether the clock is
// wrong.
type rootStatus struct {
	mu           sync.Mutex    // guards the fields below
	unknownTags  []uint16      // key tags of SEP keys without a trust anchor
	anchoredTags []uint16      // key tags of SEP keys with a trust anchor
	signingTags  []uint16      // key tags of the anchored keys that sign the DNSKEY RRset
	clockOff     time.Duration // see observe.RecursorStats.ClockOff
}

// observeKeys stores the observations of a DNSKEY RRset of the root. err is the result of its verification. It
// considers only signatures that are valid except for their validity period.
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

// hasAnchorFor reports whether a trust anchor has the key tag of k.
func hasAnchorFor(d *validate.DSSet, k *dns.DNSKEY) bool {
	return slices.Contains(d.KeyTags(), k.KeyTag())
}
