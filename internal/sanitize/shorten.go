package sanitize

import (
	"crypto/sha256"
	"encoding/hex"
	"unicode/utf8"
)

const (
	keptBytes = 200 // bytes of a name that is too long
	hashBytes = 16  // bytes of its hash
)

// ShortenText returns s if it has at most [Max] bytes, or else its first 200, an ellipsis and a hash
// of all of it: a name that comes from outside takes little memory wherever it is
// kept, and no two names become one.
func ShortenText(s string) string {
	if len(s) <= MaxBytes {
		return s
	}
	return shortenWithHash(s, s)
}

// shortenWithHash returns the beginning of shown, which is how s is shown, with a hash of s.
func shortenWithHash(shown, s string) string {
	end := min(len(shown), keptBytes)
	for end > 0 && end > keptBytes-utf8.UTFMax && end < len(shown) && !utf8.RuneStart(shown[end]) {
		end--
	}
	sum := sha256.Sum256([]byte(s))
	return shown[:end] + ellipsis + hex.EncodeToString(sum[:hashBytes])
}
