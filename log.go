package hedge

import (
	"context"
	"log/slog"
	"reflect"

	"github.com/gohedge/hedge/internal/engine"
)

// WithLogger tells l of changes of state, and never of single calls:
//
//   - hedging of a key is paused, with the reason [DeniedSlow] or [DeniedPaused], and resumed;
//   - the budget of a key is exhausted, and at least half full again;
//   - hedging is disabled or enabled, by SetEnabled or HEDGE_DISABLED;
//   - Update changes settings, and Import learns;
//   - a gRPC method is not hedged as nothing says that it is safe to repeat: once per method.
//
// Of one key, l is told the same at most once in ten seconds. A change that comes
// sooner is told later if it lasts; the attribute dropped counts those that were not told.
// Changes of a key are noticed when its next call ends, whose goroutine calls l,
// holding no lock. Pauses, exhausted budgets and disabling have level Warn, all else Info.
// The default, nil, is silence.
func WithLogger(l *slog.Logger) Option {
	return optionFunc(func(c *config) { c.logger = l })
}

// startLog has changes told to the logger, if there is one.
func (h *handle) startLog(e *engine.Config) {
	if h.options.logger == nil {
		return
	}
	h.log = h.options.logger.With("protocol", h.protocol)
	if name := h.options.name; name != "" {
		h.log = h.log.With("client", name)
	}
	e.Changed = h.logChange
	if h.off.Load() {
		h.logSwitch(false, "HEDGE_DISABLED")
	}
}

var texts = [...]struct{ bad, well string }{
	engine.Pausing:    {"hedge: paused", "hedge: resumed"},
	engine.Exhausting: {"hedge: budget exhausted", "hedge: budget refilled"},
}

// logChange tells of a change of a key.
func (h *handle) logChange(name engine.Name, change engine.Change) {
	level, text := slog.LevelInfo, texts[change.Topic].well
	if change.Bad {
		level, text = slog.LevelWarn, texts[change.Topic].bad
	}
	attrs := []slog.Attr{slog.String("host", name.Host)}
	if name.Route != "" {
		attrs = append(attrs, slog.String("route", name.Route))
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
	h.log.LogAttrs(context.Background(), level, text, attrs...)
}

// logSwitch tells that hedging is on or off now.
func (h *handle) logSwitch(on bool, by string) {
	switch {
	case h.log == nil:
	case on:
		h.log.Info("hedge: enabled", "by", by)
	default:
		h.log.Warn("hedge: disabled", "by", by)
	}
}

// logUpdate tells which settings have changed, by the names they have in files.
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
	h.log.LogAttrs(context.Background(), slog.LevelInfo, "hedge: settings changed", attrs...)
}

// logImport tells that so many keys have learned.
func (h *handle) logImport(keys int) {
	if h.log != nil {
		h.log.Info("hedge: imported what was learned", "keys", keys)
	}
}
