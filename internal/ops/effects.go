package ops

import (
	"log/slog"
	"slices"
	"strings"
)

// The protocols for which options have an effect, as in observe.KeyInfo, and a limiter.
const (
	overHTTP = 1 << iota
	overGRPC
	ofFunctions
	ofLimiters

	calls = overHTTP | overGRPC | ofFunctions
)

// protocols are the names of protocols, and the words for them.
var protocols = []struct {
	name  string
	bit   int
	words string
}{
	{"http", overHTTP, "HTTP"}, {"grpc", overGRPC, "gRPC"}, {"func", ofFunctions, "functions"}, {"limiter", ofLimiters, "a Limiter"},
}

// effects are the options of package hedge, and where they have an effect.
var effects = map[string]int{
	"WithPercentile": calls, "WithMaxHedges": calls, "WithBudgetPercent": calls, "WithEstimatedRPS": calls, "WithMinDelay": calls, "WithMaxDelay": calls,
	"WithInitialDelay": calls, "WithBurst": calls, "WithMaxHedgesPerSecond": calls, "WithMaxKeys": calls, "WithConfig": calls, "WithBudget": calls,
	"WithStats": calls, "WithShadow": calls, "WithAudit": calls,
	"WithObserver": calls | ofLimiters, "WithName": calls | ofLimiters, "WithLogger": calls | ofLimiters,
	"WithKeyFunc": overHTTP | overGRPC, "WithRoute": overHTTP | overGRPC,
	"WithLinger": overHTTP, "WithMaxReplayBytes": overHTTP, "WithAttemptHeader": overHTTP, "WithHedgeable": overHTTP, "WithFailureStatus": overHTTP,
	"WithAnswerStatus": overHTTP, "WithFailureFunc": overHTTP, "WithHedgeTransport": overHTTP, "WithFirstByte": overHTTP, "WithReplicas": overHTTP, "WithResume": overHTTP,
	"WithMethods": overGRPC, "WithHedgeConn": overGRPC, "WithDeclaredMethods": overGRPC, "WithNonFatalCodes": overGRPC, "WithAnswerCodes": overGRPC,
	"WithServiceConfig": overGRPC, "StrictServiceConfig": overGRPC,
}

// overruled are options that have no effect beside others.
var overruled = []struct{ option, by string }{
	{"WithBudgetPercent", "WithBudget"}, {"WithEstimatedRPS", "WithBudget"}, {"WithBurst", "WithBudget"},
	{"WithFailureStatus", "WithFailureFunc"}, {"WithAnswerStatus", "WithFailureFunc"},
	{"WithAudit", "WithShadow"}, {"WithReplicas", "WithHedgeTransport"},
}

// Unused returns which of the options that an adapter of that protocol was given have no effect on it, in their order and
// with the reason.
func Unused(protocol string, given []string) (all []string) {
	for i, option := range given {
		if slices.Contains(given[:i], option) {
			continue
		}
		var has []string
		here := false
		for _, p := range protocols {
			if effects[option]&p.bit != 0 {
				has = append(has, p.words)
				here = here || p.name == protocol
			}
		}
		by := slices.IndexFunc(overruled, func(o struct{ option, by string }) bool { return o.option == option && slices.Contains(given, o.by) })
		switch {
		case !here:
			all = append(all, option+" is for "+strings.Join(has, " and "))
		case by >= 0:
			all = append(all, option+" has no effect beside "+overruled[by].by)
		}
	}
	return all
}

// Unused logs options without an effect.
func (l *Log) Unused(all []string) {
	for _, why := range all {
		l.Tell(slog.LevelDebug, "an option has no effect", slog.String("option", why))
	}
}
