package validate

import (
	"slices"
	"time"
)

// Keys are the keys of a zone: those of a DNSKEY RRset that one of its keys has signed which fits a DSSet. They are read
// once, and do not change. Several goroutines may use them at once.
type Keys struct {
	zone             name
	keys             []dnskey
	policy           Policy // that they were read with
	ds               *DSSet
	entryPoint       keyDigest // the one of ds that the keys stand on
	signatureExpires time.Time // the end of their own signature
	ttl              uint32
}

// Zone returns the zone whose keys these are.
func (k *Keys) Zone() string { return k.zone.String() }

// Trusted reports whether what the keys sign is secure. It is not if they stand on a DSSet that nobody has verified.
func (k *Keys) Trusted() bool { return k.ds.trusted }

// TTL returns for how many seconds the keys may be kept: the TTL of their RRset, as Verified.TTL has it.
func (k *Keys) TTL() uint32 { return k.ttl }

// Expires returns when the signature of the keys ends, or that of what they stand on.
func (k *Keys) Expires() time.Time {
	if e := k.ds.expires; !e.IsZero() && e.Before(k.signatureExpires) {
		return e
	}
	return k.signatureExpires
}

// WithTrustedDS returns the same keys standing on d, without any work. It reports false if d is not trusted, or does not have the
// record that the keys fit: then they were judged by DS records that are not the zone's, and nothing of them is left.
func (k *Keys) WithTrustedDS(d *DSSet) (*Keys, bool) {
	if !d.trusted || d.zone != k.zone || !slices.Contains(d.supportedEntries(k.policy), k.entryPoint) {
		return nil, false
	}
	c := *k
	c.ds = d
	return &c, true
}
