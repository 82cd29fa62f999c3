package validate

// A Policy says what a user may decide. The zero value is what RFCs recommend.
type Policy struct {
	// AllowSHA1 has signatures of the algorithms 5 and 7 verified. Without it zones that have no others are
	// insecure (RFC 9905).
	AllowSHA1 bool
	// NSEC3Iterations is the number of iterations above which NSEC3 records prove nothing, and their zone is
	// insecure (RFC 9276 §3.2). 0: 50. Above 500, and above this limit, what has them is bogus.
	NSEC3Iterations int
	// Verifications is what the signatures of a question may cost that are wrong or superfluous, and an eighth of what all may cost: P-384 is 10, RSA with more than 2,048 bits 5, any other 1; RSA with an exponent
	// above 65,537 costs twice as much, each 32 KiB of an RRset 1 more, and a signature that was verified for the question before 1. 0: 128.
	Verifications int
	// FakeLegacy takes signatures of the algorithms 1, 3, 5, 6 and 7 as right once everything else was checked, and DS records of digest 1
	// whose tag and algorithm fit. It is for tests with scripts of others whose signatures no library verifies any more: only
	// files of tests may set it.
	FakeLegacy bool
}

const (
	defaultIterations = 50
	hardIterations    = 500
)

// iterationLimits returns the numbers above which NSEC3 records are insecure, and bogus.
func (p Policy) iterationLimits() (insecure, bogus int) {
	insecure = p.NSEC3Iterations
	if insecure <= 0 {
		insecure = defaultIterations
	}
	return insecure, max(insecure, hardIterations)
}
