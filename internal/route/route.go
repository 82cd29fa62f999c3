// Package route finds the policy that a program has given for some calls of a host by a pattern.
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

// A Policy holds the settings of a route. The public type Policy documents its fields.
type Policy struct {
	Off           bool
	Hedgeable     bool
	FirstByte     bool
	Delay         time.Duration
	BudgetPercent float64
}

// A Route is the policy for the calls that match a pattern.
type Route struct {
	Pattern string
	Line    string // source line of the program that registers the route, for errors
	Policy
	withoutHedgeable *Route // the same route without Hedgeable; nil for itself
}

// Unrouted is the route of calls that match no pattern. Its Policy is zero.
var Unrouted = new(Route)

// A Table finds the route of a call. Routes must be registered and compiled before the first call. A nil Table has no routes.
type Table struct {
	mux        pattern.Mux[*Route]
	exact      map[string]*Route // by pattern
	registered []Route
}

// Validate returns an error that names the invalid field and its value, or nil if r is valid.
func (r Route) Validate() error { return new(Table).addRoute(r) }

// Register adds r. The route takes effect when Compile is called.
func (t *Table) Register(r Route) { t.registered = append(t.registered, r) }

// Registered returns the routes in the order of their registration; none for a nil Table.
func (t *Table) Registered() []Route {
	if t == nil {
		return nil
	}
	return t.registered
}

// Compile makes the registered routes effective for a protocol: "http", "grpc" or "func". It returns an error if a route is invalid, if the
// protocol does not support a pattern or a field, or if two patterns conflict.
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

// MatchRequest returns the route of an HTTP request; [Unrouted] if no pattern matches. The URL of the request must not be nil. If its path
// is not clean, the route is returned without Hedgeable, because the server may read the path differently.
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

// MatchMethod returns the route of a gRPC method; nil if no pattern matches.
func (t *Table) MatchMethod(method string) *Route {
	service := method[:strings.LastIndexByte(method, '/')+1]
	for _, pattern := range [...]string{method, service + "*", "/*"} {
		if r := t.exact[pattern]; r != nil {
			return r
		}
	}
	return nil
}

// RouteOfKey returns the route for the route name of a latency key; [Unrouted] if there is none. For gRPC, the name is a method, otherwise
// a pattern.
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
