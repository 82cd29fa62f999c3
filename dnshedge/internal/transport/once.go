package transport

import (
	"context"
	"errors"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// A sender is a Transport that can also send a message at most once.
type sender interface {
	Transport
	// SendOnce sends a message that may not be safe to repeat: it is written at most once, to one server. If it returns an
	// error, written reports whether the server may have received the message.
	SendOnce(ctx context.Context, q *wire.Query, w *QueryPath) (a *wire.Answer, setup time.Duration, written bool, err error)
}

// onceOnly is a Transport that uses SendOnce for messages with an opcode other than QUERY, for example UPDATE and
// NOTIFY.
type onceOnly struct{ sender }

// Exchange implements Transport. If a message that must not be repeated may have been received, MayBeReceived reports
// true for the error.
func (o onceOnly) Exchange(ctx context.Context, q *wire.Query, n int, w *QueryPath) (*wire.Answer, time.Duration, error) {
	if q.IsStandard() {
		return o.sender.Exchange(ctx, q, n, w)
	}
	a, setup, written, err := o.SendOnce(ctx, q, w)
	if err != nil && written {
		err = &mayBeReceivedError{err}
	}
	return a, setup, err
}

// A mayBeReceivedError is the error of a message that must not be repeated and that the server may have received.
type mayBeReceivedError struct{ err error }

func (e *mayBeReceivedError) Error() string { return e.err.Error() }
func (e *mayBeReceivedError) Unwrap() error { return e.err }

// MayBeReceived reports whether err is the error of a message that must not be sent again, because the server may have
// received it.
func MayBeReceived(err error) bool {
	var written *mayBeReceivedError
	return errors.As(err, &written)
}
