//go:build !hedge_nogrpc

package worlds_test

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
)

// A grpcChecker compares two plays of a scenario.
type grpcChecker struct {
	findingList
	w             *grpcScenario
	plain, hedged *grpcPlay
	again         func(act int) *grpcPlay
}

// check plays the scenario and returns the broken promises.
func (w *grpcScenario) check(s *stage) []finding {
	again := memoize(func(act int) *grpcPlay { return playGRPC(s, w, false, act) })
	j := &grpcChecker{w: w, plain: again(0), hedged: playGRPC(s, w, true, 0), again: again}
	for _, p := range []*grpcPlay{j.plain, j.hedged} {
		s.log("hedged %v: %v next %v %s %v", p.hedged, p.results, p.next, p.broken, p.notes)
		for number, all := range p.arrivals {
			for _, a := range all {
				if number > 0 {
					s.log("  call %d: %+v", number, *a)
				}
			}
		}
	}
	if j.plain.broken != "" {
		return nil
	}
	if j.hedged.broken != "" {
		return []finding{{"5 goroutines", j.hedged.broken}}
	}
	for i, c := range w.calls {
		j.call(c, j.plain.results[i], j.hedged.results[i])
	}
	j.checkTotals()
	return j.findings
}

func (j *grpcChecker) call(c *grpcCall, a, b *grpcResult) {
	say := func(promise, what string) { j.add(promise, "call %d: %s; plain %v, hedged %v", c.number, what, a, b) }
	switch {
	case a.panicked != "" || a.isStuck():
		return
	case b.panicked != "":
		say("4 panic", b.panicked)
		return
	case b.isStuck():
		say("2 hang", "it never returns")
		return
	case j.w.obeysPolicy(c):
		return // a policy has rules of its own
	}
	if end := j.latestEnd(c); end > 0 && b.end > max(end, a.end)+timeTolerance {
		say("2 timeout", fmt.Sprintf("it goes on after %v", end))
	}
	j.checkEnd(c, a, b, say)
	j.checkAnswer(c, a, b, say)
	for _, s := range b.wrong {
		say("6 touched", s)
	}
	if b.held > a.held {
		say("5 context", fmt.Sprintf("%d things wait for the end of the caller's context, plainly %d", b.held, a.held))
	}
	j.checkArrivals(c, b, say)
}

// maxHold returns the longest time for which rule R2 holds a failure that came after d, in the hedged call b.
func (j *grpcChecker) maxHold(c *grpcCall, d time.Duration, b *grpcResult) time.Duration {
	known := c.method == "GetItem" && !c.elsewhere && !j.w.client.fewKeys && j.w.past.teachesLatency(0, j.w.client.change)
	held := maxHoldTime(d, j.hedged.memory.longestUntil(b.began+d), known)
	if len(j.w.way.conns) > 0 {
		held += maxFailoverTime(j.hedged.records(c.number), j.w.way.unseenFailures(), d)
	}
	return held
}

// delayByOthers returns the longest additional latency of a call because hedges of other calls occupy slots. A hedge
// occupies its slot until the end of its call, which rule R2 bounds.
func (j *grpcChecker) delayByOthers(c *grpcCall) (d time.Duration) {
	if j.w.places == 0 {
		return 0
	}
	for i, other := range j.w.calls {
		a, b := j.plain.results[i], j.hedged.results[i]
		if other == c || a.isStuck() {
			continue
		}
		d += a.end + j.maxHold(other, a.first, b) + timeTolerance
		if alone := j.again(max(b.act, 0)); alone.broken == "" {
			d += max(0, alone.results[i].end-a.end) // a stream of a hedge may go on for longer
		}
	}
	return d
}

// latestEnd returns the latest end of a call: the deadline of the caller, or the timeout of its method. An interceptor
// that requests a token does so before gRPC starts the timeout. A service config of a resolver replaces the default
// service config, which has the timeout.
func (j *grpcChecker) latestEnd(c *grpcCall) time.Duration {
	timeout := j.w.way.timeout
	if j.w.way.spelt && !c.elsewhere {
		timeout = 0
	}
	if timeout > 0 && j.w.way.token {
		timeout += tokenTakes
	}
	if timeout == 0 || c.deadline > 0 && c.deadline < timeout {
		return c.deadline
	}
	return timeout
}

// checkEnd checks the result of a call and its time. A stream ends with its first message.
func (j *grpcChecker) checkEnd(c *grpcCall, a, b *grpcResult, say reportFunc) {
	patience := j.delayByOthers(c)
	deadline := j.latestEnd(c)
	stopped := endsBy(deadline, c.cancel, a.first) || endsBy(deadline, c.cancel, b.first)
	bound := j.maxHold(c, a.first, b)
	if deadline > 0 {
		bound = min(bound, max(0, deadline-a.first))
	}
	if c.cancel >= 0 {
		bound = min(bound, max(0, c.cancel-a.first))
	}
	if answer := j.w.client.answer; answer != codes.OK && b.firstCode == answer {
		if end := a.first + timeTolerance + patience; b.first <= end || !a.succeeded() && b.first <= end+bound {
			return
		}
	}
	switch {
	case a.succeeded() && !b.succeeded():
		if !stopped {
			say("1 worse", "it succeeds plainly")
		}
	case a.succeeded():
		if b.first > a.first+timeTolerance+patience {
			say("1 later", "")
		}
	case !b.succeeded():
		if b.first > a.first+bound+timeTolerance+patience {
			say("2 held", fmt.Sprintf("the failure is held, for %v at most", bound))
		}
		if a.err != b.err && !stopped {
			say("2 error", "it is another one")
		} else if a.messages != b.messages {
			say("2 reply", "what was in the reply before has changed")
		}
	}
}

// checkAnswer compares an answer with the response of the winner alone.
func (j *grpcChecker) checkAnswer(c *grpcCall, plain, b *grpcResult, say reportFunc) {
	alone := plain
	if b.act > 0 {
		play := j.again(b.act)
		if play.broken != "" {
			return
		}
		alone = play.results[c.number-1]
	}
	if deadline := j.latestEnd(c); endsBy(deadline, c.cancel, b.end) || endsBy(deadline, c.cancel, alone.end) || alone.panicked != "" || alone.isStuck() || !b.succeeded() || !alone.succeeded() {
		return
	}
	switch {
	case b.err != alone.err && j.mayHaveStopped(c, b.act):
	case alone.messages != b.messages || alone.err != b.err:
		say("1 bytes", fmt.Sprintf("alone %v", alone))
	case alone.header != b.header || alone.trailer != b.trailer && c.reads != "one": // a cancellation may come before or after the trailer
		say("1 metadata", fmt.Sprintf("header and trailer are %s %s, alone %s %s", b.header, b.trailer, alone.header, alone.trailer))
	case alone.finished != b.finished && c.reads != "one": // as above
		say("1 finish", fmt.Sprintf("OnFinish is told %q, alone %q", b.finished, alone.finished))
	case b.end-b.first > alone.end-alone.first+timeTolerance && j.delayByOthers(c) == 0:
		say("1 body later", fmt.Sprintf("alone %v", alone))
	}
}

// checkArrivals checks the requests of a call at the server.
func (j *grpcChecker) checkArrivals(c *grpcCall, b *grpcResult, say reportFunc) {
	all := j.hedged.arrivals[c.number]
	if len(all) > max(1, len(j.plain.arrivals[c.number])) && !j.w.mayRepeat(c) {
		say("3 write repeated", fmt.Sprintf("%s came %d times", c.method, len(all)))
	}
	j.checkConns(c, all, say)
	failed, records := time.Duration(0), j.hedged.records(c.number)
	for _, a := range all {
		if a.attempt == 0 {
			failed = a.failed
		}
	}
	for i, a := range all {
		if a.attempt > 0 && failed > 0 && a.at > failed+ms && !j.w.way.token && j.w.places == 0 && !startedByFailure(records, records[i], ms) { // it arrives when it has a place
			say("2 hedge after failure", fmt.Sprintf("the primary failed at %v, and attempt %d came at %v", failed, a.attempt, a.at))
		}
		over := b.began + b.first
		if b.act >= 0 && a.attempt != b.act && a.left > over+timeTolerance {
			say("5 loser runs", fmt.Sprintf("attempt %d until %v, %v after the call was decided", a.attempt, a.left, a.left-over))
		}
	}
}

// checkTotals checks the properties of all calls together.
func (j *grpcChecker) checkTotals() {
	p, h := j.plain, j.hedged
	j.findings = append(j.findings, h.notes...)
	if j.w.way.outlier {
		j.checkOutlierCounts()
	}
	if h.tokens > h.asked && !j.w.client.declared {
		j.add("3 write repeated", "interceptors ask for %d tokens, and the server is asked for %d", h.asked, h.tokens)
	}
	if a, b := p.next, h.next; a.succeeded() && (!b.succeeded() || b.first > a.first+timeTolerance) {
		j.add("5 next call", "plain %v, hedged %v", a, b)
	}
	calls := j.w.past.calls + len(j.w.calls)
	if most := maxHedgeCount(j.w.client.share, calls); float64(h.hedges) > most {
		j.add("3 budget", "%d hedges, %d calls: %.0f at most", h.hedges, calls, most)
	}
	for _, r := range h.results {
		if r.panicked != "" || r.isStuck() {
			return
		}
	}
	if wrong := h.counter.findInconsistency(h.stats.Snapshot(), calls+1+h.asked); wrong != "" {
		j.add("5 counters", "%s", wrong)
	}
}
