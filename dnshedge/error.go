package dnshedge

import (
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/miekg/dns"
)

// Error is why a question has no answer.
type Error struct {
	Name     string
	Type     uint16
	Upstream Upstream // that failed; zero if none was asked
	Err      error
}

var _ net.Error = (*Error)(nil)

func (e *Error) Error() string {
	s := "dnshedge: " + e.Name + " " + dns.Type(e.Type).String() + ": "
	if e.Upstream.Addr != "" {
		s += "upstream " + e.Upstream.String() + ": "
	}
	return s + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether time ran out.
func (e *Error) Timeout() bool {
	t, ok := e.Err.(interface{ Timeout() bool })
	return ok && t.Timeout()
}

// Temporary reports true: asking again may always help.
func (e *Error) Temporary() bool { return true }

// ErrTooManyQuestions is why a question ended that had waited longest of
// Client.MaxInFlight.
var ErrTooManyQuestions = errors.New("dnshedge: too many questions wait for servers")

// StatusError is the error of an exchange over HTTPS if the server answers with
// another HTTP status than 200.
type StatusError struct {
	Upstream Upstream
	Code     int
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("dnshedge: upstream %s: HTTP status %d %s", e.Upstream, e.Code, http.StatusText(e.Code))
}
