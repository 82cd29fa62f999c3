package dnshedge

import (
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/group"
	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
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

// newNoAnswerError returns the error of a question that a server did not answer.
func newNoAnswerError(q *wire.Query, s *group.Server, err error) error {
	return &Error{Name: q.Text(), Type: q.Type, Upstream: upstreamOf(s), Err: explainError(s, err)}
}

// explainError returns the error of a query to a server as the package's users know it.
func explainError(s *group.Server, err error) error {
	if err == nil {
		return nil
	}
	var code transport.StatusError
	if errors.As(err, &code) {
		return &StatusError{upstreamOf(s), int(code)}
	}
	return err
}
