package dnshedge

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/group"
	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// Error is the error of a question that was not answered.
type Error struct {
	Name     string   // name of the question, in presentation format
	Type     uint16   // type of the question
	Upstream Upstream // the server that failed; zero if none was asked
	Err      error    // the cause
}

var _ net.Error = (*Error)(nil)

func (e *Error) Error() string {
	s := "dnshedge: " + e.Name + " " + dns.Type(e.Type).String() + ": "
	if e.Upstream.Addr != "" {
		s += "upstream " + e.Upstream.String() + ": "
	}
	return s + e.Err.Error()
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether Err is a timeout.
func (e *Error) Timeout() bool {
	t, ok := e.Err.(interface{ Timeout() bool })
	return ok && t.Timeout()
}

// Temporary reports true: a repetition of the question may succeed.
func (e *Error) Temporary() bool { return true }

// ErrTooManyQuestions is the error of a question that was dropped because more than Client.MaxInFlight questions were
// waiting.
var ErrTooManyQuestions = errors.New("dnshedge: too many questions wait for servers")

// StatusError is the error of a query over HTTPS to which the server responded with an HTTP status other than 200.
type StatusError struct {
	Upstream   Upstream      // the server that responded
	Code       int           // the HTTP status
	RetryAfter time.Duration // wait that the server asks for, with the codes 429 and 503; zero: none
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("dnshedge: upstream %s: HTTP status %d %s", e.Upstream, e.Code, http.StatusText(e.Code))
}

// newError returns the *Error for the question q with the cause err, for errors that no server has caused. The field
// Upstream of the *Error is zero.
func newError(q *wire.Query, err error) error {
	return &Error{Name: q.PresentationName(), Type: q.Type, Err: err}
}

// newNoAnswerError returns the *Error for the question q, which the server s did not answer because of the error err.
// It converts an HTTP status to a *StatusError.
func newNoAnswerError(q *wire.Query, s *group.Server, err error) error {
	return &Error{Name: q.PresentationName(), Type: q.Type, Upstream: upstreamOf(s), Err: toStatusError(s, err)}
}

// toStatusError converts the error that package transport returns for an HTTP status of the server s to a *StatusError,
// which users can inspect. It returns other errors, and nil, unchanged.
func toStatusError(s *group.Server, err error) error {
	if err == nil {
		return nil
	}
	var code transport.StatusError
	if errors.As(err, &code) {
		pause, _ := group.RetryAfter(err)
		return &StatusError{upstreamOf(s), int(code), pause}
	}
	return err
}
