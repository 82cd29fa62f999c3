package hedge

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"strings"
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
	exact   map[string]*route // gRPC patterns
	pending []route           // given, and not yet added
}

// route is a handler, because a ServeMux finds handlers only.
type route struct {
	pattern string
	Policy
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
		r.mux, r.exact = http.NewServeMux(), make(map[string]*route)
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
	to := &route{pattern, p}
	canonical := pattern // as ServeMux knows it: names of hosts have no case
	if i := strings.IndexByte(pattern, '/'); i > len(method) {
		canonical = pattern[:len(method)] + strings.ToLower(pattern[len(method):i]) + pattern[i:]
	}
	r.mux.Handle(canonical, to)
	r.exact[canonical], r.exact[pattern] = to, to
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

// http returns the route of a request, noRoute if it has none. The path is matched as
// servers understand it: an empty one is "/", and "//a" and "/x/../a" are "/a".
func (r *routes) http(req *http.Request) *route {
	u := req.URL
	if u.Opaque != "" {
		sent, err := url.ParseRequestURI(u.RequestURI())
		if err != nil {
			return noRoute
		}
		u = sent
	}
	if u.Path == "" {
		u = &url.URL{Path: "/"}
	}
	host := hostName(req.URL.Scheme, cmp.Or(req.Host, req.URL.Host))
	// The handler may be a redirect to the clean path; the pattern is that of the path it leads to.
	_, pattern := r.mux.Handler(&http.Request{Method: cmp.Or(req.Method, http.MethodGet), Host: host, URL: u})
	if to := r.exact[pattern]; to != nil {
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
