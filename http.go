package hedge

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohedge/hedge/internal/httpattempt"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
)

// What is known of HTTP: which requests may be sent twice, which responses are successes, and
// what a response tells of its host.

// safe reports whether req only reads, unless the user has a rule.
func (c *config) safe(req *http.Request) bool {
	if f := c.hedgeable; f != nil {
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
func (c *config) answered(req *http.Request, resp *http.Response, err error) bool {
	return err == nil && race.OfPrimary(c.judge(req, resp)) == nil
}

// judge returns nil if the response to req is a success, [race.ErrAnswer] if it is an answer
// of the primary alone, and [httpattempt.ErrFailure] if the primary waits for its hedges.
func (c *config) judge(req *http.Request, resp *http.Response) error {
	code := resp.StatusCode
	switch {
	case c.failureFunc != nil:
		if httpattempt.Ask(resp, c.failureFunc) {
			return httpattempt.ErrFailure
		}
		return nil
	case slices.Contains(c.answers, code):
		return nil
	case c.failed(req, code):
		return httpattempt.ErrFailure
	case code >= 200 && code <= 399:
		return nil
	}
	return race.ErrAnswer
}

// failed reports whether another attempt of req may get a better status.
func (c *config) failed(req *http.Request, code int) bool {
	if c.failure != nil {
		return slices.Contains(c.failure, code)
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

// What a server with a [Limiter] says in the header of its answers. Over gRPC it is in the trailer.
const (
	limitHeader   = "Hedge-Limit"   // 1: there is a Limiter
	refusedHeader = "Hedge-Refused" // 1: the hedge was turned away
)

// A key's tag has the major version of HTTP that primaries get their answers in, for http and for
// https: these may be two servers. Bits say that the last answer came from behind a [Limiter], and that
// attempts which got an answer have told of their connections: primaries, and hedges by a way of their own.
const (
	unknown     = 0 // no primary has been answered
	http1       = 1
	http2       = 2
	unversioned = 14 // answers have no version, as those of RoundTrippers in memory, or one above 13
	mixed       = 15 // several, as of hosts that share a key or were upgraded; it stays
	limited     = 1 << 8

	primariesTell = 1 << 9
	hedgesTell    = 1 << 10
)

// A hostVersion is the version of HTTP that a key's tag has for one scheme.
type hostVersion struct {
	version int32
	shift   int32 // of the version, in bits of the tag
}

func hostVersionOf(k *policy.Key, scheme string) (v hostVersion) {
	if scheme == "https" {
		v.shift = 4
	}
	v.version = k.Features.Load() >> v.shift & mixed
	return v
}

// mayBeHTTP1 reports whether a primary may go over HTTP/1.1.
func (v hostVersion) mayBeHTTP1() bool {
	return v.version == http1 || v.version == unknown || v.version == mixed
}

// recordHostFeatures stores the HTTP version that the host has answered in, and whether the answer came from behind a
// Limiter. The version of a hedge's answer is not stored: another host may have sent it.
func (v hostVersion) recordHostFeatures(k *policy.Key, resp *http.Response, isHedge bool) {
	before := k.Features.Load()
	tag := before &^ limited
	if len(resp.Header[limitHeader]) > 0 {
		tag |= limited
	}
	if known := before >> v.shift & mixed; !isHedge {
		tag = tag&^(mixed<<v.shift) | mergeVersions(known, int32(resp.ProtoMajor))<<v.shift
	}
	if tag != before {
		k.Features.Store(tag)
	}
}

// mergeVersions returns the version of a host that is known to have a version, and has answered in another one. An answer
// without a version, such as a cached response, changes no known version.
func mergeVersions(known, answered int32) int32 {
	if answered <= 0 || answered > unversioned {
		answered = unversioned
	}
	switch {
	case known == unknown || known == unversioned:
		return answered
	case answered == unversioned || answered == known:
		return known
	}
	return mixed
}

func behindLimiter(k *policy.Key) bool { return k.Features.Load()&limited != 0 }

// tells returns the bit that says whether attempts like n tell of their connections.
func (c *call) tells(n int) int32 {
	if n > 0 && c.t.options.transport != nil {
		return hedgesTell
	}
	return primariesTell
}
