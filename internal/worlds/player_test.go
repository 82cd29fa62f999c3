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

// A world can be played, plainly and hedged, or by a patient resolver and a Client.
type world interface {
	// judge plays the world and says which promises it breaks. The world tells log what was seen.
	judge(stage *stage) []finding
}

// worldOf makes the world of a draw, and returns it with the parts that it has.
func worldOf(d *draw) (world, parts) {
	var w world
	switch pick(d, "over", .8, "http/1.1", "http/1.1", "http/2", "do", "grpc", "grpc", "dns", "dns", "recursor", "range") {
	case "http/2":
		w = newHTTPWorld(d, true)
	case "grpc":
		w = newGRPCWorld(d)
	case "do":
		w = newDoWorld(d)
	case "range":
		w = newRangeWorld(d)
	case "recursor":
		w = newRecWorld(d)
	case "dns":
		w = newDNSWorld(d)
	default:
		w = newHTTPWorld(d, false)
	}
	return w, d.has
}

// A verdict says which promise of a call is broken.
type verdict func(promise, what string)

// A stage is where a world is played: in bubbles of fake time.
type stage struct {
	t    *testing.T
	log  func(format string, args ...any)
	left bool // goroutines of a bubble are left in this process
}

// bubble runs f in fake time. It returns what the bubble itself has to complain about: that all is over and goroutines are
// left, which wait for each other.
func (s *stage) bubble(f func()) (complaint string) {
	defer func() {
		if v := recover(); v != nil {
			complaint, s.left = fmt.Sprint(v), true
		}
	}()
	synctest.Test(s.t, func(*testing.T) { f() })
	return ""
}

// TestPlayer is a process that plays the worlds that it reads.
func TestPlayer(t *testing.T) {
	if os.Getenv("WORLDS_PLAYER") == "" {
		t.Skip("it is started by the other tests")
	}
	doubles.PreloadNetConfig()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		ps, err := parse(in.Text())
		if err != nil {
			t.Fatal(err)
		}
		w, _ := worldOf(given(ps))
		s := &stage{t: t, log: func(string, ...any) {}}
		findings := w.judge(s)
		answer, err := json.Marshal(played{findings, s.left})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println(answerMark + string(answer))
		if s.left {
			return
		}
	}
}

// TestOneWorld plays the world of WORLDS_ONLY, which has parts or a number, in this process, and tells all.
func TestOneWorld(t *testing.T) {
	words := os.Getenv("WORLDS_ONLY")
	if words == "" {
		t.Skip("WORLDS_ONLY is not set")
	}
	doubles.PreloadNetConfig()
	var d *draw
	var number uint64
	ps, err := parse(words)
	if _, no := fmt.Sscan(words, &number); no == nil && !strings.Contains(words, "=") {
		d = drawn(number)
	} else if err != nil {
		t.Fatal(err)
	} else {
		d = given(ps)
	}
	w, has := worldOf(d)
	if d.given != nil && len(d.unknown(ps)) > 0 {
		t.Fatalf("no world has %v", d.unknown(ps))
	}
	t.Log(has)
	s := &stage{t: t, log: t.Logf}
	for _, f := range w.judge(s) {
		t.Errorf("%s: %s", f.Promise, f.Detail)
	}
}
