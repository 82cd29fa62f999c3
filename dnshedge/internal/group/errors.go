package group

import (
	"errors"
	"syscall"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/localerror"
	"github.com/gohedge/hedge/dnshedge/internal/transport"
)

// IsRefused reports whether err is ECONNREFUSED: no process listens at the address, for instance because the server restarts.
func IsRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// IsUnavailable reports whether an error is that of a server that may be asked again soon, and how long it wants to be left alone: it has refused
// or ended a connection, or has said by an HTTP status that it has too much to do (RFC 7766 §6.2.4).
func IsUnavailable(err error) (again bool, pause time.Duration) {
	var pushback *transport.PushbackError
	if errors.As(err, &pushback) {
		return true, pushback.Pause
	}
	return IsRefused(err) || transport.IsClosedByServer(err), 0
}

// IsUnsent reports whether err proves that the message has reached no server. Then a message that must be sent once,
// for example an UPDATE, may go to another server.
func IsUnsent(err error) bool {
	return (IsRefused(err) || localerror.IsLocal(err)) && !transport.MayBeReceived(err)
}
