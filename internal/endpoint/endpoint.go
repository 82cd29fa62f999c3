// Package endpoint sends the attempts of an HTTP call to endpoints that answer alike: other regions,
// providers or copies. It says which calls that concerns, which endpoint an attempt goes to, what of
// the caller's request goes there, and what of an answer comes back. It decides no race and
// knows no budget.
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

// Max is how many endpoints there can be.
const Max = 8

// MaxCost is the most that a hedge to an endpoint can cost.
const MaxCost = 100

// An Endpoint is what a user says of one.
type Endpoint struct {
	URL     string
	Cost    int
	Prepare func(*http.Request) error
	Keep    []string
	Drop    []string
}

// A Mask is a set of endpoints, by their numbers.
type Mask uint8

// Has reports whether endpoint i is in m.
func (m Mask) Has(i int) bool { return m&(1<<i) != 0 }

// with returns m and endpoint i.
func (m Mask) with(i int) Mask { return m | 1<<i }

// upTo returns the endpoints up to i.
func upTo(i int) Mask { return Mask(2)<<i - 1 }

// A Set is endpoints in order of preference. It does not change. A nil Set has no endpoints.
type Set struct {
	all   []endpoint
	names []string // their URLs, as they were given
}

// An endpoint is an Endpoint that was read.
type endpoint struct {
	given      string
	scheme     string
	authority  string // host and port, as given
	host       string // the name of the authority
	path       string // escaped, without a slash at its end
	cost       int
	prepare    func(*http.Request) error
	keep, drop names
}

// New returns the Set of the endpoints, or an error that names what is wrong with which of them.
func New(given []Endpoint) (*Set, error) {
	if n := len(given); n < 2 || n > Max {
		return nil, fmt.Errorf("%d endpoints: there must be 2 to %d", n, Max)
	}
	s := new(Set)
	for i, g := range given {
		p, err := read(g)
		if err == nil {
			err = s.add(p, g)
		}
		if err != nil {
			return nil, fmt.Errorf("endpoint %d: %w", i+1, err)
		}
	}
	return s, nil
}

// read reads what is said of an endpoint by itself.
func read(g Endpoint) (p endpoint, err error) {
	u, err := url.Parse(g.URL)
	switch {
	case err != nil:
		return p, fmt.Errorf("URL %q cannot be read: it is not scheme://host/path", redact.URL(g.URL))
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.Hostname() == "":
		return p, fmt.Errorf("URL %q is not http://host or https://host", redact.URL(g.URL))
	case u.User != nil:
		return p, fmt.Errorf("URL %q has credentials: Prepare sets those", redact.URL(g.URL))
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return p, fmt.Errorf("URL %q has more than a path: Prepare sets a query", redact.URL(g.URL))
	case g.Cost < 0 || g.Cost > MaxCost:
		return p, fmt.Errorf("Cost %d is not in [0, %d]", g.Cost, MaxCost)
	}
	u.Host = strings.TrimSuffix(u.Host, ":")
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return p, fmt.Errorf("URL %q has port %s, which is not in [1, 65535]", g.URL, port)
		}
	}
	path := strings.TrimRight(u.EscapedPath(), "/")
	if climbs(path) || strings.Contains(path, "//") {
		return p, fmt.Errorf("URL %q has a path that servers would shorten", g.URL)
	}
	p = endpoint{
		given: g.URL, scheme: u.Scheme, authority: u.Host, host: httpattempt.HostName(u.Scheme, u.Host), path: path,
		cost: max(g.Cost, 1), prepare: g.Prepare,
	}
	if p.keep, err = namesOf("Keep", g.Keep); err != nil {
		return p, err
	}
	p.drop, err = namesOf("Drop", g.Drop)
	return p, err
}

// add adds an endpoint behind the others.
func (s *Set) add(p endpoint, g Endpoint) error {
	if len(s.all) == 0 {
		if g.Prepare != nil || len(g.Keep) > 0 || len(g.Drop) > 0 || g.Cost > 1 {
			return fmt.Errorf("calls are made for the first endpoint, %s, and go there as they are: it has no Cost, Prepare, Keep or Drop", g.URL)
		}
	} else if s.all[0].scheme == "https" && p.scheme == "http" {
		return fmt.Errorf("URL %q is not https, as that of the first endpoint is", g.URL)
	}
	for _, other := range s.all {
		if other.host == p.host && other.scheme == p.scheme && other.path == p.path {
			return fmt.Errorf("URL %q is that of another endpoint as well", g.URL)
		}
	}
	s.all, s.names = append(s.all, p), append(s.names, p.given)
	return nil
}

// Len returns how many endpoints there are.
func (s *Set) Len() int {
	if s == nil {
		return 0
	}
	return len(s.all)
}

// Host returns the name of an endpoint's host.
func (s *Set) Host(i int) string { return s.all[i].host }

// Names returns the URLs of the endpoints, as they were given. They must not be changed.
func (s *Set) Names() []string { return s.names }

// Dearest returns the largest cost of a hedge.
func (s *Set) Dearest() (cost int) {
	for i := range s.Len() {
		cost = max(cost, s.all[i].cost)
	}
	return cost
}

// below returns what of a path is below that of the endpoint.
func (p *endpoint) below(path string) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(path, p.path)
	return rest, ok && (rest == "" || rest[0] == '/')
}

// climbs reports whether a path may lead out of where it begins, as some server reads it.
func climbs(escaped string) bool {
	path, err := url.PathUnescape(escaped)
	if err != nil {
		return true
	}
	for part := range strings.SplitSeq(strings.ReplaceAll(path, `\`, "/"), "/") {
		if name, _, _ := strings.Cut(part, ";"); name == "." || name == ".." { // of some, a name ends with its parameters
			return true
		}
	}
	return false
}

// Fits returns the endpoints that can have the request, none if it is not for the first one, and what keeps it from one of them, such as "header X-Tenant".
func (s *Set) Fits(req *http.Request) (fit Mask, stays string) {
	u, first := req.URL, &s.all[0]
	if u == nil || u.Scheme != first.scheme || u.Opaque != "" || httpattempt.HostName(u.Scheme, u.Host) != first.host {
		return 0, ""
	}
	if req.Host != "" && httpattempt.HostName(u.Scheme, req.Host) != first.host {
		return 0, ""
	}
	rest, ok := first.below(u.EscapedPath())
	if !ok || climbs(rest) {
		return 0, ""
	}
	fit = 1
	for i := 1; i < len(s.all); i++ {
		if why := s.all[i].stays(req, rest); why == "" {
			fit = fit.with(i)
		} else {
			stays = why
		}
	}
	return fit, stays
}
