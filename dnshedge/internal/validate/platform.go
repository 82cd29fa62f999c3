package validate

import (
	"crypto/sha1"
	"sync"
)

// sha1Allowed reports whether this process may compute SHA-1. It is false with GODEBUG=fips140=only, where package
// crypto/sha1 panics. Algorithms that need SHA-1 are then unsupported.
var sha1Allowed = sync.OnceValue(func() (allowed bool) {
	defer func() { allowed = recover() == nil }()
	sha1.Sum(nil)
	return true
})
