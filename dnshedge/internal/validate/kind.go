package validate

// Kind is what a Denial proves.
type Kind uint8

const (
	// Nothing is proven.
	Nothing Kind = iota
	// NoName: the name does not exist, nor a wildcard that could stand for it. The answer is NXDOMAIN.
	NoName
	// NoData: the name, or a wildcard that stands for it, has no records of the type, nor an alias. An empty non-terminal has no records at all.
	// If DS was asked for, the name is no delegation.
	NoData
	// NoDS: DS was asked for, and the name is a delegation without DS, or may be one. What is below it is insecure.
	NoDS
	// NoCloser: no name is closer than the wildcard that the answer was made of.
	NoCloser
)

var kindNames = [...]string{Nothing: "nothing", NoName: "no name", NoData: "no data", NoDS: "no DS", NoCloser: "no closer name"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}
