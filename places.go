package hedge

import (
	"net/http"

	"github.com/gohedge/hedge/internal/endpoint"
)

// A Place is where HTTP calls can go, see [WithPlaces].
type Place struct {
	// URL is scheme://host of the place, and a path if all that it serves is below one.
	URL string

	// Cost is how many hedges one to this place counts as in the budget: for egress, tokens or a quota. 0 is 1, and 100 the most.
	Cost int

	// Prepare makes a request fit for the place: keys, signature, cookies, another body. It gets a copy that nobody else has, with the
	// place's URL and Host, and without what is another host's. What it leaves is sent as it is. It may read Body, which is
	// then sent all the same; if it sets another one, it sets ContentLength as well. It runs once for each attempt, also while other attempts
	// run, and must be safe for concurrent use. An error, which fails the attempt, counts as a failure of the place,
	// unless the attempt was cancelled before.
	Prepare func(*http.Request) error

	// Keep names headers, and parameters of the query, that are sent to this place as well, Drop those without which a request means the same. A
	// name that ends in * stands for all that begin so. In Keep it does not stand for the headers with credentials that are known,
	// see [WithPlaces], but for others that have some: "X-*" keeps X-Auth-Token, and not X-Api-Key. What is in both is dropped.
	Keep, Drop []string
}

// WithPlaces sends HTTP hedges to other places that answer alike: regions, providers, copies. The first place is where
// calls go; they are made for it, so it has nothing but a URL. The others come in order of preference. There may be eight.
//
// It concerns calls that may be hedged and whose URL is below that of the first place. All others are sent as without it. A hedge goes to
// the next place that its call has not been to; but while that is known to take a quarter longer than calls take, and hedges at the place of the
// primary win, it goes there. A place is out if 8 % of its last calls, or six in a row, failed or were overtaken by a
// hedge elsewhere. Then calls go to the next place that is not out, until 32 in a row of those that
// try it again are good: one call in a hundred, five while it looks well, is sent to both, which is a hedge. Every
// place has a latency and a budget of its own, by the name of its host, for the calls that go there first. Brakes of a place do not hold back
// hedges to another one.
//
// To another place goes the method, the path below that of the first place, the body, and headers that are known to be harmless, such as Accept,
// Content-Type, Range, User-Agent and those of traces. Referer and From are left out. So are credentials and signatures (Authorization, Cookie,
// Proxy-Authorization, Signature, Signature-Input, Api-Key, X-Api-Key, X-Goog-Api-Key, Ocp-Apim-Subscription-Key, X-Amz-Content-Sha256, X-Amz-Date, X-Amz-Security-Token, X-Ms-Date, user and password in the URL), but a call that has some goes only to places with a Prepare, which sets those of the
// place. A call with any other header, such as If-None-Match or X-Tenant, or with a parameter in its query does not go to a place where
// neither Keep nor Drop names it, and one with a ; in its path or query goes to none. A log says of the first eight names that keep calls from a place.
//
// Response.Request is what was sent to the place that answered. A cookie that another place sets is left out. A redirect to one of the places leads to the first one, and
// one that leaves them is a failure. [WithResume] is for bodies of the first place;
// [WithReplicas] and [WithHedgeTransport] are for hedges that stay at a place. In shadow mode, and where no hedge is allowed, calls go where they are made for.
//
// It panics if there are less than two places or more than eight, a URL is not one, has credentials or a query, is given twice, or is http beside a first one that is https,
// a Cost is not in [0, 100], a name in Keep or Drop is none, or the first place has more than a URL.
func WithPlaces(all ...Place) Option {
	given := make([]endpoint.Place, len(all))
	for i, p := range all {
		given[i] = endpoint.Place(p)
	}
	set, err := endpoint.New(given)
	if err != nil {
		panic("hedge: WithPlaces: " + err.Error())
	}
	return option{"WithPlaces", func(c *config) { c.places = set }}
}
