package transport

import (
	"context"
	"errors"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// A sender is a Transport for one protocol that can also send a message that must not be sent twice.
type sender interface {
	Transport
	// SendOnce writes q at most once, to one server, because q may not be safe to repeat. The other parameters and results
	// are those of Exchange. If err is not nil, written reports whether the server may have received q.
	SendOnce(ctx context.Context, q *wire.Query, w *QueryPath) (a *wire.Answer, setup time.Duration, written bool, err error)
}

// A onceOnlyTransport is a Transport that sends messages with an opcode other than QUERY, for example UPDATE and NOTIFY, at most
// once, by sender.SendOnce. Queries go to sender.Exchange, which may repeat them.
type onceOnlyTransport struct{ sender }

// Exchange implements Transport. If it returns an error for a message that must not be repeated, MayBeReceived reports
// whether the server may have received that message.
func (o onceOnlyTransport) Exchange(ctx context.Context, q *wire.Query, n int, w *QueryPath) (*wire.Answer, time.Duration, error) {
	if q.IsStandard() {
		return o.sender.Exchange(ctx, q, n, w)
	}
	a, setup, written, err := o.SendOnce(ctx, q, w)
	if err != nil && written {
		err = &mayBeReceivedError{err}
	}
	return a, setup, err
}

// A mayBeReceivedError wraps the error of a message that must not be sent twice and that the server may have received.
type mayBeReceivedError struct{ err error }

func (e *mayBeReceivedError) Error() string { return e.err.Error() }
func (e *mayBeReceivedError) Unwrap() error { return e.err }

// MayBeReceived reports whether err means that the server may have received the message, although no response came. The
// message must then not be sent again. It only returns true for messages with an opcode other than QUERY.
func MayBeReceived(err error) bool {
	var written *mayBeReceivedError
	return errors.As(err, &written)
}
