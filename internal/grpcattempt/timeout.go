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

// A Deadline is the time at which a gRPC call times out, by the timeout of its method in the service config or of an
// interceptor below. It applies to the whole call, while gRPC applies that timeout to each attempt. It does not include
// the deadline of the caller's context. The zero Deadline means no timeout.
type Deadline struct{ time.Time }

// MethodDeadline returns the Deadline of a call of the method over cc that began at the time began.
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

// Earlier returns the earlier of d and the deadline of ctx. A missing deadline counts as later than any other.
func (d Deadline) Earlier(ctx context.Context) Deadline {
	if t, ok := ctx.Deadline(); ok && (d.IsZero() || t.Before(d.Time)) {
		return Deadline{t}
	}
	return d
}

// deadlineTolerance is the tolerance of clocks: a server may report a passed deadline this long before the client's
// deadline passes.
const deadlineTolerance = time.Millisecond

// IsWithin reports whether the deadline passes within the given time from now. It is false for a zero Deadline.
func (d Deadline) IsWithin(fromNow time.Duration) bool {
	return !d.IsZero() && time.Until(d.Time) < fromNow+deadlineTolerance
}

// LimitContext returns a context for a hedge that ends at the deadline. The caller must call the returned function or
// cancel ctx, to release resources. For a zero Deadline, it returns ctx.
func (d Deadline) LimitContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if d.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, d.Time)
}

// IsTimeout reports whether a primary that ended with err and the given trailer has hit the timeout of its call.
//
// The timeout of an interceptor is unknown, so d may not contain it. Then a DEADLINE_EXCEEDED status counts as a
// timeout in two cases. Either its text is that of package context, and the trailer has no content-type, which grpc-go
// adds if the server itself sent the status. Or its text reports a stream reset, which grpc-go maps to
// DEADLINE_EXCEEDED only after the deadline.
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
