package validate

import (
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/miekg/dns"
)

// A DSSet identifies the keys that may sign the DNSKEY RRset of a zone. It consists of DS records from the parent zone,
// or of trust anchors. It is immutable.
type DSSet struct {
	zone    name
	entries []keyDigest
	trusted bool      // the set consists of trust anchors, or of DS records verified with trusted keys
	expires time.Time // expiration time of the signature; zero if the set does not expire
	ttl     uint32    // seconds for which the set may be cached
}

// A keyDigest is an entry of a DSSet, which identifies a DNSKEY record. It holds the fields of a DS record, or the
// whole data of a DNSKEY record that is a trust anchor.
type keyDigest struct {
	tag        uint16 // key tag
	algorithm  uint8
	digestType uint8 // 0 if digest is the data of a DNSKEY record
	digest     string
}

// parseDS parses the data of a DS record (RFC 4034 §5.1). ok is false if the data is malformed.
func parseDS(b []byte) (a keyDigest, ok bool) {
	const fixed = 4
	if len(b) < fixed || b[3] == 0 {
		return a, false
	}
	return keyDigest{tag: binary.BigEndian.Uint16(b), algorithm: b[2], digestType: b[3], digest: string(b[fixed:])}, true
}

// isDigestSupported reports whether digests of the record's type can be computed. SHA-1 is supported only if this
// process may use it.
func (d keyDigest) isDigestSupported() bool {
	switch d.digestType {
	case 0, dns.SHA256, dns.SHA384:
		return true
	case dns.SHA1:
		return sha1Allowed()
	}
	return false
}

// matchesKey reports whether d, a DS record or trust anchor, identifies the key k of the zone: the digest of k is equal
// to that in d. The caller must have compared the key tag and the algorithm. With the policy FakeLegacy, which is for
// tests, every digest of type 1 is accepted.
func (d keyDigest) matchesKey(zone name, k *dnskey, p Policy) bool {
	owned := append([]byte(zone), k.data...)
	switch d.digestType {
	case 0:
		return d.digest == string(k.data)
	case dns.SHA1:
		h := sha1.Sum(owned)
		return p.FakeLegacy || d.digest == string(h[:])
	case dns.SHA256:
		h := sha256.Sum256(owned)
		return d.digest == string(h[:])
	case dns.SHA384:
		h := sha512.Sum384(owned)
		return d.digest == string(h[:])
	}
	return false
}

// TrustAnchors returns a trusted set of DS and DNSKEY records from a configuration. All records must belong to the same
// zone.
//
// The error is not nil if there are no records, or if a record has another zone, class or type, or cannot be a trust
// anchor.
func TrustAnchors(records ...dns.RR) (*DSSet, error) {
	if len(records) == 0 {
		return nil, errors.New("dnssec: no anchor")
	}
	d := &DSSet{trusted: true, ttl: maxTTL}
	for i, rr := range records {
		c := NewRRset([]dns.RR{rr}).canonicalForm()
		h := rr.Header()
		if !c.ok || h.Class != dns.ClassINET || i > 0 && c.owner != d.zone {
			return nil, fmt.Errorf("dnssec: anchors of %s: %s is none", records[0].Header().Name, rr)
		}
		d.zone = c.owner
		var a keyDigest
		ok := false
		switch data := c.rdata[0]; h.Rrtype {
		case dns.TypeDS:
			a, ok = parseDS(data)
		case dns.TypeDNSKEY:
			k := Policy{}.parseDNSKEY(data)
			a, ok = keyDigest{tag: k.tag, algorithm: k.algorithm, digest: string(data)}, k.verifier != nil || k.unsupported
		}
		if !ok {
			return nil, fmt.Errorf("dnssec: anchors of %s: %s is none", h.Name, rr)
		}
		d.entries = append(d.entries, a)
	}
	return d, nil
}

// RootTrustAnchors returns the built-in trust anchors of the root zone. They are the keys with the key tags 20326 and
// 38696 in IANA's root-anchors.xml (RFC 9718).
func RootTrustAnchors() *DSSet {
	var records []dns.RR
	for _, a := range [...]dns.DS{
		{KeyTag: 20326, Digest: "E06D44B80B8F1D39A95C0B0D7C65D08458E880409BBC683457104237C7F8EC8D"},
		{KeyTag: 38696, Digest: "683D2D0ACB8C9B712A1948B27F741219298D0A450D612C483AF444A4C0FB2B16"},
	} {
		a.Hdr = dns.RR_Header{Name: ".", Rrtype: dns.TypeDS, Class: dns.ClassINET}
		a.Algorithm, a.DigestType = dns.RSASHA256, dns.SHA256
		records = append(records, &a)
	}
	d, err := TrustAnchors(records...)
	if err != nil {
		panic(err) // unreachable: the constants are valid
	}
	return d
}

// UnverifiedDS returns a set of the DS records in a referral before their signatures can be verified. The set is not
// trusted.
//
// Keys that match the set can already verify signatures, but the status of the data is Unchecked. It becomes Secure
// only if Keys.WithTrustedDS succeeds with the verified DS records.
func UnverifiedDS(s *RRset) *DSSet {
	c := s.canonicalForm()
	d := &DSSet{zone: c.owner, ttl: s.TTL}
	if !c.ok || s.Type != dns.TypeDS || s.Class != dns.ClassINET {
		return d
	}
	for _, data := range c.rdata {
		if a, ok := parseDS(data); ok {
			d.entries = append(d.entries, a)
		}
	}
	return d
}

// Zone returns the name of the zone in presentation format, with a final dot.
func (d *DSSet) Zone() string { return d.zone.String() }

// IsTrusted reports whether the set consists of trust anchors, or of DS records that were verified with trusted keys.
func (d *DSSet) IsTrusted() bool { return d.trusted }

// Expires returns the expiration time of the signature of the DS records. It is zero if the set has no signature, for
// example if it consists of trust anchors.
func (d *DSSet) Expires() time.Time { return d.expires }

// TTL returns the number of seconds for which the set may be cached.
func (d *DSSet) TTL() uint32 { return d.ttl }

// UnsupportedReason returns why the DS records cannot confirm any key: all have an unsupported algorithm or digest
// type. It returns nil if the policy supports at least one record.
//
// If it is not nil and the set is trusted, the zone is insecure, and its keys need not be queried (RFC 4035 §5.2).
func (d *DSSet) UnsupportedReason(p Policy) *Reason {
	if slices.ContainsFunc(d.entries, func(a keyDigest) bool { return p.supportsAlgorithm(a.algorithm) && a.isDigestSupported() }) {
		return nil
	}
	r := &Reason{EDE: dns.ExtendedErrorCodeUnsupportedDNSKEYAlgorithm, Text: "no DS record has an algorithm that is supported",
		Zone: d.Zone(), Name: d.Zone(), Type: dns.TypeDS}
	for _, a := range d.entries {
		if p.supportsAlgorithm(a.algorithm) {
			r.EDE, r.Text = dns.ExtendedErrorCodeUnsupportedDSDigestType, "no DS record has a digest that is supported"
		}
	}
	return r
}

// supportedRecords returns the records that can confirm a key, because their algorithm and digest type are supported.
// It returns at most maxDS records. DNSKEY trust anchors, which hold a whole key, come first. Records with SHA-1
// digests are returned only if there are no others with a digest (RFC 4509 §3).
//
// The digest types are those of IANA's registry "DNSSEC Delegation Signer (DS) Resource Record (RR) Type Digest
// Algorithms" as of 2026-11.
func (d *DSSet) supportedRecords(p Policy) []keyDigest {
	var whole, strong, weak []keyDigest
	for _, a := range d.entries {
		if !p.supportsAlgorithm(a.algorithm) || !a.isDigestSupported() {
			continue
		}
		switch a.digestType {
		case 0:
			whole = append(whole, a)
		case dns.SHA256, dns.SHA384:
			strong = append(strong, a)
		case dns.SHA1:
			weak = append(weak, a)
		}
	}
	if len(strong) == 0 {
		strong = weak
	}
	usable := append(whole, strong...)
	return usable[:min(len(usable), maxDS)]
}

// supportedAlgorithms returns the algorithms of the usable DS records (see supportedRecords), in ascending order and
// without duplicates.
func (d *DSSet) supportedAlgorithms(p Policy) []uint8 {
	var algorithms []uint8
	for _, a := range d.supportedRecords(p) {
		algorithms = append(algorithms, a.algorithm)
	}
	slices.Sort(algorithms)
	return slices.Compact(algorithms)
}

// KeyTags returns the key tags of the records without duplicates, in the order of the records.
func (d *DSSet) KeyTags() (tags []uint16) {
	for _, a := range d.entries {
		if !slices.Contains(tags, a.tag) {
			tags = append(tags, a.tag)
		}
	}
	return tags
}
