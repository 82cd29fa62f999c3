package grpccall

import (
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"

	"github.com/gohedge/hedge/internal/grpcattempt"
	"github.com/gohedge/hedge/internal/ops"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/readonly"
	"github.com/gohedge/hedge/internal/route"
	"github.com/gohedge/hedge/internal/serviceconfig"
)

// A methodRule is what holds for every call of a method. It does not change, but for what was told and seen.
type methodRule struct {
	hedgeable bool
	why       string // or why not
	policy    route.Policy
	live      *serviceconfig.Live
	hedging   *serviceconfig.Policy  // nil: its service config has none
	terms     *policy.PolicyOverride // of hedging; nil with it
	throttled bool                   // its successes count for retryThrottling
	loud      atomic.Bool            // the log is told of it
	told      grpcattempt.Told
	known     grpcattempt.Known
}

// methodRules make the rules of methods, which are kept with the service config that they follow from.
type methodRules struct {
	// Written before the first call, and not changed after it.
	routes   *route.Table // nil: no routes are given
	listed   []string     // patterns of WithMethods
	declared bool         // WithDeclaredMethods: names are not asked
	aside    bool         // gRPC obeys hedging policies itself
	log      *ops.Log
}

// of returns what holds for a method under a service config: its policies, and whether it is known
// to be safe to send twice. It is found once per method, unless there are more than live.Methods keeps.
func (r *methodRules) of(live *serviceconfig.Live, method string) *methodRule {
	if rule, ok := live.Methods.Load(method); ok {
		return rule.(*methodRule)
	}
	rule := r.find(live, method)
	kept, early := live.Methods.LoadOrStore(method, rule)
	if !early {
		return kept.(*methodRule)
	}
	rule.loud.Store(true)
	if p := rule.hedging; p != nil && !r.log.Silent() {
		r.log.Tell(slog.LevelInfo, "method has a hedging policy", slog.String("method", method), slog.String("policy", p.Path), slog.String("of", live.Source),
			slog.Int("attempts", p.Attempts), slog.Bool("learned_delay", !rule.terms.Fixed), slog.Duration("delay", p.Delay))
	}
	if !rule.hedgeable && !rule.policy.Off && !r.log.Silent() {
		r.log.Tell(slog.LevelInfo, "method is not hedged: nothing says that it is safe to repeat",
			slog.String("method", method), slog.String("why", rule.why), slog.String("allow", fmt.Sprintf("hedge.WithMethods(%q)", method)))
	}
	return rule
}

// find makes the rule of a method.
func (r *methodRules) find(live *serviceconfig.Live, method string) *methodRule {
	rule := &methodRule{live: live, throttled: live.Throttles() && !live.Retries(method)}
	configured := live.Policy(method)
	if r.routes != nil {
		if to := r.routes.MatchMethod(method); to != nil {
			rule.policy = to.Policy
		}
	}
	switch {
	case rule.policy.Off:
		rule.why = "its route is Off"
	case configured != nil && r.aside:
		rule.policy.Off, rule.why = true, "gRPC hedges it, by "+configured.Path
	case rule.policy.Hedgeable:
		rule.hedgeable, rule.why = true, "its route is Hedgeable"
	case r.lists(method):
		rule.hedgeable, rule.why = true, "WithMethods lists it"
	case configured != nil:
		rule.hedgeable, rule.why = true, "its service config has "+configured.Path
	default:
		v := readonly.Judge(method)
		rule.hedgeable, rule.why = v.Reads, v.Why
		if r.declared && !v.Declared {
			rule.hedgeable, rule.why = false, "it declares nothing"
		}
	}
	if configured != nil && !rule.policy.Off {
		rule.hedging = configured
		rule.terms = &policy.PolicyOverride{Hedges: configured.Attempts - 1, Fixed: configured.Delayed, Delay: configured.Delay}
	}
	return rule
}

// counts reports whether a call's end counts for retryThrottling. That of a nil rule does not.
func (m *methodRule) counts() bool { return m != nil && m.throttled }

// throttle returns the bucket of a target, nil if there is none.
func (m *methodRule) throttle(target string) *serviceconfig.Throttle {
	if !m.throttled {
		return nil
	}
	return m.live.Throttle(target)
}

// ended counts a call to a target for retryThrottling, if it ended with no error.
func (m *methodRule) ended(target string, err error) {
	if err == nil && m.counts() {
		m.live.Throttle(target).Succeeded()
	}
}

// tell tells the log why a call of a method is sent once.
func (r *methodRules) tell(m *methodRule, method string, why grpcattempt.Obstacle) {
	if m.loud.Load() && m.told.First(why) && !r.log.Silent() {
		r.log.Tell(slog.LevelInfo, "call is sent once: it cannot be divided among attempts", slog.String("method", method), slog.String("because", why.String()))
	}
}

// lists reports whether [WithMethods] names a method.
func (r *methodRules) lists(method string) bool {
	for _, p := range r.listed {
		prefix, all := strings.CutSuffix(p, "*")
		if p == method || (all && strings.HasPrefix(method, prefix)) {
			return true
		}
	}
	return false
}
