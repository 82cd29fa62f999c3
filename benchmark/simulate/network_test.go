package main

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/doubles"
)

// runInFakeTime runs a scenario with a simulated network in fake time, in which the figures are exact. It returns the
// rows as runVirtual does. It leaves out hedgedhttp, whose goroutines live outside of bubbles.
func runInFakeTime(t *testing.T, protocol, name string, seed uint64) map[string]row {
	t.Helper()
	l := loopbackEngine(protocol)
	all := networkScenarios()
	i := slices.IndexFunc(all, func(sc scenario) bool { return sc.name == name })
	require.GreaterOrEqual(t, i, 0, name)
	run := scenarioRun{scenario: &all[i], seed: seed, share: 1, fake: true}
	run.size.requests = max(run.scenario.simulation.Episodes, 1) * run.scenario.simulation.Requests // all, however long they take
	for _, s := range strategies {
		if l.supports(*run.scenario, s) && (s.name != "hedgedhttp-10ms" || protocol == "grpc") {
			run.strategies = append(run.strategies, s.name)
		}
	}
	if protocol == "http" && strings.HasSuffix(name, "-h2") {
		doubles.SkipWithoutHTTP2InBubble(t)
	}
	rows := make(map[string]row)
	synctest.Test(t, func(t *testing.T) {
		require.NoError(t, l.runOnce(t.Context(), run, func(tr trial) {
			for _, row := range tr.toResult().rows {
				rows[tr.strategy+row.Scenario[len(name):]] = row
			}
		}))
		time.Sleep(time.Minute) // for servers that finish what they have begun
	})
	return rows
}

// seedCount returns the number of seeds with which tests run.
func seedCount() uint64 {
	if testing.Short() {
		return 1
	}
	return 3
}

func TestFirstByteIsHedgedAndTheHeaderIsNot(t *testing.T) {
	doubles.SkipSimulation(t)
	for seed := range seedCount() {
		r := runInFakeTime(t, "http", "stream", seed)
		none, first := r["none"], r["hedge-first-byte"]
		assertAtMost(t, "p99 to the first byte", first.P99, 0.4, none.P99)
		assert.LessOrEqual(t, first.Extra, 12.0)
		for _, name := range []string{"bhope", "hedge"} {
			assert.Zero(t, r[name].Hedges, "%s knows headers only", name)
			assert.Equal(t, none.P99, r[name].P99, name)
		}
		// A tenth of the hedges of a slow tenth is slow as well: of 10 % hedges, 1 % of all calls remains.
		assert.LessOrEqual(t, r["hedge-first-byte-10"].Mean, 0.5*none.Mean)
	}
}

func TestCallsInFlightOnAFrozenConnectionAreAnsweredOverAnother(t *testing.T) {
	for protocol, apart := range map[string]string{"http": "hedge", "grpc": "hedge-conn"} {
		r := runInFakeTime(t, protocol, "frozen-h2", 1)
		saved := r[apart+"/frozen"]
		// A client begins with half of its reserve, which does not pay for all 40 hedges of its first 120 calls.
		assert.LessOrEqual(t, saved.Errors, 2, protocol)
		assertAtMost(t, protocol+": the slowest", saved.Max, 3, 10+2) // twice what most take, and a dial of two round trips
		for _, row := range r {
			if row.Scenario == "frozen-h2/frozen" {
				assert.Equal(t, 40, row.Requests)
				if row.Strategy != apart {
					assert.Equal(t, 40, row.Errors, "%s, %s: without another, all time out", protocol, row.Strategy)
				}
			}
		}
	}
}

func TestFirstCallOfAWarmClientIsWarm(t *testing.T) {
	r := runInFakeTime(t, "http", "cold", 1)
	for _, rtt := range []string{"0.5ms", "30ms"} {
		warm := r["none/warm-"+rtt].P50
		assertAtMost(t, "first call after Warm, "+rtt, r["hedge-warm/first-"+rtt].Max, 1.2, warm)
		assert.InDelta(t, 3, r["none/first-"+rtt].P50/warm, 0.01, "without: TCP, TLS and the call")
		assert.InDelta(t, 3, r["hedge/first-"+rtt].P50/warm, 0.01)
	}
}

func TestHedgeToAnotherReplicaOutlivesAPause(t *testing.T) {
	var other, same float64 // sums: two seconds' budget is spent in some runs sooner than in others
	for seed := range seedCount() {
		r := runInFakeTime(t, "http", "replica", seed)
		assertAtMost(t, "p99.9 against the same address", r["hedge-replicas"].P999, 0.5, r["hedge"].P999)
		other, same = other+r["hedge-replicas-2s"].P99, same+r["hedge"].P99
		assert.LessOrEqual(t, r["hedge-replicas"].Extra, 10+100*10*100*0.1/1200, "the share, and ten seconds of it at the guessed rate")
	}
	assertAtMost(t, "p99 against the same address, two seconds' budget", other, 0.5, same)
}

// Servers that finish what they have begun, each with a queue. The figures do not depend on the machine.
// HEDGE_TEST_LONG adds HTTP/2 and gRPC.
func TestHedgingBehindLimitersKeepsItsPromises(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a long simulation")
	}
	engines := []string{"http queue-ignores-cancel"}
	if os.Getenv("HEDGE_TEST_LONG") != "" {
		engines = append(engines, "http queue-ignores-cancel-h2", "grpc queue-ignores-cancel")
	}
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			protocol, name, _ := strings.Cut(engine, " ")
			r := runInFakeTime(t, protocol, name, 1)
			none, hedge, limited := r["none"], r["hedge"], r["hedge-limited"]
			assert.Zero(t, none.Errors+hedge.Errors+limited.Errors)
			assert.Greater(t, r["hedge/settled"].P99, r["none/settled"].P99, "without Limiters hedging harms")
			assertAtMost(t, "p99 with Limiters", r["hedge-limited/settled"].P99, 0.75, r["none/settled"].P99)
			assertAtMost(t, "requests worked on", *limited.Sent, 1.035, 1)
			assertAtMost(t, "connections beyond those without hedging, and losers that no server worked on",
				float64(*limited.Conns-*none.Conns), 1.1, float64(limited.Hedges)-(*limited.Sent-1)*float64(limited.Requests))
		})
	}
}

func TestHedgesToAnotherReplicaEscapeItsStops(t *testing.T) {
	t.Parallel()
	skipIfShort(t)
	for _, tt := range []struct {
		engine, scenario, strategy string
		most                       float64
	}{
		{"grpc", "stop-2", "hedge-elsewhere", 0.3}, {"grpc", "stop-3", "hedge-elsewhere", 0.3},
		{"http", "stop-3", "hedge-replicas-2s", 0.85}, {"http", "stop-h2", "hedge-replicas-2s", 0.85},
		{"http", "rotate", "hedge-replicas-2s", 1.1}, {"http", "steady", "hedge-replicas-2s", 1.1}, {"http", "gone", "hedge-replicas-2s", 1.1},
	} {
		t.Run(tt.engine+" "+tt.scenario, func(t *testing.T) {
			r := runInFakeTime(t, tt.engine, tt.scenario, 1)
			assertAtMost(t, "p99.9", r[tt.strategy].P999, tt.most, r["hedge"].P999)
			assert.Zero(t, r[tt.strategy].Errors)
			t.Logf("without hedging %v; the longest %v", r["none"].P999, r[tt.strategy].Max)
		})
	}
}

// In real time, so only what holds on any machine.
func TestLabsRunFromTheCommandLine(t *testing.T) {
	for _, l := range []loopbackEngine{"http", "grpc"} {
		t.Run(string(l), func(t *testing.T) {
			t.Parallel()
			var names []string
			want := make(map[string]int) // rows, by scenario and part
			for _, sc := range networkScenarios() {
				if !slices.Contains(sc.protocols, string(l)) {
					continue
				}
				names = append(names, sc.name)
				for _, s := range strategies {
					if l.supports(sc, s) {
						want[sc.name]++
					}
				}
				for _, p := range sc.parts {
					want[sc.name+"/"+p.name] = want[sc.name]
				}
			}
			out, stderr, code := runSimulate(t, "-engine", string(l), "-scenario", strings.Join(names, ","), "-quick", "-format", "json", "-out", "")
			require.Equal(t, exitOK, code, stderr)
			var rows []row
			require.NoError(t, json.Unmarshal([]byte(out), &rows))
			got := make(map[string]int)
			for _, r := range rows {
				got[r.Scenario]++
				if !strings.Contains(r.Scenario, "/") { // a slow machine may not come to every part
					assert.Positive(t, r.Requests, r.Strategy)
				}
			}
			assert.Equal(t, want, got)
		})
	}
	_, stderr, code := runSimulate(t, "-engine", "http", "-scenario", "cold", "-strategy", "bhope")
	assert.Equal(t, exitUsage, code)
	assert.Contains(t, stderr, "scenario cold is for none, hedge or hedge-warm")
}
