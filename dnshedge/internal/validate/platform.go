package validate

import (
	"crypto/sha1"
	"sync"
)

// sha1Allowed reports whether SHA-1 can be computed. It cannot in a process with GODEBUG=fips140=only, where package crypto/sha1 panics. Then what needs it is
// as an algorithm that is not supported.
var sha1Allowed = sync.OnceValue(func() (allowed bool) {
	defer func() { allowed = recover() == nil }()
	sha1.Sum(nil)
	return true
})
