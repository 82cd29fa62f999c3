package validate

import (
	"crypto/sha1"
	"sync"
)

// sha1Allowed reports whether SHA-1 can be computed. With GODEBUG=fips140=only, package crypto/sha1 panics, and
// algorithms that need SHA-1 are unsupported.
var sha1Allowed = sync.OnceValue(func() (allowed bool) {
	defer func() { allowed = recover() == nil }()
	sha1.Sum(nil)
	return true
})
