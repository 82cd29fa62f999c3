package validate

import (
	"cmp"
	"strings"

	"github.com/miekg/dns"
)

// maxName is the maximum length of a name in wire format (RFC 1035 §2.3.4).
const maxName = 255

// A name is a domain name in lower case and uncompressed wire format, with the root label.
type name string

// root is the name of the root.
const root name = "\x00"

// parseName converts a name from presentation format. It reports false if the name is invalid.
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

// lowercase converts a name in wire format to lower case in place. Label lengths are at most 63 and thus never letters.
func lowercase(b []byte) {
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
}

// scanName returns the length of the uncompressed name at the start of b. It reports false if the name is malformed.
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

// String returns the name in presentation format.
func (n name) String() string {
	s, _, err := dns.UnpackDomainName([]byte(n), 0)
	if err != nil {
		return "."
	}
	return s
}

// labelCount returns the number of labels, without the root label.
func (n name) labelCount() (count int) {
	for ; n != root; n = n.parent() {
		count++
	}
	return count
}

// parent returns the name without its first label. The root is its own parent.
func (n name) parent() name {
	if n == root {
		return n
	}
	return n[1+int(n[0]):]
}

// ancestorWithLabels returns the ancestor with count labels, or the name itself if it has no more.
func (n name) ancestorWithLabels(count int) name {
	for skip := n.labelCount() - count; skip > 0; skip-- {
		n = n.parent()
	}
	return n
}

// isWithin reports whether the name is the zone's apex or below it.
func (n name) isWithin(zone name) bool {
	for len(n) > len(zone) {
		n = n.parent()
	}
	return n == zone
}

// isBelow reports whether the name is below other, and not equal to it.
func (n name) isBelow(other name) bool { return n != other && n.isWithin(other) }

// isWildcard reports whether the first label is an asterisk (RFC 4592 §2.1.1).
func (n name) isWildcard() bool { return strings.HasPrefix(string(n), "\x01*") }

// wildcardName returns the wildcard directly below the name. It reports false if that is too long for a name.
func (n name) wildcardName() (name, bool) { return "\x01*" + n, len(n)+2 <= maxName }

// countCommonLabels returns the number of labels that two names have in common, counted from the root, without the root
// label.
func countCommonLabels(a, b name) int {
	la, lb := a.labelCount(), b.labelCount()
	a, b = a.ancestorWithLabels(lb), b.ancestorWithLabels(la)
	for a != b {
		a, b = a.parent(), b.parent()
	}
	return a.labelCount()
}

// compareCanonical compares two names in canonical order (RFC 4034 §6.1). A zone comes before the names below it. The
// result is negative, zero or positive, as by strings.Compare.
func compareCanonical(a, b name) int {
	la, lb := a.labelCount(), b.labelCount()
	c := countCommonLabels(a, b)
	if c == la || c == lb {
		return cmp.Compare(la, lb)
	}
	a, b = a.ancestorWithLabels(c+1), b.ancestorWithLabels(c+1)
	return strings.Compare(string(a[1:1+a[0]]), string(b[1:1+b[0]]))
}
