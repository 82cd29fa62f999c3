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
)

func TestMain(m *testing.M) {
	serveChild()
	os.Exit(m.Run())
}

// sim runs the command.
func sim(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, err bytes.Buffer
	code = runCommand(t.Context(), args, &out, &err, false)
	return out.String(), err.String(), code
}

// describes reports whether a text explains a strategy below its tables.
func describes(text, strategy string) bool {
	return regexp.MustCompile(`(?m)^` + strategy + ` {2,}\w`).MatchString(text)
}

func small(args ...string) []string {
	return append([]string{"-engine", "virtual", "-requests", "5000", "-out", "", "-strategy", "none,hedgedhttp-10ms,hedge"}, args...)
}

// watched calls then when it has seen a text.
type watched struct {
	until string
	then  func()
	seen  bytes.Buffer // not embedded: its WriteString would go past Write
}

func (w *watched) Write(p []byte) (int, error) {
	if strings.Contains(string(p), w.until) {
		w.then()
	}
	return w.seen.Write(p)
}

func (w *watched) String() string { return w.seen.String() }

// play runs strategies through a scenario in virtual time and returns the rows,
// by "strategy" for the whole and by "strategy/part".
func play(t *testing.T, name string, s size, strategies ...string) map[string]row {
	t.Helper()
	var mu sync.Mutex
	rows := make(map[string]row)
	sc := findScenario(name)
	j := job{scenario: &sc, strategies: strategies, seed: 1, size: s}
	require.NoError(t, virtualEngine{}.run(t.Context(), j, func(tr trial) {
		r := tr.toResult()
		mu.Lock()
		defer mu.Unlock()
		for _, row := range r.rows {
			rows[r.strategy+row.Scenario[len(name):]] = row
		}
	}))
	return rows
}

// long leaves a test out if tests are to be short, as with the race detector: it makes simulations ten times
// slower, and has nothing to find in one goroutine.
func long(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation in one goroutine")
	}
}

// atMost checks that x is at most share of y.
func atMost(t *testing.T, what string, x, share, y float64) {
	t.Helper()
	assert.Positive(t, y, what)
	assert.LessOrEqual(t, x/y, share, "%s: %v against %v", what, x, y)
	t.Logf("%s: %.3g / %.3g = %.3f, at most %v", what, x, y, x/y, share)
}

// allScenarios returns the scenarios of all engines, engine by engine. A scenario that several engines have occurs
// several times.
func allScenarios() (all []scenario) {
	for _, e := range newEngines() {
		all = append(all, e.profile().scenarios...)
	}
	return all
}

// findScenario returns the first scenario with the given name, which must exist.
func findScenario(name string) scenario {
	all := allScenarios()
	return all[slices.IndexFunc(all, func(sc scenario) bool { return sc.name == name })]
}
