package worlds_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// A callerContext is the context of a call. It counts the children that wait for its end. It also detects that it is
// asked for a value after the caller has reused it, as web frameworks do with pooled contexts.
type callerContext struct {
	context.Context
	done  chan struct{}
	held  atomic.Int64
	taken atomic.Bool
	late  atomic.Bool
}

// A tenantKey is the key of a value that code below the hedging layer asks for.
type tenantKey struct{}

func newCallerContext(inner context.Context) *callerContext {
	c := &callerContext{Context: inner, done: make(chan struct{})}
	context.AfterFunc(inner, func() { close(c.done) }) // Err must return first, as package context requires
	return c
}

func (c *callerContext) Done() <-chan struct{} { return c.done }

func (c *callerContext) Value(key any) any {
	if _, own := key.(tenantKey); own && c.taken.Load() {
		c.late.Store(true)
	}
	return c.Context.Value(key)
}

// AfterFunc is called by package context for a child of a context of another type.
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

// newCallerTimes returns a caller's context with a deadline (0: none) and a time of cancellation (-1: none).
func newCallerTimes(root context.Context, deadline, cancel time.Duration) (c *callerContext, stop func()) {
	ctx, stops := root, []func(){}
	if deadline > 0 {
		var end context.CancelFunc
		ctx, end = context.WithTimeout(ctx, deadline)
		_ = end // the deadline ends the call, or the root context
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

// A bodySource is the body of a request. Its second half may come late.
type bodySource struct {
	at        time.Duration
	mu        sync.Mutex // guards the fields below
	text      string
	slept     bool
	once      sync.Once
	closed    chan struct{}
	forbidden atomic.Bool // the caller owns it again
	touched   atomic.Bool // used while it was forbidden
}

const sourceText = "12345678"

func newBodySource(at time.Duration) *bodySource {
	return &bodySource{text: sourceText, at: at, closed: make(chan struct{})}
}

func (s *bodySource) Read(b []byte) (int, error) {
	s.recordUse()
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

func (s *bodySource) Close() error {
	s.recordUse()
	s.once.Do(func() { close(s.closed) })
	return nil
}

func (s *bodySource) recordUse() {
	if s.forbidden.Load() {
		s.touched.Store(true)
	}
}

func (s *bodySource) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}
