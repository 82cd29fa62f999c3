package httpcall

import (
	"context"
	"net/http"

	"github.com/gohedge/hedge/internal/endpoint"
	"github.com/gohedge/hedge/internal/httpattempt"
	"github.com/gohedge/hedge/internal/route"
)

// Options are the options of a [Client]. They must not be changed after the Client's first call. The zero value of an
// option selects its default.
type Options struct {
	KeyFunc        func(ctx context.Context, host, name string) string // returns the latency key for a host and for a name such as "GET /path"; nil: the host is the key
	IsHedgeable    func(*http.Request) bool                            // reports whether a request is safe to send twice; nil: requests with a safe method are
	FailureStatus  []int                                               // status codes that count as failures, so that a primary waits for its hedges; nil: the default codes
	AnswerStatus   []int                                               // status codes that count as successes, in addition to 2xx and 3xx
	IsFailure      func(*http.Response) bool                           // decides instead of FailureStatus and AnswerStatus; nil: these decide
	HedgeTransport http.RoundTripper                                   // sends hedges; nil: the RoundTripper of primaries sends hedges too
	Resolver       httpattempt.Resolver                                // looks up addresses of a host, so that hedges connect to another address than the primary; nil: they may use the same address
	Endpoints      *endpoint.Set                                       // hosts that can answer a call in place of each other; nil: there are none
	Routes         *route.Table                                        // settings for groups of requests; nil: there are none
	FirstByte      bool                                                // an attempt wins when the first byte of its body arrives, not already with its header
	Resume         bool                                                // if a body stalls, the remainder is requested by another request
}
