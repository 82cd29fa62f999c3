package hedge

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/gohedge/hedge/internal/ops"
	"github.com/gohedge/hedge/internal/readonly"
)

// A methodRule is what holds for every call of a method. It does not change.
type methodRule struct {
	hedgeable bool
	policy    Policy
}

// The names of methods can come from strangers: a proxy passes on what it is sent.
const (
	maxRules      = 4096 // methods whose rules are kept
	maxMethodName = 256  // bytes; a longer name's rule is found again for each call
)

// methodRules are the rules of methods. They are safe for concurrent use.
type methodRules struct {
	// Written before the first call, and not changed after it.
	routes *routes  // nil: none given
	listed []string // patterns of WithMethods
	log    *ops.Log

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
	if n%maxRules == 0 {
		r.known.Clear() // what is in use comes back
	}
	if n <= maxRules && !rule.hedgeable && !rule.policy.Off && !r.log.Silent() {
		r.log.Tell(slog.LevelInfo, "method is not hedged: nothing says that it is safe to repeat",
			slog.String("method", method), slog.String("allow", fmt.Sprintf("hedge.WithMethods(%q)", method)))
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
	rule.hedgeable = !rule.policy.Off && (rule.policy.Hedgeable || r.lists(method) || readonly.Method(method))
	return rule
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
