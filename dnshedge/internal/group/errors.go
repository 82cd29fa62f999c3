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

// RetryAfter reports by ok whether the query that failed with err may be repeated soon, because the server was busy or
// restarting: it refused or closed the connection, or sent HTTP status 429 or 503. pause is the wait from the
// Retry-After header, or 0.
func RetryAfter(err error) (pause time.Duration, ok bool) {
	var pushback *transport.PushbackError
	if errors.As(err, &pushback) {
		return pushback.Pause, true
	}
	return 0, isConnectionRefused(err) || transport.IsClosedByServer(err) // RFC 7766 §6.2.4
}

// IsUnsent reports whether err proves that the query has reached no server. In that case, even a message that must not
// be sent twice, such as an UPDATE, may be sent to another server.
func IsUnsent(err error) bool {
	return (isConnectionRefused(err) || localerror.IsLocal(err)) && !transport.MayBeReceived(err)
}
