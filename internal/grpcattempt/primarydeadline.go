package grpcattempt

import (
	"context"
	"sync"
	"time"
)

// A PrimaryDeadline is the deadline that an interceptor below hedging has given the primary's stream. grpc-go does not retry a stream whose
// context was asked for, so the deadline is unknown until the primary has received its first message or its end. Then it limits the
// call's hedges, those in flight included. The zero PrimaryDeadline is unknown. It is safe for concurrent use.
type PrimaryDeadline struct {
	mu       sync.Mutex // guards the fields below
	deadline Deadline   // zero: unknown, or there is none
	hedges   []*expiringContext
}

// Set stores the deadline of the context of the primary's stream.
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

// Earlier returns d, or the deadline if that is known and earlier.
func (p *PrimaryDeadline) Earlier(d Deadline) Deadline {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.deadline.IsZero() && (d.IsZero() || p.deadline.Time.Before(d.Time)) {
		return p.deadline
	}
	return d
}

// LimitContext returns a context for a hedge that ends at the deadline, also if that becomes known later, and the function that releases it. The
// caller calls that function, unless it cancels ctx.
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

// An expiringContext is a context that can be given a deadline while it is in use. [context.Context.Deadline] does not return that deadline.
type expiringContext struct {
	context.Context                 // cancelled by cancel
	ended           context.Context // of Context, and cancelled with it: package context attaches to a Done that is not its own by calling Err
	cancel          context.CancelCauseFunc
}

func newExpiringContext(parent context.Context) *expiringContext {
	ctx, cancel := context.WithCancelCause(parent)
	ended, end := context.WithCancel(ctx)
	return &expiringContext{ctx, ended, func(cause error) { cancel(cause); end() }}
}

// Done is closed when the context has ended.
func (c *expiringContext) Done() <-chan struct{} { return c.ended.Done() }

// Err returns [context.DeadlineExceeded] once the deadline has passed.
func (c *expiringContext) Err() error {
	if err := c.ended.Err(); err == nil || context.Cause(c.ended) != context.DeadlineExceeded {
		return err
	}
	return context.DeadlineExceeded
}

// expireAt ends the context at a time.
func (c *expiringContext) expireAt(t time.Time) {
	limited, stop := context.WithDeadline(c.Context, t)
	context.AfterFunc(limited, func() {
		stop()
		if limited.Err() == context.DeadlineExceeded {
			c.cancel(context.DeadlineExceeded)
		}
	})
}
