package hedge

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"slices"

	"github.com/gohedge/hedge/internal/calls"
	"github.com/gohedge/hedge/internal/ops"
)

// A settingLayers holds the settings of each source of a client. A source takes precedence over the sources that follow it:
// HEDGE_MODE and HEDGE_BUDGET_PERCENT, a file with settings, Update, and the options of the constructor.
//
// Which sources switch hedging off is not stored here, but in the calls.Client.
type settingLayers struct {
	environment *ops.Environment // settings of environment variables, which never change
	file        ops.Override     // settings of the file; zero: there is no file
	program     Config           // settings of the options, as changed by Update
	budget      *Budget          // budget of WithBudget, which never changes; nil: there is none
	programMode ops.Mode         // mode of the options: on, shadow or audit
	earlierMode ops.Mode         // mode of the client before the file was applied; "": no file was applied
}

// budgetSetting is the JSON name of Config.BudgetPercent, which HEDGE_BUDGET_PERCENT sets.
const budgetSetting = "budget_percent"

// bucketSettings are the JSON names of the settings of token buckets, which a Budget has in place of them.
var bucketSettings = []string{budgetSetting, "estimated_rps", "burst"}

// mode returns the mode of the policy engine: on, shadow or audit. A file that switches hedging off and sets no other mode does
// not change it, so that the verdicts of audits and the data of shadow mode are kept.
func (l *settingLayers) mode() ops.Mode {
	mode := l.file.Mode
	if mode == ops.ModeOff || mode == "" && l.file.Disabled {
		mode = l.earlierMode
	}
	return cmp.Or(l.environmentMode(), mode, l.programMode)
}

// environmentMode returns the mode of the policy engine that HEDGE_MODE sets, or "" if it sets none. HEDGE_MODE=off sets none:
// it switches hedging off at the start, and SetEnabled can switch it on.
func (l *settingLayers) environmentMode() ops.Mode {
	if l.environment.Mode == ops.ModeOff {
		return ""
	}
	return l.environment.Mode
}

// isFileOff reports whether the file switches hedging off. Its mode counts only if HEDGE_MODE sets none but off.
func (l *settingLayers) isFileOff() bool {
	return l.file.Disabled || l.environmentMode() == "" && l.file.Mode == ops.ModeOff
}

// config returns the current settings: of each setting, the value of the source with the highest precedence. It returns an
// error if the settings are invalid together.
func (l *settingLayers) config() (Config, error) {
	c := l.program
	if len(l.file.Config) > 0 {
		b, err := json.Marshal(l.file.Config)
		if err == nil {
			err = c.decodeSettings(b, true)
		}
		if err != nil {
			return Config{}, err
		}
	}
	if percent := l.environment.BudgetPercent; percent >= 0 {
		c.BudgetPercent = percent
	}
	if l.budget != nil {
		c.BudgetPercent, c.EstimatedRPS, c.Burst = l.budget.percent, l.program.EstimatedRPS, l.program.Burst
	}
	c.AttemptHeader = http.CanonicalHeaderKey(c.AttemptHeader)
	if err := c.Validate(); err != nil {
		return Config{}, err
	}
	return c, nil
}

// fixedBy returns the name of the source that fixes the setting with the given JSON name, so that Update cannot change it:
// "WithBudget", "HEDGE_BUDGET_PERCENT", "file", or "" if no source fixes it.
func (l *settingLayers) fixedBy(setting string) string {
	if l.budget != nil && slices.Contains(bucketSettings, setting) {
		return "WithBudget"
	}
	if setting == budgetSetting && l.environment.BudgetPercent >= 0 {
		return "HEDGE_BUDGET_PERCENT"
	}
	if _, ok := l.file.Config[setting]; ok {
		return "file"
	}
	return ""
}

// changeProgram stores each difference between the settings old and now as a setting of the program. It skips settings that a
// source of higher precedence fixes, and returns their JSON names with the names of these sources.
func (l *settingLayers) changeProgram(old, now *Config) (fixed map[string]string) {
	from, to, program := reflect.ValueOf(*old), reflect.ValueOf(*now), reflect.ValueOf(&l.program).Elem()
	for i, name := range settingNames {
		if from.Field(i).Equal(to.Field(i)) {
			continue
		}
		if source := l.fixedBy(name); source == "" {
			program.Field(i).Set(to.Field(i))
		} else {
			if fixed == nil {
				fixed = make(map[string]string)
			}
			fixed[name] = source
		}
	}
	return fixed
}

// fixedForFile returns the JSON names of the settings that the file sets without effect, with the names of the sources that fix
// them. isEnabled is false if hedging is switched off.
func (l *settingLayers) fixedForFile(isEnabled bool) map[string]string {
	fixed := make(map[string]string)
	switch {
	case l.file.Mode == "":
	case l.environmentMode() != "" && l.environmentMode() != l.file.Mode:
		fixed["mode"] = "HEDGE_MODE"
	case l.environment.Off != "" && !isEnabled && !l.isFileOff():
		fixed["disabled"] = l.environment.Off
	}
	for name := range l.file.Config {
		if source := l.fixedBy(name); source != "file" {
			fixed[name] = source
		}
	}
	return fixed
}

// Package steering changes the settings of clients at run time by this function, because they export no methods for it.
func init() { ops.FindOverridable = findOverridable }

// findOverridable implements [ops.FindOverridable].
func findOverridable(client any) ops.Overridable {
	c, ok := client.(interface{ overridable() *overridable })
	if v := reflect.ValueOf(client); !ok || v.Kind() != reflect.Pointer || v.IsNil() {
		return nil
	}
	if o := c.overridable(); o.client.Policy != nil {
		return o
	}
	return nil
}

// An overridable implements [ops.Overridable] for a Transport, an Interceptor or a Hedger.
type overridable struct{ *controls }

// overridable returns h as an [ops.Overridable].
func (h *controls) overridable() *overridable { return &overridable{h} }

// Log implements [ops.Overridable].
func (o *overridable) Log() *ops.Log { return o.client.Log }

// CheckOverride implements [ops.Overridable].
func (o *overridable) CheckOverride(file *ops.Override) error {
	o.updating.Lock()
	defer o.updating.Unlock()
	layers := o.layers
	layers.file = *file
	_, err := layers.config()
	return err
}

// ApplyOverride implements [ops.Overridable]. It replaces the settings of the current override file by those of file, and
// returns those that were in force before. If file is not valid, only its Disabled can take effect.
func (o *overridable) ApplyOverride(file *ops.Override) (previous *ops.Override, err error) {
	o.updating.Lock()
	before, old := o.layers, o.settings.Load()
	switched, err := o.replaceFile(file)
	layers, now := o.layers, o.settings.Load()
	o.updating.Unlock()
	if err != nil && !file.Disabled {
		return nil, err
	}
	isOff := layers.isFileOff()
	if switched && !isOff {
		o.client.Policy.ClearPushback()
	}
	o.logOverride(&before, &layers)
	o.logSettingsChange(old, now)
	if switched {
		o.client.Log.LogSwitch(!isOff, "file")
	}
	o.client.Log.LogFixedSettings("file", layers.fixedForFile(o.client.Enabled()))
	return &before.file, err
}

// replaceFile replaces the settings of the file. It returns an error if they are invalid with the other settings. Then it changes
// nothing, except that it switches hedging off if the file is disabled. switched is true if the result of Enabled has changed.
// The caller must hold updating.
//
// Hedging is switched off before the other settings change, and on after that. So neither calls in flight nor calls that start
// during the change are hedged if neither file allows it.
func (o *overridable) replaceFile(file *ops.Override) (switched bool, err error) {
	layers := o.layers
	layers.file, layers.earlierMode = *file, o.layers.mode()
	settings, err := layers.config()
	switch {
	case err != nil && file.Disabled:
		o.layers.file.Disabled, o.layers.earlierMode = true, layers.earlierMode
		return o.client.SetOff(calls.OffByFile, true), err
	case err != nil:
		return false, err
	}
	isOff := layers.isFileOff()
	if isOff {
		switched = o.client.SetOff(calls.OffByFile, true)
	}
	o.replaceLayers(&layers, &settings)
	if !isOff {
		switched = o.client.SetOff(calls.OffByFile, false)
	}
	return switched, nil
}

// logOverride logs which mode, routes and methods differ between two sets of layers.
func (o *overridable) logOverride(before, now *settingLayers) {
	if from, to := before.mode(), now.mode(); from != to {
		o.client.Log.LogMode(from, to, "file")
	}
	if !maps.Equal(before.file.Routes, now.file.Routes) {
		o.client.Log.Log(slog.LevelInfo, "routes changed", slog.Any("routes", now.file.Routes), slog.String("by", "file"))
	}
	if !maps.Equal(before.file.Methods, now.file.Methods) {
		o.client.Log.Log(slog.LevelInfo, "methods changed", slog.Any("methods", now.file.Methods), slog.String("by", "file"))
	}
}
