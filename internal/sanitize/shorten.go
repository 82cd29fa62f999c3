package sanitize

import (
	"crypto/sha256"
	"encoding/hex"
	"unicode/utf8"
)

const (
	keptBytes = 200 // number of bytes that ShortenText keeps of a long text
	hashBytes = 16  // number of bytes of the SHA-256 hash that ShortenText appends
)

// ShortenText returns s if it has at most [MaxBytes] bytes. Otherwise it returns the first 200 bytes, an ellipsis and a hash of
// s. Thus a name from an untrusted source needs little memory, and different names remain different.
func ShortenText(s string) string {
	if len(s) <= MaxBytes {
		return s
	}
	return shortenWithHash(s, s)
}

// shortenWithHash returns at most the first 200 bytes of shown, an ellipsis and a hash of s. It does not cut a character in
// two. The argument shown is s or its printable form.
func shortenWithHash(shown, s string) string {
	end := min(len(shown), keptBytes)
	for end > 0 && end > keptBytes-utf8.UTFMax && end < len(shown) && !utf8.RuneStart(shown[end]) {
		end--
	}
	sum := sha256.Sum256([]byte(s))
	return shown[:end] + ellipsis + hex.EncodeToString(sum[:hashBytes])
}
