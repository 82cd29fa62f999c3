package chain

import (
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// rootStatus is what the root's keys have told of the anchors and of the clock.
type rootStatus struct {
	mu           sync.Mutex // guards the fields below
	unknownTags  []uint16   // tags of keys with SEP that no anchor knows
	anchoredTags []uint16   // tags of those that one knows
	signingTags  []uint16   // of them, those that sign the keys
	clockOff     time.Duration
}

// observeKeys looks at the keys that a server of the root has sent: err is why they are not right. Only signatures that are right, but perhaps for their time,
// tell something.
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

// hasAnchorFor reports whether an anchor is of a key, by its tag.
func hasAnchorFor(d *validate.DSSet, k *dns.DNSKEY) bool {
	return slices.Contains(d.KeyTags(), k.KeyTag())
}
