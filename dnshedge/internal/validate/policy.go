package validate

// A Policy holds the user's settings for validation. The zero value follows the recommendations of the RFCs.
type Policy struct {
	// AllowSHA1 enables algorithms 5 and 7. Without it, a zone that has no other algorithms is insecure (RFC 9905).
	AllowSHA1 bool
	// NSEC3Iterations is the maximum number of iterations with which NSEC3 records are evaluated. With more, their zone is
	// insecure (RFC 9276 §3.2). 0 means 50. Records with more than 500 and more than this limit are bogus.
	NSEC3Iterations int
	// Verifications limits the cost of a question's invalid and superfluous signatures. All its signatures together may
	// cost eight times as much. 0 means 128.
	//
	// A verification with P-384 costs 10, with RSA of more than 2,048 bits 5, and with any other key 1. An RSA exponent
	// above 65,537 doubles the cost. Each 32 KiB of an RRset adds 1. A signature that was already verified for the
	// question costs 1.
	Verifications int
	// FakeLegacy accepts any signature of algorithms 1, 3, 5, 6 and 7 that passes all other checks. It also accepts DS
	// records of digest type 1 whose tag and algorithm match. It is for test scripts of other resolvers with signatures
	// that no library verifies any more. Only tests may set it.
	FakeLegacy bool
}

const (
	defaultIterations = 50
	hardIterations    = 500
)

// iterationLimits returns the numbers of iterations above which NSEC3 records are insecure, and above which they are
// bogus.
func (p Policy) iterationLimits() (insecure, bogus int) {
	insecure = p.NSEC3Iterations
	if insecure <= 0 {
		insecure = defaultIterations
	}
	return insecure, max(insecure, hardIterations)
}
