// Package signer makes DNSSEC keys and signatures for zones that exist in memory only, for tests and benchmarks of resolvers
// that validate signatures. It signs each answer when it is requested.
//
// All results depend only on the arguments: the same arguments give the same keys and signatures. Therefore the private keys
// are not secret.
package signer

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/asn1"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// Flags of a DNSKEY record: of a zone-signing key (ZSK) and of a key-signing key (KSK).
const (
	ZSK = dns.ZONE
	KSK = dns.ZONE | dns.SEP
)

// A Key is a DNSSEC key of one zone: the DNSKEY record with its private key. It is immutable, and safe for concurrent use.
type Key struct {
	*dns.DNSKEY
	private crypto.Signer // signs with the private key
}

// NewKey returns a key of the given zone with the given flags (ZSK or KSK) and algorithm. The key is derived from the
// arguments, so that zones can have several keys with different seeds. If the algorithm is unknown, the signatures of the key
// cannot be verified.
//
// RSA keys have 2,048 bits. All zones and seeds share four RSA keys, because RSA keys take long to generate.
func NewKey(zone string, flags uint16, algorithm uint8, seed string) *Key {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %d %s", zone, flags, algorithm, seed))
	var private crypto.Signer
	var public []byte
	switch algorithm {
	case dns.RSASHA1, dns.RSASHA1NSEC3SHA1, dns.RSASHA256, dns.RSASHA512:
		p := rsaKeys[sum[0]%2+2*byte(flags&dns.SEP)]()
		private, public = p, binary.BigEndian.AppendUint32([]byte{3}, uint32(p.E))
		public = append(slices.Delete(public, 1, 2), p.N.Bytes()...)
	case dns.ED25519:
		p := ed25519.NewKeyFromSeed(sum[:])
		private, public = p, p.Public().(ed25519.PublicKey)
	case dns.ECDSAP384SHA384:
		private, public = newCurveKey(elliptic.P384(), append(sum[:], sum[:16]...))
	default:
		private, public = newCurveKey(elliptic.P256(), sum[:])
	}
	return &Key{private: private, DNSKEY: &dns.DNSKEY{
		Hdr:   dns.RR_Header{Name: zone, Rrtype: dns.TypeDNSKEY, Class: dns.ClassINET, Ttl: 3600},
		Flags: flags, Protocol: 3, Algorithm: algorithm, PublicKey: base64.StdEncoding.EncodeToString(public),
	}}
}

// newCurveKey returns the private key on the curve c with the given secret number, and the encoded public key.
func newCurveKey(c elliptic.Curve, number []byte) (crypto.Signer, []byte) {
	number[0] &= 0x7f // below the order of the group
	p, err := ecdsa.ParseRawPrivateKey(c, number)
	if err != nil {
		panic(err) // only if number is zero, and no hash is zero
	}
	public, err := p.PublicKey.Bytes()
	if err != nil {
		panic(err) // the curves are known
	}
	return p, public[1:] // without the byte that marks the uncompressed form
}

// SignatureOptions are deviations from a valid signature, for tests of resolvers. The zero value gives a signature that is
// valid from 1998 to 2033.
type SignatureOptions struct {
	Signer   string // signer's name in the signature; "": the zone of the key
	From, To uint32 // start and end of the validity period in seconds since 1970; both 0: from 1998 to 2033
	Labels   int    // number that is added to the correct number of labels
	Forged   bool   // make the signature for other data, so that it is invalid
}

const (
	defaultInception  = 883612800  // 1998-01-01
	defaultExpiration = 1988150400 // 2033-01-01
)

// ExpiredSignature returns options for a signature that was valid in 1998 only.
func ExpiredSignature() SignatureOptions {
	return SignatureOptions{From: defaultInception, To: defaultInception + 365*86400}
}

// Sign returns the signature of the RRset set, with the deviations f. Names must be in lower case. For the RRset of a wildcard,
// the owner must start with "*.". The caller may then replace the owner of the records and of the signature.
func (k *Key) Sign(set []dns.RR, f SignatureOptions) *dns.RRSIG {
	h := set[0].Header()
	sig := &dns.RRSIG{
		Hdr:         dns.RR_Header{Name: h.Name, Rrtype: dns.TypeRRSIG, Class: h.Class, Ttl: h.Ttl},
		TypeCovered: h.Rrtype, Algorithm: k.Algorithm, OrigTtl: h.Ttl, Inception: f.From, Expiration: f.To,
		KeyTag: k.KeyTag(), SignerName: cmp.Or(f.Signer, k.Hdr.Name),
	}
	if f.From == 0 && f.To == 0 {
		sig.Inception, sig.Expiration = defaultInception, defaultExpiration
	}
	labels := dns.CountLabel(h.Name)
	if strings.HasPrefix(h.Name, "*.") {
		labels--
	}
	sig.Labels = uint8(labels + f.Labels)
	data := signedData(sig, set)
	if f.Forged {
		data = append(data, 0)
	}
	sig.Signature = base64.StdEncoding.EncodeToString(k.signData(data))
	return sig
}

// signedData returns the data that the signature sig of the RRset set is computed from (RFC 4034 §3.1.8.1).
func signedData(sig *dns.RRSIG, set []dns.RR) []byte {
	bare := *sig
	bare.Signature = ""
	_, data := packRecord(&bare)
	var all [][]byte
	for _, rr := range set {
		rr = dns.Copy(rr)
		h := rr.Header()
		h.Ttl = sig.OrigTtl
		head, rdata := packRecord(rr)
		all = append(all, append(head, rdata...))
	}
	name := len(all[0]) // length of the part before the RDATA, which is the same in all records
	for _, b := range all {
		name = min(name, nameLength(b)+10)
	}
	slices.SortFunc(all, func(a, b []byte) int { return bytes.Compare(a[name:], b[name:]) })
	for _, b := range slices.CompactFunc(all, bytes.Equal) {
		data = append(data, b...)
	}
	return data
}

// packRecord returns a record in wire format, in two parts: the part before the RDATA (head), and the RDATA. It panics if the
// record is invalid.
func packRecord(rr dns.RR) (head, rdata []byte) {
	b := make([]byte, dns.Len(rr)+1)
	n, err := dns.PackRR(rr, b, 0, nil, false)
	if err != nil {
		panic(fmt.Sprint(rr, err))
	}
	i := nameLength(b) + 10
	return b[:i:i], b[i:n]
}

// nameLength returns the length in bytes of the name in wire format at the start of b.
func nameLength(b []byte) int {
	n := 0
	for b[n] != 0 {
		n += 1 + int(b[n])
	}
	return n + 1
}

// signData returns the signature of data, in the encoding that RRSIG records use for the algorithm of the key.
func (k *Key) signData(data []byte) []byte {
	hash := crypto.SHA256
	switch k.Algorithm {
	case dns.RSASHA1, dns.RSASHA1NSEC3SHA1:
		hash = crypto.SHA1
	case dns.ECDSAP384SHA384:
		hash = crypto.SHA384
	case dns.RSASHA512:
		hash = crypto.SHA512
	case dns.ED25519:
		hash = 0
	}
	if hash != 0 {
		h := hash.New()
		h.Write(data)
		data = h.Sum(nil)
	}
	b, err := k.private.Sign(nil, data, hash) // without random numbers
	if err != nil {
		panic(err)
	}
	p, ok := k.private.(*ecdsa.PrivateKey)
	if !ok {
		return b
	}
	var both struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(b, &both); err != nil {
		panic(err)
	}
	size := (p.Params().BitSize + 7) / 8
	return append(both.R.FillBytes(make([]byte, size)), both.S.FillBytes(make([]byte, size))...)
}

var _ crypto.Signer = (*rsa.PrivateKey)(nil)
