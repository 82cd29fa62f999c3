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

// A finding is a promise that does not hold in a scenario.
type finding struct {
	Promise string // the number in the package documentation, and a word for the failure
	Detail  string
}

// A findingList collects the findings of the check of one scenario.
type findingList struct{ findings []finding }

// add appends a finding, whose Detail is formatted like fmt.Sprintf.
func (l *findingList) add(promise, format string, args ...any) {
	l.findings = append(l.findings, finding{promise, fmt.Sprintf(format, args...)})
}

// stuckTimeout is the real time after which a player counts as stuck: a goroutine spins, or never releases a mutex.
const stuckTimeout = time.Minute

// A player is a process that plays scenarios. It is started again after a scenario has ended it.
type player struct {
	process *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
	stderr  *errorOutput
}

// startProcess starts the process: this program, with one test.
func (p *player) startProcess() error {
	p.process = exec.Command(os.Args[0], "-test.run=^TestPlayer$", "-test.timeout=24h")
	p.process.Env = append(os.Environ(), "WORLDS_PLAYER=1", "GOMAXPROCS=1", "GOGC=400", "GORACE=halt_on_error=1")
	p.stderr = new(errorOutput)
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

// stopProcess ends the process, if there is one.
func (p *player) stopProcess() {
	if p.process != nil {
		p.in.Close()
		_ = p.process.Process.Kill()
		_ = p.process.Wait()
		p.process = nil
	}
}

// A playResult is the answer of a player.
type playResult struct {
	Findings []finding
	Over     bool // the player ends, because goroutines of the scenario are left in it
}

// play makes the process play a scenario.
func (p *player) play(w parts) ([]finding, error) {
	if p.process == nil {
		if err := p.startProcess(); err != nil {
			return nil, err
		}
	}
	process := p.process.Process
	stuck := time.AfterFunc(stuckTimeout, func() { _ = process.Signal(syscall.SIGQUIT) }) // prints the stacks
	defer stuck.Stop()
	fmt.Fprintln(p.in, w)
	for p.out.Scan() {
		text, ok := strings.CutPrefix(p.out.Text(), answerMark)
		if !ok {
			continue
		}
		var answer playResult
		if err := json.Unmarshal([]byte(text), &answer); err != nil {
			return nil, err
		}
		if answer.Over {
			p.stopProcess()
		}
		return answer.Findings, nil
	}
	inTime := stuck.Stop()
	_ = p.process.Wait()
	p.process = nil
	if !inTime {
		return []finding{{"4 stuck", fmt.Sprintf("no answer for %v: %s", stuckTimeout, crashSummary(p.stderr.String()))}}, nil
	}
	return []finding{{"4 crash", crashSummary(p.stderr.String())}}, nil
}

// answerMark is the prefix of lines with answers of a player.
const answerMark = "PLAYED "

// An errorOutput keeps the last output of a player.
type errorOutput struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (t *errorOutput) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.text.Len() > 1<<18 { // output of earlier scenarios
		t.text.Reset()
	}
	t.text.Write(b)
	return len(b), nil
}

func (t *errorOutput) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

var crashStart = regexp.MustCompile(`(?m)^(SIGQUIT: quit|panic: |fatal error: |WARNING: DATA RACE)`)

// crashSummary returns the lines of a crash that have its location.
func crashSummary(text string) string {
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

// A foundScenario is a finding with a reduced scenario that has it.
type foundScenario struct {
	finding
	number   uint64 // of the original scenario
	parts    parts
	isSteady bool // the scenario has the finding each time
}

func (f foundScenario) String() string {
	return fmt.Sprintf("%s (number %d)\n    %s\n    WORLDS_ONLY=%q", f.Promise, f.number, f.Detail, f.parts)
}

// isFailure reports whether the finding is certain. A data race does not happen each time.
func (f foundScenario) isFailure() bool { return f.isSteady || f.Promise == "4 crash" }

// A fuzzer draws scenarios, lets players play them, and reduces scenarios with findings.
type fuzzer struct {
	mu     sync.Mutex // guards the fields below
	number uint64     // of the next scenario
	need   parts      // parts of every scenario
	odd    bool       // the next scenario is not chosen from candidates
	seen   map[uint64]bool
	played int
	found  []foundScenario
	known  []explanation
	err    error
}

// An explanation is a set of parts that breaks a promise. The fuzzer does not examine further findings in scenarios
// with all of these parts.
type explanation struct {
	promise string
	names   []string
}

// runPlayers plays scenarios in several processes until more returns false.
func (m *fuzzer) runPlayers(processes int, more func() bool) error {
	var wg sync.WaitGroup
	for range processes {
		wg.Go(func() {
			p := new(player)
			defer p.stopProcess()
			for {
				m.mu.Lock()
				if m.err != nil || !more() {
					m.mu.Unlock()
					return
				}
				number, w := m.nextScenario()
				failed := m.err != nil
				m.mu.Unlock()
				if failed {
					return
				}
				if err := m.examineScenario(p, number, w); err != nil {
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

// examineScenario plays a scenario, and reduces each finding without an explanation.
func (m *fuzzer) examineScenario(p *player, number uint64, w parts) error {
	findings, err := p.play(w)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.played++
	m.mu.Unlock()
	told := map[string]bool{}
	for _, f := range findings {
		if told[f.Promise] || m.isExplained(f.Promise, w) {
			continue
		}
		told[f.Promise] = true
		out := foundScenario{f, number, w, true}
		for range 3 {
			again, err := p.play(w)
			if err != nil {
				return err
			}
			out.isSteady = out.isSteady && slices.ContainsFunc(again, func(g finding) bool { return g.Promise == f.Promise })
		}
		if out.isSteady {
			if err := shrinkFinding(p, &out); err != nil {
				return err
			}
		}
		m.addFinding(out)
	}
	return nil
}

// maxShrinkTime limits shrinkFinding. A scenario in which a call is stuck takes seconds.
const maxShrinkTime = 2 * time.Minute

// shrinkFinding removes parts that the finding does not need, for at most maxShrinkTime.
func shrinkFinding(p *player, f *foundScenario) error {
	end := time.Now().Add(maxShrinkTime)
	if _, err := f.replaceIfFound(p, f.parts.lastCallOnly()); err != nil {
		return err
	}
	for i := 0; i < len(f.parts) && time.Now().Before(end); {
		less, err := f.replaceIfFound(p, f.parts.without(i))
		switch {
		case err != nil:
			return err
		case less:
			i = 0
		default:
			i++
		}
	}
	_, err := f.replaceIfFound(p, f.parts.lastCallOnly())
	return err
}

// replaceIfFound replaces the parts of the finding by others if these have the finding, too.
func (f *foundScenario) replaceIfFound(p *player, less parts) (bool, error) {
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
		_, f.parts = newScenario(generatorFor(less)) // removes the parts that depend on removed parts
	}
	return at >= 0, nil
}

// addFinding adds a finding and its explanation.
func (m *fuzzer) addFinding(f foundScenario) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.found = append(m.found, f)
	if f.isSteady {
		m.known = append(m.known, explanation{f.Promise, f.parts.genericNames()})
	}
}

// isExplained reports whether the parts have an explanation of a broken promise.
func (m *fuzzer) isExplained(promise string, w parts) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	kinds := w.genericNames()
	return slices.ContainsFunc(m.known, func(e explanation) bool {
		return e.promise == promise && !slices.ContainsFunc(e.names, func(name string) bool { return !slices.Contains(kinds, name) })
	})
}

var callPrefix = regexp.MustCompile(`^call\d+\.`)

// genericNames returns the names of the parts without the numbers of calls, and without the number of calls.
func (ps parts) genericNames() (all []string) {
	for _, p := range ps {
		if p.name != "calls" {
			all = append(all, callPrefix.ReplaceAllString(p.name, "call."))
		}
	}
	return all
}

// lastCallOnly returns the parts with the last call as the only call. It returns none if there is one call.
func (ps parts) lastCallOnly() (all parts) {
	last := ""
	for _, p := range ps {
		if call := callPrefix.FindString(p.name); call > last {
			last = call
		}
	}
	if last == "" || last == "call0." {
		return nil
	}
	for _, p := range ps {
		call := callPrefix.FindString(p.name)
		switch {
		case call == last:
			all = append(all, part{"call0." + strings.TrimPrefix(p.name, last), p.value})
		case call == "" && p.name != "calls":
			all = append(all, p)
		}
	}
	return all
}

// candidates is the number of scenarios from which the fuzzer chooses one.
const candidates = 30

// maxMisses is the largest number of scenarios without the needed parts that nextScenario draws.
const maxMisses = 100_000

// nextScenario draws a scenario. Every other scenario is chosen from several candidates: it has the most pairs of parts
// that no scenario had before.
func (m *fuzzer) nextScenario() (number uint64, w parts) {
	m.odd = !m.odd
	n := candidates
	if m.odd {
		n = 1
	}
	most, misses := -1, 0
	for n > 0 {
		_, ps := newScenario(newGenerator(m.number))
		m.number++
		if slices.ContainsFunc(m.need, func(p part) bool { return !slices.Contains(ps, p) }) {
			if misses++; misses == maxMisses {
				m.err = fmt.Errorf("WORLDS_NEED=%q: none of %d worlds has these parts", m.need, misses)
				return 0, nil
			}
			continue
		}
		if fresh := m.countNewPairs(ps); fresh > most {
			most, number, w = fresh, m.number-1, ps
		}
		n--
	}
	for pair := range w.hashPairs {
		m.seen[pair] = true
	}
	return number, w
}

// countNewPairs returns the number of pairs of parts that no scenario had before.
func (m *fuzzer) countNewPairs(ps parts) (n int) {
	for pair := range ps.hashPairs {
		if !m.seen[pair] {
			n++
		}
	}
	return n
}

// hashPairs calls yield with the hash of each pair of parts.
func (ps parts) hashPairs(yield func(uint64) bool) {
	hashes := make([]uint64, len(ps))
	for i, p := range ps {
		h := uint64(14695981039346656037)
		for _, c := range []byte(callPrefix.ReplaceAllString(p.name, "call.") + "=" + p.value) {
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
