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
func (c *core) startLog(e *engine.Config) {
	if c.config.logger == nil {
		return
	}
	c.log = c.config.logger.With("protocol", c.protocol)
	if name := c.config.name; name != "" {
		c.log = c.log.With("client", name)
	}
	e.Changed = c.logChange
	if c.off.Load() {
		c.logSwitch(false, "HEDGE_DISABLED")
	}
}

var texts = [...]struct{ bad, well string }{
	engine.Braking: {"hedge: paused", "hedge: resumed"},
	engine.Funding: {"hedge: budget exhausted", "hedge: budget refilled"},
}

// logChange tells of a change of a key.
func (c *core) logChange(name engine.Name, change engine.Change) {
	level, text := slog.LevelInfo, texts[change.Topic].well
	if change.Bad {
		level, text = slog.LevelWarn, texts[change.Topic].bad
	}
	attrs := []slog.Attr{slog.String("host", name.Host)}
	if name.Route != "" {
		attrs = append(attrs, slog.String("route", name.Route))
	}
	if change.Why != engine.Go {
		attrs = append(attrs, slog.String("reason", string(reasons[change.Why])))
	}
	if !change.Until.IsZero() {
		attrs = append(attrs, slog.Time("until", change.Until))
	}
	if change.Dropped > 0 {
		attrs = append(attrs, slog.Int("dropped", change.Dropped))
	}
	c.log.LogAttrs(context.Background(), level, text, attrs...)
}

// logSwitch tells that hedging is on or off now.
func (c *core) logSwitch(on bool, by string) {
	switch {
	case c.log == nil:
	case on:
		c.log.Info("hedge: enabled", "by", by)
	default:
		c.log.Warn("hedge: disabled", "by", by)
	}
}

// logUpdate tells which settings have changed, by the names they have in files.
func (c *core) logUpdate(old, now *Config) {
	if c.log == nil || *old == *now {
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
	c.log.LogAttrs(context.Background(), slog.LevelInfo, "hedge: settings changed", attrs...)
}

// logImport tells that so many keys have learned.
func (c *core) logImport(keys int) {
	if c.log != nil {
		c.log.Info("hedge: imported what was learned", "keys", keys)
	}
}
