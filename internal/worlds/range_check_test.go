package worlds_test

import (
	"bytes"
	"fmt"
	"io"
	"time"

	"github.com/gohedge/hedge/rangeread"
)

// check plays the scenario and returns the broken promises.
func (w *rangeScenario) check(s *stage) []finding {
	plain, hedged := playRange(s, w, false), playRange(s, w, true)
	for _, p := range []*rangePlay{plain, hedged} {
		s.log("hedged %v: %v next %v %s %v %+v", p.hedged, p.results, p.next, p.broken, p.notes, p.store.Stats())
	}
	if hedged.broken != "" {
		return []finding{{"5 goroutines", hedged.broken}}
	}
	if plain.broken != "" {
		return []finding{{"5 goroutines", "without hedges: " + plain.broken}}
	}
	var list findingList
	add := list.add
	for i, c := range w.reads {
		a, b := plain.results[i], hedged.results[i]
		say := func(promise, what string) { add(promise, "read %d: %s; plain %v, hedged %v", c.number, what, a, b) }
		w.checkEnd(c, a, b, hedged, say)
		if b.held > a.held {
			say("5 context", fmt.Sprintf("%d things wait for the end of the caller's context, plainly %d", b.held, a.held))
		}
	}
	for _, p := range []*rangePlay{plain, hedged} {
		list.findings = append(list.findings, p.notes...)
		if what := w.findMixedVersions(p.results); what != "" {
			add("1 bytes", "hedged %v: %s", p.hedged, what)
		}
		if p.open != 0 {
			add("5 bodies", "hedged %v: %d are open", p.hedged, p.open)
		}
	}
	if a, b := plain.next, hedged.next; a.succeeded() && (!b.succeeded() || b.end > a.end+timeTolerance) {
		add("5 next read", "plain %v, hedged %v", a, b)
	}
	w.checkCounters(hedged, add)
	return list.findings
}

// checkEnd checks the result of a read and its time.
func (w *rangeScenario) checkEnd(c *rangeRead, a, b *rangeResult, hedged *rangePlay, say reportFunc) {
	stopped := endsBy(c.deadline, c.cancel, a.end) || endsBy(c.deadline, c.cancel, b.end)
	whose := w.store.replaced > 0 && w.store.shared // the version of whoever has the first answer
	breakOff, stall := c.hedgeFaults()              // the attempt with the earliest first byte is read, and the others are cancelled
	bound := 4 * maxHoldTime(a.end, hedged.memory.longestUntil(b.began+a.end), true)
	switch {
	case a.isStuck():
	case b.isStuck():
		say("2 hang", "it never returns")
	case a.panicked != "":
	case b.panicked != "" && whose && a.err == rangeread.ErrChanged.Error(): // the plain read ended before its Fetch panicked
	case b.panicked != "":
		say("4 panic", "it does not panic plainly")
	case whose || stopped || breakOff:
	case stall && w.store.replaced > 0 && b.err == rangeread.ErrChanged.Error(): // meanwhile
	case a.succeeded() || a.err == io.EOF.Error():
		one := w.store.replaced == 0 // otherwise the size depends on the version, see findMixedVersions
		if !b.succeeded() && b.err != io.EOF.Error() || one && b.err != a.err {
			say("1 worse", "it succeeds plainly")
		} else if one && len(a.got) != len(b.got) {
			say("1 bytes", "not as many")
		} else if b.end > a.end+timeTolerance && !stall {
			say("1 later", "")
		}
	case b.succeeded() || b.err == io.EOF.Error() || w.store.replaced > 0 && b.err == rangeread.ErrChanged.Error():
	case b.err != a.err:
		say("2 error", "it is another one")
	case b.end > a.end+bound+timeTolerance && !stall:
		say("2 held", fmt.Sprintf("the failure is held, for %v at most", bound))
	}
	for _, end := range []time.Duration{c.deadline, c.cancel} {
		if end > 0 && b.end > end+timeTolerance && a.end <= end+timeTolerance {
			say("1 deadline", "it returns late")
		}
	}
}

// findMixedVersions returns an error text unless the bytes of each Reader are of one version.
func (w *rangeScenario) findMixedVersions(results []*rangeResult) string {
	possible := [2]bool{true, w.store.replaced > 0}
	for i, c := range w.reads {
		if !w.store.shared {
			possible = [2]bool{true, w.store.replaced > 0}
		}
		got := results[i].got
		for v := range possible {
			want := make([]byte, len(got))
			fillContent(int64(v), c.offset, want)
			ends := results[i].err != io.EOF.Error() || len(got) == 0 || c.offset+int64(len(got)) == w.store.size+1000*int64(v)
			possible[v] = possible[v] && bytes.Equal(got, want) && ends
		}
		if possible == [2]bool{} {
			return fmt.Sprintf("what read %d got, %v, is of no version, or not of that of the reads before", c.number, results[i])
		}
	}
	return ""
}

// checkCounters checks the counters and the budget of the store.
func (w *rangeScenario) checkCounters(p *rangePlay, add func(promise, format string, args ...any)) {
	s, share := p.store.Stats(), w.options.BudgetPercent/100
	hedges := s.FirstByteHedges + s.StallHedges
	if most := maxHedgeCount(share, int(s.Ranges)); float64(hedges) > most {
		add("3 budget", "%d hedges for %d ranges: %.0f at most", hedges, s.Ranges, most)
	}
	if most := share*float64(s.BytesRead) + float64(4*w.partSize()); float64(s.BytesHedged) > most {
		add("3 bytes", "hedges asked for %d bytes of %d: %.0f at most", s.BytesHedged, s.BytesRead, most)
	}
	if s.FirstByteWins > s.FirstByteHedges || s.StallWins > s.StallHedges || s.DeniedBytes > s.Denied || s.BytesTwice > s.BytesHedged || s.BytesSkipped > s.BytesRead {
		add("5 counters", "a part is larger than its whole: %+v", s)
	}
	if s.BytesRead != p.read {
		add("5 counters", "%d bytes were read, and %d are counted", p.read, s.BytesRead)
	}
	if s.BytesHeld != 0 {
		add("5 memory", "%d bytes are held", s.BytesHeld)
	}
}
