package validate

import (
	"cmp"
	"strings"

	"github.com/miekg/dns"
)

// maxName is the maximum length of a name in wire format, in bytes (RFC 1035 §2.3.4).
const maxName = 255

// A name is a domain name in lower case, in uncompressed wire format. It ends with the root label, a zero byte.
type name string

// root is the name of the root zone.
const root name = "\x00"

// parseName converts a name from presentation format. The boolean is false if the name is empty, malformed or too long.
func parseName(s string) (name, bool) {
	var buf [maxName + 1]byte
	if s == "" {
		return "", false
	}
	n, err := dns.PackDomainName(dns.Fqdn(s), buf[:], 0, nil, false)
	if err != nil || n > maxName {
		return "", false
	}
	lowercase(buf[:n])
	return name(buf[:n]), true
}

// lowercase converts a name in wire format to lower case in place. It does not change the length bytes, because labels
// have at most 63 bytes and the letter A is 65.
func lowercase(b []byte) {
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
}

// scanName returns the length in bytes of the uncompressed name at the start of b. ok is false if the name is
// malformed.
func scanName(b []byte) (n int, ok bool) {
	for n < len(b) && n < maxName {
		switch l := int(b[n]); {
		case l == 0:
			return n + 1, true
		case l > 63:
			return 0, false
		default:
			n += 1 + l
		}
	}
	return 0, false
}

// String returns the name in presentation format, with a final dot.
func (n name) String() string {
	s, _, err := dns.UnpackDomainName([]byte(n), 0)
	if err != nil {
		return "."
	}
	return s
}

// countLabels returns the number of labels of the name, without the root label.
func (n name) countLabels() (count int) {
	for ; n != root; n = n.parent() {
		count++
	}
	return count
}

// parent returns the name without its leftmost label. The root is its own parent.
func (n name) parent() name {
	if n == root {
		return n
	}
	return n[1+int(n[0]):]
}

// trimToLabels returns the last count labels of the name, without counting the root label. If the name has at most
// count labels, it returns the name itself.
func (n name) trimToLabels(count int) name {
	for skip := n.countLabels() - count; skip > 0; skip-- {
		n = n.parent()
	}
	return n
}

// isWithin reports whether the name is the apex of a zone or a descendant of it.
func (n name) isWithin(zone name) bool {
	for len(n) > len(zone) {
		n = n.parent()
	}
	return n == zone
}

// isBelow reports whether the name is a descendant of other. It is false if both are equal.
func (n name) isBelow(other name) bool { return n != other && n.isWithin(other) }

// isWildcard reports whether the leftmost label is an asterisk (RFC 4592 §2.1.1).
func (n name) isWildcard() bool { return strings.HasPrefix(string(n), "\x01*") }

// wildcardName returns the wildcard whose parent is the name, for example *.example.org for example.org. The boolean is
// false if the wildcard is too long for a name.
func (n name) wildcardName() (name, bool) { return "\x01*" + n, len(n)+2 <= maxName }

// countCommonLabels returns the number of labels that two names have in common, counted from the right. The root label
// is not counted.
func countCommonLabels(a, b name) int {
	la, lb := a.countLabels(), b.countLabels()
	a, b = a.trimToLabels(lb), b.trimToLabels(la)
	for a != b {
		a, b = a.parent(), b.parent()
	}
	return a.countLabels()
}

// compareCanonical compares two names in canonical order (RFC 4034 §6.1), in which a name comes before its descendants.
// The result is negative if a comes before b, 0 if they are equal, and positive otherwise.
func compareCanonical(a, b name) int {
	la, lb := a.countLabels(), b.countLabels()
	c := countCommonLabels(a, b)
	if c == la || c == lb {
		return cmp.Compare(la, lb)
	}
	a, b = a.trimToLabels(c+1), b.trimToLabels(c+1)
	return strings.Compare(string(a[1:1+a[0]]), string(b[1:1+b[0]]))
}
