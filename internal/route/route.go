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

// A Policy has the fields of the public type Policy, which documents them.
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
	Line    string // source line of the program that gives the route, for errors
	Policy
	withoutHedgeable *Route // the same route without Hedgeable; nil for itself
}

// Unrouted is the route of calls that match no pattern.
var Unrouted = new(Route)

// A Table finds the route of a call. Routes are registered and compiled before the first call. A nil Table has no routes.
type Table struct {
	mux        pattern.Mux[*Route]
	exact      map[string]*Route // by pattern
	registered []Route
}

// Validate returns an error that names the field and the value if r makes no sense.
func (r Route) Validate() error { return new(Table).addRoute(r) }

// Register adds r. The route has no effect before Compile.
func (t *Table) Register(r Route) { t.registered = append(t.registered, r) }

// Registered returns the routes in the order of their registration; none for a nil Table.
func (t *Table) Registered() []Route {
	if t == nil {
		return nil
	}
	return t.registered
}

// Compile puts the registered routes in force for a protocol: "http", "grpc" or "func". The error names a pattern or a field that the protocol does
// not have, or a pattern that conflicts with another one.
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

// MatchRequest returns the route of an HTTP request, [Unrouted] if no pattern matches. The URL must not be nil. The route of a request whose path is
// not clean has no effect of Hedgeable: the server may read the path differently.
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

// MatchMethod returns the route of a gRPC method, nil if no pattern matches.
func (t *Table) MatchMethod(method string) *Route {
	service := method[:strings.LastIndexByte(method, '/')+1]
	for _, pattern := range [...]string{method, service + "*", "/*"} {
		if r := t.exact[pattern]; r != nil {
			return r
		}
	}
	return nil
}

// RouteOfKey returns the route of a latency key whose route has the given name, [Unrouted] if there is none. The name is a method for gRPC, and otherwise a
// pattern.
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
