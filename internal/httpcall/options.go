package httpcall

import (
	"context"
	"net/http"

	"github.com/gohedge/hedge/internal/endpoint"
	"github.com/gohedge/hedge/internal/httpattempt"
	"github.com/gohedge/hedge/internal/route"
)

// Options are the options of a [Client]. They must not change after its first call. A zero value selects the default.
type Options struct {
	KeyFunc        func(ctx context.Context, host, name string) string // returns the latency key of a request; nil: the host
	IsHedgeable    func(*http.Request) bool                            // reports whether a request is safe to send twice; nil: whether its method is safe
	FailureStatus  []int                                               // status codes with which a primary waits for its hedges; nil: the default codes
	AnswerStatus   []int                                               // status codes with which any attempt wins, in addition to 2xx and 3xx
	IsFailure      func(*http.Response) bool                           // classifies responses instead of FailureStatus and AnswerStatus; may be nil
	HedgeTransport http.RoundTripper                                   // sends hedges; nil: the RoundTripper of primaries
	Resolver       httpattempt.Resolver                                // looks up other addresses of a host for hedges; nil: hedges may use the same address
	Endpoints      *endpoint.Set                                       // hosts that can answer a call in place of each other; nil: none
	Routes         *route.Table                                        // nil: none
	FirstByte      bool                                                // an attempt wins with the first byte of its body, not with its header
	Resume         bool                                                // a stalled body is continued with the response to another request
}
