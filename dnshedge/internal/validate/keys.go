package validate

import (
	"slices"
	"time"
)

// Keys are the keys of one zone: a DNSKEY RRset signed by one of its keys that matches a DSSet. They are immutable and
// safe for concurrent use.
type Keys struct {
	zone             name
	keys             []dnskey
	policy           Policy // that the keys were parsed with
	ds               *DSSet
	entryPoint       keyDigest // the record of ds that matches the signing key
	signatureExpires time.Time // end of the signature of the DNSKEY RRset
	ttl              uint32
}

func (k *Keys) Zone() string { return k.zone.String() }

// Trusted reports whether data signed by the keys is secure. It is not while the DSSet is unverified.
func (k *Keys) Trusted() bool { return k.ds.trusted }

// TTL returns the seconds that the keys may be cached: Verified.TTL of their RRset.
func (k *Keys) TTL() uint32 { return k.ttl }

// Expires returns the end of the signature of the keys or of their DSSet, whichever is first.
func (k *Keys) Expires() time.Time {
	if e := k.ds.expires; !e.IsZero() && e.Before(k.signatureExpires) {
		return e
	}
	return k.signatureExpires
}

// WithTrustedDS returns the same keys with the DSSet d, without cryptographic work. It reports false if d is not trusted
// or lacks the record that the keys match. Then the keys were accepted because of DS records that the zone does not have,
// and must be discarded.
func (k *Keys) WithTrustedDS(d *DSSet) (*Keys, bool) {
	if !d.trusted || d.zone != k.zone || !slices.Contains(d.supportedEntries(k.policy), k.entryPoint) {
		return nil, false
	}
	c := *k
	c.ds = d
	return &c, true
}
