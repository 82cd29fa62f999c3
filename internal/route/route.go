// Package route finds the settings that a program has made for some calls of a host, which it selects with a pattern.
package route

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/gohedge/hedge/internal/httpattempt"
	"github.com/gohedge/hedge/internal/pattern"
	"github.com/gohedge/hedge/internal/race"
)

// A Policy holds the settings of a route. The public type Policy, which has the same fields, documents them.
type Policy struct {
	Off           bool
	Hedgeable     bool
	FirstByte     bool
	Delay         time.Duration
	BudgetPercent float64
}

// A Route holds the settings for all calls that match a pattern. It is immutable after Table.Compile.
type Route struct {
	Pattern string // pattern of http.ServeMux or of gRPC methods
	Line    string // source line in which the program registers the route, for error messages
	Policy
	withoutHedgeable *Route // copy of the route with Hedgeable set to false; nil in that copy
}

// Unrouted is the route of calls that match no pattern. It has no settings.
var Unrouted = new(Route)

// A Table finds the route of a call by the patterns of the routes. All routes must be registered and compiled before
// the first call. After that, it is safe for concurrent use. Registered, Compile and RouteOfKey treat a nil *Table as a
// table without routes.
type Table struct {
	mux        pattern.Mux[*Route] // routes by pattern, for HTTP requests
	exact      map[string]*Route   // routes by the exact text of their patterns
	registered []Route             // routes in the order of registration
}

// Validate returns an error if a setting or the pattern of r is invalid. The error has the name and the value of the setting.
func (r Route) Validate() error { return new(Table).addRoute(r) }

// Register adds r to the table. The route has no effect before Compile is called.
func (t *Table) Register(r Route) { t.registered = append(t.registered, r) }

// Registered returns all routes in the order of their registration. It returns nil if t is nil.
func (t *Table) Registered() []Route {
	if t == nil {
		return nil
	}
	return t.registered
}

// Compile validates the registered routes and makes them effective for one protocol: "http", "grpc" or "func". It returns an
// error if a route is invalid, if two patterns conflict, or if the protocol does not support a pattern or a setting.
func (t *Table) Compile(protocol string) error {
	for _, r := range t.Registered() {
		if protocol == "grpc" && !pattern.IsMethodPattern(r.Pattern) {
			return fmt.Errorf("hedge: WithRoute(%q): pattern is not /pkg.Service/Method, /pkg.Service/* or /*, as gRPC needs", r.Pattern)
		}
		if protocol == "grpc" && r.FirstByte {
			return fmt.Errorf("hedge: WithRoute(%q): FirstByte true is for HTTP", r.Pattern)
		}
		if err := t.addRoute(r); err != nil {
			return err
		}
	}
	return nil
}

// addRoute validates r and adds it to the routes that MatchRequest and MatchMethod search. It returns an error if r is
// invalid or its pattern conflicts with another route.
func (t *Table) addRoute(r Route) error {
	switch {
	case r.Off && r.Hedgeable:
		return fmt.Errorf("hedge: WithRoute(%q): Hedgeable true has no effect beside Off true", r.Pattern)
	case r.Delay < 0:
		return fmt.Errorf("hedge: WithRoute(%q): Delay %v is not at least 0", r.Pattern, r.Delay)
	case !(r.BudgetPercent >= 0 && r.BudgetPercent <= 100*race.MaxHedges):
		return fmt.Errorf("hedge: WithRoute(%q): BudgetPercent %v is not in [0, %d]", r.Pattern, r.BudgetPercent, 100*race.MaxHedges)
	}
	undeclared := r
	undeclared.Hedgeable = false
	r.withoutHedgeable = &undeclared
	if err := t.mux.Add(r.Pattern, r.Line, &r); err != nil {
		return fmt.Errorf("hedge: WithRoute(%q): %w", r.Pattern, err)
	}
	if t.exact == nil {
		t.exact = make(map[string]*Route)
	}
	t.exact[r.Pattern] = &r
	return nil
}

// MatchRequest returns the route of an HTTP request, or [Unrouted] if no pattern matches. The URL of the request must
// not be nil.
//
// If the path of the URL is not clean, such as "//a", the result has Hedgeable set to false. The reason is that the
// server may treat the path as another path.
func (t *Table) MatchRequest(req *http.Request) *Route {
	r, clean, ok := t.mux.Find(req.Method, httpattempt.HostName(req.URL.Scheme, cmp.Or(req.Host, req.URL.Host)), req.URL)
	switch {
	case !ok:
		return Unrouted
	case !clean:
		return r.withoutHedgeable
	}
	return r
}

// MatchMethod returns the route of a gRPC method, given as "/pkg.Service/Method". It returns nil if no pattern matches.
func (t *Table) MatchMethod(method string) *Route {
	service := method[:strings.LastIndexByte(method, '/')+1]
	for _, pattern := range [...]string{method, service + "*", "/*"} {
		if r := t.exact[pattern]; r != nil {
			return r
		}
	}
	return nil
}

// RouteOfKey returns the route for the route name of a latency key, or [Unrouted] if there is none. The name is a
// method if protocol is "grpc", and a pattern otherwise.
func (t *Table) RouteOfKey(protocol, name string) *Route {
	if t == nil {
		return Unrouted
	}
	r := t.exact[name]
	if protocol == "grpc" {
		r = t.MatchMethod(name)
	}
	if r == nil {
		return Unrouted
	}
	return r
}
