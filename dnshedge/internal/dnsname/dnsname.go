// Package dnsname compares and converts domain names. Names are absolute, in lower case, and in the canonical
// presentation format of package dns, so that equal names are equal strings. A backslash escapes a byte with a special
// meaning, such as a dot inside a label.
package dnsname

import (
	"strings"

	"github.com/miekg/dns"
)

// CanonicalName returns a name in the canonical form that the package comment describes. It adds a missing final dot,
// and converts letters to lower case.
//
// The boolean is false if the name is empty, malformed, or longer than 255 bytes in wire format.
func CanonicalName(name string) (string, bool) {
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
	if !plain { // presentation format has several forms of a byte
		if name, _, err = dns.UnpackDomainName(b[:n], 0); err != nil {
			return "", false
		}
	}
	return ToLower(name), true
}

// ToLower converts the letters A to Z of a name to lower case. The name must be in the presentation format of package
// dns, which is ASCII.
func ToLower(name string) string {
	for i := range len(name) {
		if c := name[i]; 'A' <= c && c <= 'Z' {
			return strings.ToLower(name) // it is ASCII
		}
	}
	return name
}

// Parent returns a name without its leftmost label. The parent of the root is the root.
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

// CountLabels returns the number of labels of a name, for example 2 for "example.org.". The root label is not counted.
func CountLabels(name string) int {
	n := 0
	for ; name != "."; name = Parent(name) {
		n++
	}
	return n
}

// TrimToLabels returns the last n labels of a name, for example "example.org." for "www.example.org." and n = 2. The
// root label is not counted. The name must have at least n labels.
func TrimToLabels(name string, n int) string {
	for range CountLabels(name) - n {
		name = Parent(name)
	}
	return name
}

// IsWithin reports whether a name is a zone's name or a descendant of it. The result is false for a name that only ends
// with the same characters, such as "badexample.org." for "example.org.".
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

// IsBelow reports whether a name is a descendant of a zone's name. It is false if both are equal.
func IsBelow(name, zone string) bool { return name != zone && IsWithin(name, zone) }

// WireLength returns the length of a name in uncompressed wire format, in bytes. The name must be valid.
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

// ApplyDNAME applies a DNAME record to a name (RFC 6672 §2.2): it replaces the suffix owner of the name by target.
// owner and target are the owner and the target of the record. The name must be a descendant of owner. It returns "" if
// the new name is longer than 255 bytes in wire format.
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
