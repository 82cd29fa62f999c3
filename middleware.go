package hedge

import (
	"net/http"

	"github.com/gohedge/hedge/internal/limit"
	"github.com/gohedge/hedge/internal/race"
)

// AttemptHeader is the customary name for [WithAttemptHeader] and [Middleware], and the
// one that a [Limiter] knows: "Hedge-Attempt".
const AttemptHeader = limit.AttemptHeader

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
// It panics if HTTP does not allow the name, or gives it a meaning. If the name is empty, no request is a hedge.
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
