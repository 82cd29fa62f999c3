// Package label makes names that come from outside fit to be shown: in labels of
// metrics, attributes, records of a log and pages.
package label

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Max is the most bytes of a clean string. A name of a host has 253 at most.
const Max = 256

const ellipsis = "…"

// Clean returns s in valid UTF-8, without control characters, and with at most [Max]
// bytes. U+FFFD stands for each control character and each run of invalid bytes; a
// string that is cut ends with an ellipsis. Most strings are returned as they are.
func Clean(s string) string {
	if plain(s) {
		return s
	}
	cut := len(s) > Max
	if cut {
		s = s[:Max] // what is cut off need not be looked at
	}
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.ToValidUTF8(s, string(unicode.ReplacementChar)))
	if !cut && len(s) <= Max { // a replacement may be longer than what it replaces
		return s
	}
	end := min(len(s), Max-len(ellipsis))
	for end < len(s) && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + ellipsis
}

// plain reports whether s is short and consists of printable ASCII characters.
func plain(s string) bool {
	if len(s) > Max {
		return false
	}
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
