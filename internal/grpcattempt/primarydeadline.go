package grpcattempt

import (
	"context"
	"sync"
	"time"
)

// A PrimaryDeadline is the deadline that an interceptor below has set for the primary's stream. It applies to all
// hedges of the call, including hedges in flight. The zero value is an unknown deadline. It is safe for concurrent use.
//
// The deadline becomes known when the primary has received its first message or its end. Before, hedge must not call
// Context of the stream: grpc-go then no longer retries the stream.
type PrimaryDeadline struct {
	mu       sync.Mutex // guards the fields below
	deadline Deadline   // zero: unknown, or there is no deadline
	// contexts of hedges that started before the deadline was known
	hedges []*expiringContext
}

// Set sets the deadline from the context of the primary's stream, and applies it to the hedges in flight.
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

// Earlier returns the earlier of d and p. An unknown deadline counts as none.
func (p *PrimaryDeadline) Earlier(d Deadline) Deadline {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.deadline.IsZero() && (d.IsZero() || p.deadline.Time.Before(d.Time)) {
		return p.deadline
	}
	return d
}

// LimitContext returns a context for a hedge that ends at the deadline, even if the deadline becomes known later. The
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

// An expiringContext is a context whose deadline can be set after its creation. Its method Deadline does not return
// that deadline.
type expiringContext struct {
	context.Context                 // ended by cancel
	ended           context.Context // child of Context, so that package context uses Err for contexts derived from an expiringContext
	cancel          context.CancelCauseFunc
}

func newExpiringContext(parent context.Context) *expiringContext {
	ctx, cancel := context.WithCancelCause(parent)
	ended, end := context.WithCancel(ctx)
	return &expiringContext{ctx, ended, func(cause error) { cancel(cause); end() }}
}

// Done returns a channel that is closed when the context ends.
func (c *expiringContext) Done() <-chan struct{} { return c.ended.Done() }

// Err returns [context.DeadlineExceeded] if expireAt has ended the context.
func (c *expiringContext) Err() error {
	if err := c.ended.Err(); err == nil || context.Cause(c.ended) != context.DeadlineExceeded {
		return err
	}
	return context.DeadlineExceeded
}

// expireAt sets the deadline of the context to t.
func (c *expiringContext) expireAt(t time.Time) {
	limited, stop := context.WithDeadline(c.Context, t)
	context.AfterFunc(limited, func() {
		stop()
		if limited.Err() == context.DeadlineExceeded {
			c.cancel(context.DeadlineExceeded)
		}
	})
}
