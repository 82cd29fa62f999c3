package group

import (
	"errors"
	"syscall"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/localerror"
	"github.com/gohedge/hedge/dnshedge/internal/transport"
)

// IsRefused reports whether err is ECONNREFUSED, which means that no process listens at the address. The server may be
// restarting.
func IsRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// IsUnavailable reports whether err means that the server cannot answer now and may be tried again soon. That is so if
// the server has refused or closed a connection (RFC 7766 §6.2.4), or responded with HTTP status 429 or 503.
//
// pause is the wait that the Retry-After header of the response asks for. It is 0 if there is no such header.
func IsUnavailable(err error) (again bool, pause time.Duration) {
	var pushback *transport.PushbackError
	if errors.As(err, &pushback) {
		return true, pushback.Pause
	}
	return IsRefused(err) || transport.IsClosedByServer(err), 0
}

// IsUnsent reports whether err, the error of a query, proves that the message has reached no server. In that case, even
// a message that must not be sent twice, such as an UPDATE, may be sent to another server.
func IsUnsent(err error) bool {
	return (IsRefused(err) || localerror.IsLocal(err)) && !transport.MayBeReceived(err)
}
