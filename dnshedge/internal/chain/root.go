package chain

import (
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// root is what the root's keys have told of the anchors and of the clock.
type root struct {
	mu       sync.Mutex // guards the fields below
	unknown  []uint16   // tags of keys with SEP that no anchor knows
	known    []uint16   // tags of those that one knows
	signs    []uint16   // of them, those that sign the keys
	clockOff time.Duration
}

// look looks at the keys that a server of the root has sent: err is why they are not right. Only signatures that are right, but perhaps for their time,
// tell something.
func (r *root) look(set *validate.RRset, d *validate.DSSet, err error, now time.Time, p validate.Policy) {
	signers, off := d.Signers(p, set, now)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.clockOff = off; err != nil {
		return
	}
	r.known, r.unknown, r.signs = nil, nil, signers
	for _, rr := range set.Records {
		k, ok := rr.(*dns.DNSKEY)
		if !ok || k.Flags&dns.SEP == 0 || k.Flags&dns.REVOKE != 0 {
			continue
		}
		if tag := k.KeyTag(); knows(d, k) {
			r.known = append(r.known, tag)
		} else {
			r.unknown = append(r.unknown, tag)
		}
	}
}

// knows reports whether an anchor is of a key, by its tag.
func knows(d *validate.DSSet, k *dns.DNSKEY) bool { return slices.Contains(d.Tags(), k.KeyTag()) }
