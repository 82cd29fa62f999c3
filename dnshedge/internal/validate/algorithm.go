package validate

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"

	"github.com/miekg/dns"
)

// supportsAlgorithm reports whether signatures of an algorithm are verified. The numbers are IANA's, in the registry "DNS Security Algorithm
// Numbers", whose columns for validators are what RFC 9904 has put in place of RFC 8624, as of 2026-11. No other is: 12, 16, 17 and 23
// are not in Go's library, and 253 and 254 are nobody's in particular.
func (p Policy) supportsAlgorithm(algorithm uint8) bool {
	switch algorithm {
	case dns.RSASHA256, dns.RSASHA512, dns.ECDSAP256SHA256, dns.ECDSAP384SHA384, dns.ED25519:
		return true
	case dns.RSASHA1, dns.RSASHA1NSEC3SHA1:
		return p.AllowSHA1 && sha1Allowed() || p.FakeLegacy
	}
	return p.skipsVerification(algorithm)
}

// skipsVerification reports whether signatures of an algorithm are taken as right without a look at them.
func (p Policy) skipsVerification(algorithm uint8) bool {
	switch algorithm {
	case dns.RSAMD5, dns.DSA, dns.RSASHA1, dns.DSANSEC3SHA1, dns.RSASHA1NSEC3SHA1:
		return p.FakeLegacy
	}
	return false
}

// digest returns what an algorithm signs of some data: its hash, or all of it.
func hashSignedData(algorithm uint8, data []byte) []byte {
	switch algorithm {
	case dns.RSASHA1, dns.RSASHA1NSEC3SHA1:
		h := sha1.Sum(data)
		return h[:]
	case dns.RSASHA256, dns.ECDSAP256SHA256:
		h := sha256.Sum256(data)
		return h[:]
	case dns.RSASHA512:
		h := sha512.Sum512(data)
		return h[:]
	case dns.ECDSAP384SHA384:
		h := sha512.Sum384(data)
		return h[:]
	}
	return data
}

// newVerifier reads a public key of an algorithm that the policy verifies.
func (p Policy) newVerifier(algorithm uint8, b []byte) (verifier, error) {
	if p.skipsVerification(algorithm) {
		return fakeKey{}, nil
	}
	switch algorithm {
	case dns.RSASHA1, dns.RSASHA1NSEC3SHA1:
		return newRSAKey(crypto.SHA1, b)
	case dns.RSASHA256:
		return newRSAKey(crypto.SHA256, b)
	case dns.RSASHA512:
		return newRSAKey(crypto.SHA512, b)
	case dns.ECDSAP256SHA256:
		return newECDSAKey(elliptic.P256(), b)
	case dns.ECDSAP384SHA384:
		return newECDSAKey(elliptic.P384(), b)
	case dns.ED25519:
		if len(b) == ed25519.PublicKeySize {
			return edKey(b), nil
		}
	}
	return nil, errMalformed
}

type ecdsaKey struct{ key *ecdsa.PublicKey }

// newECDSAKey reads a point as RFC 6605 §4 has it.
func newECDSAKey(curve elliptic.Curve, b []byte) (verifier, error) {
	key, err := ecdsa.ParseUncompressedPublicKey(curve, append([]byte{4}, b...))
	if err != nil {
		return nil, errMalformed
	}
	return ecdsaKey{key}, nil
}

func (k ecdsaKey) verify(digest, signature []byte) bool {
	half := len(digest) // both curves have as many bytes as their hash
	if len(signature) != 2*half {
		return false
	}
	return ecdsa.VerifyASN1(k.key, digest, encodeECDSASignature(signature[:half], signature[half:]))
}

// encodeECDSASignature returns two numbers of 60 bytes at most as crypto/ecdsa reads a signature: Ecdsa-Sig-Value of RFC 3279 §2.2.3, in DER.
func encodeECDSASignature(r, s []byte) []byte {
	b := append(make([]byte, 0, 128), 0x30, 0)
	for _, n := range [...][]byte{r, s} {
		for len(n) > 1 && n[0] == 0 {
			n = n[1:]
		}
		if n[0] >= 0x80 { // it would be negative
			b = append(b, 2, byte(len(n)+1), 0)
		} else {
			b = append(b, 2, byte(len(n)))
		}
		b = append(b, n...)
	}
	b[1] = byte(len(b) - 2)
	return b
}

func (k ecdsaKey) cost() int {
	if k.key.Curve == elliptic.P384() {
		return 10
	}
	return 1
}

type edKey ed25519.PublicKey

func (k edKey) verify(data, signature []byte) bool {
	return ed25519.Verify(ed25519.PublicKey(k), data, signature)
}

func (edKey) cost() int { return 1 }

// fakeKey is Policy.FakeLegacy's. A signature that is empty is wrong.
type fakeKey struct{}

func (fakeKey) verify(_, signature []byte) bool { return len(signature) > 0 }
func (fakeKey) cost() int                       { return 1 }
