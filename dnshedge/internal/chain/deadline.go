package chain

import (
	"context"
	"net"
	"time"
)

// QuestionTimeout is how long a question may take, which is less than a Client's default timeout: then its caller learns why there is no answer.
const QuestionTimeout = 4500 * time.Millisecond

// WithQuestionDeadline returns a context for what a caller asks, and how long it lasts: it ends a little before ctx does, with long as its cause, and with
// net.ErrClosed when life ends. Stop gives back what it takes.
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
