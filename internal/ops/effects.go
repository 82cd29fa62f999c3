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
	inConfig // a setting, which WithConfig replaces

	calls    = overHTTP | overGRPC | ofFunctions
	settings = calls | inConfig
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
	"WithPercentile": settings, "WithMaxHedges": settings, "WithBudgetPercent": settings, "WithEstimatedRPS": settings, "WithMinDelay": settings,
	"WithMaxDelay": settings, "WithInitialDelay": settings, "WithBurst": settings, "WithMaxHedgesPerSecond": settings, "WithMaxKeys": settings,
	"WithLinger": overHTTP | inConfig, "WithMaxReplayBytes": overHTTP | inConfig, "WithAttemptHeader": overHTTP | inConfig,
	"WithConfig": calls, "WithBudget": calls, "WithStats": calls, "WithShadow": calls, "WithAudit": calls,
	"WithObserver": calls | ofLimiters, "WithName": calls | ofLimiters, "WithLogger": calls | ofLimiters, "WithUnlimited": ofLimiters, "WithLimitedHealthChecks": ofLimiters,
	"WithKeyFunc": overHTTP | overGRPC, "WithRoute": overHTTP | overGRPC,
	"WithHedgeable": overHTTP, "WithFailureStatus": overHTTP, "WithAnswerStatus": overHTTP, "WithFailureFunc": overHTTP, "WithHedgeTransport": overHTTP,
	"WithFirstByte": overHTTP, "WithEndpoints": overHTTP, "WithReplicas": overHTTP, "WithResume": overHTTP,
	"WithMethods": overGRPC, "WithHedgeConn": overGRPC, "WithHedgeConns": overGRPC, "WithDeclaredMethods": overGRPC, "WithNonFatalCodes": overGRPC, "WithAnswerCodes": overGRPC,
	"WithServiceConfig": overGRPC,
}

// overruled are options that have no effect beside others.
var overruled = []struct{ option, by string }{
	{"WithBudgetPercent", "WithBudget"}, {"WithEstimatedRPS", "WithBudget"}, {"WithBurst", "WithBudget"},
	{"WithFailureStatus", "WithFailureFunc"}, {"WithAnswerStatus", "WithFailureFunc"},
	{"WithAudit", "WithShadow"}, {"WithReplicas", "WithHedgeTransport"}, {"WithLinger", "WithFirstByte"},
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
			all = append(all, option+" is for "+list(has))
		case by >= 0:
			all = append(all, option+" has no effect beside "+overruled[by].by)
		case effects[option]&inConfig != 0 && slices.Contains(given[last(given, option):], "WithConfig"):
			all = append(all, option+" has no effect before WithConfig")
		}
	}
	return all
}

// last returns where an option was given the last time.
func last(given []string, option string) int {
	i := len(given) - 1
	for i > 0 && given[i] != option {
		i--
	}
	return i
}

// list joins words as a sentence does; there may be none.
func list(words []string) string {
	if n := len(words) - 1; n > 0 {
		return strings.Join(words[:n], ", ") + " and " + words[n]
	}
	return strings.Join(words, "")
}

// LogUnusedOptions logs options without an effect.
func (l *Log) LogUnusedOptions(all []string) {
	for _, why := range all {
		l.Log(slog.LevelDebug, "an option has no effect", slog.String("option", why))
	}
}
