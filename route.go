package hedge

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"
)

// A Policy says what is different about some calls of a host, see [WithRoute]. With
// the zero Policy, only their latency is learned separately.
type Policy struct {
	Off       bool          // send once
	Hedgeable bool          // safe to send twice, whatever the method
	FirstByte bool          // as [WithFirstByte]; HTTP only
	Delay     time.Duration // hedge after each Delay instead of after the learned delays; 0: learned

	// BudgetPercent is how many hedges per 100 calls of the route are sent at most,
	// beside what the host's budget allows. 0 sets no such limit.
	BudgetPercent float64
}

// routes finds the policy for a call.
type routes struct {
	mux     *http.ServeMux
	all     map[string]*route // by the patterns of mux
	exact   map[string]*route // gRPC patterns
	pending []route           // given, and not yet added
	fewer   sync.Map          // of *routes, by the pattern that they lack
}

// route is a handler, because a ServeMux finds handlers only.
type route struct {
	pattern string
	Policy
	undeclared *route // the same, but safe to send twice is only what would be without it; nil for itself
}

var noRoute = new(route)

func (*route) ServeHTTP(http.ResponseWriter, *http.Request) {}

func (r *routes) add(pattern string, p Policy) (err error) {
	switch {
	case p.Delay < 0:
		return fmt.Errorf("hedge: WithRoute(%q): Delay %v is not at least 0", pattern, p.Delay)
	case !(p.BudgetPercent >= 0 && p.BudgetPercent <= 300):
		return fmt.Errorf("hedge: WithRoute(%q): BudgetPercent %v is not in [0, 300]", pattern, p.BudgetPercent)
	}
	if r.mux == nil {
		r.mux, r.all, r.exact = http.NewServeMux(), make(map[string]*route), make(map[string]*route)
	}
	method := pattern[:max(strings.IndexAny(pattern, " \t"), 0)]
	if method != strings.ToUpper(method) {
		return fmt.Errorf("hedge: WithRoute(%q): method %q is not in upper case, and methods are case-sensitive", pattern, method)
	}
	defer func() { // ServeMux panics if it refuses a pattern
		if p := recover(); p != nil {
			err = fmt.Errorf("hedge: WithRoute(%q): %v", pattern, p)
		}
	}()
	less := p
	less.Hedgeable = false
	to := &route{pattern, p, &route{pattern, less, nil}}
	canonical := pattern // as ServeMux knows it: names of hosts have no case
	if i := strings.IndexByte(pattern, '/'); i > len(method) {
		canonical = pattern[:len(method)] + strings.ToLower(pattern[len(method):i]) + pattern[i:]
	}
	r.mux.Handle(canonical, to)
	r.all[canonical], r.exact[pattern] = to, to
	return nil
}

// compile adds the pending routes, for a protocol as in [KeyInfo].
func (r *routes) compile(protocol string) error {
	for _, to := range r.pending {
		if protocol == "grpc" && !methodPattern(to.pattern) {
			return fmt.Errorf("hedge: WithRoute(%q): pattern is not /pkg.Service/Method, /pkg.Service/* or /*, as gRPC needs", to.pattern)
		}
		if err := r.add(to.pattern, to.Policy); err != nil {
			return err
		}
	}
	return nil
}

// methodPattern reports whether pattern is one of gRPC methods.
func methodPattern(pattern string) bool {
	service, method, ok := strings.Cut(strings.TrimPrefix(pattern, "/"), "/")
	return pattern == "/*" || strings.HasPrefix(pattern, "/") && ok && service != "" && method != "" &&
		!strings.ContainsAny(pattern, " {}") && !strings.Contains(method, "/") && (method == "*" || !strings.Contains(pattern, "*"))
}

// http returns the route of a request, noRoute if it has none: that of the pattern whose handler
// a ServeMux would call. A pattern to whose path it would redirect is not meant.
//
// Of servers that get an unclean path, such as "//a" or "/x/../a", some take it for "/a", and
// others for something else. So it has the route of "/a", but that does not declare it safe to
// send twice.
func (r *routes) http(req *http.Request) *route {
	u := req.URL
	if u.Opaque != "" {
		sent, err := url.ParseRequestURI(u.RequestURI())
		if err != nil {
			return noRoute
		}
		u = sent
	}
	clean, sent := u, cmp.Or(u.Path, "/")
	if p := cleanPath(sent); p != sent {
		clean = &url.URL{Path: p}
	} else if u.Path == "" {
		clean = &url.URL{Path: sent}
	}
	host := hostName(req.URL.Scheme, cmp.Or(req.Host, req.URL.Host))
	to := r.serving(&http.Request{Method: cmp.Or(req.Method, http.MethodGet), Host: host, URL: clean})
	if clean.Path != sent && to.undeclared != nil {
		to = to.undeclared
	}
	return to
}

// cleanPath returns the path that servers which clean paths take p for.
func cleanPath(p string) string {
	clean := path.Clean("/" + p)
	if p[len(p)-1] == '/' && clean != "/" {
		clean += "/"
	}
	return clean
}

// serving returns the route that serves a request with a clean path.
func (r *routes) serving(req *http.Request) *route {
	h, pattern := r.mux.Handler(req)
	if to, ok := h.(*route); ok {
		return to
	}
	if pattern == "" {
		return noRoute
	}
	return r.without(pattern).serving(req) // as nobody follows the redirect from "/items" to "/items/"
}

// without returns the other routes than that of the pattern.
func (r *routes) without(pattern string) *routes {
	if known, ok := r.fewer.Load(pattern); ok {
		return known.(*routes)
	}
	others := &routes{mux: http.NewServeMux(), all: make(map[string]*route)}
	for p, to := range r.all {
		if p != pattern {
			others.all[p] = to
			others.mux.Handle(p, to)
		}
	}
	known, _ := r.fewer.LoadOrStore(pattern, others)
	return known.(*routes)
}

// named returns the route of a key whose route has that name: for gRPC the route of the method, as a call finds
// it, and else the one of that pattern; noRoute if there is none. There may be no routes.
func (r *routes) named(protocol, name string) *route {
	if r == nil {
		return noRoute
	}
	find := func(name string) *route { return r.exact[name] }
	if protocol == "grpc" {
		find = r.grpc
	}
	if to := find(name); to != nil {
		return to
	}
	return noRoute
}

// grpc returns the route of a method, or nil.
func (r *routes) grpc(method string) *route {
	service := method[:strings.LastIndexByte(method, '/')+1]
	for _, pattern := range [...]string{method, service + "*", "/*"} {
		if to := r.exact[pattern]; to != nil {
			return to
		}
	}
	return nil
}
