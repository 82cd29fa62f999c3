package validate

// Canonical returns the owner and the data of an RRset in canonical form; false: it has none.
func (s *RRset) Canonical() (owner string, data [][]byte, ok bool) {
	c := s.canonicalForm()
	return string(c.owner), c.rdata, c.ok
}

// Compare is the canonical order of names.
func Compare(a, b string) int {
	x, _ := parseName(a)
	y, _ := parseName(b)
	return compareCanonical(x, y)
}

// Sequence is how crypto/ecdsa is given a signature.
var Sequence = encodeECDSASignature
