package recursor

// For tests in package recursor_test.
var (
	Canonical = canonical
	Within    = within
	Parent    = parent
	InWire    = inWire
)
