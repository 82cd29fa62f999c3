package hedge

import (
	"log/slog"
	"reflect"
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

// logUpdate logs which settings have changed, by their names in JSON.
func (h *handle) logUpdate(old, now *Config) {
	if h.log.Silent() || *old == *now {
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
	h.log.Tell(slog.LevelInfo, "settings changed", attrs...)
}

// logImport logs how many keys have learned.
func (h *handle) logImport(keys int) {
	h.log.Tell(slog.LevelInfo, "imported what was learned", slog.Int("keys", keys))
}
