//go:build !hedge_nogrpc

package worlds_test

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
)

// A grpcJudge compares two plays of a world.
type grpcJudge struct {
	w             *grpcWorld
	plain, hedged *grpcPlay
	again         func(act int) *grpcPlay
	findings      []finding
}

func (w *grpcWorld) judge(s *stage) []finding {
	again := once(func(act int) *grpcPlay { return playGRPC(s, w, false, act) })
	j := &grpcJudge{w: w, plain: again(0), hedged: playGRPC(s, w, true, 0), again: again}
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
	j.whole()
	return j.findings
}

func (j *grpcJudge) add(promise, format string, args ...any) {
	j.findings = append(j.findings, finding{promise, fmt.Sprintf(format, args...)})
}

func (j *grpcJudge) call(c *grpcCall, a, b *grpcResult) {
	say := func(promise, what string) { j.add(promise, "call %d: %s; plain %v, hedged %v", c.number, what, a, b) }
	switch {
	case a.panicked != "" || a.hung():
		return
	case b.panicked != "":
		say("4 panic", b.panicked)
		return
	case b.hung():
		say("2 hang", "it never returns")
		return
	case j.w.obeysPolicy(c):
		return // a policy has rules of its own
	}
	if end := j.deadline(c); end > 0 && b.end > max(end, a.end)+slack {
		say("2 timeout", fmt.Sprintf("it goes on after %v", end))
	}
	j.ending(c, a, b, say)
	j.answer(c, a, b, say)
	for _, s := range b.wrong {
		say("6 touched", s)
	}
	if b.held > a.held {
		say("5 context", fmt.Sprintf("%d things wait for the end of the caller's context, plainly %d", b.held, a.held))
	}
	j.arrivals(c, b, say)
}

// bound is how long rule R2 lets a failure be held that came after d, in the hedged call b.
func (j *grpcJudge) bound(c *grpcCall, d time.Duration, b *grpcResult) time.Duration {
	known := c.method == "GetItem" && !c.elsewhere && !j.w.client.fewKeys && j.w.past.teaches(0, j.w.client.change)
	return heldAtMost(d, j.hedged.memory.usual(b.began+d), known)
}

// patience is how much longer a call may take because hedges of others have the place that it needs: each for as long as its own
// call is out, which rule R2 bounds.
func (j *grpcJudge) patience(c *grpcCall) (d time.Duration) {
	if j.w.places == 0 {
		return 0
	}
	for i, other := range j.w.calls {
		a, b := j.plain.results[i], j.hedged.results[i]
		if other == c || a.hung() {
			continue
		}
		d += a.end + j.bound(other, a.first, b) + slack
		if alone := j.again(max(b.act, 0)); alone.broken == "" {
			d += max(0, alone.results[i].end-a.end) // a stream of a hedge may go on for longer
		}
	}
	return d
}

// deadline returns when a call ends at the latest: with the caller's deadline, or with the timeout of its method. An interceptor that asks for a
// token does so before gRPC starts the timeout. A service config that a resolver sends replaces the default one, which has the timeout.
func (j *grpcJudge) deadline(c *grpcCall) time.Duration {
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

// ending judges how and when a call ended: a stream, with its first message.
func (j *grpcJudge) ending(c *grpcCall, a, b *grpcResult, say verdict) {
	patience := j.patience(c)
	deadline := j.deadline(c)
	stopped := stops(deadline, c.cancel, a.first) || stops(deadline, c.cancel, b.first)
	bound := j.bound(c, a.first, b)
	if deadline > 0 {
		bound = min(bound, max(0, deadline-a.first))
	}
	if c.cancel >= 0 {
		bound = min(bound, max(0, c.cancel-a.first))
	}
	if answer := j.w.client.answer; answer != codes.OK && b.firstCode == answer {
		if end := a.first + slack + patience; b.first <= end || !a.good() && b.first <= end+bound {
			return
		}
	}
	switch {
	case a.good() && !b.good():
		if !stopped {
			say("1 worse", "it succeeds plainly")
		}
	case a.good():
		if b.first > a.first+slack+patience {
			say("1 later", "")
		}
	case !b.good():
		if b.first > a.first+bound+slack+patience {
			say("2 held", fmt.Sprintf("the failure is held, for %v at most", bound))
		}
		if a.err != b.err && !stopped {
			say("2 error", "it is another one")
		} else if a.messages != b.messages {
			say("2 reply", "what was in the reply before has changed")
		}
	}
}

// answer compares an answer with what the attempt that won gives alone.
func (j *grpcJudge) answer(c *grpcCall, plain, b *grpcResult, say verdict) {
	alone := plain
	if b.act > 0 {
		play := j.again(b.act)
		if play.broken != "" {
			return
		}
		alone = play.results[c.number-1]
	}
	if deadline := j.deadline(c); stops(deadline, c.cancel, b.end) || stops(deadline, c.cancel, alone.end) || alone.panicked != "" || alone.hung() || !b.good() || !alone.good() {
		return
	}
	switch {
	case b.err != alone.err && j.stops(c, b.act):
	case alone.messages != b.messages || alone.err != b.err:
		say("1 bytes", fmt.Sprintf("alone %v", alone))
	case alone.header != b.header || alone.trailer != b.trailer && c.reads != "one": // who cancels may do so before or after the trailer comes
		say("1 metadata", fmt.Sprintf("header and trailer are %s %s, alone %s %s", b.header, b.trailer, alone.header, alone.trailer))
	case alone.finished != b.finished && c.reads != "one": // as above
		say("1 finish", fmt.Sprintf("OnFinish is told %q, alone %q", b.finished, alone.finished))
	case b.end-b.first > alone.end-alone.first+slack && j.patience(c) == 0:
		say("1 body later", fmt.Sprintf("alone %v", alone))
	}
}

// arrivals judges what the server saw of a call.
func (j *grpcJudge) arrivals(c *grpcCall, b *grpcResult, say verdict) {
	all := j.hedged.arrivals[c.number]
	if len(all) > max(1, len(j.plain.arrivals[c.number])) && !j.w.mayRepeat(c) {
		say("3 write repeated", fmt.Sprintf("%s came %d times", c.method, len(all)))
	}
	j.conns(c, all, say)
	failed := time.Duration(0)
	for _, a := range all {
		if a.attempt == 0 {
			failed = a.failed
		}
	}
	for _, a := range all {
		if a.attempt > 0 && failed > 0 && a.at > failed+ms && !j.w.way.token && j.w.places == 0 { // it arrives when it has a place
			say("2 hedge after failure", fmt.Sprintf("the primary failed at %v, and attempt %d came at %v", failed, a.attempt, a.at))
		}
		over := b.began + b.first
		if b.act >= 0 && a.attempt != b.act && a.left > over+slack {
			say("5 loser runs", fmt.Sprintf("attempt %d until %v, %v after the call was decided", a.attempt, a.left, a.left-over))
		}
	}
}

// whole judges what no single call shows.
func (j *grpcJudge) whole() {
	p, h := j.plain, j.hedged
	j.findings = append(j.findings, h.notes...)
	if h.tokens > h.asked && !j.w.client.declared {
		j.add("3 write repeated", "interceptors ask for %d tokens, and the server is asked for %d", h.asked, h.tokens)
	}
	if a, b := p.next, h.next; a.good() && (!b.good() || b.first > a.first+slack) {
		j.add("5 next call", "plain %v, hedged %v", a, b)
	}
	calls := j.w.past.calls + len(j.w.calls)
	if most := hedgesAtMost(j.w.client.share, calls); float64(h.hedges) > most {
		j.add("3 budget", "%d hedges, %d calls: %.0f at most", h.hedges, calls, most)
	}
	for _, r := range h.results {
		if r.panicked != "" || r.hung() {
			return
		}
	}
	if wrong := h.counter.wrong(h.stats.Snapshot(), calls+1+h.asked); wrong != "" {
		j.add("5 counters", "%s", wrong)
	}
}
