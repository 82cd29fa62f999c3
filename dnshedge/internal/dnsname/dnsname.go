// Package dnsname says what DNS names are to one another. They are text as package dns writes it, absolute and in lower case, so that equal
// names are equal strings. In it a backslash stands before a byte that is not to be taken for what it looks like, such as a dot inside a
// label.
package dnsname

import (
	"strings"

	"github.com/miekg/dns"
)

// ParseCanonical returns a name in this form, or reports false if it is no name.
func ParseCanonical(name string) (string, bool) {
	plain := name != ""
	for i := 0; i < len(name) && plain; i++ {
		c := name[i]
		plain = 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || c == '-' || c == '_' || c == '.'
	}
	name = dns.Fqdn(name)
	var b [256]byte
	n, err := dns.PackDomainName(name, b[:], 0, nil, false)
	if err != nil || n > 255 {
		return "", false
	}
	if !plain { // the same byte can be written in several ways
		if name, _, err = dns.UnpackDomainName(b[:n], 0); err != nil {
			return "", false
		}
	}
	return ToLower(name), true
}

// ToLower returns a name that package dns has written in lower case.
func ToLower(name string) string {
	for i := range len(name) {
		if c := name[i]; 'A' <= c && c <= 'Z' {
			return strings.ToLower(name) // it is ASCII
		}
	}
	return name
}

// Parent returns a name without its first label. That of the root is the root.
func Parent(name string) string {
	for i := 0; i < len(name)-1; i++ {
		switch name[i] {
		case '\\':
			i++
		case '.':
			return name[i+1:]
		}
	}
	return "."
}

// CountLabels returns the number of labels of a name. The root has none.
func CountLabels(name string) int {
	n := 0
	for ; name != "."; name = Parent(name) {
		n++
	}
	return n
}

// TrimToLabels returns the last n labels of a name that has as many.
func TrimToLabels(name string, n int) string {
	for range CountLabels(name) - n {
		name = Parent(name)
	}
	return name
}

// IsWithin reports whether a name is at or below a zone.
func IsWithin(name, zone string) bool {
	if zone == "." || name == zone {
		return true
	}
	n := len(name) - len(zone)
	if n < 2 || name[n-1] != '.' || name[n:] != zone {
		return false
	}
	escapes := 0
	for i := n - 2; i >= 0 && name[i] == '\\'; i-- {
		escapes++
	}
	return escapes%2 == 0
}

// IsBelow reports whether a name is below a zone.
func IsBelow(name, zone string) bool { return name != zone && IsWithin(name, zone) }

// WireLength returns the length of a name in a message, uncompressed.
func WireLength(name string) int {
	if name == "." {
		return 1
	}
	n := 1
	for i := 0; i < len(name); i++ {
		if name[i] == '\\' {
			if i+1 < len(name) && '0' <= name[i+1] && name[i+1] <= '9' {
				i += 3
			} else {
				i++
			}
		}
		n++
	}
	return n
}

// ApplyDNAME returns what name, which is below owner, becomes by a DNAME record, or "" if that
// is longer than names may be (RFC 6672 §2.2).
func ApplyDNAME(name, owner, target string) string {
	prefix := name
	if owner != "." {
		prefix = name[:len(name)-len(owner)]
	}
	if target == "." {
		return prefix
	}
	if name = prefix + target; WireLength(name) > 255 {
		return ""
	}
	return name
}
