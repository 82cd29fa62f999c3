// Package sanitize makes names from untrusted sources safe to display in metric labels, attributes, log records and pages.
package sanitize

import (
	"strings"
	"unicode"
)

// MaxBytes is the largest length of a clean text. A host name has at most 253 bytes.
const MaxBytes = 256

const ellipsis = "…"

// CleanText returns s in valid UTF-8, without control characters, and with at most [Max]
// bytes. U+FFFD stands for each control character and each run of invalid bytes; of a
// string that is longer there are the beginning, an ellipsis and a hash, as in [Short]. Most
// strings are returned as they are.
func CleanText(s string) string {
	if isPrintableASCII(s) {
		return s
	}
	shown := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.ToValidUTF8(s[:min(len(s), MaxBytes)], string(unicode.ReplacementChar))) // what is left out need not be looked at
	if len(s) <= MaxBytes && len(shown) <= MaxBytes { // a replacement may be longer than what it replaces
		return shown
	}
	return shortenWithHash(shown, s)
}

// isPrintableASCII reports whether s is short and consists of printable ASCII characters.
func isPrintableASCII(s string) bool {
	if len(s) > MaxBytes {
		return false
	}
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
