package httpcall

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohedge/hedge/internal/httpattempt"
	"github.com/gohedge/hedge/internal/race"
)

// isSafeToRepeat reports whether req may be sent twice without harm. The option IsHedgeable decides. If IsHedgeable is
// nil, the result is true for requests with a safe method.
func (o *Options) isSafeToRepeat(req *http.Request) bool {
	if f := o.IsHedgeable; f != nil {
		return f(req)
	}
	return hasSafeMethod(req)
}

// hasSafeMethod reports whether the method of req is safe (RFC 9110, section 9.2.1).
func hasSafeMethod(req *http.Request) bool {
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, "QUERY":
		return true
	}
	return false
}

// isSuccess reports whether resp and err, the result of a call without hedges, are a success. The result is false if err
// is not nil or resp counts as a failure. A response such as 404 is a success here.
func (o *Options) isSuccess(req *http.Request, resp *http.Response, err error) bool {
	return err == nil && race.PrimaryError(o.classifyResponse(req, resp)) == nil
}

// classifyResponse decides whether an attempt can win the race with the response. It returns the error by which the
// race ranks the response:
//
//   - nil: a success; any attempt wins with it;
//   - [race.ErrAnswer]: another response, such as 404; only the primary wins with it;
//   - [httpattempt.ErrFailure]: a failure; the primary waits for its hedges.
func (o *Options) classifyResponse(req *http.Request, resp *http.Response) error {
	code := resp.StatusCode
	switch {
	case o.IsFailure != nil:
		if httpattempt.CallWithResponse(resp, o.IsFailure) {
			return httpattempt.ErrFailure
		}
		return nil
	case slices.Contains(o.AnswerStatus, code):
		return nil
	case o.isFailureStatus(req, code):
		return httpattempt.ErrFailure
	case code >= 200 && code <= 399:
		return nil
	}
	return race.ErrAnswer
}

// isFailureStatus reports whether a response to req with the given status code counts as a failure. In that case
// another attempt may get a better response.
func (o *Options) isFailureStatus(req *http.Request, code int) bool {
	if o.FailureStatus != nil {
		return slices.Contains(o.FailureStatus, code)
	}
	switch code {
	case http.StatusRequestTimeout, http.StatusMisdirectedRequest, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	case http.StatusConflict: // the other attempt is in progress: draft-ietf-httpapi-idempotency-key-header, section 2.6
		return hasIdempotencyKey(req)
	case http.StatusPreconditionFailed: // the other attempt may have written the state that the condition excludes
		return !hasSafeMethod(req)
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return false
	default:
		return code >= 500 && code <= 599
	}
}

// hasIdempotencyKey reports whether req has the header Idempotency-Key or X-Idempotency-Key, by which net/http
// recognises idempotent requests.
func hasIdempotencyKey(req *http.Request) bool {
	for name := range req.Header {
		if strings.EqualFold(name, "Idempotency-Key") || strings.EqualFold(name, "X-Idempotency-Key") {
			return true
		}
	}
	return false
}

// isLocalFailure reports whether resp and err, the result of the request req of an attempt, are a failure that an attempt at another
// endpoint may not have: an error of the transport, 502, 504, or 503 without Retry-After. The result is false if the caller has
// cancelled req, or if err is that of a context, such as a time limit in a RoundTripper of the program.
//
// The result is also false for a primary if the body of resp is known to be too large to be buffered, because the caller then gets
// resp without waiting for another attempt. If the length is not known, a hedge starts, and ends when the body turns out too large.
func isLocalFailure(req *http.Request, resp *http.Response, err error, isPrimary bool) bool {
	if err != nil {
		return !isCanceled(req) && !isContextError(err)
	}
	switch resp.StatusCode {
	case http.StatusBadGateway, http.StatusGatewayTimeout:
	case http.StatusServiceUnavailable:
		if resp.Header.Get("Retry-After") != "" {
			return false
		}
	default:
		return false
	}
	return !isPrimary || !httpattempt.IsTooLargeToBuffer(resp)
}

// isCanceled reports whether the context of req has ended or the deprecated channel Cancel of req was closed.
func isCanceled(req *http.Request) bool {
	select {
	case <-req.Cancel: //lint:ignore SA1019 it is deprecated, and obeyed by net/http all the same
		return true
	default:
		return req.Context().Err() != nil
	}
}

// isContextError reports whether err wraps the error of a context. Unlike [errors.Is], it does not report time limits of package net,
// such as that for a response header.
func isContextError(err error) bool {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if e == context.DeadlineExceeded {
			return true
		}
	}
	return errors.Is(err, context.Canceled)
}

// parseRetryAfter returns the time to wait that the value v of a Retry-After header demands (RFC 9110, section 10.2.3).
// The value is a number of seconds, or a date, which is compared with now. The result is 0 if v is empty or invalid.
func parseRetryAfter(v string, now time.Time) time.Duration {
	if at, err := http.ParseTime(v); err == nil {
		return max(at.Sub(now), 0)
	}
	seconds, _ := strconv.ParseUint(v, 10, 31) // on overflow, ParseUint returns the largest value
	return time.Duration(seconds) * time.Second
}
