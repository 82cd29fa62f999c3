package serviceconfig

import (
	"strings"
	"sync"
	"sync/atomic"
)

// Names of methods can come from strangers: a proxy passes on the names that it gets.
const (
	maxMethods    = 4096 // of which a MethodCache keeps values
	maxMethodName = 256  // bytes; nothing is kept for a longer name
)

// A MethodCache keeps a value for each of at most 4,096 methods. The zero value is empty. It is safe for concurrent use.
type MethodCache struct {
	values sync.Map
	stored atomic.Int64
}

// Load returns the value of a method.
func (c *MethodCache) Load(method string) (value any, ok bool) { return c.values.Load(method) }

// LoadOrStore returns the value of a method, or stores a value for it. It reports whether value was stored and is one of the first 4,096,
// which bounds what a caller logs. A cache that is full forgets all values, and gets those in use again.
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
