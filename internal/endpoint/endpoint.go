// Package endpoint selects the endpoint of each attempt of a call. An endpoint is a host that can answer calls in place
// of another host: a region, a provider or a replica of a service.
//
// For HTTP calls, the package decides to which endpoints a request may be sent, and rewrites requests and responses.
// For HTTP and gRPC calls, it ejects endpoints that fail or are slow, and restores them after successful probes. The
// package neither starts attempts nor spends the hedge budget.
package endpoint

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/gohedge/hedge/internal/httpattempt"
	"github.com/gohedge/hedge/internal/redact"
)

// MaxEndpoints is the largest number of endpoints that a client may have. A [Mask] has one bit for each endpoint.
const MaxEndpoints = 8

// MaxCost is the largest configurable cost of a hedge at an endpoint, in tokens of the hedge budget.
const MaxCost = 100

// A Config holds the settings of one HTTP endpoint, as the user gave them. [NewSet] validates the settings.
type Config struct {
	// scheme, host and base path of the endpoint
	URL string
	// cost of a hedge at the endpoint, in tokens of the hedge budget; 0 means 1
	Cost int
	// changes a request before it is sent to the endpoint, for example its credentials; nil: no change
	Prepare func(*http.Request) error
	// names of headers and query parameters that are sent to the endpoint; a trailing * matches any rest of the name
	Keep []string
	// names of headers and query parameters that are removed for the endpoint; patterns as in Keep
	Drop []string
}

// A Mask is a set of endpoints. Bit i is set if the set contains the endpoint with index i.
type Mask uint8

// Has reports whether the set m contains endpoint i.
func (m Mask) Has(i int) bool { return m&(1<<i) != 0 }

// With returns a Mask that contains endpoint i and all endpoints of m.
func (m Mask) With(i int) Mask { return m | 1<<i }

// maskUpTo returns the Mask that contains endpoint i and all endpoints with a smaller index.
func maskUpTo(i int) Mask { return Mask(2)<<i - 1 }

// A Set holds the endpoints of one HTTP client, in order of preference. Requests are made for the host of the first
// endpoint; the others can answer in its place. A Set is immutable. A nil Set has no endpoints.
type Set struct {
	endpoints []endpoint
	urls      []string // the URLs of the endpoints, as the user gave them
}

// An endpoint is a validated and parsed [Config]. It is immutable, so calls share it without a lock.
type endpoint struct {
	givenURL   string // the URL, as the user gave it
	scheme     string
	authority  string                    // host and port, as the user gave them
	host       string                    // in the form of [httpattempt.HostName]
	basePath   string                    // escaped, without a trailing slash
	cost       int                       // the cost of a hedge, in tokens of the hedge budget; at least 1
	prepare    func(*http.Request) error // the user's function; nil: there is none
	keep, drop namePatterns
}

// NewSet validates the given endpoints and returns a Set of them. The error names the first invalid endpoint and the
// reason.
func NewSet(given []Config) (*Set, error) {
	if n := len(given); n < 2 || n > MaxEndpoints {
		return nil, fmt.Errorf("%d endpoints: there must be 2 to %d", n, MaxEndpoints)
	}
	s := new(Set)
	for i, c := range given {
		e, err := parseConfig(c)
		if err == nil {
			err = s.addEndpoint(e, c)
		}
		if err != nil {
			return nil, fmt.Errorf("endpoint %d: %w", i+1, err)
		}
	}
	return s, nil
}

// parseConfig validates and parses the settings of one endpoint. The error names the invalid setting. Conflicts between
// endpoints are not checked here but in addEndpoint.
func parseConfig(c Config) (e endpoint, err error) {
	u, err := url.Parse(c.URL)
	switch {
	case err != nil:
		return e, fmt.Errorf("URL %q cannot be read: it is not scheme://host/path", redact.URL(c.URL))
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.Hostname() == "":
		return e, fmt.Errorf("URL %q is not http://host or https://host", redact.URL(c.URL))
	case u.User != nil:
		return e, fmt.Errorf("URL %q has credentials: Prepare sets those", redact.URL(c.URL))
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return e, fmt.Errorf("URL %q has more than a path: Prepare sets a query", redact.URL(c.URL))
	case c.Cost < 0 || c.Cost > MaxCost:
		return e, fmt.Errorf("Cost %d is not in [0, %d]", c.Cost, MaxCost)
	}
	u.Host = strings.TrimSuffix(u.Host, ":")
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return e, fmt.Errorf("URL %q has port %s, which is not in [1, 65535]", c.URL, port)
		}
	}
	path := strings.TrimRight(u.EscapedPath(), "/")
	if hasDotSegment(path) || strings.Contains(path, "//") {
		return e, fmt.Errorf("URL %q has a path that servers would shorten", c.URL)
	}
	e = endpoint{
		givenURL: c.URL, scheme: u.Scheme, authority: u.Host, host: httpattempt.HostName(u.Scheme, u.Host), basePath: path,
		cost: max(c.Cost, 1), prepare: c.Prepare,
	}
	if e.keep, err = parseNames("Keep", c.Keep); err != nil {
		return e, err
	}
	e.drop, err = parseNames("Drop", c.Drop)
	return e, err
}

// addEndpoint appends the endpoint e, which was parsed from the settings c. It returns an error if e conflicts with an
// earlier endpoint, for example because both have the same URL. It also returns an error if e is the first endpoint and
// has a setting that only later endpoints may have.
func (s *Set) addEndpoint(e endpoint, c Config) error {
	if len(s.endpoints) == 0 {
		if c.Prepare != nil || len(c.Keep) > 0 || len(c.Drop) > 0 || c.Cost > 1 {
			return fmt.Errorf("calls are made for the first endpoint, %s, and go there as they are: it has no Cost, Prepare, Keep or Drop", c.URL)
		}
	} else if s.endpoints[0].scheme == "https" && e.scheme == "http" {
		return fmt.Errorf("URL %q is not https, as that of the first endpoint is", c.URL)
	}
	for _, other := range s.endpoints {
		if other.host == e.host && other.scheme == e.scheme && other.basePath == e.basePath {
			return fmt.Errorf("URL %q is that of another endpoint as well", c.URL)
		}
	}
	s.endpoints, s.urls = append(s.endpoints, e), append(s.urls, e.givenURL)
	return nil
}

// URLs returns the URLs of the endpoints, as the user gave them. The caller must not change them.
func (s *Set) URLs() []string { return s.urls }

// MaxCost returns the highest cost of a hedge among all endpoints of s, in tokens of the hedge budget. It returns 0 for
// a nil Set.
func (s *Set) MaxCost() (cost int) {
	if s == nil {
		return 0
	}
	for i := range s.endpoints {
		cost = max(cost, s.endpoints[i].cost)
	}
	return cost
}

// cutBasePath returns the rest of an escaped URL path after the base path of e. The result ok is false if the path is
// not within the base path. For example, /apiv2 is not within /api.
func (e *endpoint) cutBasePath(path string) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(path, e.basePath)
	return rest, ok && (rest == "" || rest[0] == '/')
}

// hasDotSegment reports whether a server may interpret a segment of an escaped URL path as "." or "..". With these
// segments, a path below a base path can denote a resource outside the base path. The result is true for an invalid
// escape.
func hasDotSegment(escaped string) bool {
	path, err := url.PathUnescape(escaped)
	if err != nil {
		return true
	}
	for part := range strings.SplitSeq(strings.ReplaceAll(path, `\`, "/"), "/") {
		if name, _, _ := strings.Cut(part, ";"); name == "." || name == ".." { // some servers remove parameters of a segment first
			return true
		}
	}
	return false
}
