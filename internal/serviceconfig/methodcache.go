package serviceconfig

import (
	"strings"
	"sync"
	"sync/atomic"
)

// Limits of a [MethodCache]. They matter in a proxy, whose untrusted clients choose the names of methods.
const (
	maxMethods    = 4096 // most methods in a cache
	maxMethodName = 256  // bytes; longer names are not stored
)

// A MethodCache maps at most 4,096 names of methods to values. The zero value is empty. It is safe for concurrent use.
type MethodCache struct {
	values sync.Map
	stored atomic.Int64
}

// Load returns the value of a method, and whether there is one.
func (c *MethodCache) Load(method string) (value any, ok bool) { return c.values.Load(method) }

// LoadOrStore returns the value of a method. If there is none, it stores the given value. If the cache is full, it
// drops all values.
//
// The result early reports whether the value was stored and is one of the first 4,096 of this cache. Callers use it to
// limit their logs.
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
