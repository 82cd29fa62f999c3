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

// supportsAlgorithm reports whether signatures of a DNSSEC algorithm can be verified. Zones that have only other
// algorithms are insecure.
//
// The numbers are from IANA's registry "DNS Security Algorithm Numbers" as of 2026-11, with the columns for validators
// of RFC 9904. Go's library lacks the algorithms 12, 16, 17 and 23. The numbers 253 and 254 are private.
func (p Policy) supportsAlgorithm(algorithm uint8) bool {
	switch algorithm {
	case dns.RSASHA256, dns.RSASHA512, dns.ECDSAP256SHA256, dns.ECDSAP384SHA384, dns.ED25519:
		return true
	case dns.RSASHA1, dns.RSASHA1NSEC3SHA1:
		return p.AllowSHA1 && sha1Allowed() || p.FakeLegacy
	}
	return p.skipsVerification(algorithm)
}

// skipsVerification reports whether signatures of the algorithm are accepted without verification: those of RSA/MD5,
// DSA and RSA/SHA-1 if FakeLegacy is set, as tests with old zones do.
func (p Policy) skipsVerification(algorithm uint8) bool {
	switch algorithm {
	case dns.RSAMD5, dns.DSA, dns.RSASHA1, dns.DSANSEC3SHA1, dns.RSASHA1NSEC3SHA1:
		return p.FakeLegacy
	}
	return false
}

// hashSignedData returns the digest that verifier.verify needs: the hash of data with the hash function of the
// algorithm. For Ed25519, it is data itself, because Ed25519 signs data without hashing it first.
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

// newVerifier returns a verifier for the public key in b, the public key field of a DNSKEY record. The algorithm must
// be supported. The error is errMalformed or errUnsupported.
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
			return ed25519Key(b), nil
		}
	}
	return nil, errMalformed
}

// An ecdsaKey is an ECDSA public key of algorithm 13 (P-256) or 14 (P-384).
type ecdsaKey struct{ key *ecdsa.PublicKey }

// newECDSAKey returns a verifier for the ECDSA public key in b, the public key field of a DNSKEY record. b is an
// uncompressed point of the curve without the prefix byte 4 (RFC 6605 §4). The error is errMalformed.
func newECDSAKey(curve elliptic.Curve, b []byte) (verifier, error) {
	key, err := ecdsa.ParseUncompressedPublicKey(curve, append([]byte{4}, b...))
	if err != nil {
		return nil, errMalformed
	}
	return ecdsaKey{key}, nil
}

// verify reports whether the signature of a digest is valid. The signature is the concatenation of r and s (RFC 6605
// §4).
func (k ecdsaKey) verify(digest, signature []byte) bool {
	half := len(digest) // both curves have the size of their hash
	if len(signature) != 2*half {
		return false
	}
	return ecdsa.VerifyASN1(k.key, digest, encodeECDSASignature(signature[:half], signature[half:]))
}

// encodeECDSASignature returns the DER encoding of an ECDSA signature, which package crypto/ecdsa needs
// (Ecdsa-Sig-Value, RFC 3279 §2.2.3). r and s are big-endian, and have at most 60 bytes each.
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

// cost returns the cost of a verification in units (see Policy.Verifications): 1 for P-256, and 10 for P-384, which
// takes about ten times as long.
func (k ecdsaKey) cost() int {
	if k.key.Curve == elliptic.P384() {
		return 10
	}
	return 1
}

// An ed25519Key is an Ed25519 public key, algorithm 15.
type ed25519Key ed25519.PublicKey

// verify reports whether the signature of data is valid. data is the signed data itself, and not its hash.
func (k ed25519Key) verify(data, signature []byte) bool {
	return ed25519.Verify(ed25519.PublicKey(k), data, signature)
}

// cost returns the cost of a verification, 1 unit.
func (ed25519Key) cost() int { return 1 }

// A fakeKey accepts every signature that is not empty. It is used only in tests, see Policy.FakeLegacy.
type fakeKey struct{}

// verify accepts any signature that is not empty. A fakeKey is used only in tests.
func (fakeKey) verify(_, signature []byte) bool { return len(signature) > 0 }

// cost returns the cost of a verification, 1 unit.
func (fakeKey) cost() int { return 1 }
