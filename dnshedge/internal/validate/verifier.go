package validate

import "errors"

// A verifier is a parsed public key that verifies signatures of one algorithm.
type verifier interface {
	// verify reports whether signature is a valid signature of digest, a result of hashSignedData.
	verify(digest, signature []byte) bool
	// cost returns the cost of verifying one signature, at least 1. The unit is described at Policy.Verifications.
	cost() int
}

var (
	errMalformed   = errors.New("the key is malformed")
	errUnsupported = errors.New("the key is of a size that is not supported")
)
