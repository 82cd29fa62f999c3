package ops

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/sanitize"
	"github.com/gohedge/hedge/observe"
)

// A Log writes log messages about one client or Limiter, mostly about changes of its state. It is safe for concurrent use.
type Log struct {
	// logger is the logger. If it is nil, only panics and the messages of logWarning and WarnOfFile are logged, with
	// slog.Default.
	logger       *slog.Logger
	prefix       string        // start of each message
	panics       *atomic.Int64 // number of panics of observers and loggers
	panicLogged  atomic.Bool   // a panic was logged, so that later ones are only counted
	nestedLogged atomic.Bool   // a nested call was logged, so that later ones are not

	prepareErrorLogged atomic.Bool  // an error of a Prepare function was logged, so that later ones are not
	pinnedPartCount    atomic.Int32 // number of elements in pinnedParts
	pinnedParts        sync.Map     // set of the request parts, such as header names, that WarnOfPinnedRequest has logged
	heldBackKeyCount   atomic.Int32 // number of elements in heldBackKeys
	heldBackKeys       sync.Map     // set of the latency keys that LogHeldBack has logged
}

// NewLog returns a Log that writes to l, which may be nil. Each message starts with prefix and ": ". Each record has the
// attribute protocol, and the attribute client if that is not empty. Panics of observers and of the logger are counted in
// panics.
func NewLog(l *slog.Logger, prefix, protocol, client string, panics *atomic.Int64) *Log {
	if l != nil {
		l = l.With("protocol", protocol)
		if client != "" {
			l = l.With("client", client)
		}
	}
	return &Log{logger: l, prefix: prefix + ": ", panics: panics}
}

// IsDiscarded reports whether [Log.Log] discards its messages because there is no logger. The caller then need not prepare
// attributes.
func (l *Log) IsDiscarded() bool { return l.logger == nil }

// LogEnvironment logs which environment variables switch hedging off, set the budget, have an invalid value, or have no effect.
// It logs nothing if there are none.
func (l *Log) LogEnvironment(e Environment) {
	for _, name := range e.Invalid {
		l.warnOfInvalidVariable(name, os.Getenv(name))
	}
	l.WarnOfUnusedVariable(e)
	if e.BudgetPercent >= 0 {
		l.Log(slog.LevelInfo, "the budget is set", slog.Float64("budget_percent", e.BudgetPercent), slog.String("by", "HEDGE_BUDGET_PERCENT"))
	}
	if e.Off != "" {
		l.LogSwitch(false, e.Off)
	}
}

// WarnOfUnusedVariable warns that an environment variable has a value, but no effect on the client. It logs nothing if there is no
// such variable.
func (l *Log) WarnOfUnusedVariable(e Environment) {
	if e.Unused != "" {
		value := os.Getenv(e.Unused)
		l.logWarning(e.Unused+"="+value, "a variable of the environment has no effect here",
			slog.String("variable", e.Unused), slog.String("value", sanitize.CleanText(value)))
	}
}

// warnOfInvalidVariable warns that the environment variable has an invalid value, and that therefore no hedges are sent.
func (l *Log) warnOfInvalidVariable(name, value string) {
	l.logWarning(name+"="+value, "a variable of the environment cannot be understood, so no hedge is sent",
		slog.String("variable", name), slog.String("value", sanitize.CleanText(value)))
}

// IsSmallBudget reports whether a budget is above 0 and less than one percent of the calls: a program that confuses fractions
// with percentages may have set 0.1 for ten percent.
func IsSmallBudget(percent float64) bool { return percent > 0 && percent < 1 }

// WarnOfSmallBudget warns if the settings allow no hedges at all. It also logs, with level Info, a small budget (see
// [IsSmallBudget]).
func (l *Log) WarnOfSmallBudget(maxHedges int, budgetPercent float64) {
	switch {
	case maxHedges == 0 || budgetPercent == 0:
		l.logWarning(fmt.Sprintf("means %d %v", maxHedges, budgetPercent), "the settings allow no hedge, so none is ever sent",
			slog.Int("max_hedges", maxHedges), slog.Float64("budget_percent", budgetPercent))
	case IsSmallBudget(budgetPercent):
		l.Log(slog.LevelInfo, "the budget is less than 1 % of the calls", slog.String("budget", fmt.Sprintf("%v %%", budgetPercent)))
	}
}

// WarnOfSmallRouteBudget logs, with level Info, a route budget of less than one percent of the route's calls. A budget of 0
// means that the route has no budget of its own, and is not logged.
func (l *Log) WarnOfSmallRouteBudget(route string, budgetPercent float64) {
	if IsSmallBudget(budgetPercent) {
		l.Log(slog.LevelInfo, "the budget of a route is less than 1 % of its calls", slog.String("route", sanitize.CleanText(route)),
			slog.String("budget", fmt.Sprintf("%v %%", budgetPercent)))
	}
}

// WarnOfNestedHedging warns that a call is nested in a hedged call to the same target, and is therefore sent without hedges.
// The argument call names the target. Only the first call is logged.
func (l *Log) WarnOfNestedHedging(call string) {
	if !l.nestedLogged.Swap(true) {
		l.logWarning("again", "nested hedging: a call within a hedged call is sent once", slog.String("call", sanitize.CleanText(call)))
	}
}

// onceLogged is the set of warnings that were logged with slog.Default. A process logs each of these warnings once, even if the
// program makes many clients.
var onceLogged sync.Map

// WarnOfPrepareError warns that a Prepare function has returned err, so that a request could not be sent to another endpoint.
// Only the first error is logged.
func (l *Log) WarnOfPrepareError(err error) {
	if !l.prepareErrorLogged.Swap(true) {
		l.logWarning("unprepared", "a request could not be prepared for another endpoint; later errors are not logged", slog.String("error", sanitize.CleanText(err.Error())))
	}
}

// WarnOfPinnedRequest warns that calls stay at the endpoint that they were made for, because a part of the request, such
// as a header, may be valid only there. It logs each part once, and at most eight parts.
func (l *Log) WarnOfPinnedRequest(part string) {
	if _, known := l.pinnedParts.Load(part); known || l.pinnedPartCount.Load() >= 8 {
		return
	}
	if _, known := l.pinnedParts.LoadOrStore(part, true); !known && l.pinnedPartCount.Add(1) <= 8 {
		l.logWarning("stays "+part, "calls are not sent to other endpoints, because they have a part for which the endpoints have no rule", slog.String("with", sanitize.CleanText(part)))
	}
}

// LogHeldBack logs that Do has returned the result of a hedge late, because the first call of the function had not returned. It
// logs each latency key once, and at most 64 keys.
func (l *Log) LogHeldBack(key string) {
	if _, known := l.heldBackKeys.Load(key); known || l.heldBackKeyCount.Load() >= 64 {
		return
	}
	if _, known := l.heldBackKeys.LoadOrStore(key, true); !known && l.heldBackKeyCount.Add(1) <= 64 {
		l.Log(slog.LevelInfo, "a hedge has answered, but the first call of the function does not return, because it ignores its context; DoDetached does not wait for it",
			slog.String("key", sanitize.CleanText(key)))
	}
}

// logWarning logs a warning. If there is no logger, it uses slog.Default, and logs each warning only once per process.
// The argument name identifies the warning.
func (l *Log) logWarning(name, message string, attrs ...slog.Attr) {
	if l.IsDiscarded() {
		if _, known := onceLogged.LoadOrStore(l.prefix+name, true); known {
			return
		}
	}
	l.logAlways(slog.LevelWarn, message, attrs...)
}

// LogSwitch logs that hedging was switched on or off. The argument by is the name of the function or environment variable that
// has switched it.
func (l *Log) LogSwitch(on bool, by string) {
	if on {
		l.Log(slog.LevelInfo, "enabled", slog.String("by", by))
	} else {
		l.Log(slog.LevelWarn, "disabled", slog.String("by", by))
	}
}

// LogMode logs that the mode of the client has changed. The argument by names the source of the change, such as "file".
func (l *Log) LogMode(from, to Mode, by string) {
	l.Log(slog.LevelInfo, "mode changed", slog.String("from", string(from)), slog.String("to", string(to)), slog.String("by", by))
}

// LogFixedSettings logs that settings were not changed, because a source of higher precedence fixes them. The argument by names the
// source that was to change them, such as "Update", and fixedBy maps the name of each setting to the source that fixes it.
func (l *Log) LogFixedSettings(by string, fixedBy map[string]string) {
	for _, setting := range slices.Sorted(maps.Keys(fixedBy)) {
		l.Log(slog.LevelInfo, "a setting is not changed, because another source fixes it",
			slog.String("setting", setting), slog.String("by", by), slog.String("fixed_by", fixedBy[setting]))
	}
}

// WarnOfFile warns that a file with settings cannot be used because of err. The argument effect says which settings apply
// instead, as a part of the message. If there is no logger, it uses slog.Default, each time.
func (l *Log) WarnOfFile(path, effect string, err error) {
	l.logAlways(slog.LevelWarn, "a file with settings cannot be used, so "+effect,
		slog.String("file", sanitize.CleanText(path)), slog.String("error", sanitize.CleanText(err.Error())))
}

// LogObserverPanic counts a panic of the observer o, and logs the first panic. It must be called from the deferred function
// that recovers, so that the logged stack is that of the panic.
func (l *Log) LogObserverPanic(o observe.Observer, value any) {
	l.LogPanic(fmt.Sprintf("%T", o), value)
}

// LogPanic counts a panic in an observer or another callback of the program, and logs the first panic. The argument
// observer names the callback. LogPanic must be called from the deferred function that recovers.
func (l *Log) LogPanic(observer string, value any) {
	l.panics.Add(1)
	if l.panicLogged.Swap(true) {
		return
	}
	l.logAlways(slog.LevelError, "an observer panicked; later panics are only counted",
		slog.String("observer", observer), slog.String("panic", fmt.Sprint(value)), slog.String("stack", string(debug.Stack())))
}

// changeMessages holds the log messages for the start (bad) and the end (good) of each kind of condition.
var changeMessages = [...]struct{ bad, good string }{
	policy.KindPause:    {"paused", "resumed"},
	policy.KindBudget:   {"budget exhausted", "budget refilled"},
	policy.KindEndpoint: {"endpoint ejected", "endpoint restored"},
}

// logVerdict logs the verdict and the results of the audit of a host.
func (l *Log) logVerdict(key observe.KeyInfo, v observe.Audit) {
	level := slog.LevelInfo
	message := map[observe.Verdict]string{
		observe.AuditTrying: "audit begins anew", observe.AuditOn: "audit: hedging helps", observe.AuditOff: "audit: hedging harms and is switched off",
		observe.AuditSame: "audit: no difference found, hedging goes on", observe.AuditUnclear: "audit: calls take too long to tell, hedging goes on",
	}[v.Verdict]
	attrs := []slog.Attr{slog.String("host", sanitize.CleanText(key.Host))}
	if v.Verdict == observe.AuditOff {
		level = slog.LevelWarn
	}
	if v.Pairs > 0 {
		attrs = append(attrs, slog.Int("pairs", v.Pairs), slog.Float64("confidence", v.Confidence))
	}
	if v.P99 > 0 {
		attrs = append(attrs, slog.Duration("p99_without", v.P99), slog.Duration("p99_with", v.P99-v.Saved), slog.Duration("p99_saved", v.Saved),
			slog.Duration("plus_minus", v.PlusMinus), slog.Float64("failures_without", v.FailureShare), slog.Float64("failures_saved", v.FailuresSaved),
			slog.Float64("failures_plus_minus", v.FailuresPlusMinus), slog.Float64("extra_requests", v.Extra))
	}
	l.Log(level, message, attrs...)
}

// LogChange logs that a condition of the key, such as a pause of hedging, has started or ended.
func (l *Log) LogChange(key observe.KeyInfo, change policy.Change) {
	if change.Kind == policy.KindVerdict {
		l.logVerdict(key, change.Audit)
		return
	}
	level, message := slog.LevelInfo, changeMessages[change.Kind].good
	if change.Bad {
		message = changeMessages[change.Kind].bad
	}
	if change.Bad && change.Kind != policy.KindBudget { // an exhausted budget needs no action
		level = slog.LevelWarn
	}
	attrs := []slog.Attr{slog.String("host", sanitize.CleanText(key.Host))}
	if key.Route != "" {
		attrs = append(attrs, slog.String("route", sanitize.CleanText(key.Route)))
	}
	if change.Endpoint != "" {
		attrs = append(attrs, slog.String("endpoint", sanitize.CleanText(change.Endpoint)))
	}
	if change.Reason != policy.None {
		attrs = append(attrs, slog.String("reason", string(change.Reason)))
	}
	if !change.Until.IsZero() {
		attrs = append(attrs, slog.Time("until", change.Until))
	}
	if change.Dropped > 0 {
		attrs = append(attrs, slog.Int("dropped", change.Dropped))
	}
	l.Log(level, message, attrs...)
}

// Log logs a message with the given level. It does nothing if there is no logger. A panic of the logger is recovered and
// counted.
func (l *Log) Log(level slog.Level, message string, attrs ...slog.Attr) {
	if !l.IsDiscarded() {
		l.logAlways(level, message, attrs...)
	}
}

// logAlways logs a message with the given level, with slog.Default if there is no logger. A panic of the logger is
// recovered and counted.
func (l *Log) logAlways(level slog.Level, message string, attrs ...slog.Attr) {
	defer func() {
		if recover() != nil {
			l.panics.Add(1)
		}
	}()
	out := l.logger
	if out == nil {
		out = slog.Default()
	}
	out.LogAttrs(context.Background(), level, l.prefix+message, attrs...)
}
