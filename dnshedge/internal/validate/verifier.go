package validate

import "errors"

// A verifier is a parsed public key.
type verifier interface {
	// verify reports whether signature is a valid signature of digest, a result of hashSignedData.
	verify(digest, signature []byte) bool
	// cost returns the cost of one verification in units of verification (see Policy.Verifications), at least 1.
	cost() int
}

var (
	errMalformed   = errors.New("the key is malformed")
	errUnsupported = errors.New("the key is of a size that is not supported")
)
