package hedge

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohedge/hedge/internal/engine"
)

// What is known of HTTP: which requests may be sent twice, which responses may win, and what
// a response tells of its host.

// replayable reports whether req can be sent twice, safe or not.
func replayable(req *http.Request, maxBody int64, streams bool) bool {
	if req.URL == nil || req.Method == http.MethodConnect || req.Trailer != nil {
		return false
	}
	if req.Body != nil && req.Body != http.NoBody {
		if req.ContentLength <= 0 || req.ContentLength > maxBody || len(req.TransferEncoding) > 0 {
			return false
		}
	}
	if len(req.Header["Upgrade"]) > 0 {
		return false
	}
	return streams || !slices.ContainsFunc(req.Header["Accept"], func(accept string) bool {
		return strings.Contains(accept, "text/event-stream")
	})
}

// safe reports whether req only reads, unless the user has a rule.
func (c *config) safe(req *http.Request) bool {
	if f := c.hedgeable; f != nil {
		return f(req)
	}
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, "QUERY":
		return true
	}
	return false
}

// answered reports whether a response to req may win.
func (c *config) answered(req *http.Request, resp *http.Response, err error) bool {
	return err == nil && !c.failed(req, resp)
}

// failed reports whether another attempt of req may get a better response.
func (c *config) failed(req *http.Request, resp *http.Response) bool {
	switch {
	case c.failureFunc != nil:
		return c.failureFunc(resp)
	case c.failure != nil:
		return slices.Contains(c.failure, resp.StatusCode)
	}
	switch code := resp.StatusCode; code {
	case http.StatusRequestTimeout, http.StatusMisdirectedRequest, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	case http.StatusConflict: // while the other attempt is in progress: draft-ietf-httpapi-idempotency-key-header, section 2.6
		return hasIdempotencyKey(req)
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return false
	default:
		return code >= 500 && code <= 599
	}
}

func hasIdempotencyKey(req *http.Request) bool {
	_, key := req.Header["Idempotency-Key"]
	_, xkey := req.Header["X-Idempotency-Key"]
	return key || xkey
}

// retryAfter reads a Retry-After header (RFC 9110, section 10.2.3). It returns 0 if
// the header is missing or says nothing.
func retryAfter(v string, now time.Time) time.Duration {
	if s, err := strconv.Atoi(v); err == nil {
		return time.Duration(min(max(s, 0), 1e9)) * time.Second
	}
	if at, err := http.ParseTime(v); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}

// hostName returns host, with its port unless that is the scheme's own. All spellings of
// a host have the same name.
func hostName(scheme, host string) string {
	canonical := true
	for i := range len(host) {
		c := host[i]
		canonical = canonical && !(c >= 'A' && c <= 'Z' || c == '.' && (i == len(host)-1 || host[i+1] == ':'))
	}
	switch scheme {
	case "http":
		host = strings.TrimSuffix(host, ":80")
	case "https":
		host = strings.TrimSuffix(host, ":443")
	}
	if canonical {
		return host
	}
	name, port, ok := strings.Cut(host, ":")
	host = strings.TrimSuffix(name, ".")
	if ok {
		host += ":" + port
	}
	return strings.ToLower(host)
}

// A key's tag is the major version of HTTP that its host speaks, 0 if that is unknown, and
// the bit limited if the host's last answer came from behind a [Limiter].
const (
	http1   = 1
	http2   = 2
	limited = 1 << 8
)

func httpVersion(k *engine.Key) int32  { return k.Tag.Load() &^ limited }
func behindLimiter(k *engine.Key) bool { return k.Tag.Load()&limited != 0 }
