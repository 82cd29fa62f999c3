package ops

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/sanitize"
	"github.com/gohedge/hedge/observe"
)

// A Log logs changes of the state of one client or Limiter. It is safe for concurrent use.
type Log struct {
	out          *slog.Logger  // nil: only panics and the warnings of logWarning are logged, to slog.Default
	prefix       string        // prefix of messages
	panics       *atomic.Int64 // number of panics of observers and loggers
	panicLogged  atomic.Bool   // a panic was logged
	nestedLogged atomic.Bool   // nested hedging was logged

	prepareErrorLogged atomic.Bool  // an error of Prepare was logged
	boundPartCount     atomic.Int32 // length of boundParts
	boundParts         sync.Map     // names of request parts, such as headers, that WarnOfBoundRequest has logged
	heldBackKeyCount   atomic.Int32 // length of heldBackKeys
	heldBackKeys       sync.Map     // keys that LogHeldBack has logged
}

// NewLog returns a Log that writes to l, which may be nil. Each message begins with the prefix. Each record has the attribute protocol and,
// if it is not empty, the attribute client. Panics of observers and of the logger are counted in panics.
func NewLog(l *slog.Logger, prefix, protocol, client string, panics *atomic.Int64) *Log {
	if l != nil {
		l = l.With("protocol", protocol)
		if client != "" {
			l = l.With("client", client)
		}
	}
	return &Log{out: l, prefix: prefix + ": ", panics: panics}
}

// IsDiscarded reports whether [Log.Log] discards its messages, because there is no logger.
func (l *Log) IsDiscarded() bool { return l.out == nil }

// LogEnvironment logs the environment variable that switches hedging off, and the variable that has an invalid value.
func (l *Log) LogEnvironment(e Environment) {
	if e.Invalid != "" {
		l.warnOfInvalidVariable(e.Invalid, os.Getenv(e.Invalid))
	}
	if e.Off != "" {
		l.LogSwitch(false, e.Off)
	}
}

func (l *Log) warnOfInvalidVariable(name, value string) {
	l.logWarning(name+"="+value, "a variable of the environment cannot be understood, so no hedge is sent",
		slog.String("variable", name), slog.String("value", sanitize.CleanText(value)))
}

// WarnOfSmallBudget warns if the settings allow no hedge at all. It logs a budget below one percent of the calls, because a program that
// confuses fractions with percentages may set 0.1 for ten percent.
func (l *Log) WarnOfSmallBudget(maxHedges int, budgetPercent float64) {
	switch {
	case maxHedges == 0 || budgetPercent == 0:
		l.logWarning(fmt.Sprintf("means %d %v", maxHedges, budgetPercent), "the settings allow no hedge, so none is ever sent",
			slog.Int("max_hedges", maxHedges), slog.Float64("budget_percent", budgetPercent))
	case budgetPercent < 1:
		l.Log(slog.LevelInfo, "the budget is less than 1 % of the calls", slog.String("budget", fmt.Sprintf("%v %%", budgetPercent)))
	}
}

// WarnOfSmallRouteBudget logs a budget of a route below one percent of the route's calls. A budget of 0 means that the route has none.
func (l *Log) WarnOfSmallRouteBudget(route string, budgetPercent float64) {
	if budgetPercent > 0 && budgetPercent < 1 {
		l.Log(slog.LevelInfo, "the budget of a route is less than 1 % of its calls", slog.String("route", sanitize.CleanText(route)),
			slog.String("budget", fmt.Sprintf("%v %%", budgetPercent)))
	}
}

// WarnOfNestedHedging warns when a call is made within a hedged call to the same target. Only the first such call is logged.
func (l *Log) WarnOfNestedHedging(call string) {
	if !l.nestedLogged.Swap(true) {
		l.logWarning("again", "nested hedging: a call within a hedged call is sent once", slog.String("call", sanitize.CleanText(call)))
	}
}

// onceLogged holds the names of the warnings that were logged to slog.Default. The process logs each of them once, even if the program
// makes many clients.
var onceLogged sync.Map

// WarnOfPrepareError warns of an error of a Prepare function. Only the first error is logged.
func (l *Log) WarnOfPrepareError(err error) {
	if !l.prepareErrorLogged.Swap(true) {
		l.logWarning("unprepared", "a request could not be prepared for another endpoint; later errors are not logged", slog.String("error", sanitize.CleanText(err.Error())))
	}
}

// WarnOfBoundRequest warns that calls with the given part, such as a header, cannot be sent to another endpoint. It logs each part once,
// and at most eight parts.
func (l *Log) WarnOfBoundRequest(with string) {
	if _, known := l.boundParts.Load(with); known || l.boundPartCount.Load() >= 8 {
		return
	}
	if _, known := l.boundParts.LoadOrStore(with, true); !known && l.boundPartCount.Add(1) <= 8 {
		l.logWarning("stays "+with, "calls are not sent to other endpoints, because they have a part for which the endpoints have no rule", slog.String("with", sanitize.CleanText(with)))
	}
}

// LogHeldBack logs that the first call of a function delays the result of a hedge. It logs each key once, and at most 64 keys.
func (l *Log) LogHeldBack(key string) {
	if _, known := l.heldBackKeys.Load(key); known || l.heldBackKeyCount.Load() >= 64 {
		return
	}
	if _, known := l.heldBackKeys.LoadOrStore(key, true); !known && l.heldBackKeyCount.Add(1) <= 64 {
		l.Log(slog.LevelInfo, "a hedge has answered, but the first call of the function does not return, because it ignores its context; DoDetached does not wait for it",
			slog.String("key", sanitize.CleanText(key)))
	}
}

// logWarning logs a warning to the logger. Without a logger, it logs the first warning of each name to slog.Default.
func (l *Log) logWarning(name, message string, attrs ...slog.Attr) {
	if l.IsDiscarded() {
		if _, known := onceLogged.LoadOrStore(l.prefix+name, true); known {
			return
		}
	}
	l.logAlways(slog.LevelWarn, message, attrs...)
}

// LogSwitch logs that hedging was switched on or off. The argument by names the function or the variable that did it.
func (l *Log) LogSwitch(on bool, by string) {
	if on {
		l.Log(slog.LevelInfo, "enabled", slog.String("by", by))
	} else {
		l.Log(slog.LevelWarn, "disabled", slog.String("by", by))
	}
}

// LogObserverPanic counts a panic of an observer, and logs the first one. It must be called in the deferred function that recovers, so that
// the stack is that of the panic.
func (l *Log) LogObserverPanic(o observe.Observer, value any) {
	l.LogPanic(fmt.Sprintf("%T", o), value)
}

// LogPanic does the same as LogObserverPanic for a panic of another function that receives events.
func (l *Log) LogPanic(observer string, value any) {
	l.panics.Add(1)
	if l.panicLogged.Swap(true) {
		return
	}
	l.logAlways(slog.LevelError, "an observer panicked; later panics are only counted",
		slog.String("observer", observer), slog.String("panic", fmt.Sprint(value)), slog.String("stack", string(debug.Stack())))
}

// changeMessages are the log messages for the begin (bad) and the end (good) of a condition.
var changeMessages = [...]struct{ bad, good string }{
	policy.KindPause:    {"paused", "resumed"},
	policy.KindBudget:   {"budget exhausted", "budget refilled"},
	policy.KindEndpoint: {"endpoint ejected", "endpoint restored"},
}

// logVerdict logs the verdict of an audit.
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

// LogChange logs that a condition of a key has begun or ended.
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

// Log logs a message. Without a logger, it does nothing. A panic of the logger is recovered and counted.
func (l *Log) Log(level slog.Level, message string, attrs ...slog.Attr) {
	if !l.IsDiscarded() {
		l.logAlways(level, message, attrs...)
	}
}

// logAlways does the same as Log, but uses slog.Default if there is no logger.
func (l *Log) logAlways(level slog.Level, message string, attrs ...slog.Attr) {
	defer func() {
		if recover() != nil {
			l.panics.Add(1)
		}
	}()
	out := l.out
	if out == nil {
		out = slog.Default()
	}
	out.LogAttrs(context.Background(), level, l.prefix+message, attrs...)
}
