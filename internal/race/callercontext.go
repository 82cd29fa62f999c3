package race

import (
	"cmp"
	"context"
	"reflect"
	"sync"
	"time"
)

// A callerContext stands between the caller's context and the inner context of an attempt that may outlive its call. Contexts that are
// derived from it end together with the caller's context, with the same error and cause, until ignoreEnd is called.
//
// After detach, it does not use the caller's context any more, because the caller may reuse that for another call. It then finds copies of
// the values that hedges have looked up before, because attempts look up the same values.
//
// The fields above mu are written before other goroutines get the inner context.
type callerContext struct {
	context.Context
	canEnd        bool        // the caller's context can end, and had not ended when c was made
	recordsValues bool        // whether Value records the values that it finds
	stop          func() bool // stops the AfterFunc of the caller's context; nil: there is none

	mu         sync.RWMutex // guards the fields below; held for reading while the caller's context is used
	ignoresEnd bool         // ignoreEnd was called
	detached   bool
	values     []contextValue
	deadline   time.Time // deadline of the caller's context, set by detach; zero: none
	err        error     // result of Err after detach
}

// A contextValue is a key of the caller's context with its value.
type contextValue struct{ key, value any }

// maxRecordedValues is the maximum number of values that an attempt records.
const maxRecordedValues = 32

// neverClosed is the Done channel of a callerContext. Package context uses AfterFunc of such a context, and never waits for the channel.
var neverClosed = make(chan struct{})

func (c *callerContext) Done() <-chan struct{} {
	if c.canEnd {
		return neverClosed
	}
	return c.Context.Done()
}

// AfterFunc arranges that f is called when the caller's context ends. Package context calls it once, for the inner context that is derived
// from c.
func (c *callerContext) AfterFunc(f func()) func() bool {
	c.stop = context.AfterFunc(c.Context, f)
	return c.stop
}

// ignoreEnd keeps derived contexts alive when the caller's context ends.
func (c *callerContext) ignoreEnd() {
	if c.stop != nil {
		c.stop()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ignoresEnd = true
}

// endError returns the error of the caller's context. It is nil if that has not ended, or c ignores its end.
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

// findValue returns the value of key in values; nil if it is missing.
func findValue(values []contextValue, key any) any {
	for _, v := range values {
		if v.key == key {
			return v.value
		}
	}
	return nil
}

// recordedValues returns the values that were looked up through c.
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

// detach stops the use of the caller's context: it returns when no goroutine uses it any more. After that, Value only finds the given
// values.
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
