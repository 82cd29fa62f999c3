package hedge

import (
	"net/http"

	"github.com/gohedge/hedge/internal/endpoint"
)

// An Endpoint is where HTTP calls can go, see [WithEndpoints].
type Endpoint struct {
	// URL is scheme://host of the endpoint, and a path if all that it serves is below one.
	URL string

	// Cost is how many hedges one to this endpoint counts as in the budget: for egress, tokens or a quota. 0 is 1, and 100 the most.
	Cost int

	// Prepare makes a request fit for the endpoint: keys, signature, cookies, another body. It gets a copy that nobody else has, with the
	// endpoint's URL and Host, and without what is another host's. What it leaves is sent as it is. It may read Body, which is
	// then sent all the same; if it sets another one, it sets ContentLength as well. It runs once for each attempt, also while other attempts
	// run, and must be safe for concurrent use. An error, which fails the attempt, counts as a failure of the endpoint,
	// unless the attempt was cancelled before.
	Prepare func(*http.Request) error

	// Keep names headers, and parameters of the query, that are sent to this endpoint as well, Drop those without which a request means the same. A
	// name that ends in * stands for all that begin so. In Keep it does not stand for the headers with credentials that are known,
	// see [WithEndpoints], but for others that have some: "X-*" keeps X-Auth-Token, and not X-Api-Key. What is in both is dropped.
	Keep, Drop []string
}

// WithEndpoints sends HTTP hedges to other endpoints that answer alike: regions, providers, copies. The first endpoint is where
// calls go; they are made for it, so it has nothing but a URL. The others come in order of preference. There may be eight.
//
// It concerns calls that may be hedged and whose URL is below that of the first endpoint. All others are sent as without it. A hedge goes to
// the next endpoint that its call has not been to; but while that is known to take a quarter longer than calls take, and hedges at the endpoint of the
// primary win, it goes there. An endpoint is ejected if 8 % of its last calls, or six in a row, failed or were overtaken by a
// hedge elsewhere. Then calls go to the next endpoint that is not ejected, until 32 in a row of those that
// try it again are good: one call in a hundred, five while it looks well, is sent to both, which is a hedge. Every
// endpoint has a latency and a budget of its own, by the name of its host, for the calls that go there first. Brakes of an endpoint do not hold back
// hedges to another one.
//
// To another endpoint goes the method, the path below that of the first endpoint, the body, and headers that are known to be harmless, such as Accept,
// Content-Type, Range, User-Agent and those of traces. Referer and From are left out. So are credentials and signatures (Authorization, Cookie,
// Proxy-Authorization, Signature, Signature-Input, Api-Key, X-Api-Key, X-Goog-Api-Key, Ocp-Apim-Subscription-Key, X-Amz-Content-Sha256, X-Amz-Date, X-Amz-Security-Token, X-Ms-Date, user and password in the URL), but a call that has some goes only to endpoints with a Prepare, which sets those of the
// endpoint. A call with any other header, such as If-None-Match or X-Tenant, or with a parameter in its query does not go to an endpoint where
// neither Keep nor Drop names it, and one with a ; in its path or query goes to none. A log says of the first eight names that keep calls from an endpoint.
//
// Response.Request is what was sent to the endpoint that answered. A cookie that another endpoint sets is left out. A redirect to one of the endpoints leads to the first one, and
// one that leaves them is a failure. [WithResume] is for bodies of the first endpoint;
// [WithReplicas] and [WithHedgeTransport] are for hedges that stay at an endpoint. In shadow mode, and where no hedge is allowed, calls go where they are made for.
//
// It panics if there are less than two endpoints or more than eight, a URL is not one, has credentials or a query, is given twice, or is http beside a first one that is https,
// a Cost is not in [0, 100], a name in Keep or Drop is none, or the first endpoint has more than a URL.
func WithEndpoints(all ...Endpoint) HTTPOption {
	given := make([]endpoint.Config, len(all))
	for i, p := range all {
		given[i] = endpoint.Config(p)
	}
	set, err := endpoint.NewSet(given)
	if err != nil {
		panic("hedge: WithEndpoints: " + err.Error())
	}
	return optionFunc(func(c *config) { c.endpoints = set })
}

// endpointSnapshots returns the state of each endpoint of a key.
func endpointSnapshots(d *endpoint.Detector) (all []EndpointSnapshot) {
	for _, s := range d.Snapshots() {
		all = append(all, EndpointSnapshot{s.Name, s.Calls, s.Hedges, s.Failures, s.Overtaken, s.BadShare, s.Ejected, s.Slow})
	}
	return all
}
