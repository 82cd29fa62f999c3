package race

import (
	"cmp"
	"context"
	"reflect"
	"sync"
	"time"
)

// tie is the caller's context, as the parent of the own context of an attempt that may outlive
// its call. What is derived from it ends with the caller's context, by the same error and cause,
// until detach is called. Once it is severed it does not use the caller's context any more, which
// may be somebody else's by then: what is below an attempt still finds the values that hedges
// have been asked for, as one attempt asks for what another does.
//
// Whoever makes the attempt's own context writes all fields above mu, before others have it.
type tie struct {
	context.Context
	loose     bool        // the caller's context can end, and has not
	remembers bool        // what it is asked for
	cut       func() bool // nil: there is nothing to cut

	mu       sync.RWMutex // guards the fields below; held for reading while the caller's context is used
	detached bool
	severed  bool
	known    []known
	deadline time.Time // of the caller's context; zero: none; known once severed, as is err
	err      error
}

// known is a value that the caller's context has.
type known struct{ key, value any }

// maxKnown bounds the values that one attempt remembers.
const maxKnown = 32

// open is never closed: package context uses AfterFunc instead, where there is one.
var open = make(chan struct{})

func (t *tie) Done() <-chan struct{} {
	if t.loose {
		return open
	}
	return t.Context.Done()
}

// AfterFunc is called once, by the context that is derived from the tie.
func (t *tie) AfterFunc(f func()) func() bool {
	t.cut = context.AfterFunc(t.Context, f)
	return t.cut
}

// detach lets what is derived run on when the caller's context ends.
func (t *tie) detach() {
	if t.cut != nil {
		t.cut()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.detached = true
}

// ended returns the error of the caller's context, unless that does not matter any more.
func (t *tie) ended() error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.detached || t.severed {
		return nil
	}
	return t.Context.Err()
}

func (t *tie) Value(key any) any {
	value, severed := t.ask(key)
	if !severed && t.remembers && value != nil {
		t.remember(key, value)
	}
	return value
}

func (t *tie) ask(key any) (value any, severed bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.severed {
		return find(t.known, key), true
	}
	return t.Context.Value(key), false
}

func (t *tie) remember(key, value any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.severed && len(t.known) < maxKnown && find(t.known, key) == nil && reflect.TypeOf(key).Comparable() {
		t.known = append(t.known, known{key, value})
	}
}

// find returns the value of key, or nil.
func find(all []known, key any) any {
	for _, k := range all {
		if k.key == key {
			return k.value
		}
	}
	return nil
}

func (t *tie) knows() []known {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.known
}

func (t *tie) Deadline() (time.Time, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.severed {
		return t.deadline, !t.deadline.IsZero()
	}
	return t.Context.Deadline()
}

func (t *tie) Err() error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.severed {
		return t.err
	}
	return t.Context.Err()
}

// sever waits until nobody uses the caller's context.
func (t *tie) sever(known []known) {
	if t.Context.Err() == nil { // or what is derived from it is about to end
		t.detach()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.severed {
		return
	}
	t.severed, t.known = true, known
	t.deadline, _ = t.Context.Deadline()
	t.err = cmp.Or(t.Context.Err(), context.Canceled)
}
