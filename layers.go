package hedge

import (
	"cmp"
	"encoding/json"
	"net/http"
	"reflect"

	"github.com/gohedge/hedge/internal/ops"
)

// A settingLayers holds the settings of each source of a client. A source takes precedence over the sources that follow it:
// HEDGE_MODE and HEDGE_BUDGET_PERCENT, a file with settings, Update, and the options of the constructor.
//
// Which sources switch hedging off is not stored here, but in the calls.Client.
type settingLayers struct {
	environment ops.Environment // settings of environment variables, which never change
	file        ops.Override    // settings of the file; zero: there is no file
	program     Config          // settings of the options, as changed by Update
	programMode ops.Mode        // mode of the options: on, shadow or audit
	earlierMode ops.Mode        // mode of the client before the file was applied; "": no file was applied
}

// budgetSetting is the JSON name of Config.BudgetPercent, which HEDGE_BUDGET_PERCENT sets.
const budgetSetting = "budget_percent"

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
	c.AttemptHeader = http.CanonicalHeaderKey(c.AttemptHeader)
	if err := c.Validate(); err != nil {
		return Config{}, err
	}
	return c, nil
}

// fixedBy returns the name of the source that fixes the setting with the given JSON name, so that Update cannot change it:
// "HEDGE_BUDGET_PERCENT", "file", or "" if no source fixes it.
func (l *settingLayers) fixedBy(setting string) string {
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
// them. sharesBudget is true if [WithBudget] sets the budget. isEnabled is false if hedging is switched off.
func (l *settingLayers) fixedForFile(sharesBudget, isEnabled bool) map[string]string {
	fixed := make(map[string]string)
	switch {
	case l.file.Mode == "":
	case l.environmentMode() != "" && l.environmentMode() != l.file.Mode:
		fixed["mode"] = "HEDGE_MODE"
	case l.environment.Off != "" && !isEnabled && !l.isFileOff():
		fixed["disabled"] = l.environment.Off
	}
	switch _, ok := l.file.Config[budgetSetting]; {
	case !ok:
	case sharesBudget:
		fixed[budgetSetting] = "WithBudget"
	case l.environment.BudgetPercent >= 0:
		fixed[budgetSetting] = "HEDGE_BUDGET_PERCENT"
	}
	return fixed
}
