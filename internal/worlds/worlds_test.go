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

// TestTwoHundredWorldsKeepEveryPromise plays the same worlds each time.
func TestTwoHundredWorldsKeepEveryPromise(t *testing.T) {
	worlds := 200
	if doubles.RaceEnabled || testing.Short() {
		worlds = 45 // a fifth as fast
	}
	play(t, 1, func(m *machine) bool { worlds--; return worlds >= 0 })
}

// TestWorldsOfANewNumberKeepEveryPromise plays other worlds each time, for WORLDS_SECONDS; with WORLDS_NEED only such as have
// some parts, like "over=grpc"; with WORLDS_FIRST until the first finding.
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
	play(t, number, func(m *machine) bool {
		return time.Now().Before(end) && !(first && slices.ContainsFunc(m.found, found.counts))
	})
}

// TestWorldsThatBrokeAPromiseKeepIt plays the worlds of testdata/mended.txt, in which defects were found that are mended.
func TestWorldsThatBrokeAPromiseKeepIt(t *testing.T) {
	doubles.SkipWithoutHTTP2InBubble(t)
	text, err := os.ReadFile("testdata/mended.txt")
	if err != nil {
		t.Fatal(err)
	}
	p := new(player)
	defer p.stop()
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		ps, err := parse(line)
		if err != nil {
			t.Fatal(err)
		}
		if len(ps) == 0 {
			continue
		}
		d := given(ps)
		worldOf(d)
		if unknown := d.unknown(ps); len(unknown) > 0 {
			t.Errorf("no world has %v: the name or the value was changed", unknown)
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

// play plays worlds from a number on until more says no, and tells what was found.
func play(t *testing.T, number uint64, more func(*machine) bool) {
	doubles.SkipWithoutHTTP2InBubble(t)
	need, err := parse(os.Getenv("WORLDS_NEED"))
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{number: number, need: need, seen: make(map[uint64]bool)}
	start := time.Now()
	if err := m.run(min(2, runtime.NumCPU()), func() bool { return more(m) }); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d worlds in %v", m.played, time.Since(start).Round(time.Millisecond))
	for _, f := range m.found {
		if f.counts() {
			t.Errorf("%v", f)
		} else {
			t.Logf("now and then: %v", f) // two things at the same instant, mostly
		}
	}
}
