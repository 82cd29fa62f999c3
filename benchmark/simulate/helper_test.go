package main

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/benchmark/internal/helper"
)

func TestMain(m *testing.M) {
	helper.RunIfHelper()
	os.Exit(m.Run())
}

// runSimulate runs the command with the arguments args.
func runSimulate(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, err bytes.Buffer
	code = runCommand(t.Context(), args, &out, &err, false)
	return out.String(), err.String(), code
}

// describesStrategy reports whether a text explains a strategy below the tables.
func describesStrategy(text, strategy string) bool {
	return regexp.MustCompile(`(?m)^` + strategy + ` {2,}\w`).MatchString(text)
}

func withFewRequests(args ...string) []string {
	return append([]string{"-engine", "virtual", "-requests", "5000", "-out", "", "-strategy", "none,hedgedhttp-10ms,hedge"}, args...)
}

// An outputWatcher is a writer that calls then after the text until has been written.
type outputWatcher struct {
	until string
	then  func()
	seen  bytes.Buffer // not embedded: its WriteString would go past Write
}

func (w *outputWatcher) Write(p []byte) (int, error) {
	if strings.Contains(string(p), w.until) {
		w.then()
	}
	return w.seen.Write(p)
}

func (w *outputWatcher) String() string { return w.seen.String() }

// runVirtual runs strategies in a scenario of the engine virtual. It returns the rows by "strategy" for the whole
// scenario, and by "strategy/part" for the parts.
func runVirtual(t *testing.T, name string, s trafficFlags, strategies ...string) map[string]row {
	t.Helper()
	var mu sync.Mutex
	rows := make(map[string]row)
	sc := findScenario(name)
	run := scenarioRun{scenario: &sc, strategies: strategies, seed: 1, size: s}
	require.NoError(t, virtualEngine{}.runOnce(t.Context(), run, func(tr trial) {
		r := tr.toResult()
		mu.Lock()
		defer mu.Unlock()
		for _, row := range r.rows {
			rows[r.strategy+row.Scenario[len(name):]] = row
		}
	}))
	return rows
}

// skipIfShort skips a long simulation if tests are to be short, as with the race detector. The race detector makes
// simulations ten times slower, and has nothing to find in one goroutine.
func skipIfShort(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation in one goroutine")
	}
}

// assertAtMost asserts that x is at most share of y.
func assertAtMost(t *testing.T, what string, x, share, y float64) {
	t.Helper()
	assert.Positive(t, y, what)
	assert.LessOrEqual(t, x/y, share, "%s: %v against %v", what, x, y)
	t.Logf("%s: %.3g / %.3g = %.3f, at most %v", what, x, y, x/y, share)
}

// allScenarios returns the scenarios of all engines, one engine after another. A scenario of several engines occurs
// several times.
func allScenarios() (all []scenario) {
	for _, e := range engines() {
		all = append(all, e.spec().scenarios...)
	}
	return all
}

// findScenario returns the first scenario with the given name, which must exist.
func findScenario(name string) scenario {
	all := allScenarios()
	return all[slices.IndexFunc(all, func(sc scenario) bool { return sc.name == name })]
}
