package validate_test

import (
	"crypto"
	"encoding/base64"
	"fmt"
	"io"
	"math/big"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// rsaSigner signs SHA-256 hashes with an RSA key of any size and exponent: RFC 8017 section 8.2.1.
type rsaSigner struct{ n, e, d *big.Int }

// newRSASigner makes a key of two primes that are less by a and b than powers of two: to search for primes takes seconds.
func newRSASigner(t testing.TB, bits int, e *big.Int, a, b int64) *rsaSigner {
	one := big.NewInt(1)
	p := new(big.Int).Sub(new(big.Int).Lsh(one, uint(bits/2)), big.NewInt(a))
	q := new(big.Int).Sub(new(big.Int).Lsh(one, uint(bits-bits/2)), big.NewInt(b))
	n := new(big.Int).Mul(p, q)
	require.Equal(t, bits, n.BitLen())
	d := new(big.Int).ModInverse(e, new(big.Int).Mul(new(big.Int).Sub(p, one), new(big.Int).Sub(q, one)))
	require.NotNil(t, d)
	return &rsaSigner{n, e, d}
}

func (s *rsaSigner) Public() crypto.PublicKey { return nil }

func (s *rsaSigner) Sign(_ io.Reader, digest []byte, _ crypto.SignerOpts) ([]byte, error) {
	size := (s.n.BitLen() + 7) / 8
	m := make([]byte, size)
	for i := range m {
		m[i] = 0xff
	}
	der := append([]byte{0, 0x30, 0x31, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01, 0x05, 0x00, 0x04, 0x20}, digest...)
	m[0], m[1] = 0, 1
	copy(m[size-len(der):], der)
	return new(big.Int).Exp(new(big.Int).SetBytes(m), s.d, s.n).FillBytes(make([]byte, size)), nil
}

func (s *rsaSigner) dnskey() *dns.DNSKEY {
	e := s.e.Bytes()
	length := []byte{byte(len(e))}
	if len(e) > 255 {
		length = []byte{0, byte(len(e) >> 8), byte(len(e))}
	}
	return &dns.DNSKEY{Hdr: dns.RR_Header{Name: "example.", Rrtype: dns.TypeDNSKEY, Class: dns.ClassINET, Ttl: 300}, Flags: 257, Protocol: 3, Algorithm: dns.RSASHA256,
		PublicKey: base64.StdEncoding.EncodeToString(append(append(length, e...), s.n.Bytes()...))}
}

// RFC 5702 section 2.1 and RFC 3110 section 2. crypto/rsa refuses all of these but the last.
func TestRSAKeysOfAnySizeAndExponentVerify(t *testing.T) {
	huge := new(big.Int).SetBit(big.NewInt(1), 2000, 1)
	for _, c := range []struct {
		bits int
		e    *big.Int
		a, b int64 // see newRSASigner
		most int   // units that a verification costs
	}{
		{512, big.NewInt(3), 587, 617, 1}, {513, big.NewInt(65537), 189, 93, 1}, {768, big.NewInt(65537), 317, 1437, 1}, {1023, big.NewInt(65537), 187, 569, 1},
		{1024, big.NewInt(1<<31 + 1), 569, 629, 2}, {2048, big.NewInt(1<<32 + 1), 105, 179, 2}, {2048, new(big.Int).SetUint64(1<<63 + 1), 179, 1397, 4},
		{1024, huge, 569, 629, 32}, {4096, new(big.Int).SetUint64(1<<63 + 1), 8507, 9443, 14}, {2048, new(big.Int).SetBit(big.NewInt(1), 2047, 1), 179, 1397, 104}, {1024, big.NewInt(65537), 569, 629, 1},
	} {
		t.Run(fmt.Sprintf("%d bits, exponent of %d", c.bits, c.e.BitLen()), func(t *testing.T) {
			s := newRSASigner(t, c.bits, c.e, c.a, c.b)
			key := s.dnskey()
			sign := func(rrs []dns.RR) *dns.RRSIG {
				g := &dns.RRSIG{Hdr: dns.RR_Header{Name: rrs[0].Header().Name, Rrtype: dns.TypeRRSIG, Class: dns.ClassINET, Ttl: 300}, Algorithm: key.Algorithm,
					SignerName: "example.", KeyTag: key.KeyTag(), Inception: uint32(now.Unix() - 3600), Expiration: uint32(now.Unix() + 86400)}
				require.NoError(t, g.Sign(s, rrs))
				return g
			}
			d, err := validate.TrustAnchors(key.ToDS(dns.SHA256))
			require.NoError(t, err)
			keys := []dns.RR{key}
			honest := new(validate.Validation)
			k, status, err := honest.VerifyDNSKEY(d, validate.NewRRset(keys, sign(keys)), now)
			require.NoError(t, err)
			require.Equal(t, validate.Secure, status)
			rrs := records(t, "a.example. 300 IN A 192.0.2.1")
			right := sign(rrs)
			w := new(validate.Validation)
			_, err = w.Verify(validate.NewRRset(rrs, right), k, now)
			require.NoError(t, err)
			spent, _, _ := w.SpentWork()
			assert.LessOrEqual(t, spent, c.most)
			_, err = honest.Verify(validate.NewRRset(rrs, right), k, now)
			require.NoError(t, err, "a question can pay for keys and an answer")

			b, err := base64.StdEncoding.DecodeString(right.Signature)
			require.NoError(t, err)
			value, size := new(big.Int).SetBytes(b), len(b)
			wrong := map[string][]byte{
				"long": append([]byte{0}, b...), "short": b[1:], "empty": nil, "zero": make([]byte, size), "other": new(big.Int).Xor(value, big.NewInt(1)).FillBytes(make([]byte, size)),
			}
			if more := new(big.Int).Add(value, s.n); more.BitLen() <= 8*size {
				wrong["above the modulus"] = more.FillBytes(make([]byte, size))
			}
			for name, b := range wrong {
				g := *right
				g.Signature = base64.StdEncoding.EncodeToString(b)
				_, err = new(validate.Validation).Verify(validate.NewRRset(rrs, &g), k, now)
				assert.Error(t, err, name)
			}
		})
	}
}
