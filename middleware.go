package hedge

import (
	"net/http"
	"slices"
	"strings"

	"github.com/gohedge/hedge/internal/limit"
	"github.com/gohedge/hedge/internal/race"
)

// AttemptHeader is the recommended header name for [WithAttemptHeader] and [Middleware]: "Hedge-Attempt". A [Limiter]
// recognises hedges only by this name.
const AttemptHeader = limit.AttemptHeader

// Middleware returns a function that wraps an HTTP handler, so that the calls which the handler makes for a hedge are
// not hedged. Otherwise hedging multiplies: if each of three layers sends two requests for one, the last server gets
// 2 × 2 × 2 = 8.
//
// The wrapper marks the context of each request that is a hedge. A request is a hedge if it has the named header with
// a number of 1 or more, see [WithAttemptHeader]. With an empty name, no request is a hedge.
//
// The mark applies to every client of this module: Transport, Interceptor, [Do], and dnshedge without a cache. They
// do not hedge a call with the mark, with the reason [DeniedNested], and pass the mark to the next server.
//
// [AllowHedging] does not override the mark. If an external client sets the header itself, it only disables hedging
// of its own requests. Middleware panics if header is not a valid header name, or has a meaning in HTTP.
func Middleware(header string) func(http.Handler) http.Handler {
	c := DefaultConfig()
	c.AttemptHeader = header
	if err := c.Validate(); err != nil {
		panic(err)
	}
	header = http.CanonicalHeaderKey(header)
	return func(next http.Handler) http.Handler {
		if header == "" {
			return next
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if n := race.HedgeNumber(r.Header[header]); n > 0 {
				r = r.WithContext(race.HedgeContext(r.Context(), n))
			}
			next.ServeHTTP(w, r)
		})
	}
}

// checkAttemptHeader checks the name of an attempt header. It returns "" if the name is valid; otherwise it returns the
// violated requirement as text. A valid name is empty, or a token (RFC 9110, section 5.1) without a meaning in HTTP. So
// the header cannot change the meaning of a request.
func checkAttemptHeader(name string) (want string) {
	switch lower := strings.ToLower(name); {
	case strings.IndexFunc(name, func(r rune) bool { return !isTokenChar(r) }) >= 0:
		return "the name of a header"
	case slices.Contains(reservedHeaders, lower), slices.ContainsFunc(reservedHeaderPrefixes, func(p string) bool { return strings.HasPrefix(lower, p) }):
		return "the name of a header that HTTP leaves free"
	}
	return ""
}

// isTokenChar reports whether r may be part of an HTTP header name: a tchar of RFC 9110, section 5.6.2.
func isTokenChar(r rune) bool {
	return r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

// reservedHeaders lists header names, in lower case, that must not be used for attempt numbers because they have a
// meaning in HTTP.
var reservedHeaders = []string{
	// RFC 9110, section 18.4, of requests and of answers
	"accept", "allow", "authentication-info", "authorization", "connection",
	"date", "etag", "expect", "from", "host", "last-modified", "location", "max-forwards", "range", "referer", "retry-after", "server", "te", "trailer",
	"upgrade", "user-agent", "vary", "via", "www-authenticate", "*",
	"age", "cache-control", "expires", "pragma", "warning", // RFC 9111
	"close", "mime-version", "transfer-encoding", // RFC 9112
	"keep-alive", "http2-settings", // of one connection
	"cookie", "set-cookie", // RFC 6265
	"idempotency-key", "x-idempotency-key", // net/http repeats requests with these
	"alt-used", "cdn-loop", "client-cert", "client-cert-chain", "early-data", "forwarded", "last-event-id", "origin", "priority", "x-real-ip", // read by servers and proxies
	"dav", "depth", "destination", "lock-token", "overwrite", "timeout", // RFC 4918
	"a-im", "available-dictionary", "dictionary-id", "dnt", "dpop", "digest", "im", "link", "negotiate", "prefer", "repr-digest", "save-data", "service-worker",
	"signature", "signature-input", "slug", "soapaction", "tcn", "upgrade-insecure-requests", // other registered names that servers act on
	"baggage", "traceparent", "tracestate", // of tracing
	"x-http-method", "x-http-method-override", "x-method-override", "x-original-url", "x-rewrite-url", // in the place of method and target
}

// reservedHeaderPrefixes lists prefixes of header names, such as accept- in Accept-Encoding, that must not be used for
// attempt numbers. Object stores reject a signed request if it has an unsigned header with their prefix, such as
// x-amz-.
var reservedHeaderPrefixes = []string{"accept-", "access-control-", "content-", "if-", "proxy-", "sec-", "want-", "x-amz-", "x-forwarded-", "x-goog-", "x-ms-"}
