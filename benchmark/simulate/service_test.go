package main

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/benchmark/internal/latency"
)

func TestManyQuietClientsGainAsOneBusyClientDoes(t *testing.T) {
	t.Parallel()
	skipIfShort(t)
	r := runVirtual(t, "many-clients", trafficFlags{}, "none", "bhope-tuned", "hedge")
	assertAtMost(t, "p99", r["hedge"].P99, 0.32, r["none"].P99)
	assert.LessOrEqual(t, r["hedge"].Extra, 10.0)
}

func TestManyClientsDoNotOverwhelmABusyServer(t *testing.T) {
	t.Parallel()
	skipIfShort(t)
	sc := findScenario("many-clients-ignores-cancel")
	for seed := range uint64(5) { // such waves differ much between seeds
		run := func(name string) row {
			w := sc.adjustedSimulation(trafficFlags{requests: 400_000})
			tr := trial{engine: "virtual", scenario: &sc, seed: 1 + seed, calls: w.Run(t.Context(), 1+seed, findStrategy(name).virtual(policyConfig{ctx: t.Context(), simulation: w, seed: 1 + seed}), nil)}
			return tr.newRow("", func(latency.Call) bool { return true })
		}
		none, hedge := run(baselineStrategy), run(libraryStrategy)
		assertAtMost(t, "p99", hedge.P99, 3.2, none.P99)
		assertAtMost(t, "p99.9", hedge.P999, 3.2, none.P999)
	}
}

func TestALimiterMakesHedgingHelpServersThatFinishWhatIsCancelled(t *testing.T) {
	t.Parallel()
	skipIfShort(t)
	r := runVirtual(t, "queue-ignores-cancel", trafficFlags{}, "none", "hedge", "hedge-limited")
	assertAtMost(t, "p99 behind a Limiter", r["hedge-limited"].P99, 0.6, r["none"].P99)
	assert.Greater(t, r["hedge"].P99, r["none"].P99, "without one hedging harms")
	many := runVirtual(t, "many-clients-ignores-cancel", trafficFlags{}, "none", "hedge-limited")
	assertAtMost(t, "p99 of many clients behind a Limiter", many["hedge-limited"].P99, 0.6, many["none"].P99)
}

func TestOnlyServersWithQueuesHaveLimiters(t *testing.T) {
	var e virtualEngine
	assert.True(t, e.supports(findScenario("queue"), findStrategy("hedge-limited")))
	assert.False(t, e.supports(findScenario("reference"), findStrategy("hedge-limited")))
}

func TestFewPushBacksCostNothing(t *testing.T) {
	t.Parallel()
	skipIfShort(t)
	pushed := runVirtual(t, "pushback", trafficFlags{}, "hedge")["hedge"]
	calm := runVirtual(t, "pushback-none", trafficFlags{}, "hedge")["hedge"]
	assertAtMost(t, "p99", pushed.P99, 1.1, calm.P99)
	assert.Positive(t, pushed.Errors)
	assert.Zero(t, calm.Errors)
}

func TestAnyShareOfPushBackUpToOnePercentCostsNothing(t *testing.T) {
	t.Parallel()
	skipIfShort(t)
	sc := findScenario("pushback")
	for _, rate := range []float64{100, 1000} {
		var calm float64
		for _, share := range []float64{0, 0.0001, 0.001, 0.01} {
			w := sc.simulation
			w.Rate, w.PushbackShare, w.Requests = rate, share, 100_000
			tr := trial{engine: "virtual", scenario: &sc, seed: 1, calls: w.Run(t.Context(), 1, findStrategy(libraryStrategy).virtual(policyConfig{ctx: t.Context(), simulation: w, seed: 1}), nil)}
			p99 := tr.newRow("", func(latency.Call) bool { return true }).P99
			if share == 0 {
				calm = p99
			}
			assertAtMost(t, fmt.Sprintf("p99 at %v/s, %v %% of 503", rate, 100*share), p99, 1.05, calm)
		}
	}
}
