package validate

// DenialKind is what a Denial proves.
type DenialKind uint8

const (
	// Unproven is proven.
	Unproven DenialKind = iota
	// NameError: the name does not exist, nor a wildcard that could stand for it. The answer is NXDOMAIN.
	NameError
	// NoData: the name, or a wildcard that stands for it, has no records of the type, nor an alias. An empty non-terminal has no records at all.
	// If DS was asked for, the name is no delegation.
	NoData
	// NoDS: DS was asked for, and the name is a delegation without DS, or may be one. What is below it is insecure.
	NoDS
	// NoCloserName: no name is closer than the wildcard that the answer was made of.
	NoCloserName
)

var kindNames = [...]string{Unproven: "nothing", NameError: "no name", NoData: "no data", NoDS: "no DS", NoCloserName: "no closer name"}

func (k DenialKind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}
