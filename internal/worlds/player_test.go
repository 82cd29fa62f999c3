package worlds_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gohedge/hedge/internal/doubles"
)

// A scenario can be played: plainly and hedged, or by a patient resolver and a Client.
type scenario interface {
	// check plays the scenario and returns the promises that it breaks. It logs the results of the calls.
	check(stage *stage) []finding
}

// newScenario generates a scenario, and returns it with its parts.
func newScenario(d *generator) (scenario, parts) {
	var w scenario
	switch drawPart(d, "over", .8, "http/1.1", "http/1.1", "http/2", "do", "grpc", "grpc", "dns", "dns", "recursor", "range") {
	case "http/2":
		w = newHTTPScenario(d, true)
	case "grpc":
		w = newGRPCScenario(d)
	case "do":
		w = newDoScenario(d)
	case "range":
		w = newRangeScenario(d)
	case "recursor":
		w = newRecScenario(d)
	case "dns":
		w = newDNSScenario(d)
	default:
		w = newHTTPScenario(d, false)
	}
	return w, d.has
}

// A reportFunc reports a broken promise of a call.
type reportFunc func(promise, what string)

// A stage plays scenarios in bubbles of fake time.
type stage struct {
	t            *testing.T
	log          func(format string, args ...any)
	hasLeftovers bool // goroutines of a bubble are left in this process
}

// runInBubble runs f in fake time. It returns the error of the bubble if goroutines are left after f that wait for each
// other.
func (s *stage) runInBubble(f func()) (complaint string) {
	defer func() {
		if v := recover(); v != nil {
			complaint, s.hasLeftovers = fmt.Sprint(v), true
		}
	}()
	synctest.Test(s.t, func(*testing.T) { f() })
	return ""
}

// TestPlayer is the player process: it reads scenarios and plays them.
func TestPlayer(t *testing.T) {
	if os.Getenv("WORLDS_PLAYER") == "" {
		t.Skip("it is started by the other tests")
	}
	doubles.PreloadNetConfig()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		ps, err := parseParts(in.Text())
		if err != nil {
			t.Fatal(err)
		}
		w, _ := newScenario(generatorFor(ps))
		s := &stage{t: t, log: func(string, ...any) {}}
		findings := w.check(s)
		answer, err := json.Marshal(playResult{findings, s.hasLeftovers})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println(answerMark + string(answer))
		if s.hasLeftovers {
			return
		}
	}
}

// TestOneWorld plays the scenario of WORLDS_ONLY in this process with a log. WORLDS_ONLY has the parts or the number.
func TestOneWorld(t *testing.T) {
	words := os.Getenv("WORLDS_ONLY")
	if words == "" {
		t.Skip("WORLDS_ONLY is not set")
	}
	doubles.PreloadNetConfig()
	var d *generator
	var number uint64
	ps, err := parseParts(words)
	if _, no := fmt.Sscan(words, &number); no == nil && !strings.Contains(words, "=") {
		d = newGenerator(number)
	} else if err != nil {
		t.Fatal(err)
	} else {
		d = generatorFor(ps)
	}
	w, has := newScenario(d)
	if d.given != nil && len(d.unusedParts(ps)) > 0 {
		t.Fatalf("no scenario has %v", d.unusedParts(ps))
	}
	t.Log(has)
	s := &stage{t: t, log: t.Logf}
	for _, f := range w.check(s) {
		t.Errorf("%s: %s", f.Promise, f.Detail)
	}
}
