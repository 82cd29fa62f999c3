// Package endpoint selects the endpoint of each attempt of a call. An endpoint is a region, a provider or a replica of
// a service. The package decides to which endpoints an HTTP request may be sent, rewrites requests and responses, and
// ejects endpoints that fail or are slow. It neither starts attempts nor spends the hedge budget.
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

// MaxEndpoints is the largest number of endpoints of a client. It is the number of bits of a [Mask].
const MaxEndpoints = 8

// MaxCost is the largest cost of a hedge, in tokens.
const MaxCost = 100

// A Config holds the settings of one endpoint, as the user gave them. The type hedge.Endpoint documents the fields.
type Config struct {
	URL     string
	Cost    int // the price of a hedge in tokens; 0 means 1
	Prepare func(*http.Request) error
	Keep    []string
	Drop    []string
}

// A Mask is a set of endpoints: bit i stands for the endpoint with index i.
type Mask uint8

// Has reports whether endpoint i is in m.
func (m Mask) Has(i int) bool { return m&(1<<i) != 0 }

// With returns m plus endpoint i.
func (m Mask) With(i int) Mask { return m | 1<<i }

// maskUpTo returns the Mask of the endpoints 0 to i, inclusive.
func maskUpTo(i int) Mask { return Mask(2)<<i - 1 }

// A Set holds the endpoints of a client in order of preference. It is immutable. A nil Set has no endpoints.
type Set struct {
	endpoints []endpoint
	urls      []string // the URLs, as the user gave them
}

// An endpoint is a validated and parsed [Config].
type endpoint struct {
	givenURL   string // the URL, as the user gave it
	scheme     string
	authority  string // host and port, as the user gave them
	host       string // in the form of [httpattempt.HostName]
	basePath   string // escaped, without a trailing slash
	cost       int    // the price of a hedge in tokens
	prepare    func(*http.Request) error
	keep, drop namePatterns
}

// NewSet validates the endpoints and returns their Set. The error names the first invalid endpoint and the reason.
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

// parseConfig validates and parses c. It does not compare c with other endpoints.
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

// addEndpoint appends the endpoint e, which was parsed from c. It returns an error if e conflicts with an earlier
// endpoint, or if e is the first endpoint and has a setting that only later endpoints may have.
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

// MaxCost returns the highest price of a hedge at any endpoint, in tokens. It is 0 for a nil Set.
func (s *Set) MaxCost() (cost int) {
	if s == nil {
		return 0
	}
	for i := range s.endpoints {
		cost = max(cost, s.endpoints[i].cost)
	}
	return cost
}

// cutBasePath returns path, which is escaped, without the base path of e. It reports false if path is not below the
// base path.
func (e *endpoint) cutBasePath(path string) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(path, e.basePath)
	return rest, ok && (rest == "" || rest[0] == '/')
}

// hasDotSegment reports whether a server may read a segment of an escaped path as "." or "..". A server may then serve
// a resource outside the base path. It is true for an invalid escape.
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
