package chain

import (
	"context"
	"net"
	"time"
)

// QuestionTimeout is the maximum time for answering a client's question. It is shorter than the default timeout of a
// Client, so that the client receives the reason of a failure.
const QuestionTimeout = 4500 * time.Millisecond

// WithQuestionDeadline returns a context for answering a client's question, and its time limit. The limit is
// QuestionTimeout, or nine tenths of the time until the deadline of ctx if that is shorter. When it expires, the cause
// of the context is timeoutErr.
//
// The context also ends when life ends, with the cause net.ErrClosed. The caller must call stop to release resources.
func WithQuestionDeadline(ctx, life context.Context, timeoutErr error) (_ context.Context, limit time.Duration, stop func()) {
	limit = QuestionTimeout
	if end, ok := ctx.Deadline(); ok {
		left := time.Until(end)
		limit = min(limit, left-left/10)
	}
	ctx, end := context.WithTimeoutCause(ctx, limit, timeoutErr)
	ctx, cancel := context.WithCancelCause(ctx)
	leave := context.AfterFunc(life, func() { cancel(net.ErrClosed) })
	return ctx, limit, func() {
		leave()
		cancel(nil)
		end()
	}
}
