// Package ops provides the parts of adapters that serve operators: settings from environment variables and files, and log
// messages.
package ops

import (
	"os"
	"strconv"
	"strings"

	"github.com/gohedge/hedge/internal/race"
)

// A Mode says how a client uses hedging. The empty Mode means that a source, such as an environment variable, sets no mode.
type Mode string

// The modes of a client.
const (
	ModeOn     Mode = "on"     // hedges are sent
	ModeShadow Mode = "shadow" // hedges are decided and counted, but not sent
	ModeAudit  Mode = "audit"  // hedges are sent, and their benefit is measured; DNS ignores this mode
	ModeOff    Mode = "off"    // hedging is switched off
)

// ParseMode returns the mode with the given name. Upper case and surrounding spaces are ignored. An empty name is the empty
// Mode. ok is false if the name is unknown.
func ParseMode(name string) (m Mode, ok bool) {
	switch word(name) {
	case "":
		return "", true
	case "normal", "on", "hedge":
		return ModeOn, true
	case "shadow", "observe": // observe is the older spelling
		return ModeShadow, true
	case "audit":
		return ModeAudit, true
	case "off", "disabled":
		return ModeOff, true
	}
	return "", false
}

// word returns text without surrounding spaces and in lower case.
func word(text string) string { return strings.ToLower(strings.TrimSpace(text)) }

// An Environment holds the settings that operators have made with the environment variables HEDGE_MODE, HEDGE_DISABLED and
// HEDGE_BUDGET_PERCENT.
type Environment struct {
	Mode          Mode     // mode that HEDGE_MODE sets; "": it sets none
	BudgetPercent float64  // hedges per 100 calls that HEDGE_BUDGET_PERCENT allows; -1: it sets no budget
	Off           string   // name of the variable that switches hedging off; "": hedging is on
	Invalid       []string // names of the variables with an invalid value; nil: all values are valid
	Unused        string   // name of a variable that has a value, but no effect on the client; "": there is none
}

// ReadEnvironment reads the environment variables with which operators override the settings of a program. An adapter calls it
// once, when it is made or first used. The doc comment of package hedge lists the valid values.
//
// If hasBudget is false, HEDGE_BUDGET_PERCENT is ignored, even if it is invalid. An invalid value of any variable that is not
// ignored allows no hedges, because a call without hedges is always safe.
func ReadEnvironment(hasBudget bool) Environment {
	e := Environment{BudgetPercent: -1}
	mode, ok := ParseMode(os.Getenv("HEDGE_MODE"))
	switch {
	case !ok:
		e.Mode, e.Invalid = ModeShadow, append(e.Invalid, "HEDGE_MODE")
	case mode == ModeOff:
		e.Mode, e.Off = mode, "HEDGE_MODE"
	default:
		e.Mode = mode
	}
	if text := strings.TrimSpace(os.Getenv("HEDGE_BUDGET_PERCENT")); text != "" {
		percent, err := strconv.ParseFloat(text, 64)
		switch {
		case !hasBudget:
			e.Unused = "HEDGE_BUDGET_PERCENT"
		case err != nil || !(percent >= 0 && percent <= 100*race.MaxHedges):
			e.Off, e.Invalid = "HEDGE_BUDGET_PERCENT", append(e.Invalid, "HEDGE_BUDGET_PERCENT")
		default:
			e.BudgetPercent = percent
		}
	}
	switch word(os.Getenv("HEDGE_DISABLED")) {
	case "", "0", "f", "false", "n", "no", "off":
	case "1", "t", "true", "y", "yes", "on":
		e.Off = "HEDGE_DISABLED"
	default:
		e.Off, e.Invalid = "HEDGE_DISABLED", append(e.Invalid, "HEDGE_DISABLED")
	}
	return e
}

// IsShadow reports whether a client is in shadow mode. The argument configured is the setting of the program, which applies
// unless HEDGE_MODE says that hedges are sent or are not sent. It is for clients that have no audits.
func (e Environment) IsShadow(configured bool) bool {
	switch e.Mode {
	case ModeShadow:
		return true
	case ModeOn:
		return false
	}
	return configured
}
