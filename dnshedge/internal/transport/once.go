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
	SendOnce(ctx context.Context, q *wire.Query, w *Way) (a *wire.Answer, setup time.Duration, written bool, err error)
}

// once is a Transport that sends messages whose opcode is not QUERY, as updates and notifications, a single time.
type once struct{ sender }

func (o once) Exchange(ctx context.Context, q *wire.Query, n int, w *Way) (*wire.Answer, time.Duration, error) {
	if q.Standard() {
		return o.sender.Exchange(ctx, q, n, w)
	}
	a, setup, written, err := o.SendOnce(ctx, q, w)
	if err != nil && written {
		err = &writtenError{err}
	}
	return a, setup, err
}

// A writtenError is why a message has no response that the server may have received, and that must not be repeated.
type writtenError struct{ err error }

func (e *writtenError) Error() string { return e.err.Error() }
func (e *writtenError) Unwrap() error { return e.err }

// MayBeReceived reports whether an error is that of a message that must not be repeated, because the server may have received it.
func MayBeReceived(err error) bool {
	var written *writtenError
	return errors.As(err, &written)
}
