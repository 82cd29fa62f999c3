package validate

import (
	"bytes"
	"crypto"
	"crypto/rsa"
	"encoding/hex"
	"errors"
	"math"
	"math/big"
)

// Limits of RSA key sizes in bits (RFC 5702 §2).
const (
	minRSA       = 512
	minRSASHA512 = 1024 // minimum for algorithm 10, RSA/SHA-512
	maxRSA       = 4096

	// If the modulus is longer than maxModulusOfLongExponent, a key with an exponent of more than maxExponent bits is
	// malformed: a verification would take up to 35 ms. OpenSSL has this limit above 3,072 bits, and BIND accepts 35 bits.
	maxModulusOfLongExponent = 2048
	maxExponent              = 64
)

// rsaPrefixes has, for each hash function, the DER encoding that precedes the hash in an RSA signature (RFC 8017 §9.2).
var rsaPrefixes = map[crypto.Hash][]byte{
	crypto.SHA1:   mustDecodeHex("3021300906052b0e03021a05000414"),
	crypto.SHA256: mustDecodeHex("3031300d060960864801650304020105000420"),
	crypto.SHA512: mustDecodeHex("3051300d060960864801650304020305000440"),
}

// mustDecodeHex decodes a hexadecimal constant. It panics if the constant is invalid.
func mustDecodeHex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic(err) // unreachable: the constants are valid
	}
	return b
}

// newRSAKey returns a verifier for the RSA public key in b, the public key field of a DNSKEY record (RFC 3110 §2). hash
// is the hash function of the algorithm. The verifier uses math/big if crypto/rsa rejects the size or the exponent of
// the key.
//
// The error is errMalformed, or errUnsupported if the size is outside of the limits of RFC 5702 §2.
func newRSAKey(hash crypto.Hash, b []byte) (verifier, error) {
	if len(b) < 1 {
		return nil, errMalformed
	}
	n := int(b[0])
	b = b[1:]
	if n == 0 && len(b) >= 2 {
		n = int(b[0])<<8 | int(b[1])
		b = b[2:]
	}
	if n == 0 || n >= len(b) {
		return nil, errMalformed
	}
	e, m := new(big.Int).SetBytes(b[:n]), new(big.Int).SetBytes(b[n:])
	least := minRSA
	if hash == crypto.SHA512 {
		least = minRSASHA512
	}
	switch {
	case e.Bit(0) == 0 || m.Bit(0) == 0 || e.Cmp(big.NewInt(1)) <= 0:
		return nil, errMalformed
	case m.BitLen() < least || m.BitLen() > maxRSA || e.BitLen() > maxRSA:
		return nil, errUnsupported
	case m.BitLen() > maxModulusOfLongExponent && e.BitLen() > maxExponent:
		return nil, errMalformed
	}
	if e.BitLen() < 32 {
		k := &rsaKey{hash: hash, key: rsa.PublicKey{N: m, E: int(e.Int64())}}
		usual := m.BitLen() >= 1024 && sha1Allowed() // the limit is 2,048 bits where SHA-1 is not allowed
		if e.Int64() <= math.MaxInt32 && (usual || k.hasAcceptedSize()) {
			return k, nil
		}
	}
	return &bigRSAKey{hash: hash, modulus: m, exponent: e}, nil
}

// An rsaKey is an RSA public key whose signatures crypto/rsa can verify.
type rsaKey struct {
	hash crypto.Hash // hash function of the algorithm
	key  rsa.PublicKey
}

// hasAcceptedSize reports whether crypto/rsa accepts keys of this size, which depends on the GODEBUG setting rsa1024min.
//
// It tries to verify a signature of zero bytes. The error rsa.ErrVerification means that the key was accepted and the
// signature was not.
func (k *rsaKey) hasAcceptedSize() bool {
	err := rsa.VerifyPKCS1v15(&k.key, k.hash, make([]byte, k.hash.Size()), make([]byte, k.key.Size()))
	return errors.Is(err, rsa.ErrVerification)
}

// verify reports whether the PKCS #1 v1.5 signature of a digest is valid, with package crypto/rsa.
func (k *rsaKey) verify(digest, signature []byte) bool {
	return rsa.VerifyPKCS1v15(&k.key, k.hash, digest, signature) == nil
}

// cost returns the cost of a verification in units (see Policy.Verifications), from 1 to 10. The time grows with the
// modulus and the exponent. A verification with 4,096 bits takes 0.27 ms for the usual exponent 65,537, and 0.7 ms for
// 2³¹ - 1.
func (k *rsaKey) cost() int {
	switch long, slow := k.key.N.BitLen() > 2048, k.key.E > 1<<16+1; {
	case long && slow:
		return 10
	case long:
		return 5
	case slow:
		return 2
	}
	return 1
}

// A bigRSAKey is an RSA public key that crypto/rsa rejects because of its size or exponent. It verifies signatures with
// math/big.
type bigRSAKey struct {
	hash              crypto.Hash
	modulus, exponent *big.Int
}

// verify reports whether the PKCS #1 v1.5 signature of a digest is valid (RFC 8017 §8.2.2), with package math/big.
func (k *bigRSAKey) verify(digest, signature []byte) bool {
	size := (k.modulus.BitLen() + 7) / 8
	prefix := rsaPrefixes[k.hash]
	padding := size - 3 - len(prefix) - len(digest)
	s := new(big.Int).SetBytes(signature)
	if len(signature) != size || padding < 8 || s.Cmp(k.modulus) >= 0 {
		return false
	}
	want := append([]byte{0, 1}, bytes.Repeat([]byte{0xff}, padding)...)
	want = append(append(append(want, 0), prefix...), digest...)
	return bytes.Equal(want, s.Exp(s, k.exponent, k.modulus).FillBytes(make([]byte, size)))
}

// cost returns the cost of a verification in units (see Policy.Verifications). The time grows with the square of the
// modulus length and with the exponent length. A verification takes 2.6 ms if both have 2,048 bits, and 0.7 ms with
// 4,096 and 64 bits.
func (k *bigRSAKey) cost() int {
	n := k.modulus.BitLen()
	return 1 + k.exponent.BitLen()*n*n/(80<<20)
}
