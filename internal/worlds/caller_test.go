package worlds_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// A callerContext is the context that a caller hands in. It knows how many things wait for its end, and whether it is asked for
// a value after it was taken back, as pooled contexts of web frameworks are.
type callerContext struct {
	context.Context
	done  chan struct{}
	held  atomic.Int64
	taken atomic.Bool
	late  atomic.Bool
}

// A tenantKey is the key of a value that only code below the hedging asks for.
type tenantKey struct{}

func newCallerContext(inner context.Context) *callerContext {
	c := &callerContext{Context: inner, done: make(chan struct{})}
	context.AfterFunc(inner, func() { close(c.done) }) // Err says so first: package context wants that
	return c
}

func (c *callerContext) Done() <-chan struct{} { return c.done }

func (c *callerContext) Value(key any) any {
	if _, own := key.(tenantKey); own && c.taken.Load() {
		c.late.Store(true)
	}
	return c.Context.Value(key)
}

// AfterFunc is how package context ties a child to a parent that is not its own.
func (c *callerContext) AfterFunc(f func()) func() bool {
	c.held.Add(1)
	stop := context.AfterFunc(c.Context, func() {
		c.held.Add(-1)
		f()
	})
	return func() bool {
		stopped := stop()
		if stopped {
			c.held.Add(-1)
		}
		return stopped
	}
}

// callerTimes derives the caller's context from a deadline (0: none) and a moment of cancellation (-1: none).
func callerTimes(root context.Context, deadline, cancel time.Duration) (c *callerContext, stop func()) {
	ctx, stops := root, []func(){}
	if deadline > 0 {
		var end context.CancelFunc
		ctx, end = context.WithTimeout(ctx, deadline)
		_ = end // nobody else ends the call in time: the deadline does, or the root
	}
	if cancel >= 0 {
		var end context.CancelFunc
		ctx, end = context.WithCancel(ctx)
		if cancel == 0 {
			end()
		} else {
			t := time.AfterFunc(cancel, end)
			stops = append(stops, func() { t.Stop() })
		}
	}
	c = newCallerContext(ctx)
	if cancel == 0 {
		<-c.done
	}
	return c, func() {
		for _, f := range stops {
			f()
		}
	}
}

// A source is a request's body, of which the second half may come late.
type source struct {
	at        time.Duration
	mu        sync.Mutex // guards the fields below
	text      string
	slept     bool
	once      sync.Once
	closed    chan struct{}
	forbidden atomic.Bool // it belongs to the caller again
	touched   atomic.Bool // though it was forbidden
}

const sourceText = "12345678"

func newSource(at time.Duration) *source {
	return &source{text: sourceText, at: at, closed: make(chan struct{})}
}

func (s *source) Read(b []byte) (int, error) {
	s.touch()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.text) <= len(sourceText)/2 && !s.slept && s.at > 0 {
		s.slept = true
		t := time.NewTimer(s.at)
		defer t.Stop()
		s.mu.Unlock()
		select {
		case <-t.C:
			s.mu.Lock()
		case <-s.closed:
			s.mu.Lock()
			return 0, errors.New("read of a closed body")
		}
	}
	n := copy(b[:min(len(b), len(sourceText)/2)], s.text)
	s.text = s.text[n:]
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (s *source) Close() error {
	s.touch()
	s.once.Do(func() { close(s.closed) })
	return nil
}

func (s *source) touch() {
	if s.forbidden.Load() {
		s.touched.Store(true)
	}
}

func (s *source) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}
