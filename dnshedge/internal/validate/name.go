package validate

import (
	"cmp"
	"strings"

	"github.com/miekg/dns"
)

// maxName is the length of a name at most (RFC 1035 §2.3.4).
const maxName = 255

// A name is a domain name in wire format and in lower case, without pointers. Every one ends with the root's label.
type name string

const root name = "\x00"

// parseName reads a name that is written as package dns does. It reports false if there is none.
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

// lowercase makes a name lower case. The lengths of labels are at most 63, which is no letter.
func lowercase(b []byte) {
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
}

// scanName returns the length of the name that b begins with. It reports false if there is none, or one with pointers.
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

// String returns the name as package dns writes it.
func (n name) String() string {
	s, _, err := dns.UnpackDomainName([]byte(n), 0)
	if err != nil {
		return "."
	}
	return s
}

// labelCount is the number of labels without the root's.
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

// ancestorWithLabels returns the last labels of the name, as many as count says.
func (n name) ancestorWithLabels(count int) name {
	for skip := n.labelCount() - count; skip > 0; skip-- {
		n = n.parent()
	}
	return n
}

// isWithin reports whether the name is a zone's apex or below it.
func (n name) isWithin(zone name) bool {
	for len(n) > len(zone) {
		n = n.parent()
	}
	return n == zone
}

// isBelow reports whether the name is below another one.
func (n name) isBelow(other name) bool { return n != other && n.isWithin(other) }

// isWildcard reports whether the first label is an asterisk (RFC 4592 §2.1.1).
func (n name) isWildcard() bool { return strings.HasPrefix(string(n), "\x01*") }

// wildcardName returns the name with an asterisk in front of it. It reports false if that is too long for a name.
func (n name) wildcardName() (name, bool) { return "\x01*" + n, len(n)+2 <= maxName }

// countCommonLabels returns how many labels two names have in common, from the root on, which does not count.
func countCommonLabels(a, b name) int {
	la, lb := a.labelCount(), b.labelCount()
	a, b = a.ancestorWithLabels(lb), b.ancestorWithLabels(la)
	for a != b {
		a, b = a.parent(), b.parent()
	}
	return a.labelCount()
}

// compareCanonical says which name comes first in canonical order (RFC 4034 §6.1): a zone before what is below it.
func compareCanonical(a, b name) int {
	la, lb := a.labelCount(), b.labelCount()
	c := countCommonLabels(a, b)
	if c == la || c == lb {
		return cmp.Compare(la, lb)
	}
	a, b = a.ancestorWithLabels(c+1), b.ancestorWithLabels(c+1)
	return strings.Compare(string(a[1:1+a[0]]), string(b[1:1+b[0]]))
}
