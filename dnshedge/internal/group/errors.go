package group

import (
	"errors"
	"syscall"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/localerror"
	"github.com/gohedge/hedge/dnshedge/internal/socketerror"
	"github.com/gohedge/hedge/dnshedge/internal/transport"
)

// isConnectionRefused reports whether err is ECONNREFUSED: no process listens at the server's address, for example
// because the server is being restarted. The response code REFUSED is no error.
func isConnectionRefused(err error) bool { return socketerror.IsAny(err, syscall.ECONNREFUSED) }

// RetryAfter returns after which pause the query that failed with err may be repeated. pause is the wait in the
// Retry-After header of the response, or 0 without that header.
//
// ok is true if the query may be repeated soon, because the server was busy or restarting. The server has then refused
// or closed a connection (RFC 7766 §6.2.4), or has responded with HTTP status 429 or 503.
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
