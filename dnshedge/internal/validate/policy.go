package validate

// A Policy has the user's decisions about validation. The zero value follows the recommendations of the RFCs.
type Policy struct {
	// AllowSHA1 enables algorithms 5 and 7. Without it, a zone that has no other algorithm is insecure (RFC 9905).
	AllowSHA1 bool
	// NSEC3Iterations is the highest number of iterations with which NSEC3 records are evaluated; with more, their zone is
	// insecure (RFC 9276 §3.2). 0: 50. Records with more than 500 and more than this limit are bogus.
	NSEC3Iterations int
	// Verifications limits the cost of a question's invalid and superfluous signatures. All its signatures may cost eight
	// times as much. P-384 costs 10, RSA with more than 2,048 bits 5, any other 1. RSA with an exponent above 65,537 costs
	// twice as much, and each 32 KiB of an RRset 1 more. A signature that was already verified for the question costs 1.
	// 0: 128.
	Verifications int
	// FakeLegacy accepts signatures of algorithms 1, 3, 5, 6 and 7 if everything else is correct, and DS records of digest
	// type 1 whose tag and algorithm match. It exists for test scripts of other resolvers whose signatures no library
	// verifies any more. Only test files may set it.
	FakeLegacy bool
}

const (
	defaultIterations = 50
	hardIterations    = 500
)

// iterationLimits returns the numbers of iterations above which NSEC3 records are insecure and bogus.
func (p Policy) iterationLimits() (insecure, bogus int) {
	insecure = p.NSEC3Iterations
	if insecure <= 0 {
		insecure = defaultIterations
	}
	return insecure, max(insecure, hardIterations)
}
