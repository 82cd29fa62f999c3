// Package sanitize makes names from untrusted sources safe for metric labels, attributes, log records and web pages.
package sanitize

import (
	"strings"
	"unicode"
)

// MaxBytes is the maximum length of a text that CleanText or ShortenText returns, in bytes. It is enough for a host name, which
// has at most 253 bytes.
const MaxBytes = 256

const ellipsis = "…"

// CleanText returns s as valid UTF-8 without control characters, and with at most [MaxBytes] bytes. It replaces each control
// character and each sequence of invalid bytes with U+FFFD, and shortens a longer text as [ShortenText] does. Most names are
// returned unchanged.
func CleanText(s string) string {
	if isPrintableASCII(s) {
		return s
	}
	shown := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.ToValidUTF8(s[:min(len(s), MaxBytes)], string(unicode.ReplacementChar))) // the rest is cut off below
	if len(s) <= MaxBytes && len(shown) <= MaxBytes { // a replacement may be longer than the replaced byte
		return shown
	}
	return shortenWithHash(shown, s)
}

// isPrintableASCII reports whether s has at most MaxBytes bytes, and all of them are printable ASCII characters.
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
