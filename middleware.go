package hedge

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/gohedge/hedge/internal/engine"
)

// AttemptHeader is the customary name for [WithAttemptHeader] and [Middleware].
const AttemptHeader = "Hedge-Attempt"

// WithAttemptHeader has HTTP hedges carry their number, 1 or more, in the request
// header of the given name, usually [AttemptHeader], so that servers know them.
// Requests that are sent for a hedge, as [Middleware] recognises them, carry that
// one's number on, hedged or not. All others go out as they are.
//
// A request that has the header from its caller, such as a proxy's, is a hedge's
// too, and is sent once. The default, "", sends no header. It panics unless the
// name is one that HTTP allows. gRPC needs no such option: its hedges always carry
// grpc-previous-rpc-attempts.
func WithAttemptHeader(name string) Option {
	return setting(func(c *Config) { c.AttemptHeader = name })
}

// Middleware marks the contexts of requests that are hedges, by the header of the
// given name, see [WithAttemptHeader]. With such a context everything of this
// module sends once, with reason [DeniedHedge]: Transport, Interceptor, [Do], and
// dnshedge if it has no cache. Hedging at each layer of a chain otherwise
// multiplies: three layers that send two requests for one come to eight. What is
// sent once carries the mark to the next layer.
//
// Nothing removes a mark, neither does [AllowHedging]. It is taken from whoever sends
// the request, and can only turn hedging off: a client that sets the header
// foregoes it for what is done on its behalf. A value of 0 is no mark.
//
// It panics if the name is one that HTTP does not allow. If it is empty, nothing is marked.
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
			if n := markOf(r.Header[header]); n > 0 {
				r = r.WithContext(engine.ForHedge(r.Context(), n))
			}
			next.ServeHTTP(w, r)
		})
	}
}

// markOf returns the number of the hedge that a request's header or metadata
// speaks of, 0 if of none. What cannot be read is a hedge.
func markOf(values []string) int {
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

// marked returns a copy of h, in which the header of the given name is the
// number of a hedge; without a name it is just a copy.
func marked(h http.Header, name string, n int) http.Header {
	h = h.Clone()
	if name != "" {
		if h == nil {
			h = make(http.Header)
		}
		h[name] = []string{strconv.Itoa(n)}
	}
	return h
}

// validName reports whether HTTP allows a header of that name, or it is empty.
func validName(name string) bool {
	return strings.IndexFunc(name, func(r rune) bool {
		return !(r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || strings.ContainsRune("!#$%&'*+-.^_`|~", r))
	}) < 0
}
