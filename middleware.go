package hedge

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/gohedge/hedge/internal/engine"
)

// AttemptHeader is the customary name for [WithAttemptHeader] and [Middleware], and the
// one that a [Limiter] knows.
const AttemptHeader = "Hedge-Attempt"

// WithAttemptHeader puts the number of an HTTP hedge, 1 or more, into the request
// header of the given name, usually [AttemptHeader], so that servers can tell hedges
// from primaries. A request that is made for a hedge, see [Middleware], carries that
// hedge's number. All others go out as they are.
//
// A request that arrives with the header or with [AttemptHeader], from a proxy for example,
// is made for a hedge as well, and is sent once. The default, "", sends no header. Hedges to
// a host whose answers come from behind a [Limiter] carry [AttemptHeader], whatever the
// option says. It panics if HTTP does not allow the name. gRPC needs no such option: its hedges always carry
// grpc-previous-rpc-attempts.
func WithAttemptHeader(name string) Option {
	return setting(func(c *Config) { c.AttemptHeader = name })
}

// Middleware recognises requests that are hedges by the header of the given name,
// see [WithAttemptHeader]. What the server does with the request's context is then
// made for a hedge: everything of this module (Transport, Interceptor, [Do], and
// dnshedge without a cache) sends it once, with reason [DeniedNested], and tells the
// next server. Otherwise hedging multiplies: with three layers that send two
// requests for one, the last gets 2 × 2 × 2 = 8.
//
// [AllowHedging] does not change that. The header comes from whoever sends the
// request, and can only turn hedging off: a client that sets it only opts itself
// out. A value of 0 says that the request is no hedge.
//
// It panics if HTTP does not allow the name. If the name is empty, no request is a hedge.
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
			if n := attemptNumber(r.Header[header]); n > 0 {
				r = r.WithContext(engine.ForHedge(r.Context(), n))
			}
			next.ServeHTTP(w, r)
		})
	}
}

// attemptNumber returns the number of the hedge that a request is made for, from the
// values of its header or metadata. It is 0 for a request that is made for none, and
// 1 if a value cannot be read.
func attemptNumber(values []string) int {
	for _, v := range values {
		n, err := strconv.ParseUint(v, 10, 16)
		if err != nil {
			n = 1
		}
		if n > 0 {
			return int(n)
		}
	}
	return 0
}

// withAttempt returns a copy of h that is marked, see mark.
func withAttempt(h http.Header, name string, n int) http.Header { return mark(h.Clone(), name, n) }

// mark sets the header of the given name to the number of a hedge, and returns h or a
// new header if that is nil. If the name is empty, no header is set.
func mark(h http.Header, name string, n int) http.Header {
	if name != "" {
		if h == nil {
			h = make(http.Header)
		}
		h[name] = []string{strconv.Itoa(n)}
	}
	return h
}

// validName reports whether HTTP allows a header of that name. It allows the empty one.
func validName(name string) bool {
	return strings.IndexFunc(name, func(r rune) bool {
		return !(r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || strings.ContainsRune("!#$%&'*+-.^_`|~", r))
	}) < 0
}
