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

	"github.com/gohedge/hedge/internal/hedgebalancer"
)

// A Deadline is the time at which a gRPC call times out. It comes from the timeout of the method in the service config,
// or from a later interceptor in the chain. It does not include the deadline of the caller's context. If the time is
// zero, no timeout is known.
//
// A Deadline applies to the whole call, whereas gRPC applies the timeout of the method to each attempt.
type Deadline struct {
	time.Time
	MayBeEarlier bool // the call may time out earlier, because of a timeout that is not known
}

// MethodDeadline returns the Deadline that follows from the timeout of the method in the service config of cc. The
// argument began is the start of the call. The time is zero if the method has no timeout or cc is nil.
//
// The caller must set hasInterceptor if there is a later interceptor in the chain, which may set an earlier timeout.
// The timeouts of xDS are not in the service config either.
func MethodDeadline(cc *grpc.ClientConn, method string, began time.Time, hasInterceptor bool) Deadline {
	d := Deadline{MayBeEarlier: hasInterceptor}
	if cc == nil {
		return d
	}
	if scheme, _, _ := strings.Cut(cc.Target(), ":"); scheme == "xds" || scheme == "google-c2p" {
		d.MayBeEarlier = true
	}
	if timeout := cc.GetMethodConfig(method).Timeout; timeout != nil && *timeout >= 0 {
		d.Time = began.Add(*timeout)
	}
	return d
}

// Earlier returns the earlier of d and the deadline of ctx. If only one of them is set, it returns that deadline.
func (d Deadline) Earlier(ctx context.Context) Deadline {
	if t, ok := ctx.Deadline(); ok && (d.IsZero() || t.Before(d.Time)) {
		d.Time = t
	}
	return d
}

// IsWithin reports whether the deadline passes within the given time from now, or [hedgebalancer.DeadlineTolerance] later. It
// returns false for a zero time.
func (d Deadline) IsWithin(fromNow time.Duration) bool {
	return !d.IsZero() && time.Until(d.Time) < fromNow+hedgebalancer.DeadlineTolerance
}

// LimitContext returns a child of ctx that ends at the deadline, for a hedge. The caller must call the returned
// function or cancel ctx, to release resources. For a zero time, it returns ctx itself.
func (d Deadline) LimitContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if d.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, d.Time)
}

// IsTimeout reports whether a primary failed because its call timed out. The primary ended with the status err and the
// given trailer.
//
// A DEADLINE_EXCEEDED status before d comes from the server, unless the call may time out earlier. Then it also counts as a
// timeout in two cases.
//
// In the first case the client made the status: it has the text of package context, and the trailer has no
// content-type. A status that the server sends without a header has one. In the second case the text reports a stream
// reset: grpc-go maps a reset to DEADLINE_EXCEEDED only after the deadline.
func (d Deadline) IsTimeout(err error, trailer metadata.MD) bool {
	if errors.Is(err, context.DeadlineExceeded) { // an interceptor may return the error of its context
		return true
	}
	if status.Code(err) != codes.DeadlineExceeded {
		return false
	}
	words := err.Error()
	return d.IsWithin(0) || d.MayBeEarlier && (strings.Contains(words, "stream terminated by RST_STREAM") ||
		len(trailer["content-type"]) == 0 && strings.Contains(words, context.DeadlineExceeded.Error()))
}
