//go:build !hedge_nogrpc

package hedge

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/gohedge/hedge/internal/grpcattempt"
	"github.com/gohedge/hedge/internal/ops"
	"github.com/gohedge/hedge/internal/readonly"
)

// A methodRule is what holds for every call of a method. It does not change, but for what was told and seen.
type methodRule struct {
	hedgeable bool
	why       string // or why not
	policy    Policy
	loud      atomic.Bool // the log is told of it
	told      grpcattempt.Told
	known     grpcattempt.Known
}

// The names of methods can come from strangers: a proxy passes on what it is sent.
const (
	maxRules      = 4096 // methods whose rules are kept
	maxMethodName = 256  // bytes; a longer name's rule is found again for each call
)

// methodRules are the rules of methods. They are safe for concurrent use.
type methodRules struct {
	// Written before the first call, and not changed after it.
	routes   *routes  // nil: none given
	listed   []string // patterns of WithMethods
	declared bool     // WithDeclaredMethods: names are not asked
	log      *ops.Log

	known sync.Map     // full method to *methodRule
	kept  atomic.Int64 // how many were put into known
}

// of returns what holds for a method: its route's policy, and whether it is known
// to be safe to send twice. It is found once per method, unless there are more than
// maxRules.
func (r *methodRules) of(method string) *methodRule {
	if rule, ok := r.known.Load(method); ok {
		return rule.(*methodRule)
	}
	rule := r.find(method)
	if len(method) > maxMethodName {
		return rule
	}
	earlier, found := r.known.LoadOrStore(strings.Clone(method), rule)
	if found {
		return earlier.(*methodRule)
	}
	n := r.kept.Add(1)
	rule.loud.Store(n <= maxRules)
	if n%maxRules == 0 {
		r.known.Clear() // what is in use comes back
	}
	if n <= maxRules && !rule.hedgeable && !rule.policy.Off && !r.log.Silent() {
		r.log.Tell(slog.LevelInfo, "method is not hedged: nothing says that it is safe to repeat",
			slog.String("method", method), slog.String("why", rule.why), slog.String("allow", fmt.Sprintf("hedge.WithMethods(%q)", method)))
	}
	return rule
}

// find makes the rule of a method.
func (r *methodRules) find(method string) *methodRule {
	rule := new(methodRule)
	if r.routes != nil {
		if to := r.routes.grpc(method); to != nil {
			rule.policy = to.Policy
		}
	}
	switch {
	case rule.policy.Off:
		rule.why = "its route is Off"
	case rule.policy.Hedgeable:
		rule.hedgeable, rule.why = true, "its route is Hedgeable"
	case r.lists(method):
		rule.hedgeable, rule.why = true, "WithMethods lists it"
	default:
		v := readonly.Judge(method)
		rule.hedgeable, rule.why = v.Reads, v.Why
		if r.declared && !v.Declared {
			rule.hedgeable, rule.why = false, "it declares nothing"
		}
	}
	return rule
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
