package validate_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/asn1"
	"encoding/base64"
	"encoding/binary"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

var now = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

const (
	day = 24 * time.Hour
	ksk = dns.ZONE | dns.SEP
	zsk = dns.ZONE
)

// records reads records in the form of zone files.
func records(t testing.TB, lines ...string) []dns.RR {
	t.Helper()
	var rrs []dns.RR
	for _, line := range lines {
		rr, err := dns.NewRR(line)
		require.NoError(t, err, line)
		switch rr := rr.(type) { // their order is no matter of a test
		case *dns.NSEC:
			slices.Sort(rr.TypeBitMap)
		case *dns.NSEC3:
			slices.Sort(rr.TypeBitMap)
			rr.SaltLength = uint8(len(rr.Salt) / 2) // package dns counts to 127
		}
		rrs = append(rrs, rr)
	}
	return rrs
}

// A signer is a key of a zone.
type signer struct {
	key     *dns.DNSKEY
	private crypto.Signer
}

func newSigner(t testing.TB, zone string, algorithm uint8, bits int, flags uint16) *signer {
	t.Helper()
	k := &dns.DNSKEY{Hdr: dns.RR_Header{Name: zone, Rrtype: dns.TypeDNSKEY, Class: dns.ClassINET, Ttl: 3600}, Flags: flags, Protocol: 3, Algorithm: algorithm}
	p, err := k.Generate(bits)
	require.NoError(t, err)
	return &signer{k, p.(crypto.Signer)}
}

// seeded returns a key that is always the same.
func seeded(zone string, flags uint16, seed byte) *signer {
	p := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
	return &signer{&dns.DNSKEY{
		Hdr:   dns.RR_Header{Name: zone, Rrtype: dns.TypeDNSKEY, Class: dns.ClassINET, Ttl: 3600},
		Flags: flags, Protocol: 3, Algorithm: dns.ED25519, PublicKey: base64.StdEncoding.EncodeToString(p.Public().(ed25519.PublicKey)),
	}, p}
}

func (s *signer) ds(t testing.TB, digest uint8) *dns.DS {
	t.Helper()
	d := s.key.ToDS(digest)
	d.KeyTag = s.tag(t)
	return d
}

// tag returns the key's tag. Package dns has another for RSA/MD5 than RFC 4034 appendix B.1.
func (s *signer) tag(t testing.TB) uint16 {
	t.Helper()
	if b := rdata(t, s.key); s.key.Algorithm == dns.RSAMD5 {
		return binary.BigEndian.Uint16(b[len(b)-3:])
	}
	return s.key.KeyTag()
}

// sign signs records, whose data has no upper case. It does what change says of the RRSIG, however wrong that is.
func (s *signer) sign(t testing.TB, rrs []dns.RR, change ...func(*dns.RRSIG)) *dns.RRSIG {
	t.Helper()
	h := rrs[0].Header()
	g := &dns.RRSIG{
		Hdr:         dns.RR_Header{Name: h.Name, Rrtype: dns.TypeRRSIG, Class: h.Class, Ttl: h.Ttl},
		TypeCovered: h.Rrtype, Algorithm: s.key.Algorithm, Labels: uint8(dns.CountLabel(strings.TrimPrefix(h.Name, "*."))), OrigTtl: h.Ttl,
		Expiration: uint32(now.Add(10 * day).Unix()), Inception: uint32(now.Add(-10 * day).Unix()), KeyTag: s.tag(t), SignerName: s.key.Hdr.Name,
	}
	if h.Name == "*." {
		g.Labels = 0
	}
	for _, f := range change {
		f(g)
	}
	owner := strings.ToLower(h.Name)
	labels := dns.SplitDomainName(owner)
	if n := len(labels) - int(g.Labels); n > 0 && !(n == 1 && labels[0] == "*") {
		owner = dns.Fqdn("*." + strings.Join(labels[n:], "."))
	}
	signed := rdata(t, g)
	var all [][]byte
	for _, rr := range rrs {
		c := dns.Copy(rr)
		c.Header().Name, c.Header().Ttl = owner, g.OrigTtl
		all = append(all, packed(t, c))
	}
	slices.SortFunc(all, bytes.Compare) // owners, types, classes and TTLs are the same, but lengths come before data
	slices.SortFunc(all, func(a, b []byte) int { return bytes.Compare(a[head(a):], b[head(b):]) })
	for _, b := range slices.CompactFunc(all, bytes.Equal) {
		signed = append(signed, b...)
	}
	g.Signature = base64.StdEncoding.EncodeToString(s.raw(t, signed))
	return g
}

// raw signs bytes.
func (s *signer) raw(t testing.TB, b []byte) []byte {
	t.Helper()
	hash := map[uint8]crypto.Hash{dns.RSASHA1: crypto.SHA1, dns.RSASHA1NSEC3SHA1: crypto.SHA1, dns.RSASHA256: crypto.SHA256,
		dns.RSASHA512: crypto.SHA512, dns.ECDSAP256SHA256: crypto.SHA256, dns.ECDSAP384SHA384: crypto.SHA384}[s.key.Algorithm]
	if _, ok := s.private.(ed25519.PrivateKey); ok {
		hash = 0 // also if the record says something else
	}
	if hash != 0 {
		h := hash.New()
		h.Write(b)
		b = h.Sum(nil)
	}
	sig, err := s.private.Sign(rand.Reader, b, hash)
	require.NoError(t, err)
	if k, ok := s.private.(*ecdsa.PrivateKey); ok {
		var rs struct{ R, S *big.Int }
		_, err := asn1.Unmarshal(sig, &rs)
		require.NoError(t, err)
		n := k.Params().BitSize / 8
		sig = append(rs.R.FillBytes(make([]byte, n)), rs.S.FillBytes(make([]byte, n))...)
	}
	return sig
}

func packed(t testing.TB, rr dns.RR) []byte {
	t.Helper()
	b := make([]byte, 70000)
	n, err := dns.PackRR(rr, b, 0, nil, false)
	require.NoError(t, err)
	return b[:n]
}

// head returns where the data of a packed record begins.
func head(b []byte) int {
	n := 0
	for b[n] != 0 {
		n += 1 + int(b[n])
	}
	return n + 11
}

func rdata(t testing.TB, rr dns.RR) []byte {
	t.Helper()
	b := packed(t, rr)
	return b[head(b):]
}

// set returns an RRset with a signature of each signer.
func set(t testing.TB, rrs []dns.RR, signers ...*signer) *validate.RRset {
	t.Helper()
	var sigs []*dns.RRSIG
	for _, s := range signers {
		sigs = append(sigs, s.sign(t, rrs))
	}
	return validate.NewRRset(rrs, sigs...)
}

// dnskeys returns the DNSKEY RRset of some keys, signed by the first.
func dnskeys(t testing.TB, signers ...*signer) *validate.RRset {
	t.Helper()
	var rrs []dns.RR
	for _, s := range signers {
		rrs = append(rrs, s.key)
	}
	return set(t, rrs, signers[0])
}

// trust returns the keys of a zone, the first of which is an anchor.
func trust(t testing.TB, signers ...*signer) *validate.Keys {
	t.Helper()
	d, err := validate.TrustAnchors(signers[0].ds(t, dns.SHA256))
	require.NoError(t, err)
	k, status, err := new(validate.Validation).VerifyDNSKEY(d, dnskeys(t, signers...), now)
	require.NoError(t, err)
	require.Equal(t, validate.Secure, status)
	return k
}

// reason returns the reason of an error.
func reason(t testing.TB, err error) *validate.Reason {
	t.Helper()
	var r *validate.Reason
	require.ErrorAs(t, err, &r)
	return r
}

// ede asserts that an error is a reason with a code.
func ede(t testing.TB, code uint16, err error) {
	t.Helper()
	r := reason(t, err)
	assert.Equal(t, code, r.EDE, r.Text)
}
