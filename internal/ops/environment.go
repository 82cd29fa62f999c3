// Package ops provides the parts of adapters that serve operators: settings from environment variables, and log messages.
package ops

import (
	"os"
	"strings"
)

// An Environment holds the settings that operators have made with the environment variables HEDGE_MODE and HEDGE_DISABLED.
type Environment struct {
	Shadow  bool   // shadow mode: hedges are decided and counted, but not sent
	Audit   bool   // the benefit of hedging is measured; DNS ignores this setting
	Off     string // name of the variable that switches hedging off; "": hedging is on
	Invalid string // name of a variable with an invalid value; "": all values are valid
}

// ReadEnvironment reads the environment variables with which operators override the settings of a program. An adapter calls it
// once, when it is made or first used. The doc comment of package hedge lists the valid values.
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
