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
}

// budgetSetting is the JSON name of Config.BudgetPercent, which HEDGE_BUDGET_PERCENT sets.
const budgetSetting = "budget_percent"

// mode returns the mode of the client: on, shadow or audit. While a source sets the mode off, it is the mode of the options,
// because SetEnabled can still switch hedging on.
func (l *settingLayers) mode() ops.Mode {
	mode := cmp.Or(l.environment.Mode, l.file.Mode, l.programMode)
	if mode == ops.ModeOff {
		return l.programMode
	}
	return mode
}

// isFileOff reports whether the file switches hedging off. A mode of the file counts only if HEDGE_MODE sets none.
func (l *settingLayers) isFileOff() bool {
	return l.file.Disabled || l.environment.Mode == "" && l.file.Mode == ops.ModeOff
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
	for name := range l.file.Config {
		if i := settingIndex(name); i >= 0 && settingNames[i] == setting {
			return "file"
		}
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
	case l.environment.Mode != "" && l.environment.Mode != l.file.Mode:
		fixed["mode"] = "HEDGE_MODE"
	case l.environment.Off != "" && !isEnabled && !l.isFileOff():
		fixed["disabled"] = l.environment.Off
	}
	for name := range l.file.Config {
		if i := settingIndex(name); i < 0 || settingNames[i] != budgetSetting {
			continue
		}
		switch {
		case sharesBudget:
			fixed[budgetSetting] = "WithBudget"
		case l.environment.BudgetPercent >= 0:
			fixed[budgetSetting] = "HEDGE_BUDGET_PERCENT"
		}
	}
	return fixed
}
