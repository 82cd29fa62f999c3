package worlds_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A finding is a promise that a world breaks.
type finding struct {
	Promise string // its number in the package's doc, and in a word what happened
	Detail  string
}

// tooLong is the real time after which a player is stuck: the goroutine that it waits for spins, or holds a mutex for ever.
const tooLong = time.Minute

// A player is a process that plays worlds. It is started anew when a world has ended it.
type player struct {
	process *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
	stderr  *tail
}

// start starts the process: this program, with one test.
func (p *player) start() error {
	p.process = exec.Command(os.Args[0], "-test.run=^TestPlayer$", "-test.timeout=24h")
	p.process.Env = append(os.Environ(), "WORLDS_PLAYER=1", "GOMAXPROCS=1", "GOGC=400", "GORACE=halt_on_error=1")
	p.stderr = new(tail)
	p.process.Stderr = p.stderr
	var err error
	if p.in, err = p.process.StdinPipe(); err != nil {
		return err
	}
	out, err := p.process.StdoutPipe()
	if err != nil {
		return err
	}
	p.out = bufio.NewScanner(out)
	p.out.Buffer(nil, 16<<20)
	return p.process.Start()
}

// stop ends the process, if there is one.
func (p *player) stop() {
	if p.process != nil {
		p.in.Close()
		_ = p.process.Process.Kill()
		_ = p.process.Wait()
		p.process = nil
	}
}

// played is what a player says of a world.
type played struct {
	Findings []finding
	Over     bool // the player ends: goroutines of the world are left in it
}

// play lets the process play a world.
func (p *player) play(w parts) ([]finding, error) {
	if p.process == nil {
		if err := p.start(); err != nil {
			return nil, err
		}
	}
	process := p.process.Process
	stuck := time.AfterFunc(tooLong, func() { _ = process.Signal(syscall.SIGQUIT) }) // it tells where it is
	defer stuck.Stop()
	fmt.Fprintln(p.in, w)
	for p.out.Scan() {
		text, ok := strings.CutPrefix(p.out.Text(), answerMark)
		if !ok {
			continue
		}
		var answer played
		if err := json.Unmarshal([]byte(text), &answer); err != nil {
			return nil, err
		}
		if answer.Over {
			p.stop()
		}
		return answer.Findings, nil
	}
	inTime := stuck.Stop()
	_ = p.process.Wait()
	p.process = nil
	if !inTime {
		return []finding{{"4 stuck", fmt.Sprintf("no answer for %v: %s", tooLong, crash(p.stderr.String()))}}, nil
	}
	return []finding{{"4 crash", crash(p.stderr.String())}}, nil
}

// answerMark begins the lines in which a player answers.
const answerMark = "PLAYED "

// tail keeps the beginning of what is written to it.
type tail struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.text.Len() > 1<<18 { // the last lines of earlier worlds do not matter
		t.text.Reset()
	}
	t.text.Write(b)
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

var crashStart = regexp.MustCompile(`(?m)^(SIGQUIT: quit|panic: |fatal error: |WARNING: DATA RACE)`)

// crash is the part of a crash that tells where it happened.
func crash(text string) string {
	at := crashStart.FindStringIndex(text)
	if at == nil {
		return "the process ended: " + text[max(0, len(text)-1000):]
	}
	var all []string
	for line := range strings.SplitSeq(text[at[0]:], "\n") {
		if len(all) == 0 || len(all) < 14 && strings.Contains(line, "gohedge/hedge") {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return strings.Join(all, "; ")
}

// A found is a finding with the world that it was made in, and a smaller one.
type found struct {
	finding
	number uint64 // of the world
	world  parts
	steady bool // it is found again each time
}

func (f found) String() string {
	return fmt.Sprintf("%s (number %d)\n    %s\n    WORLDS_ONLY=%q", f.Promise, f.number, f.Detail, f.world)
}

// counts reports whether the finding is one: a data race need not happen each time.
func (f found) counts() bool { return f.steady || f.Promise == "4 crash" }

// A machine draws worlds, has them played, and makes those smaller that break a promise.
type machine struct {
	mu     sync.Mutex // guards the fields below
	number uint64     // of the next world
	need   parts      // every world has them
	odd    bool       // the next world is the first that is drawn
	seen   map[uint64]bool
	played int
	found  []found
	known  []explanation
	err    error
}

// An explanation is what was enough to break a promise. A world that has all of it needs no second look.
type explanation struct {
	promise string
	names   []string
}

// run lets several processes play until more says no.
func (m *machine) run(processes int, more func() bool) error {
	var wg sync.WaitGroup
	for range processes {
		wg.Go(func() {
			p := new(player)
			defer p.stop()
			for {
				m.mu.Lock()
				if m.err != nil || !more() {
					m.mu.Unlock()
					return
				}
				number, w := m.next()
				failed := m.err != nil
				m.mu.Unlock()
				if failed {
					return
				}
				if err := m.look(p, number, w); err != nil {
					m.mu.Lock()
					m.err = err
					m.mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return m.err
}

// look plays a world, and every finding that nothing known explains again with less.
func (m *machine) look(p *player, number uint64, w parts) error {
	findings, err := p.play(w)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.played++
	m.mu.Unlock()
	told := map[string]bool{}
	for _, f := range findings {
		if told[f.Promise] || m.explained(f.Promise, w) {
			continue
		}
		told[f.Promise] = true
		out := found{f, number, w, true}
		for range 3 {
			again, err := p.play(w)
			if err != nil {
				return err
			}
			out.steady = out.steady && slices.ContainsFunc(again, func(g finding) bool { return g.Promise == f.Promise })
		}
		if out.steady {
			if err := shrink(p, &out); err != nil {
				return err
			}
		}
		m.keep(out)
	}
	return nil
}

// maxShrinkTime bounds shrink: to play a world in which a call is stuck takes seconds.
const maxShrinkTime = 2 * time.Minute

// shrink leaves out parts that the finding does not need, for as long as maxShrinkTime allows.
func shrink(p *player, f *found) error {
	end := time.Now().Add(maxShrinkTime)
	if _, err := f.try(p, f.world.alone()); err != nil {
		return err
	}
	for i := 0; i < len(f.world) && time.Now().Before(end); {
		less, err := f.try(p, f.world.without(i))
		switch {
		case err != nil:
			return err
		case less:
			i = 0
		default:
			i++
		}
	}
	_, err := f.try(p, f.world.alone())
	return err
}

// try takes another world for the finding, if that has it too.
func (f *found) try(p *player, less parts) (bool, error) {
	if len(less) == 0 {
		return false, nil
	}
	findings, err := p.play(less)
	if err != nil {
		return false, err
	}
	at := slices.IndexFunc(findings, func(g finding) bool { return g.Promise == f.Promise })
	if at >= 0 {
		f.finding = findings[at]
		_, f.world = worldOf(given(less)) // parts of what was left out are gone with it
	}
	return at >= 0, nil
}

func (m *machine) keep(f found) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.found = append(m.found, f)
	if f.steady {
		m.known = append(m.known, explanation{f.Promise, f.world.kinds()})
	}
}

func (m *machine) explained(promise string, w parts) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	kinds := w.kinds()
	return slices.ContainsFunc(m.known, func(e explanation) bool {
		return e.promise == promise && !slices.ContainsFunc(e.names, func(name string) bool { return !slices.Contains(kinds, name) })
	})
}

var ofOneCall = regexp.MustCompile(`^call\d+\.`)

// kinds returns the names of the parts, whichever call they belong to. How many calls there are is none.
func (ps parts) kinds() (all []string) {
	for _, p := range ps {
		if p.name != "calls" {
			all = append(all, ofOneCall.ReplaceAllString(p.name, "call."))
		}
	}
	return all
}

// alone returns the parts with the last call as the only one, or none if there is one call anyway.
func (ps parts) alone() (all parts) {
	last := ""
	for _, p := range ps {
		if call := ofOneCall.FindString(p.name); call > last {
			last = call
		}
	}
	if last == "" || last == "call0." {
		return nil
	}
	for _, p := range ps {
		call := ofOneCall.FindString(p.name)
		switch {
		case call == last:
			all = append(all, part{"call0." + strings.TrimPrefix(p.name, last), p.value})
		case call == "" && p.name != "calls":
			all = append(all, p)
		}
	}
	return all
}

// candidates is from how many worlds the machine chooses.
const candidates = 30

// maxMisses is how many worlds next draws that have not the parts they need.
const maxMisses = 100_000

// next draws a world. Every second one is the one of several that has the most pairs of parts that no world had before.
func (m *machine) next() (number uint64, w parts) {
	m.odd = !m.odd
	n := candidates
	if m.odd {
		n = 1
	}
	most, misses := -1, 0
	for n > 0 {
		_, ps := worldOf(drawn(m.number))
		m.number++
		if slices.ContainsFunc(m.need, func(p part) bool { return !slices.Contains(ps, p) }) {
			if misses++; misses == maxMisses {
				m.err = fmt.Errorf("WORLDS_NEED=%q: none of %d worlds has these parts", m.need, misses)
				return 0, nil
			}
			continue
		}
		if fresh := m.fresh(ps); fresh > most {
			most, number, w = fresh, m.number-1, ps
		}
		n--
	}
	for pair := range w.pairs {
		m.seen[pair] = true
	}
	return number, w
}

func (m *machine) fresh(ps parts) (n int) {
	for pair := range ps.pairs {
		if !m.seen[pair] {
			n++
		}
	}
	return n
}

// pairs calls yield with a number for each pair of parts.
func (ps parts) pairs(yield func(uint64) bool) {
	hashes := make([]uint64, len(ps))
	for i, p := range ps {
		h := uint64(14695981039346656037)
		for _, c := range []byte(ofOneCall.ReplaceAllString(p.name, "call.") + "=" + p.value) {
			h = (h ^ uint64(c)) * 1099511628211
		}
		hashes[i] = h
	}
	for i, a := range hashes {
		for _, b := range hashes[:i] {
			if !yield(a + b) {
				return
			}
		}
	}
}
