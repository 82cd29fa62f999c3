package chain

import (
	"context"
	"net"
	"time"
)

// QuestionTimeout is the maximum time of a question. It is shorter than a Client's default timeout, so that the caller
// receives the reason of a failure.
const QuestionTimeout = 4500 * time.Millisecond

// WithQuestionDeadline returns a context for a client's question, and its time limit. The context ends before ctx does,
// after nine tenths of its time or QuestionTimeout, with the cause long. It ends with net.ErrClosed when life ends.
// stop releases its resources.
func WithQuestionDeadline(ctx, life context.Context, long error) (_ context.Context, limit time.Duration, stop func()) {
	limit = QuestionTimeout
	if end, ok := ctx.Deadline(); ok {
		left := time.Until(end)
		limit = min(limit, left-left/10)
	}
	ctx, end := context.WithTimeoutCause(ctx, limit, long)
	ctx, cancel := context.WithCancelCause(ctx)
	leave := context.AfterFunc(life, func() { cancel(net.ErrClosed) })
	return ctx, limit, func() {
		leave()
		cancel(nil)
		end()
	}
}
