package validate

import (
	"slices"
	"time"
)

// Keys are the keys of one zone. One of them matches a DSSet and has signed the DNSKEY RRset. They are immutable and
// safe for concurrent use.
type Keys struct {
	zone             name
	keys             []dnskey
	policy           Policy // policy by which the keys were parsed
	ds               *DSSet
	entryPoint       keyDigest // record of ds that matches the signing key
	signatureExpires time.Time // expiration time of the DNSKEY RRset's signature
	ttl              uint32
}

// Zone returns the name of the zone in presentation format.
func (k *Keys) Zone() string { return k.zone.String() }

// Trusted reports whether data signed by the keys is secure, because the DSSet is trusted.
func (k *Keys) Trusted() bool { return k.ds.trusted }

// TTL returns the number of seconds for which the keys may be cached, see Verified.TTL.
func (k *Keys) TTL() uint32 { return k.ttl }

// Expires returns the expiration time of the keys' signature or of their DSSet, whichever comes first.
func (k *Keys) Expires() time.Time {
	if e := k.ds.expires; !e.IsZero() && e.Before(k.signatureExpires) {
		return e
	}
	return k.signatureExpires
}

// WithTrustedDS returns the keys with the DSSet d in place of an unverified one, without cryptographic work. It reports
// false if d is not trusted or lacks the record that the keys match. In the latter case the keys were accepted because
// of forged DS records, and must be discarded.
func (k *Keys) WithTrustedDS(d *DSSet) (*Keys, bool) {
	if !d.trusted || d.zone != k.zone || !slices.Contains(d.supportedEntries(k.policy), k.entryPoint) {
		return nil, false
	}
	c := *k
	c.ds = d
	return &c, true
}
