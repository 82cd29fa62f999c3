package worlds_test

import (
	"fmt"
	"time"
)

// check plays the scenario and returns the broken promises.
func (w *doScenario) check(s *stage) []finding {
	plain, hedged := playDo(s, w, false, 0), playDo(s, w, true, 0)
	for _, p := range []*doPlay{plain, hedged} {
		s.log("hedged %v: %v next %v %s %v", p.hedged, p.results, p.next, p.broken, p.notes)
	}
	var list findingList
	add := list.add
	if plain.broken != "" {
		return nil
	}
	if hedged.broken != "" {
		return []finding{{"5 goroutines", hedged.broken}}
	}
	calm := true
	for i, c := range w.calls {
		calm = calm && c.returnsAlways()
		a, b := plain.results[i], hedged.results[i]
		say := func(promise, what string) { add(promise, "call %d: %s; plain %v, hedged %v", c.number, what, a, b) }
		w.checkEnd(c, a, b, maxHoldTime(a.end, hedged.memory.longestUntil(b.began+a.end), w.past.teachesLatency(w.client.maxKeys, w.client.change)), say)
		w.checkLeftovers(c, a, b, hedged.runs[c.number], say)
	}
	list.findings = append(list.findings, hedged.notes...)
	if a, b := plain.next, hedged.next; a.succeeded() && (!b.succeeded() || b.end > a.end+timeTolerance) {
		add("5 next call", "plain %v, hedged %v", a, b)
	}
	calls := w.past.calls + len(w.calls)
	if most := maxHedgeCount(w.client.share, calls); float64(hedged.hedges.Load()) > most {
		add("3 budget", "%d hedges, %d calls, %d keys: %.0f at most", hedged.hedges.Load(), calls, w.past.hosts, most)
	}
	v := hedged.stats.Snapshot()
	if wrong := hedged.counter.findInconsistency(v, calls+1); wrong != "" && calm {
		add("5 counters", "%s", wrong)
	}
	if calm && v.HedgePanics > 0 {
		add("4 panic counted", "%d panics are counted, and nothing panics", v.HedgePanics)
	}
	return list.findings
}

// checkEnd checks the result of a call and its time.
func (w *doScenario) checkEnd(c *doCall, a, b *doResult, bound time.Duration, say reportFunc) {
	stopped := endsBy(c.deadline, c.cancel, a.end) || endsBy(c.deadline, c.cancel, b.end)
	switch {
	case a.isStuck():
	case b.isStuck():
		say("2 hang", "it never returns")
	case a.panicked != "" || a.exited:
	case b.panicked != "" || b.exited:
		say("4 panic", "it does not panic or exit plainly")
	case a.succeeded() && !b.succeeded():
		if !stopped {
			say("1 worse", "it succeeds plainly")
		}
	case a.succeeded():
		if b.end > a.end+timeTolerance {
			say("1 later", "")
		} else if b.value != a.value && c.value != "text" {
			say("1 bytes", "another value")
		}
	case !b.succeeded():
		if c.deadline > 0 {
			bound = min(bound, max(0, c.deadline-a.end))
		}
		if c.cancel >= 0 {
			bound = min(bound, max(0, c.cancel-a.end))
		}
		if b.end > a.end+bound+timeTolerance {
			say("2 held", fmt.Sprintf("the failure is held, for %v at most", bound))
		}
		if a.err != b.err && !stopped {
			say("2 error", "it is another one")
		}
	}
}

// checkLeftovers checks that nothing of a call is left, and the start times of its attempts.
func (w *doScenario) checkLeftovers(c *doCall, a, b *doResult, runs []*doAttempt, say reportFunc) {
	winner := int64(0)
	if b.succeeded() {
		winner = 1 // its context ends with the caller's, so that rows can be read
	}
	if b.held > a.held+winner {
		say("5 context", fmt.Sprintf("%d things wait for the end of the caller's context, plainly %d", b.held, a.held))
	}
	if b.succeeded() && b.contextOver && !b.callerOver {
		say("1 context", "the context of the attempt that won has ended")
	}
	for _, x := range b.values {
		if !x.taken && x.closed != 1 {
			say("5 value", fmt.Sprintf("the value of attempt %d, which lost, is closed %d times", x.attempt, x.closed))
		}
	}
	failed := time.Duration(0)
	for _, r := range runs {
		if r.attempt == 0 && r.failed > 0 {
			failed = r.failed
		}
	}
	for _, r := range runs {
		if failed > 0 && r.attempt > 0 && r.at > failed+ms {
			say("2 hedge after failure", fmt.Sprintf("the first attempt failed at %v, and attempt %d came at %v", failed, r.attempt, r.at))
		}
	}
}
