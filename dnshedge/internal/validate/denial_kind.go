package validate

// A DenialKind is the conclusion from NSEC or NSEC3 records about a question: for example, that its name does not
// exist.
type DenialKind uint8

const (
	// Unproven means that the records prove nothing.
	Unproven DenialKind = iota
	// NameError means that neither the name nor a wildcard that matches it exists. The response code is NXDOMAIN.
	NameError
	// NoData means that the name, or a wildcard that matches it, has neither records of the type nor an alias. The name
	// can be an empty non-terminal, which has no records at all. If the question is for DS, the name is not a delegation.
	NoData
	// NoDS means that the question is for DS, and that the name is a delegation without DS records, or may be one. Names
	// below it are insecure.
	NoDS
	// NoCloserMatch means that the question's name has no closer match than the expanded wildcard. No name between the
	// question's name and the parent of the wildcard exists.
	NoCloserMatch
)

var kindNames = [...]string{Unproven: "nothing", NameError: "no name", NoData: "no data", NoDS: "no DS", NoCloserMatch: "no closer match"}

// String returns the kind in words, for example "no data". For unknown values it returns "unknown".
func (k DenialKind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}
