package sanitize

import (
	"crypto/sha256"
	"encoding/hex"
	"unicode/utf8"
)

const (
	keptBytes = 200 // number of bytes that remain of a text that is too long
	hashBytes = 16  // number of bytes of the hash that is appended
)

// ShortenText returns s if it has at most [MaxBytes] bytes. Otherwise, it returns the first 200 bytes, an ellipsis and a hash of s. So a
// name from an untrusted source takes little memory, and different names stay different.
func ShortenText(s string) string {
	if len(s) <= MaxBytes {
		return s
	}
	return shortenWithHash(s, s)
}

// shortenWithHash returns the beginning of shown with a hash of s, where shown is the displayed form of s.
func shortenWithHash(shown, s string) string {
	end := min(len(shown), keptBytes)
	for end > 0 && end > keptBytes-utf8.UTFMax && end < len(shown) && !utf8.RuneStart(shown[end]) {
		end--
	}
	sum := sha256.Sum256([]byte(s))
	return shown[:end] + ellipsis + hex.EncodeToString(sum[:hashBytes])
}
