package hedge

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
	mux     pattern.Mux[*route]
	exact   map[string]*route // by the patterns as given
	pending []route           // given, and not yet added
}

// A route is what holds for the calls that match a pattern.
type route struct {
	pattern string
	at      string // the line that gave it
	Policy
	undeclared *route // the same, but safe to send twice is only what would be without it; nil for itself
}

var noRoute = new(route)

func (r *routes) add(to route) error {
	switch {
	case to.Delay < 0:
		return fmt.Errorf("hedge: WithRoute(%q): Delay %v is not at least 0", to.pattern, to.Delay)
	case !(to.BudgetPercent >= 0 && to.BudgetPercent <= 100*race.MaxHedges):
		return fmt.Errorf("hedge: WithRoute(%q): BudgetPercent %v is not in [0, %d]", to.pattern, to.BudgetPercent, 100*race.MaxHedges)
	}
	less := to
	less.Hedgeable = false
	to.undeclared = &less
	if err := r.mux.Add(to.pattern, to.at, &to); err != nil {
		return fmt.Errorf("hedge: WithRoute(%q): %w", to.pattern, err)
	}
	if r.exact == nil {
		r.exact = make(map[string]*route)
	}
	r.exact[to.pattern] = &to
	return nil
}

// unused returns what of the policy has no effect over a protocol, and why.
func (r *route) unused(protocol string) (all []string) {
	if r.FirstByte && protocol == "grpc" {
		all = append(all, fmt.Sprintf("FirstByte of the route %q is for HTTP", r.pattern))
	}
	if r.Hedgeable && r.Off {
		all = append(all, fmt.Sprintf("Hedgeable of the route %q has no effect beside Off", r.pattern))
	}
	return all
}

// compile adds the pending routes, for a protocol as in [KeyInfo].
func (r *routes) compile(protocol string) error {
	for _, to := range r.pending {
		if protocol == "grpc" && !pattern.OfMethods(to.pattern) {
			return fmt.Errorf("hedge: WithRoute(%q): pattern is not /pkg.Service/Method, /pkg.Service/* or /*, as gRPC needs", to.pattern)
		}
		if err := r.add(to); err != nil {
			return err
		}
	}
	return nil
}

// http returns the route of a request, noRoute if it has none, see [pattern.Mux.Find]. That of an unclean path does not
// declare it safe to send twice.
func (r *routes) http(req *http.Request) *route {
	to, clean, ok := r.mux.Find(req.Method, httpattempt.HostName(req.URL.Scheme, cmp.Or(req.Host, req.URL.Host)), req.URL)
	switch {
	case !ok:
		return noRoute
	case !clean:
		return to.undeclared
	}
	return to
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
