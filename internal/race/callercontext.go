package race

import (
	"cmp"
	"context"
	"reflect"
	"sync"
	"time"
)

// A callerContext is the parent of an attempt's cancellable context, in place of the caller's context. It is used if the
// attempt may continue after its call. Derived contexts end when the caller's context ends, with the same error and cause,
// until ignoreEnd is called.
//
// After detach, a callerContext no longer uses the caller's context, because the caller may reuse that for another call. It
// then has copies of the values that hedges looked up before, because attempts usually look up the same values.
//
// The fields before mu are written before other goroutines get the derived context. The type is safe for concurrent use.
type callerContext struct {
	context.Context
	canEnd        bool        // the caller's context can end, and had not ended when this callerContext was made
	recordsValues bool        // Value records the values that it finds
	stop          func() bool // undoes AfterFunc; nil: AfterFunc was not called

	mu         sync.RWMutex   // guards the fields that follow; read-locked while the caller's context is used
	ignoresEnd bool           // ignoreEnd was called
	detached   bool           // detach was called
	values     []contextValue // recorded values; after detach, the values that Value finds
	deadline   time.Time      // deadline of the caller's context, set by detach; zero: it has none
	err        error          // result of Err after detach; until then not used
}

// A contextValue is a value of the caller's context with its key.
type contextValue struct{ key, value any }

// maxRecordedValues is the maximum number of values that an attempt records.
const maxRecordedValues = 32

// neverClosed is the Done channel of a callerContext that can end. Package context calls the AfterFunc method of such a
// context, and does not receive from the channel.
var neverClosed = make(chan struct{})

// Done returns nil, or a closed channel, if the caller's context cannot end or had ended already. Otherwise it returns
// a channel that is never closed, because package context learns of the end through the method AfterFunc.
func (c *callerContext) Done() <-chan struct{} {
	if c.canEnd {
		return neverClosed
	}
	return c.Context.Done()
}

// AfterFunc arranges that f is called when the caller's context ends, and returns a function that undoes this. Package context
// calls it once, for the cancellable context that is derived from c.
func (c *callerContext) AfterFunc(f func()) func() bool {
	c.stop = context.AfterFunc(c.Context, f)
	return c.stop
}

// ignoreEnd makes derived contexts continue when the caller's context ends.
func (c *callerContext) ignoreEnd() {
	if c.stop != nil {
		c.stop()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ignoresEnd = true
}

// endError returns the error with which the end of the caller's context ends the attempt. It returns nil if the caller's
// context has not ended, or after ignoreEnd or detach.
func (c *callerContext) endError() error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.ignoresEnd || c.detached {
		return nil
	}
	return c.Context.Err()
}

// Value returns the value of the caller's context for key. After detach, it returns the value that was passed to detach for
// key.
func (c *callerContext) Value(key any) any {
	value, detached := c.lookupValue(key)
	if !detached && c.recordsValues && value != nil {
		c.recordValue(key, value)
	}
	return value
}

// lookupValue returns the result of Value, but does not record the value. detached is true if detach was called before.
func (c *callerContext) lookupValue(key any) (value any, detached bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.detached {
		return findValue(c.values, key), true
	}
	return c.Context.Value(key), false
}

// recordValue records a value that Value has found, so that it can still be found after detach. It does nothing if
// maxRecordedValues is reached, if the key is not comparable, or after detach.
func (c *callerContext) recordValue(key, value any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.detached && len(c.values) < maxRecordedValues && findValue(c.values, key) == nil && reflect.TypeOf(key).Comparable() {
		c.values = append(c.values, contextValue{key, value})
	}
}

// findValue returns the value of key in values, or nil if there is none.
func findValue(values []contextValue, key any) any {
	for _, v := range values {
		if v.key == key {
			return v.value
		}
	}
	return nil
}

// recordedValues returns the values that recordValue has recorded. The caller must not modify the slice.
func (c *callerContext) recordedValues() []contextValue {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.values
}

// Deadline returns the deadline of the caller's context, also after detach.
func (c *callerContext) Deadline() (time.Time, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.detached {
		return c.deadline, !c.deadline.IsZero()
	}
	return c.Context.Deadline()
}

// Err returns the error of the caller's context. After detach, it returns the error at the time of detach, or context.Canceled
// if there was none.
func (c *callerContext) Err() error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.detached {
		return c.err
	}
	return c.Context.Err()
}

// detach ends the use of the caller's context. When it returns, no goroutine uses the caller's context any more. From then
// on, the method Value only finds the given values.
func (c *callerContext) detach(values []contextValue) {
	if c.Context.Err() == nil { // otherwise derived contexts end, and must get the error
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
