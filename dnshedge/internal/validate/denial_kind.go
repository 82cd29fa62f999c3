package validate

// A DenialKind is the conclusion of a Denial.
type DenialKind uint8

const (
	// Unproven means that the records prove nothing.
	Unproven DenialKind = iota
	// NameError means that neither the name nor a wildcard for it exists. The response code is NXDOMAIN.
	NameError
	// NoData means that the name, or a wildcard for it, has neither records of the type nor an alias. An empty
	// non-terminal has no records at all. For DS, the name is no delegation point.
	NoData
	// NoDS means that the question is for DS, and the name is or may be a delegation point without DS records. Names below
	// it are insecure.
	NoDS
	// NoCloserName means that no name closer to the question's name than the expanded wildcard exists.
	NoCloserName
)

var kindNames = [...]string{Unproven: "nothing", NameError: "no name", NoData: "no data", NoDS: "no DS", NoCloserName: "no closer name"}

// String returns the kind in words, for example "no data".
func (k DenialKind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}
