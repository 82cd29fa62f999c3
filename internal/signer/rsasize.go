package signer

import (
	"crypto"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/big"
	"slices"

	"github.com/miekg/dns"
)

// An RSASize selects an RSA key with an unusual size or exponent. Of these keys, crypto/rsa supports only RSA4096.
type RSASize int

const (
	RSA512      RSASize = iota // 512 bits, the shortest that RFC 5702 allows
	RSA1000                    // 1,000 bits, which is not a multiple of 64
	RSA4096                    // 4,096 bits, the longest that RFC 5702 allows
	RSAExponent                // 2,048 bits, and an exponent above 2^32
)

// rsaSizes holds the number of bits and the exponent of each key. An offset is the difference between a result of
// primeCandidate and the next suitable prime number, so that no search for primes is necessary.
var rsaSizes = [...]struct {
	bits     int
	exponent int64
	offsets  [2]int64
}{
	RSA512:      {bits: 512, exponent: 65537, offsets: [2]int64{16, 140}},
	RSA1000:     {bits: 1000, exponent: 65537, offsets: [2]int64{1222, 16}},
	RSA4096:     {bits: 4096, exponent: 65537, offsets: [2]int64{3606, 608}},
	RSAExponent: {bits: 2048, exponent: 1<<32 + 15, offsets: [2]int64{402, 2228}},
}

// NewRSAKey returns a key of a zone with the given flags (ZSK or KSK), with the algorithm RSASHA256 and an unusual size
// or exponent. All zones share one private key of each size.
func NewRSAKey(zone string, flags uint16, size RSASize) *Key {
	shape := rsaSizes[size]
	p, q := primeCandidate(size, 0), primeCandidate(size, 1)
	one := big.NewInt(1)
	p.Add(p, big.NewInt(shape.offsets[0]))
	q.Add(q, big.NewInt(shape.offsets[1]))
	e := big.NewInt(shape.exponent)
	private := &rsaSigner{modulus: new(big.Int).Mul(p, q), p: p, q: q, coefficient: new(big.Int).ModInverse(q, p)}
	private.dp = new(big.Int).ModInverse(e, new(big.Int).Sub(p, one))
	private.dq = new(big.Int).ModInverse(e, new(big.Int).Sub(q, one))
	public := append([]byte{byte(len(e.Bytes()))}, e.Bytes()...)
	return &Key{private: private, DNSKEY: &dns.DNSKEY{
		Hdr:   dns.RR_Header{Name: zone, Rrtype: dns.TypeDNSKEY, Class: dns.ClassINET, Ttl: 3600},
		Flags: flags, Protocol: 3, Algorithm: dns.RSASHA256, PublicKey: base64.StdEncoding.EncodeToString(append(public, private.modulus.Bytes()...)),
	}}
}

// primeCandidate returns the number from which a prime factor of an RSA key is computed: the sum of this number and its
// offset in rsaSizes. It is odd, has half the bits of the key size, and its two highest bits are set. The argument
// which, 0 or 1, selects one of the two primes of the key.
func primeCandidate(size RSASize, which int) *big.Int {
	var all []byte
	for i := range 4 {
		sum := sha512.Sum512(fmt.Appendf(nil, "%d %d %d", size, which, i))
		all = append(all, sum[:]...)
	}
	bits := rsaSizes[size].bits / 2
	n := new(big.Int).SetBytes(all)
	n.Rsh(n, uint(8*len(all)-bits))
	return n.SetBit(n.SetBit(n.SetBit(n, bits-1, 1), bits-2, 1), 0, 1)
}

// An rsaSigner is a private RSA key of any size and exponent, which signs SHA-256 hashes (RFC 8017 §8.2.1). It implements
// crypto.Signer.
type rsaSigner struct{ modulus, p, q, dp, dq, coefficient *big.Int }

// sha256Prefix is the DER encoding that precedes a SHA-256 hash in a signature (RFC 8017 §9.2).
var sha256Prefix = []byte{0x30, 0x31, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01, 0x05, 0x00, 0x04, 0x20}

// Public returns nil, because the DNSKEY record has the public key.
func (s *rsaSigner) Public() crypto.PublicKey { return nil }

// Sign returns the PKCS #1 v1.5 signature of the hash digest. It returns an error if hash is not SHA-256.
func (s *rsaSigner) Sign(_ io.Reader, digest []byte, hash crypto.SignerOpts) ([]byte, error) {
	if hash != crypto.SHA256 {
		return nil, errors.New("signer: the hash is not that of SHA-256")
	}
	size := (s.modulus.BitLen() + 7) / 8
	padding := size - 3 - len(sha256Prefix) - len(digest)
	encoded := slices.Concat([]byte{0, 1}, slices.Repeat([]byte{0xff}, padding), []byte{0}, sha256Prefix, digest)
	m := new(big.Int).SetBytes(encoded)
	a, b := new(big.Int).Exp(m, s.dp, s.p), new(big.Int).Exp(m, s.dq, s.q)
	h := new(big.Int).Sub(a, b) // RFC 8017 §5.1.2
	h.Mod(h.Mul(h, s.coefficient), s.p)
	return h.Add(h.Mul(h, s.q), b).FillBytes(make([]byte, size)), nil
}
