// Package ops has the parts of adapters that serve operators: environment variables and logging.
package ops

import (
	"os"
	"strings"
)

// An Environment holds the settings from the environment variables HEDGE_MODE and HEDGE_DISABLED.
type Environment struct {
	Shadow  bool   // shadow mode: hedges are counted and not sent
	Audit   bool   // hedging is audited; for DNS it is not
	Off     string // name of the variable that switches hedging off; "": no variable does
	Invalid string // name of the variable with an invalid value; "": all values are valid
}

// ReadEnvironment reads the environment variables, by which operators override the settings of a program. An adapter calls it once, when it
// is made or first used. The doc comment of package hedge lists the values.
//
// If a value is invalid, the result allows no hedges, because a call without hedges is always safe.
func ReadEnvironment() (e Environment) {
	word := func(name string) string { return strings.ToLower(strings.TrimSpace(os.Getenv(name))) }
	switch word("HEDGE_MODE") {
	case "", "normal", "on", "hedge":
	case "shadow", "observe": // observe is the older spelling
		e.Shadow = true
	case "audit":
		e.Audit = true
	case "off", "disabled":
		e.Off = "HEDGE_MODE"
	default:
		e.Shadow, e.Invalid = true, "HEDGE_MODE"
	}
	switch word("HEDGE_DISABLED") {
	case "", "0", "f", "false", "n", "no", "off":
	case "1", "t", "true", "y", "yes", "on":
		e.Off = "HEDGE_DISABLED"
	default:
		e.Off, e.Invalid = "HEDGE_DISABLED", "HEDGE_DISABLED"
	}
	return e
}
