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

// A methodRule holds the properties of a method that every call of it shares. It does not change, except for the record of log lines.
type methodRule struct {
	hedgeable       bool
	why             string // reason of hedgeable
	policy          route.Policy
	activeConfig    *serviceconfig.ActiveConfig
	hedging         *serviceconfig.HedgingPolicy // of the service config; nil: none
	terms           *policy.PolicyOverride       // of hedging; nil with it
	throttled       bool                         // successes count for retryThrottling
	logsObstacles   atomic.Bool                  // obstacles are logged
	loggedObstacles grpcattempt.LoggedObstacles
	typeCache       grpcattempt.TypeCache
}

// methodRules makes the rules of methods and stores them with the service config that they follow from.
type methodRules struct {
	// Written before the first call, and not changed after it.
	routes        *route.Table // nil: no routes are given
	listed        []string     // patterns of WithMethods
	declaredOnly  bool         // names of methods do not count, see WithDeclaredMethods
	nativeHedging bool         // grpc-go itself obeys hedging policies
	log           *ops.Log
}

// ruleOf returns the rule of a method under a service config. It makes the rule once per method, unless live.Methods is full.
func (r *methodRules) ruleOf(live *serviceconfig.ActiveConfig, method string) *methodRule {
	if rule, ok := live.Methods.Load(method); ok {
		return rule.(*methodRule)
	}
	rule := r.newRule(live, method)
	kept, early := live.Methods.LoadOrStore(method, rule)
	if !early {
		return kept.(*methodRule)
	}
	rule.logsObstacles.Store(true)
	if p := rule.hedging; p != nil && !r.log.IsDiscarded() {
		r.log.Log(slog.LevelInfo, "method has a hedging policy", slog.String("method", method), slog.String("policy", p.Path), slog.String("of", live.Source),
			slog.Int("attempts", p.MaxAttempts), slog.Bool("learned_delay", !rule.terms.Fixed), slog.Duration("delay", p.Delay))
	}
	if !rule.hedgeable && !rule.policy.Off && !r.log.IsDiscarded() {
		r.log.Log(slog.LevelInfo, "method is not hedged: nothing says that it is safe to repeat",
			slog.String("method", method), slog.String("why", rule.why), slog.String("allow", fmt.Sprintf("hedge.WithMethods(%q)", method)))
	}
	return rule
}

// newRule makes the rule of a method under a service config.
func (r *methodRules) newRule(live *serviceconfig.ActiveConfig, method string) *methodRule {
	rule := &methodRule{activeConfig: live, throttled: live.HasThrottling() && !live.HasRetryPolicy(method)}
	configured := live.HedgingPolicy(method)
	if r.routes != nil {
		if to := r.routes.MatchMethod(method); to != nil {
			rule.policy = to.Policy
		}
	}
	switch {
	case rule.policy.Off:
		rule.why = "its route is Off"
	case configured != nil && r.nativeHedging:
		rule.policy.Off, rule.why = true, "gRPC hedges it, by "+configured.Path
	case rule.policy.Hedgeable:
		rule.hedgeable, rule.why = true, "its route is Hedgeable"
	case r.isListed(method):
		rule.hedgeable, rule.why = true, "WithMethods lists it"
	case configured != nil:
		rule.hedgeable, rule.why = true, "its service config has "+configured.Path
	default:
		v := readonly.ClassifyMethod(method)
		rule.hedgeable, rule.why = v.Reads, v.Reason
		if r.declaredOnly && !v.Declared {
			rule.hedgeable, rule.why = false, "it declares nothing"
		}
	}
	if configured != nil && !rule.policy.Off {
		rule.hedging = configured
		rule.terms = &policy.PolicyOverride{Hedges: configured.MaxAttempts - 1, Fixed: configured.HasDelay, Delay: configured.Delay}
	}
	return rule
}

// countsForThrottling reports whether successes of the method count for retryThrottling. A nil rule does not.
func (m *methodRule) countsForThrottling() bool { return m != nil && m.throttled }

// throttleOf returns the token bucket of retryThrottling for a target; nil: none.
func (m *methodRule) throttleOf(target string) *serviceconfig.Throttle {
	if !m.throttled {
		return nil
	}
	return m.activeConfig.ThrottleFor(target)
}

// recordSuccess counts a call to a target for retryThrottling if err is nil.
func (m *methodRule) recordSuccess(target string, err error) {
	if err == nil && m.countsForThrottling() {
		m.activeConfig.ThrottleFor(target).RecordSuccess()
	}
}

// logObstacle logs the reason for which a call of a method is sent once, once per method and reason.
func (r *methodRules) logObstacle(m *methodRule, method string, why grpcattempt.Obstacle) {
	if m.logsObstacles.Load() && m.loggedObstacles.First(why) && !r.log.IsDiscarded() {
		r.log.Log(slog.LevelInfo, "call is sent once: it cannot be divided among attempts", slog.String("method", method), slog.String("because", why.String()))
	}
}

// isListed reports whether the option WithMethods names a method.
func (r *methodRules) isListed(method string) bool {
	for _, p := range r.listed {
		prefix, all := strings.CutSuffix(p, "*")
		if p == method || (all && strings.HasPrefix(method, prefix)) {
			return true
		}
	}
	return false
}
