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

// A methodRule holds the settings of one method under one service config. Only the fields for logs and the cache of
// types change.
type methodRule struct {
	hedgeable       bool
	reason          string // reason why the method is hedgeable, or is not
	policy          route.Policy
	activeConfig    *serviceconfig.ActiveConfig
	hedgingPolicy   *serviceconfig.HedgingPolicy // hedgingPolicy in the service config; nil: none
	override        *policy.PolicyOverride       // hedgingPolicy as settings of the policy; nil without one
	throttled       bool                         // successful calls count for retryThrottling
	logsObstacles   atomic.Bool                  // whether obstacles are logged; false for most methods of a client with very many
	loggedObstacles grpcattempt.LoggedObstacles
	typeCache       grpcattempt.TypeCache
}

// A methodRules creates the rules of methods. It caches each rule in the service config from which the rule follows.
type methodRules struct {
	// Written before the first call, and not changed afterwards.
	routes         *route.Table // nil: there are no routes
	methodPatterns []string     // names and patterns from the option WithMethods
	declaredOnly   bool         // names of methods are not evaluated, see WithDeclaredMethods
	nativeHedging  bool         // this version of grpc-go implements hedging policies
	log            *ops.Log
}

// ruleOf returns the cached rule of a method under a service config, and creates it if necessary. It logs why the
// method is hedged or not, once per method.
func (r *methodRules) ruleOf(active *serviceconfig.ActiveConfig, method string) *methodRule {
	if rule, ok := active.Methods.Load(method); ok {
		return rule.(*methodRule)
	}
	rule := r.newRule(active, method)
	kept, early := active.Methods.LoadOrStore(method, rule)
	if !early {
		return kept.(*methodRule)
	}
	rule.logsObstacles.Store(true)
	if p := rule.hedgingPolicy; p != nil && !r.log.IsDiscarded() {
		r.log.Log(slog.LevelInfo, "method has a hedging policy", slog.String("method", method), slog.String("policy", p.Path), slog.String("of", active.Source),
			slog.Int("attempts", p.MaxAttempts), slog.Bool("learned_delay", !rule.override.Fixed), slog.Duration("delay", p.Delay))
	}
	if !rule.hedgeable && !rule.policy.Off && !r.log.IsDiscarded() {
		r.log.Log(slog.LevelInfo, "method is not hedged: nothing says that it is safe to repeat",
			slog.String("method", method), slog.String("why", rule.reason), slog.String("allow", fmt.Sprintf("hedge.WithMethods(%q)", method)))
	}
	return rule
}

// newRule returns a new rule of a method under a service config.
func (r *methodRules) newRule(active *serviceconfig.ActiveConfig, method string) *methodRule {
	rule := &methodRule{activeConfig: active, throttled: active.HasThrottling() && !active.HasRetryPolicy(method)}
	configured := active.HedgingPolicy(method)
	if r.routes != nil {
		if to := r.routes.MatchMethod(method); to != nil {
			rule.policy = to.Policy
		}
	}
	switch {
	case rule.policy.Off:
		rule.reason = "its route is Off"
	case configured != nil && r.nativeHedging:
		rule.policy.Off, rule.reason = true, "gRPC hedges it, by "+configured.Path
	case rule.policy.Hedgeable:
		rule.hedgeable, rule.reason = true, "its route is Hedgeable"
	case r.isListed(method):
		rule.hedgeable, rule.reason = true, "WithMethods lists it"
	case configured != nil:
		rule.hedgeable, rule.reason = true, "its service config has "+configured.Path
	default:
		v := readonly.ClassifyMethod(method)
		rule.hedgeable, rule.reason = v.Reads, v.Reason
		if r.declaredOnly && !v.Declared {
			rule.hedgeable, rule.reason = false, "it declares nothing"
		}
	}
	if configured != nil && !rule.policy.Off {
		rule.hedgingPolicy = configured
		rule.override = &policy.PolicyOverride{Hedges: configured.MaxAttempts - 1, Fixed: configured.HasDelay, Delay: configured.Delay}
	}
	return rule
}

// countsForThrottling reports whether successful calls of the method count for retryThrottling. It is false for a nil
// rule.
func (m *methodRule) countsForThrottling() bool { return m != nil && m.throttled }

// throttleOf returns the token bucket of retryThrottling for a target, or nil if the method has none.
func (m *methodRule) throttleOf(target string) *serviceconfig.Throttle {
	if !m.throttled {
		return nil
	}
	return m.activeConfig.ThrottleFor(target)
}

// recordSuccess counts a successful call to a target for retryThrottling. It does nothing if err, the status of the
// call, is not nil.
func (m *methodRule) recordSuccess(target string, err error) {
	if err == nil && m.countsForThrottling() {
		m.activeConfig.ThrottleFor(target).RecordSuccess()
	}
}

// logObstacle logs why a call of a method is not hedged, once per method and obstacle.
func (r *methodRules) logObstacle(m *methodRule, method string, why grpcattempt.Obstacle) {
	if m.logsObstacles.Load() && m.loggedObstacles.Add(why) && !r.log.IsDiscarded() {
		r.log.Log(slog.LevelInfo, "call is not hedged: it cannot have several attempts", slog.String("method", method), slog.String("because", why.String()))
	}
}

// isListed reports whether the option WithMethods names the method or a pattern of it.
func (r *methodRules) isListed(method string) bool {
	for _, p := range r.methodPatterns {
		prefix, all := strings.CutSuffix(p, "*")
		if p == method || (all && strings.HasPrefix(method, prefix)) {
			return true
		}
	}
	return false
}
