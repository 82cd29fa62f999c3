package group

import (
	"errors"
	"syscall"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/localerror"
	"github.com/gohedge/hedge/dnshedge/internal/transport"
)

// IsRefused reports whether err is ECONNREFUSED: no process listens at the address, for example because the server
// restarts.
func IsRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// IsUnavailable reports whether err means that the server cannot answer now and may be asked again soon. It has refused
// or ended a connection (RFC 7766 §6.2.4), or responded with HTTP status 429 or 503. pause is the time that Retry-After
// asks for; 0: none.
func IsUnavailable(err error) (again bool, pause time.Duration) {
	var pushback *transport.PushbackError
	if errors.As(err, &pushback) {
		return true, pushback.Pause
	}
	return IsRefused(err) || transport.IsClosedByServer(err), 0
}

// IsUnsent reports whether err proves that the message has reached no server. Then even a message that must be sent
// once, for example an UPDATE, may go to another server.
func IsUnsent(err error) bool {
	return (IsRefused(err) || localerror.IsLocal(err)) && !transport.MayBeReceived(err)
}
