package transport

import (
	"context"
	"errors"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// A sender is a Transport that can also send a message a single time.
type sender interface {
	Transport
	// SendOnce is Exchange for a message that is not known to be safe to repeat: it is written at most once, to one server. If there is
	// an error, written says whether the server may have received the message.
	SendOnce(ctx context.Context, q *wire.Query, w *QueryPath) (a *wire.Answer, setup time.Duration, written bool, err error)
}

// onceOnly is a Transport that sends messages whose opcode is not QUERY, as updates and notifications, a single time.
type onceOnly struct{ sender }

func (o onceOnly) Exchange(ctx context.Context, q *wire.Query, n int, w *QueryPath) (*wire.Answer, time.Duration, error) {
	if q.Standard() {
		return o.sender.Exchange(ctx, q, n, w)
	}
	a, setup, written, err := o.SendOnce(ctx, q, w)
	if err != nil && written {
		err = &mayBeReceivedError{err}
	}
	return a, setup, err
}

// A mayBeReceivedError is why a message has no response that the server may have received, and that must not be repeated.
type mayBeReceivedError struct{ err error }

func (e *mayBeReceivedError) Error() string { return e.err.Error() }
func (e *mayBeReceivedError) Unwrap() error { return e.err }

// MayBeReceived reports whether an error is that of a message that must not be repeated, because the server may have received it.
func MayBeReceived(err error) bool {
	var written *mayBeReceivedError
	return errors.As(err, &written)
}
