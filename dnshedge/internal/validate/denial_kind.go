package validate

// DenialKind is the conclusion of a Denial.
type DenialKind uint8

const (
	// Unproven means that the records prove nothing.
	Unproven DenialKind = iota
	// NameError means that neither the name nor a wildcard for it exists. The answer is NXDOMAIN.
	NameError
	// NoData means that the name, or a wildcard for it, has no records of the type and no alias. An empty non-terminal has
	// no records at all. For DS, the name is no delegation.
	NoData
	// NoDS means that DS was asked for, and the name is a delegation without DS, or may be one. Names below it are
	// insecure.
	NoDS
	// NoCloserName means that no name closer than the wildcard of the answer exists.
	NoCloserName
)

var kindNames = [...]string{Unproven: "nothing", NameError: "no name", NoData: "no data", NoDS: "no DS", NoCloserName: "no closer name"}

func (k DenialKind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}
