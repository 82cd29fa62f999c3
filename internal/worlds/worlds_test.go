package worlds_test

import (
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gohedge/hedge/internal/doubles"
)

// TestTwoHundredWorldsKeepEveryPromise plays the same scenarios each time.
func TestTwoHundredWorldsKeepEveryPromise(t *testing.T) {
	worlds := 200
	if doubles.RaceEnabled || testing.Short() {
		worlds = 45 // they take five times as long
	}
	playScenarios(t, 1, func(m *fuzzer) bool { worlds--; return worlds >= 0 })
}

// TestWorldsOfANewNumberKeepEveryPromise plays new scenarios for WORLDS_SECONDS. WORLDS_NEED selects scenarios with
// some parts, for instance "over=grpc". With WORLDS_FIRST the test ends at the first finding.
func TestWorldsOfANewNumberKeepEveryPromise(t *testing.T) {
	seconds, err := strconv.Atoi(os.Getenv("WORLDS_SECONDS"))
	if err != nil {
		t.Skip("WORLDS_SECONDS is not set")
	}
	number := rand.Uint64() >> 16 << 10
	if n, err := strconv.ParseUint(os.Getenv("WORLDS_NUMBER"), 10, 64); err == nil {
		number = n
	}
	t.Logf("WORLDS_NUMBER=%d WORLDS_SECONDS=%d", number, seconds)
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	first := os.Getenv("WORLDS_FIRST") != ""
	playScenarios(t, number, func(m *fuzzer) bool {
		return time.Now().Before(end) && !(first && slices.ContainsFunc(m.found, foundScenario.isFailure))
	})
}

// TestWorldsThatBrokeAPromiseKeepIt plays the regressions in testdata/mended.txt: scenarios with defects that are fixed.
func TestWorldsThatBrokeAPromiseKeepIt(t *testing.T) {
	doubles.SkipWithoutHTTP2InBubble(t)
	text, err := os.ReadFile("testdata/mended.txt")
	if err != nil {
		t.Fatal(err)
	}
	p := new(player)
	defer p.stopProcess()
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		ps, err := parseParts(line)
		if err != nil {
			t.Fatal(err)
		}
		if len(ps) == 0 {
			continue
		}
		d := generatorFor(ps)
		newScenario(d)
		if unknown := d.unusedParts(ps); len(unknown) > 0 {
			t.Errorf("no scenario has %v: the name or the value was changed", unknown)
			continue
		}
		findings, err := p.play(ps)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range findings {
			t.Errorf("%s: %s\n    WORLDS_ONLY=%q", f.Promise, f.Detail, ps)
		}
	}
}

// playScenarios plays scenarios from a number on until more returns false, and reports the findings.
func playScenarios(t *testing.T, number uint64, more func(*fuzzer) bool) {
	doubles.SkipWithoutHTTP2InBubble(t)
	need, err := parseParts(os.Getenv("WORLDS_NEED"))
	if err != nil {
		t.Fatal(err)
	}
	m := &fuzzer{number: number, need: need, seen: make(map[uint64]bool)}
	start := time.Now()
	if err := m.runPlayers(min(2, runtime.NumCPU()), func() bool { return more(m) }); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d worlds in %v", m.played, time.Since(start).Round(time.Millisecond))
	for _, f := range m.found {
		if f.isFailure() {
			t.Errorf("%v", f)
		} else {
			t.Logf("now and then: %v", f) // mostly events at the same instant
		}
	}
}
