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

// A methodRule holds the settings of one method under one service config. It is immutable except for logsObstacles,
// loggedObstacles and typeCache, which are safe for concurrent use.
type methodRule struct {
	hedgeable       bool                         // calls of the method are safe to send twice
	reason          string                       // text that says why the method is hedgeable or is not
	policy          route.Policy                 // settings of the matching route
	activeConfig    *serviceconfig.ActiveConfig  // the service config
	hedgingPolicy   *serviceconfig.HedgingPolicy // hedging policy of the method in the service config; nil if there is none
	override        *policy.PolicyOverride       // settings that follow from hedgingPolicy; nil if there is none
	throttled       bool                         // successful calls add tokens to the bucket of retryThrottling
	logsObstacles   atomic.Bool                  // obstacles are logged; false for most methods of a client with very many methods
	loggedObstacles grpcattempt.LoggedObstacles
	typeCache       grpcattempt.TypeCache
}

// A methodRules creates the methodRule of each method. It caches a methodRule in the service config from which it
// follows.
type methodRules struct {
	// Fields are written before the first call, and not changed afterwards.
	routes         *route.Table // nil if there are no routes
	methodPatterns []string     // names and patterns from the option WithMethods
	declaredOnly   bool         // a method whose name suggests that it only reads is not hedged for that reason alone, see WithDeclaredMethods
	nativeHedging  bool         // this version of grpc-go implements hedging policies
	log            *ops.Log
}

// ruleOf returns the settings of a method under a service config. It caches them. For a new method, it logs whether the
// method is hedged and why.
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

// newRule determines the settings of a method under a service config. It does not read or fill the cache.
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

// countsForThrottling reports whether successful calls of the method add tokens to the bucket of retryThrottling. It
// returns false for a nil rule.
func (m *methodRule) countsForThrottling() bool { return m != nil && m.throttled }

// throttleOf returns the token bucket of retryThrottling for a target. It returns nil if calls of the method are not
// throttled.
func (m *methodRule) throttleOf(target string) *serviceconfig.Throttle {
	if !m.throttled {
		return nil
	}
	return m.activeConfig.ThrottleFor(target)
}

// recordSuccess records a successful call to a target in the token bucket of retryThrottling. It does nothing if err,
// the status of the call, is not nil.
func (m *methodRule) recordSuccess(target string, err error) {
	if err == nil && m.countsForThrottling() {
		m.activeConfig.ThrottleFor(target).RecordSuccess()
	}
}

// logObstacle logs why calls of a method cannot be hedged. It logs each obstacle once per method.
func (r *methodRules) logObstacle(m *methodRule, method string, why grpcattempt.Obstacle) {
	if m.logsObstacles.Load() && m.loggedObstacles.Add(why) && !r.log.IsDiscarded() {
		r.log.Log(slog.LevelInfo, "call is not hedged: it cannot have several attempts", slog.String("method", method), slog.String("because", why.String()))
	}
}

// isListed reports whether the option WithMethods lists the method, by its name or by a pattern.
func (r *methodRules) isListed(method string) bool {
	for _, p := range r.methodPatterns {
		prefix, all := strings.CutSuffix(p, "*")
		if p == method || (all && strings.HasPrefix(method, prefix)) {
			return true
		}
	}
	return false
}
