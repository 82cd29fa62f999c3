package validate

import "errors"

// A verifier is a public key that can be used.
type verifier interface {
	// verify reports whether a signature of a digest, as digest returns it, is right.
	verify(digest, signature []byte) bool
	// cost is what one verification costs, in units of Policy.Verifications: 1 at least.
	cost() int
}

var (
	errMalformed   = errors.New("the key is malformed")
	errUnsupported = errors.New("the key is of a size that is not supported")
)
