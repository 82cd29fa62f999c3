package validate

import (
	"slices"
	"time"
)

// A Keys holds the DNSKEY records of one zone after their verification by VerifyDNSKEY. At least one of the keys
// matches a record of a DSSet and has signed the DNSKEY RRset. A Keys is immutable and safe for concurrent use.
type Keys struct {
	zone             name
	keys             []dnskey
	policy           Policy    // policy with which the keys were parsed
	ds               *DSSet    // DS records or trust anchors that the keys match
	entryPoint       keyDigest // record of ds that matches the signing key
	signatureExpires time.Time // expiration time of the DNSKEY RRset's signature
	ttl              uint32    // seconds for which the keys may be cached
}

// Zone returns the name of the zone in presentation format, with a final dot.
func (k *Keys) Zone() string { return k.zone.String() }

// IsTrusted reports whether data signed by the keys is secure. It is true if the keys match trust anchors, or DS records
// that were verified with trusted keys.
func (k *Keys) IsTrusted() bool { return k.ds.trusted }

// TTL returns the number of seconds for which the keys may be cached: that of their verification (see
// Verification.TTL).
func (k *Keys) TTL() uint32 { return k.ttl }

// Expires returns the time at which the keys expire. This is the expiration time of the signature of the DNSKEY RRset,
// or of the DS records if that is earlier.
func (k *Keys) Expires() time.Time {
	if e := k.ds.expires; !e.IsZero() && e.Before(k.signatureExpires) {
		return e
	}
	return k.signatureExpires
}

// WithTrustedDS returns a trusted copy of keys that were verified with DS records whose own signatures had not been
// verified yet. d holds the DS records after verification. No signature of the keys is verified again.
//
// The boolean is false if d does not confirm the keys: it is not trusted, or lacks the DS record that the keys match.
// With Policy.RequireAllAlgorithms, it is also false if d has other algorithms than the unverified DS records. The
// caller must then discard the keys and verify the DNSKEY RRset again.
func (k *Keys) WithTrustedDS(d *DSSet) (*Keys, bool) {
	if !d.trusted || d.zone != k.zone || !slices.Contains(d.supportedRecords(k.policy), k.entryPoint) {
		return nil, false
	}
	if k.policy.RequireAllAlgorithms && !slices.Equal(d.supportedAlgorithms(k.policy), k.ds.supportedAlgorithms(k.policy)) {
		return nil, false
	}
	c := *k
	c.ds = d
	return &c, true
}
