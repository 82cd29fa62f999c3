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
	lower(buf[:n])
	return name(buf[:n]), true
}

// lower makes a name lower case. The lengths of labels are at most 63, which is no letter.
func lower(b []byte) {
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
}

// readName returns the length of the name that b begins with. It reports false if there is none, or one with pointers.
func readName(b []byte) (n int, ok bool) {
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

// labels is the number of labels without the root's.
func (n name) labels() (count int) {
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

// ancestor returns the last labels of the name, as many as count says.
func (n name) ancestor(count int) name {
	for skip := n.labels() - count; skip > 0; skip-- {
		n = n.parent()
	}
	return n
}

// within reports whether the name is a zone's apex or below it.
func (n name) within(zone name) bool {
	for len(n) > len(zone) {
		n = n.parent()
	}
	return n == zone
}

// below reports whether the name is below another one.
func (n name) below(other name) bool { return n != other && n.within(other) }

// isWildcard reports whether the first label is an asterisk (RFC 4592 §2.1.1).
func (n name) isWildcard() bool { return strings.HasPrefix(string(n), "\x01*") }

// wildcard returns the name with an asterisk in front of it. It reports false if that is too long for a name.
func (n name) wildcard() (name, bool) { return "\x01*" + n, len(n)+2 <= maxName }

// common returns how many labels two names have in common, from the root on, which does not count.
func common(a, b name) int {
	la, lb := a.labels(), b.labels()
	a, b = a.ancestor(lb), b.ancestor(la)
	for a != b {
		a, b = a.parent(), b.parent()
	}
	return a.labels()
}

// compare says which name comes first in canonical order (RFC 4034 §6.1): a zone before what is below it.
func compare(a, b name) int {
	la, lb := a.labels(), b.labels()
	c := common(a, b)
	if c == la || c == lb {
		return cmp.Compare(la, lb)
	}
	a, b = a.ancestor(c+1), b.ancestor(c+1)
	return strings.Compare(string(a[1:1+a[0]]), string(b[1:1+b[0]]))
}
