package hedge

import (
	"net/http"

	"github.com/gohedge/hedge/internal/endpoint"
)

// An Endpoint is a host that can respond to HTTP calls in place of another host. An example is a copy of a service in
// another region. Pass Endpoints to [WithEndpoints].
type Endpoint struct {
	// URL is "scheme://host" of the endpoint, followed by its base path if it has one.
	URL string

	// Cost is the number of budget tokens that a hedge to this endpoint costs, for example because of egress charges or a
	// quota. The default, 0, means 1. The maximum is 100.
	Cost int

	// Prepare changes a request before it is sent to the endpoint, for example to add credentials, a signature or cookies.
	// The request is a copy for a single attempt. It has the URL and Host of the endpoint, and no credentials of another
	// host. With a nil Prepare, the request is sent as it is.
	//
	// Prepare may read Body, which is sent nevertheless. If it replaces Body, it must also set ContentLength. It runs once
	// per attempt, and must be safe for concurrent use. If Prepare returns an error, the attempt fails. The endpoint is
	// then counted as failed, unless the attempt was cancelled before.
	Prepare func(*http.Request) error

	// Keep lists headers and query parameters that are also sent to this endpoint. Drop lists headers and query parameters
	// that are removed, because a request has the same meaning without them. A name that ends in * is a prefix. A name
	// that is in both lists is dropped.
	//
	// A prefix in Keep does not match the known credential headers (see [WithEndpoints]), but may match other credentials:
	// "X-*" keeps X-Auth-Token, but not X-Api-Key.
	Keep, Drop []string
}

// WithEndpoints lets HTTP hedges go to other endpoints with the same content, such as regions, providers or copies.
// The first endpoint is the host in the URL of the calls; only its URL is set. The other endpoints follow in order of
// preference. The maximum is eight.
//
// It applies to calls that may be hedged and whose URL starts with the URL of the first endpoint. A hedge goes to the
// next endpoint that its call has not used. There is one exception: if that endpoint is known to be 25 % slower, and
// hedges at the primary's endpoint win, the hedge goes to the primary's endpoint.
//
// If an attempt fails by an error of the RoundTripper, 502, 504, or 503 without Retry-After, another hedge starts at once,
// at an endpoint that its call has not used. Errors of contexts and of Prepare start none. The other limits of hedges
// apply; the deadline of the call is compared with the usual latency of that endpoint. After the primary has failed, no
// other hedge starts, except after a failure of that hedge.
//
// The failure waits for that hedge for at most four times the usual latency of its endpoint. All waiting ends at most a
// second after the failure of the primary, or as long after it as the primary took.
//
// An endpoint is ejected if 8 % of its recent calls, or six in a row, failed or were overtaken by a hedge to another
// endpoint. Then calls go to the next endpoint that is not ejected.
//
// One call in a hundred is also sent to an ejected endpoint, as a hedge. If the endpoint seems healthy again, five
// calls in a hundred are. It is restored after 32 successes in a row.
//
// Each endpoint has its own latency and budget, under the name of its host, for calls whose primary goes there. A
// pause of hedging for one endpoint does not affect hedges to other endpoints. In shadow mode, and if a call must not
// be hedged, the call goes to the first endpoint.
//
// A request to another endpoint has the same method, body, and path after the base path. It also has the same
// harmless headers, such as Accept, Content-Type, Range, User-Agent and trace headers. Referer and From are removed.
//
// A call may have other headers, such as If-None-Match or X-Tenant, or query parameters. Their names must be in the
// endpoint's Keep or Drop. Otherwise the call is not sent to that endpoint. A ";" in the path or query excludes all
// other endpoints. The first eight names that exclude an endpoint are logged.
//
// Credentials and signatures are removed: Authorization, Cookie, Proxy-Authorization, Signature, Signature-Input,
// Api-Key, X-Api-Key, X-Goog-Api-Key, Ocp-Apim-Subscription-Key, X-Amz-Content-Sha256, X-Amz-Date,
// X-Amz-Security-Token, X-Ms-Date, and userinfo in the URL. A call with any of them is only sent to other endpoints
// with a Prepare, which sets the endpoint's own credentials.
//
// Response.Request is the request that was sent to the endpoint that responded. Cookies set by another endpoint than
// the first are removed. A redirect to any endpoint is rewritten to the first endpoint. A redirect from another
// endpoint to any other host is a failure.
//
// [WithResume] applies to bodies of the first endpoint. [WithReplicas] and [WithHedgeTransport] apply to hedges that
// go to the same endpoint as the primary.
//
// It panics if there are fewer than two or more than eight endpoints, or if the first endpoint has more than a URL.
// It also panics if an endpoint is invalid:
//
//   - its URL is malformed, is given twice, or has credentials or a query;
//   - its URL has scheme http although the first URL has scheme https;
//   - its Cost is not in [0, 100], or a name in Keep or Drop is malformed.
func WithEndpoints(all ...Endpoint) HTTPOption {
	given := make([]endpoint.Config, len(all))
	for i, p := range all {
		given[i] = endpoint.Config(p)
	}
	set, err := endpoint.NewSet(given)
	if err != nil {
		panic("hedge: WithEndpoints: " + err.Error())
	}
	return optionFunc(func(c *constructorOptions) { c.endpoints = set })
}

// endpointSnapshots returns the states of all endpoints that d observes, converted to the exported type.
func endpointSnapshots(d *endpoint.Detector) (all []EndpointSnapshot) {
	for _, s := range d.Snapshots() {
		all = append(all, EndpointSnapshot{s.Name, s.Calls, s.Hedges, s.Failures, s.Overtaken, s.BadShare, s.Ejected, s.Slow})
	}
	return all
}
