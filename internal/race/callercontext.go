package race

import (
	"cmp"
	"context"
	"reflect"
	"sync"
	"time"
)

// A callerContext is the caller's context as the parent of the own context of an attempt that may outlive its call. Derived
// contexts end with the caller's context, by the same error and cause, until ignoreEnd is called.
//
// Once it is detached it does not use the caller's context any more: the caller may have given that to another owner. Values
// that hedges have been asked for are then found in a copy, as one attempt asks for the same values as another.
//
// The goroutine that makes the attempt's own context writes all fields above mu, before other goroutines have them.
type callerContext struct {
	context.Context
	canEnd        bool        // the caller's context can end, and has not
	recordsValues bool        // the values that it is asked for
	stop          func() bool // of the AfterFunc of the caller's context; nil: there is none

	mu         sync.RWMutex // guards the fields below; held for reading while the caller's context is used
	ignoresEnd bool         // the end of the caller's context
	detached   bool
	values     []contextValue
	deadline   time.Time // of the caller's context; zero: none; known once it is detached, as is err
	err        error
}

// A contextValue is a value of the caller's context.
type contextValue struct{ key, value any }

// maxRecordedValues is the most values that an attempt records.
const maxRecordedValues = 32

// neverClosed is the channel of a context for which package context calls AfterFunc instead.
var neverClosed = make(chan struct{})

func (c *callerContext) Done() <-chan struct{} {
	if c.canEnd {
		return neverClosed
	}
	return c.Context.Done()
}

// AfterFunc is called once, by the context that is derived from c.
func (c *callerContext) AfterFunc(f func()) func() bool {
	c.stop = context.AfterFunc(c.Context, f)
	return c.stop
}

// ignoreEnd lets derived contexts go on when the caller's context ends.
func (c *callerContext) ignoreEnd() {
	if c.stop != nil {
		c.stop()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ignoresEnd = true
}

// endError returns the error of the caller's context; nil if it has not ended, or if that is ignored.
func (c *callerContext) endError() error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.ignoresEnd || c.detached {
		return nil
	}
	return c.Context.Err()
}

func (c *callerContext) Value(key any) any {
	value, detached := c.lookupValue(key)
	if !detached && c.recordsValues && value != nil {
		c.recordValue(key, value)
	}
	return value
}

func (c *callerContext) lookupValue(key any) (value any, detached bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.detached {
		return findValue(c.values, key), true
	}
	return c.Context.Value(key), false
}

func (c *callerContext) recordValue(key, value any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.detached && len(c.values) < maxRecordedValues && findValue(c.values, key) == nil && reflect.TypeOf(key).Comparable() {
		c.values = append(c.values, contextValue{key, value})
	}
}

// findValue returns the value of key; nil if it is not among the values.
func findValue(values []contextValue, key any) any {
	for _, v := range values {
		if v.key == key {
			return v.value
		}
	}
	return nil
}

// recordedValues returns the values that c has been asked for.
func (c *callerContext) recordedValues() []contextValue {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.values
}

func (c *callerContext) Deadline() (time.Time, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.detached {
		return c.deadline, !c.deadline.IsZero()
	}
	return c.Context.Deadline()
}

func (c *callerContext) Err() error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.detached {
		return c.err
	}
	return c.Context.Err()
}

// detach ends the use of the caller's context, and returns when no goroutine uses it. Only the given values are found then.
func (c *callerContext) detach(values []contextValue) {
	if c.Context.Err() == nil { // or derived contexts are about to end
		c.ignoreEnd()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.detached {
		return
	}
	c.detached, c.values = true, values
	c.deadline, _ = c.Context.Deadline()
	c.err = cmp.Or(c.Context.Err(), context.Canceled)
}
