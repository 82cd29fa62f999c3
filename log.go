package hedge

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"runtime/debug"
	"sync"

	"github.com/gohedge/hedge/internal/engine"
	"github.com/gohedge/hedge/internal/label"
)

// WithLogger logs changes of state, and never single calls:
//
//   - hedging of a key is paused, with the reason [DeniedSlow] or [DeniedPaused], and resumed;
//   - the budget of a key is exhausted, and at least half full again;
//   - hedging is disabled or enabled, by SetEnabled, HEDGE_DISABLED or HEDGE_MODE;
//   - one of these variables cannot be understood;
//   - Update changes settings, and Import learns;
//   - an [Observer] panics, for the first time;
//   - a gRPC method is not hedged, because nothing says that it is safe to repeat: once per method.
//
// The same message for the same key is logged at most once in ten seconds. A change
// that comes sooner is logged later if it lasts; the attribute dropped counts the
// changes that were not logged. A change of a key is noticed when its next call ends,
// and logged by that call's goroutine, which holds no lock. Pauses, exhausted budgets,
// disabling and such variables have level Warn, a panic has level Error, everything else
// Info. The default, nil, logs only such variables and panics, to [slog.Default].
func WithLogger(l *slog.Logger) Option {
	return optionFunc(func(c *config) { c.logger = l })
}

// startLog makes changes of state go to the logger, if there is one. It logs which
// variable of the environment switches hedging off, and which cannot be understood.
func (h *handle) startLog(e *engine.Config, off, unread string) {
	if l := h.options.logger; l != nil {
		h.log = l.With("protocol", h.protocol)
		if name := h.options.name; name != "" {
			h.log = h.log.With("client", name)
		}
		e.Changed = h.logChange
	}
	if unread != "" {
		h.logUnread(unread, os.Getenv(unread))
	}
	if off != "" {
		h.logSwitch(false, off)
	}
}

// unreadLogged has the values without a meaning that were logged to slog.Default: once
// each, because programs can make many transports.
var unreadLogged sync.Map

// logUnread logs that a variable of the environment has a value without a meaning.
func (h *handle) logUnread(name, value string) {
	l := h.log
	if l == nil {
		if _, known := unreadLogged.LoadOrStore(name+"="+value, true); known {
			return
		}
		l = slog.Default()
	}
	defer h.survive()
	l.Warn("hedge: a variable of the environment cannot be understood, so no hedge is sent", "variable", name, "value", label.Clean(value))
}

// messages are those for a topic that became bad, and good again.
var messages = [...]struct{ bad, good string }{
	engine.Pausing:    {"hedge: paused", "hedge: resumed"},
	engine.Exhausting: {"hedge: budget exhausted", "hedge: budget refilled"},
}

// panicked counts a panic of an observer, and logs the first one. It is called while
// the panic is recovered, so that the stack is still that of the panic.
func (h *handle) panicked(o Observer, value any) {
	h.stats.ObserverPanics.Add(1)
	if h.warned.Swap(true) {
		return
	}
	defer h.survive()
	l := h.log
	if l == nil {
		l = slog.Default()
	}
	l.Error("hedge: an observer panicked; later panics are only counted",
		"observer", fmt.Sprintf("%T", o), "panic", fmt.Sprint(value), "stack", string(debug.Stack()))
}

// survive counts a panic of a logger. It is deferred where something is logged.
func (h *handle) survive() {
	if recover() != nil {
		h.stats.ObserverPanics.Add(1)
	}
}

// say logs to the logger, if there is one.
func (h *handle) say(level slog.Level, message string, attrs ...slog.Attr) {
	if h.log != nil {
		defer h.survive()
		h.log.LogAttrs(context.Background(), level, message, attrs...)
	}
}

// logChange logs a change of a key.
func (h *handle) logChange(name engine.Name, change engine.Change) {
	level, message := slog.LevelInfo, messages[change.Topic].good
	if change.Bad {
		level, message = slog.LevelWarn, messages[change.Topic].bad
	}
	attrs := []slog.Attr{slog.String("host", label.Clean(name.Host))}
	if name.Route != "" {
		attrs = append(attrs, slog.String("route", label.Clean(name.Route)))
	}
	if change.Reason != engine.None {
		attrs = append(attrs, slog.String("reason", change.Reason.String()))
	}
	if !change.Until.IsZero() {
		attrs = append(attrs, slog.Time("until", change.Until))
	}
	if change.Dropped > 0 {
		attrs = append(attrs, slog.Int("dropped", change.Dropped))
	}
	h.say(level, message, attrs...)
}

// logSwitch logs that hedging was switched on or off.
func (h *handle) logSwitch(on bool, by string) {
	if on {
		h.say(slog.LevelInfo, "hedge: enabled", slog.String("by", by))
	} else {
		h.say(slog.LevelWarn, "hedge: disabled", slog.String("by", by))
	}
}

// logUpdate logs which settings have changed, by their names in JSON.
func (h *handle) logUpdate(old, now *Config) {
	if h.log == nil || *old == *now {
		return
	}
	var attrs []slog.Attr
	from, to := reflect.ValueOf(*old), reflect.ValueOf(*now)
	for i := range from.NumField() {
		if a, b := from.Field(i).Interface(), to.Field(i).Interface(); a != b {
			name := from.Type().Field(i).Tag.Get("json")
			attrs = append(attrs, slog.Group(name, slog.Any("from", a), slog.Any("to", b)))
		}
	}
	h.say(slog.LevelInfo, "hedge: settings changed", attrs...)
}

// logImport logs how many keys have learned.
func (h *handle) logImport(keys int) {
	h.say(slog.LevelInfo, "hedge: imported what was learned", slog.Int("keys", keys))
}
