package validate

// A Policy holds the settings of validation. The zero value follows the recommendations of the RFCs.
type Policy struct {
	// AllowSHA1 enables the algorithms 5 and 7, which use SHA-1. If it is false, a zone that has no other algorithms is
	// insecure (RFC 9905).
	AllowSHA1 bool
	// RequireAllAlgorithms requires a valid signature by each supported algorithm of the zone's DS records or trust
	// anchors. If it is false, one valid signature suffices (RFC 6840 §5.11).
	RequireAllAlgorithms bool
	// NSEC3Iterations is the maximum number of iterations of NSEC3 records that are evaluated. If records have more, their
	// zone is insecure (RFC 9276 §3.2). 0 means 50.
	//
	// Records with more than 500 iterations are bogus, unless NSEC3Iterations allows them.
	NSEC3Iterations int
	// Verifications limits the cost of invalid and superfluous signatures for each question, in units of verification. The
	// signatures of a question altogether may cost eight times as much. 0 means 128.
	//
	// A unit is the cost of a verification with P-256. A verification with P-384 costs 10 units, with RSA of more than
	// 2,048 bits 5 units, and with any other key 1 unit. An RSA exponent above 65,537 doubles the cost, and one of
	// hundreds of bits costs more. Each 32 KiB of an RRset adds 1 unit. A repeated verification for the same question
	// costs 1 unit.
	Verifications int
	// FakeLegacy must only be set in tests. It accepts any signature of the algorithms 1, 3, 5, 6 and 7 that passes all
	// other checks. It also accepts DS records with SHA-1 digests whose key tag and algorithm match.
	//
	// The test scripts of other resolvers need it, because they have signatures that no library verifies any more.
	FakeLegacy bool
}

const (
	defaultIterations = 50  // default of Policy.NSEC3Iterations
	hardIterations    = 500 // iterations above which NSEC3 records are bogus
)

// nsec3IterationLimits returns the limits for the iterations of NSEC3 records. Records with more iterations than
// insecure make their zone insecure. Records with more than bogus are bogus.
func (p Policy) nsec3IterationLimits() (insecure, bogus int) {
	insecure = p.NSEC3Iterations
	if insecure <= 0 {
		insecure = defaultIterations
	}
	return insecure, max(insecure, hardIterations)
}
