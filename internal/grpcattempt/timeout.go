package grpcattempt

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// A Deadline is the time at which the timeout of a gRPC call ends: the timeout of its method in the service config, or of an interceptor
// below. gRPC starts that timeout anew for each attempt; the Deadline holds for all attempts of a call. It is not the deadline of the
// caller's context. The zero Deadline is that of a call without a timeout.
type Deadline struct{ time.Time }

// MethodDeadline returns the deadline of a call of a method over cc that began at a time.
func MethodDeadline(cc *grpc.ClientConn, method string, began time.Time) Deadline {
	if cc == nil {
		return Deadline{}
	}
	timeout := cc.GetMethodConfig(method).Timeout
	if timeout == nil || *timeout < 0 {
		return Deadline{}
	}
	return Deadline{began.Add(*timeout)}
}

// Earlier returns the earlier of d and the deadline of ctx, if that has one.
func (d Deadline) Earlier(ctx context.Context) Deadline {
	if t, ok := ctx.Deadline(); ok && (d.IsZero() || t.Before(d.Time)) {
		return Deadline{t}
	}
	return d
}

// instant is how long before a deadline a server may report that the deadline has passed.
const instant = time.Millisecond

// IsWithin reports whether the deadline is earlier than fromNow from now. A zero Deadline is not.
func (d Deadline) IsWithin(fromNow time.Duration) bool {
	return !d.IsZero() && time.Until(d.Time) < fromNow+instant
}

// LimitContext returns a context for a hedge that ends at the deadline, and the function that releases it. The caller calls that function, unless
// it cancels ctx. For a zero Deadline the context is ctx.
func (d Deadline) LimitContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if d.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, d.Time)
}

// IsTimeout reports whether a primary that ended with err, and received the trailer, ended because the timeout of its call has passed. The
// timeout of an interceptor is not known. Then DEADLINE_EXCEEDED is taken for it in the words of a context, unless the server sent nothing
// but that status, of which grpc-go puts the content-type into the trailer; and in the words of a stream that the server reset: grpc-go
// reports that code for a reset after the deadline alone.
func (d Deadline) IsTimeout(err error, trailer metadata.MD) bool {
	if errors.Is(err, context.DeadlineExceeded) { // of an interceptor that returns the error of its context
		return true
	}
	if status.Code(err) != codes.DeadlineExceeded {
		return false
	}
	words := err.Error()
	return d.IsWithin(0) || strings.Contains(words, "stream terminated by RST_STREAM") ||
		len(trailer["content-type"]) == 0 && strings.Contains(words, context.DeadlineExceeded.Error())
}
