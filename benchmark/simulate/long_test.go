package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestAuditKeepsWhatHelpsAndEndsWhatHarms plays the long scenarios, which takes minutes. It runs if
// HEDGE_TEST_LONG is set.
func TestAuditKeepsWhatHelpsAndEndsWhatHarms(t *testing.T) {
	if os.Getenv("HEDGE_TEST_LONG") == "" {
		t.Skip("HEDGE_TEST_LONG is not set")
	}
	for name, most := range map[string][2]float64{
		"long-queue-ignores-cancel": {1.05, 0.6}, "long-many-clients-ignores-cancel": {1.10, 0.55}, "long-queue-ignores-cancel-double": {1.06, 0.7},
	} {
		r := runVirtual(t, name, trafficFlags{}, baselineStrategy, auditedStrategy, limitedStrategy)
		none := r[baselineStrategy+"/settled"].P99
		assertAtMost(t, name+" audited", r[auditedStrategy+"/settled"].P99, most[0], none)
		assertAtMost(t, name+" behind Limiters", r[limitedStrategy+"/settled"].P99, most[1], none)
	}
	for _, name := range []string{"long-queue", "long-reference"} {
		r := runVirtual(t, name, trafficFlags{}, baselineStrategy, libraryStrategy, auditedStrategy)
		gain := func(s string) float64 { return r[baselineStrategy+"/settled"].P99 - r[s+"/settled"].P99 }
		assert.GreaterOrEqual(t, gain(auditedStrategy)/gain(libraryStrategy), 0.99, name)
	}
}

// TestAuditOfABusyClientTakesMinutes sees by the hedges that were sent whether there is a verdict.
func TestAuditOfABusyClientTakesMinutes(t *testing.T) {
	t.Parallel()
	skipIfShort(t)
	for name, harms := range map[string]bool{"long-queue-ignores-cancel-double": true, "long-queue": false} {
		r := runVirtual(t, name, trafficFlags{requests: 2_000_000}, libraryStrategy, auditedStrategy) // a quarter of an hour
		hedged := r[auditedStrategy].Extra / r[libraryStrategy].Extra
		if harms {
			assert.Less(t, hedged, 0.5, name)
		} else {
			assert.Greater(t, hedged, 0.7, name)
		}
	}
}

func TestLongScenariosRunIfTheyAreNamed(t *testing.T) {
	names := func(args ...string) (all []string) {
		o, err := parseOptions(append([]string{"-engine", "virtual"}, args...), os.Stderr)
		if err != nil {
			return []string{err.Error()}
		}
		for _, sc := range o.scenarios {
			all = append(all, sc.name)
		}
		return all
	}
	assert.NotContains(t, names("-scenario", "all"), "long-reference")
	assert.Contains(t, names("-scenario", "all"), "queue")
	assert.Equal(t, longScenarioNames(), names("-scenario", "long"))
	assert.Equal(t, []string{"reference"}, names("-scenario", "reference,long-reference", "-quick"))
	assert.Equal(t, []string{"-quick leaves out long"}, names("-scenario", "long", "-quick"))
}
