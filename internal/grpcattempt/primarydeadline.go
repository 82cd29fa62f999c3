package grpcattempt

import (
	"context"
	"sync"
	"time"
)

// A PrimaryDeadline is the deadline that a later interceptor in the chain has set for the primary's stream. It also
// applies to all hedges of the call, including hedges in flight. The zero value means that the deadline is not known.
// It is safe for concurrent use.
//
// The deadline becomes known when the primary has received its first message or has ended. Before that, the library
// must not call the stream's method Context: grpc-go would then no longer retry the stream.
type PrimaryDeadline struct {
	mu       sync.Mutex // guards the fields below
	deadline Deadline   // zero if the deadline is not known, or there is none
	// contexts of the hedges that started before the deadline was known
	hedges []*expiringContext
}

// Set stores the deadline of stream, the context of the primary's stream, if it has one. Hedges in flight then end at
// that deadline, too.
func (p *PrimaryDeadline) Set(stream context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deadline = p.deadline.Earlier(stream)
	if !p.deadline.IsZero() {
		for _, hedge := range p.hedges {
			hedge.expireAt(p.deadline.Time)
		}
	}
	p.hedges = nil
}

// Earlier returns the earlier of d and the deadline p. It returns d if the deadline p is not known.
func (p *PrimaryDeadline) Earlier(d Deadline) Deadline {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.deadline.IsZero() && (d.IsZero() || p.deadline.Time.Before(d.Time)) {
		d.Time = p.deadline.Time
	}
	return d
}

// LimitContext returns a context for a hedge that ends at the deadline p, even if the deadline becomes known later. The
// caller must call the returned function or cancel ctx, to release resources.
func (p *PrimaryDeadline) LimitContext(ctx context.Context) (context.Context, context.CancelFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.deadline.IsZero() {
		return p.deadline.LimitContext(ctx)
	}
	hedge := newExpiringContext(ctx)
	p.hedges = append(p.hedges, hedge)
	return hedge, func() { hedge.cancel(nil) }
}

// An expiringContext is a context that can get a deadline after its creation, by expireAt. Its method Deadline does not
// return that deadline.
type expiringContext struct {
	context.Context                 // ended by cancel
	ended           context.Context // child of Context; package context calls Err for contexts derived from an expiringContext, because ended is another context
	cancel          context.CancelCauseFunc
}

// newExpiringContext returns a child of parent. The child has no deadline of its own until expireAt is called.
func newExpiringContext(parent context.Context) *expiringContext {
	ctx, cancel := context.WithCancelCause(parent)
	ended, end := context.WithCancel(ctx)
	return &expiringContext{ctx, ended, func(cause error) { cancel(cause); end() }}
}

// Done returns a channel that is closed when the context ends: after cancel, at the deadline that expireAt sets, or
// with the parent.
func (c *expiringContext) Done() <-chan struct{} { return c.ended.Done() }

// Err returns the reason why the context has ended, or nil. The reason is [context.DeadlineExceeded] if the deadline
// that expireAt has set passed.
func (c *expiringContext) Err() error {
	if err := c.ended.Err(); err == nil || context.Cause(c.ended) != context.DeadlineExceeded {
		return err
	}
	return context.DeadlineExceeded
}

// expireAt makes the context end at the time t, unless it ends earlier.
func (c *expiringContext) expireAt(t time.Time) {
	limited, stop := context.WithDeadline(c.Context, t)
	context.AfterFunc(limited, func() {
		stop()
		if limited.Err() == context.DeadlineExceeded {
			c.cancel(context.DeadlineExceeded)
		}
	})
}
