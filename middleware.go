package hedge

import (
	"net/http"

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
// do not hedge a call with the mark, with the reason [DeniedNested]. An Interceptor passes the mark to the next server. A
// Transport does so if it has [WithAttemptHeader], or has learned from calls of the same key that could be hedged that the
// server has a [Limiter].
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
