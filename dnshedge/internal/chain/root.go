package chain

import (
	"errors"
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

// look looks at the keys that a server of the root has sent: err is why they are not right.
func (r *root) look(set *validate.RRset, d *validate.DSSet, err error, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clockOff = 0
	why := (*validate.Reason)(nil)
	switch {
	case !errors.As(err, &why):
	case !why.From.IsZero() && now.Before(why.From):
		r.clockOff = now.Sub(why.From)
	case !why.Until.IsZero() && now.After(why.Until):
		r.clockOff = now.Sub(why.Until)
	}
	if err != nil {
		return
	}
	r.known, r.unknown, r.signs = nil, nil, nil
	for _, sig := range set.Sigs {
		r.signs = append(r.signs, sig.KeyTag)
	}
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
