package httpcall

import (
	"context"
	"net/http"

	"github.com/gohedge/hedge/internal/endpoint"
	"github.com/gohedge/hedge/internal/httpattempt"
	"github.com/gohedge/hedge/internal/route"
)

// Options are the options of a Client. They do not change once it has made a call. Each zero value selects the default.
type Options struct {
	KeyFunc        func(ctx context.Context, host, name string) string // returns the latency key; nil: it is the host
	IsHedgeable    func(*http.Request) bool                            // reports whether a request is safe to send twice; nil: if its method is safe
	FailureStatus  []int                                               // status codes for which the primary waits for its hedges; nil: the usual ones
	AnswerStatus   []int                                               // status codes with which any attempt wins, beside 2xx and 3xx
	IsFailure      func(*http.Response) bool                           // decides in place of both lists; nil: they decide
	HedgeTransport http.RoundTripper                                   // sends hedges; nil: the RoundTripper of primaries does
	Resolver       httpattempt.Resolver                                // finds other addresses of a host for hedges; nil: hedges use any
	Endpoints      *endpoint.Set                                       // hosts that can answer calls in place of another one; nil: none
	Routes         *route.Table                                        // nil: none
	FirstByte      bool                                                // a response wins with the first byte of its body
	Resume         bool                                                // a body that stalls goes on with another response
}
