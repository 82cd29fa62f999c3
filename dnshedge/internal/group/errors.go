package group

import (
	"errors"
	"syscall"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/localerror"
	"github.com/gohedge/hedge/dnshedge/internal/transport"
)

// isConnectionRefused reports whether err is ECONNREFUSED: no process listens at the server's address, for example
// because the server is being restarted. The response code REFUSED is no error.
func isConnectionRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// RetryAfter returns after which pause the query that failed with err may be repeated. ok is true if it may be repeated
// soon, because the server was busy or restarting: the server refused or closed a connection (RFC 7766 §6.2.4), or
// responded with HTTP status 429 or 503. pause is the wait in the Retry-After header of the response, or 0 without it.
func RetryAfter(err error) (pause time.Duration, ok bool) {
	var pushback *transport.PushbackError
	if errors.As(err, &pushback) {
		return pushback.Pause, true
	}
	return 0, isConnectionRefused(err) || transport.IsClosedByServer(err)
}

// IsUnsent reports whether err proves that the query has reached no server. In that case, even a message that must not
// be sent twice, such as an UPDATE, may be sent to another server.
func IsUnsent(err error) bool {
	return (isConnectionRefused(err) || localerror.IsLocal(err)) && !transport.MayBeReceived(err)
}
