package httpcall

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohedge/hedge/internal/httpattempt"
	"github.com/gohedge/hedge/internal/race"
)

// What is known of HTTP: which requests may be sent twice, which responses are successes, and
// what a response tells of its host.

// safe reports whether req only reads, unless the user has a rule.
func (o *Options) safe(req *http.Request) bool {
	if f := o.IsHedgeable; f != nil {
		return f(req)
	}
	return onlyReads(req)
}

// onlyReads reports whether the method of req is safe (RFC 9110, section 9.2.1).
func onlyReads(req *http.Request) bool {
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, "QUERY":
		return true
	}
	return false
}

// answered reports whether a call that is sent once has an answer.
func (o *Options) answered(req *http.Request, resp *http.Response, err error) bool {
	return err == nil && race.OfPrimary(o.judge(req, resp)) == nil
}

// judge returns nil if the response to req is a success, [race.ErrAnswer] if it is an answer
// of the primary alone, and [httpattempt.ErrFailure] if the primary waits for its hedges.
func (o *Options) judge(req *http.Request, resp *http.Response) error {
	code := resp.StatusCode
	switch {
	case o.IsFailure != nil:
		if httpattempt.Ask(resp, o.IsFailure) {
			return httpattempt.ErrFailure
		}
		return nil
	case slices.Contains(o.AnswerStatus, code):
		return nil
	case o.failed(req, code):
		return httpattempt.ErrFailure
	case code >= 200 && code <= 399:
		return nil
	}
	return race.ErrAnswer
}

// failed reports whether another attempt of req may get a better status.
func (o *Options) failed(req *http.Request, code int) bool {
	if o.FailureStatus != nil {
		return slices.Contains(o.FailureStatus, code)
	}
	switch code {
	case http.StatusRequestTimeout, http.StatusMisdirectedRequest, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	case http.StatusConflict: // while the other attempt is in progress: draft-ietf-httpapi-idempotency-key-header, section 2.6
		return hasIdempotencyKey(req)
	case http.StatusPreconditionFailed: // by the other attempt, which has written what the condition excludes
		return !onlyReads(req)
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return false
	default:
		return code >= 500 && code <= 599
	}
}

func hasIdempotencyKey(req *http.Request) bool {
	for name := range req.Header {
		if strings.EqualFold(name, "Idempotency-Key") || strings.EqualFold(name, "X-Idempotency-Key") {
			return true
		}
	}
	return false
}

// retryAfter reads a Retry-After header (RFC 9110, section 10.2.3). It returns 0 if
// the header is missing or says nothing.
func retryAfter(v string, now time.Time) time.Duration {
	if at, err := http.ParseTime(v); err == nil {
		return max(at.Sub(now), 0)
	}
	seconds, _ := strconv.ParseUint(v, 10, 31) // the largest that there is, if the header's is larger
	return time.Duration(seconds) * time.Second
}
