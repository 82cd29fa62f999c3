package ops

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/gohedge/hedge/internal/label"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/observe"
)

// A Log is where one adapter's changes of state go. It is safe for concurrent use.
type Log struct {
	out    *slog.Logger  // nil: only warnings of [Log.once] and panics are logged, to slog.Default
	prefix string        // of messages
	panics *atomic.Int64 // counts those of observers and loggers
	warned atomic.Bool   // a panic was logged
	again  atomic.Bool   // hedging around hedging was logged

	unprepared atomic.Bool  // that a request was not prepared was logged
	staying    atomic.Int32 // so many times it was logged that a call stays
	stays      sync.Map     // why
	heldKeys   atomic.Int32 // number of the keys of which it was logged that results are held back
	held       sync.Map     // the keys
}

// NewLog returns a Log to l, which may be nil. Messages begin with the prefix and have
// the protocol and, if it is not empty, the client as attributes. Panics of observers and
// loggers are counted in panics.
func NewLog(l *slog.Logger, prefix, protocol, client string, panics *atomic.Int64) *Log {
	if l != nil {
		l = l.With("protocol", protocol)
		if client != "" {
			l = l.With("client", client)
		}
	}
	return &Log{out: l, prefix: prefix + ": ", panics: panics}
}

// Silent reports whether Tell does nothing.
func (l *Log) Silent() bool { return l.out == nil }

// Started logs which variable of the environment switches hedging off, and which
// cannot be understood.
func (l *Log) Started(e Environment) {
	if e.Unread != "" {
		l.unread(e.Unread, os.Getenv(e.Unread))
	}
	if e.Off != "" {
		l.Switched(false, e.Off)
	}
}

func (l *Log) unread(name, value string) {
	l.once(name+"="+value, "a variable of the environment cannot be understood, so no hedge is sent",
		slog.String("variable", name), slog.String("value", label.Clean(value)))
}

// Means logs that settings allow no hedge at all: who makes them by hand may not know it. It also logs a budget of less than
// one percent of the calls: who meant a share may have written 0.1 for ten percent.
func (l *Log) Means(maxHedges int, budgetPercent float64) {
	switch {
	case maxHedges == 0 || budgetPercent == 0:
		l.once(fmt.Sprintf("means %d %v", maxHedges, budgetPercent), "the settings allow no hedge, so none is ever sent",
			slog.Int("max_hedges", maxHedges), slog.Float64("budget_percent", budgetPercent))
	case budgetPercent < 1:
		l.Tell(slog.LevelInfo, "the budget is less than 1 % of the calls", slog.String("budget", fmt.Sprintf("%v %%", budgetPercent)))
	}
}

// RouteMeans logs a budget of a route of less than one percent of its calls, as [Log.Means] does. 0 is no budget.
func (l *Log) RouteMeans(route string, budgetPercent float64) {
	if budgetPercent > 0 && budgetPercent < 1 {
		l.Tell(slog.LevelInfo, "the budget of a route is less than 1 % of its calls", slog.String("route", label.Clean(route)),
			slog.String("budget", fmt.Sprintf("%v %%", budgetPercent)))
	}
}

// Again logs the first call of those that are hedged above already.
func (l *Log) Again(call string) {
	if !l.again.Swap(true) {
		l.once("again", "hedging around hedging: what is hedged above is sent once here", slog.String("call", label.Clean(call)))
	}
}

// onceLogged has what was logged without a logger: once each, because programs can make many transports.
var onceLogged sync.Map

// Unprepared logs that a request was not prepared for its endpoint, for the first time.
func (l *Log) Unprepared(err error) {
	if !l.unprepared.Swap(true) {
		l.once("unprepared", "a request was not prepared for an endpoint; later ones are not logged", slog.String("error", label.Clean(err.Error())))
	}
}

// Stays logs, once each and eight times at most, that calls with something cannot go to another endpoint.
func (l *Log) Stays(with string) {
	if _, known := l.stays.Load(with); known || l.staying.Load() >= 8 {
		return
	}
	if _, known := l.stays.LoadOrStore(with, true); !known && l.staying.Add(1) <= 8 {
		l.once("stays "+with, "calls with something that no endpoint keeps or drops stay where they are made for", slog.String("with", label.Clean(with)))
	}
}

// HeldBack logs, once for each key and for 64 keys at most, that the first call of a function holds a hedge's result back.
func (l *Log) HeldBack(key string) {
	if _, known := l.held.Load(key); known || l.heldKeys.Load() >= 64 {
		return
	}
	if _, known := l.held.LoadOrStore(key, true); !known && l.heldKeys.Add(1) <= 64 {
		l.Tell(slog.LevelInfo, "a hedge has answered, and the first call of the function does not return: Do gains nothing where the function ignores its context, see DoDetached",
			slog.String("key", label.Clean(key)))
	}
}

// once logs a warning to the logger, or the first time to slog.Default. What is the same has the same name.
func (l *Log) once(name, message string, attrs ...slog.Attr) {
	if l.Silent() {
		if _, known := onceLogged.LoadOrStore(l.prefix+name, true); known {
			return
		}
	}
	l.must(slog.LevelWarn, message, attrs...)
}

// Switched logs that hedging was switched on or off.
func (l *Log) Switched(on bool, by string) {
	if on {
		l.Tell(slog.LevelInfo, "enabled", slog.String("by", by))
	} else {
		l.Tell(slog.LevelWarn, "disabled", slog.String("by", by))
	}
}

// Panicked counts a panic of an observer, and logs the first one. It is called while
// the panic is recovered, so that the stack is still that of the panic.
func (l *Log) Panicked(o observe.Observer, value any) {
	l.PanickedIn(fmt.Sprintf("%T", o), value)
}

// PanickedIn is Panicked for a panic of another function that events are reported to.
func (l *Log) PanickedIn(observer string, value any) {
	l.panics.Add(1)
	if l.warned.Swap(true) {
		return
	}
	l.must(slog.LevelError, "an observer panicked; later panics are only counted",
		slog.String("observer", observer), slog.String("panic", fmt.Sprint(value)), slog.String("stack", string(debug.Stack())))
}

// messages are those for a topic that became bad, and good again.
var messages = [...]struct{ bad, good string }{
	policy.Pausing:    {"paused", "resumed"},
	policy.Exhausting: {"budget exhausted", "budget refilled"},
	policy.Ejecting:   {"endpoint ejected", "endpoint restored"},
}

// audited logs the verdict of an audit.
func (l *Log) audited(key observe.KeyInfo, v observe.Audit) {
	level := slog.LevelInfo
	message := map[observe.Verdict]string{
		observe.AuditTrying: "audit begins anew", observe.AuditOn: "audit: hedging helps", observe.AuditOff: "audit: hedging harms and is switched off",
		observe.AuditSame: "audit: no difference found, hedging goes on", observe.AuditUnclear: "audit: calls take too long to tell, hedging goes on",
	}[v.Verdict]
	attrs := []slog.Attr{slog.String("host", label.Clean(key.Host))}
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
	l.Tell(level, message, attrs...)
}

// Changed logs a change of a key.
func (l *Log) Changed(key observe.KeyInfo, change policy.Change) {
	if change.Topic == policy.Judging {
		l.audited(key, change.Audit)
		return
	}
	level, message := slog.LevelInfo, messages[change.Topic].good
	if change.Bad {
		message = messages[change.Topic].bad
	}
	if change.Bad && change.Topic != policy.Exhausting { // a spent budget is no fault
		level = slog.LevelWarn
	}
	attrs := []slog.Attr{slog.String("host", label.Clean(key.Host))}
	if key.Route != "" {
		attrs = append(attrs, slog.String("route", label.Clean(key.Route)))
	}
	if change.Endpoint != "" {
		attrs = append(attrs, slog.String("endpoint", label.Clean(change.Endpoint)))
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
	l.Tell(level, message, attrs...)
}

// Tell logs a message, if there is a logger. A panic of the logger does not leave it,
// and is counted.
func (l *Log) Tell(level slog.Level, message string, attrs ...slog.Attr) {
	if !l.Silent() {
		l.must(level, message, attrs...)
	}
}

// must is Tell for what is logged to slog.Default if there is no logger.
func (l *Log) must(level slog.Level, message string, attrs ...slog.Attr) {
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
