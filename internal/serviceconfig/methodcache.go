package serviceconfig

import (
	"strings"
	"sync"
	"sync/atomic"
)

// Limits of a [MethodCache]. They bound its memory in a proxy, whose untrusted clients choose the names of methods.
const (
	maxMethods    = 4096 // largest number of methods in a cache
	maxMethodName = 256  // longest name that is stored, in bytes
)

// A MethodCache stores a value for each gRPC method, by the name of the method. It holds at most 4,096 methods. Methods
// whose names have more than 256 bytes are not stored. The zero value is empty. It is safe for concurrent use.
type MethodCache struct {
	values sync.Map     // values by name of the method
	stored atomic.Int64 // number of values that were ever stored
}

// Load returns the value of a method. The result ok is false if the cache has no value for it.
func (c *MethodCache) Load(method string) (value any, ok bool) { return c.values.Load(method) }

// LoadOrStore returns the value of a method as actual. If the cache has no value for the method, it stores the given
// value and returns it. If the cache becomes full, all values are dropped.
//
// The result early is true if the value was stored and is one of the first 4,096 values that were ever stored. Callers
// write log records only for these, so that their number is limited.
func (c *MethodCache) LoadOrStore(method string, value any) (actual any, early bool) {
	if len(method) > maxMethodName {
		return value, false
	}
	actual, loaded := c.values.LoadOrStore(strings.Clone(method), value)
	if loaded {
		return actual, false
	}
	n := c.stored.Add(1)
	if n%maxMethods == 0 {
		c.values.Clear()
	}
	return value, n <= maxMethods
}
