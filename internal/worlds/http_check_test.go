package worlds_test

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// A httpChecker compares two plays of a scenario.
type httpChecker struct {
	findingList
	w             *httpScenario
	plain, hedged *httpPlay
	again         func(act int) *httpPlay  // a plain play in which the server treats attempt 0 as another one
	by            func(call int) *httpPlay // a plain play of one call by itself
}

// check plays the scenario and returns the broken promises.
func (w *httpScenario) check(s *stage) []finding {
	again := memoize(func(act int) *httpPlay { return playHTTP(s, w, false, act, everyCall) })
	j := &httpChecker{w: w, plain: again(0), hedged: playHTTP(s, w, true, 0, everyCall), again: again}
	j.by = memoize(func(call int) *httpPlay { return playHTTP(s, w, false, max(j.hedged.results[call-1].act, 0), call) })
	for _, p := range []*httpPlay{j.plain, j.hedged} {
		s.log("hedged %v: %v next %v %s %v", p.hedged, p.results, p.next, p.broken, p.notes)
		for number, all := range p.arrivals {
			for _, a := range all {
				s.log("  call %d: %+v", number, *a)
			}
		}
	}
	if j.plain.broken != "" {
		return nil // the scenario itself is invalid
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

func (j *httpChecker) call(c *httpCall, a, b *httpResult) {
	say := func(promise, what string) { j.add(promise, "call %d: %s; plain %v, hedged %v", c.number, what, a, b) }
	if j.w.server.unmarked && (j.delayByOthers(c) > 0 || j.w.way.dialling > 0 || j.w.way.lags > 0) {
		return // a hedge can overtake its primary, and is then taken for that
	}
	if refused := func(r *httpResult) bool { return r.status == 401 && r.act == 0 }; (j.w.server.connAuth || j.w.server.nonce) && (refused(a) || refused(b)) {
		return // the primary: which connection it gets is up to net/http, and a hedge can overtake it and take the nonce
	}
	switch {
	case a.panicked != "" || a.isStuck():
		return
	case b.panicked != "":
		j.checkPanic(c, b, say)
		return
	case b.isStuck():
		say("2 hang", "it never returns")
		return
	}
	j.checkEnd(c, a, b, say)
	if a.answered() && b.answered() {
		j.checkAnswer(c, a, b, say)
	}
	for _, s := range b.wrong {
		if !slices.Contains(a.wrong, s) { // net/http's own late use of a call that has failed
			say("6 touched", s)
		}
	}
	if b.open && !a.open {
		say("6 body open", "the request's body is not closed")
	}
	if b.held > a.held {
		say("5 context", fmt.Sprintf("%d things wait for the end of the caller's context, plainly %d", b.held, a.held))
	}
	j.checkArrivals(c, b, say)
	j.checkNoWait(c, b, say)
	j.checkNesting(c, say)
	j.checkEndpoints(c, say)
}

// checkPanic checks a panic that reached the caller. It must come from the winner, from the attempt that resumed its
// body, or from a function that classifies responses.
func (j *httpChecker) checkPanic(c *httpCall, b *httpResult, say reportFunc) {
	if strings.Contains(b.panicked, "FailureFunc") {
		return
	}
	acts := []int{max(b.act, 0)}
	if b.act < 0 && j.w.way.layers > 1 { // the layer below may have chosen another one
		acts = []int{0, 1, 2, 3}
	}
	for _, a := range j.hedged.arrivals[c.number] {
		if j.w.client.resume && b.act >= 0 && a.attempt > b.act {
			acts = append(acts, a.attempt)
		}
	}
	for _, act := range acts {
		if alone := j.again(act); alone.broken != "" || !alone.results[c.number-1].answered() { // it panics, or had no answer to panic in
			return
		}
	}
	say("4 panic", b.panicked)
}

// delayByOthers returns the longest additional latency of a call because hedges of other calls occupy connections. A
// hedge occupies its connection until the end of its call, which rule R2 bounds, and for the time that losers have
// after that.
func (j *httpChecker) delayByOthers(c *httpCall) (d time.Duration) {
	if j.w.way.maxConns == 0 && j.w.way.bulkhead == 0 && j.w.server.places == 0 {
		return 0
	}
	after := j.maxLinger()
	for i, other := range j.w.calls {
		a, b := j.plain.results[i], j.hedged.results[i]
		if other == c || a.isStuck() {
			continue
		}
		d += a.end + j.maxHold(other, a.header, b) + after
		if alone := j.again(max(b.act, 0)); alone.broken == "" {
			d += max(0, alone.results[i].end-a.end) // the body of a hedge may take longer
		}
	}
	for _, a := range j.hedged.arrivals[c.number] {
		if j.w.server.places == 0 || a.attempt == 0 {
			break
		}
		if alone := j.again(a.attempt); alone.broken == "" { // a hedge that has overtaken its primary is before it in the server's line
			d += alone.results[c.number-1].end
		}
	}
	if j.w.client.warm > 0 {
		d += 300*ms + j.warmTime()
	}
	if j.w.past.outage > 0 {
		d += after
	}
	return d
}

// tolerance returns the time by which an event may be later than with the plain client. A call may need a new
// connection because a loser uses that of its primary, or was closed with it. Another endpoint may be farther away.
func (j *httpChecker) tolerance() time.Duration {
	return timeTolerance + j.w.way.dialling + j.w.elsewhere.away
}

// warmTime returns the time for which requests of Warm occupy connections, one after another.
func (j *httpChecker) warmTime() time.Duration {
	return time.Duration(j.w.client.warm) * j.w.way.dialling
}

// maxLinger returns the longest time for which a loser may run on.
func (j *httpChecker) maxLinger() time.Duration {
	d := j.w.client.linger + 110*ms
	if j.w.way.layers > 1 {
		d += time.Second + 110*ms // by the layer below
	}
	return d
}

// maxHold returns the longest time for which rule R2 holds a failure that came after d, in the hedged call b.
func (j *httpChecker) maxHold(c *httpCall, d time.Duration, b *httpResult) (held time.Duration) {
	// The latency of the call's key is known.
	known := j.w.past.teachesLatency(j.w.client.maxKeys, j.w.client.change) && !j.w.client.routed && !j.w.client.judges && !j.w.elsewhere.quicker && !j.w.elsewhere.down
	for range j.w.way.layers { // each layer holds the failures of the layer below
		more := maxHoldTime(d, j.hedged.memory.longestUntil(b.began+d), known)
		d, held = d+more, held+more
	}
	if j.w.elsewhere.endpoints > 0 {
		held += maxFailoverTime(j.hedged.records(c.number), 0, d)
	}
	return held
}

// checkEnd checks the header of a call and its time.
func (j *httpChecker) checkEnd(c *httpCall, a, b *httpResult, say reportFunc) {
	patience := j.delayByOthers(c)
	ended, endedHedged := a.header, b.header
	if j.w.client.firstByte && b.answered() {
		ended = max(ended, a.first)
	}
	unread := j.w.client.firstByte && a.body == "" // when the first byte was there is not known
	stopped := c.callerEndsBy(b.end) || c.callerEndsBy(ended)
	if b.answered() && b.status == j.w.client.answer && endedHedged <= ended+j.tolerance()+patience {
		return
	}
	sending := time.Duration(0)                       // net/http waits for a Read of the body that it sends, once it has a connection
	learns := c.hasSafeMethod() && !j.w.client.judges // then the body is read before a connection is asked for
	if (patience > 0 || j.w.way.dialling > 0) && !learns {
		sending = c.bodyAt
	}
	switch {
	case a.succeeded() && !b.succeeded():
		inLine := j.w.way.headerTimeout > 0 && patience > 0 // that timeout counts the time in which others have the place
		if !stopped && !inLine && !(j.w.client.judges && b.answered()) {
			say("1 worse", "it succeeds plainly")
		}
	case a.succeeded():
		if j.w.client.judges {
			patience += j.maxHold(c, ended, b)
		}
		if endedHedged > ended+j.tolerance()+patience && !unread {
			say("1 later", "the header")
		}
	case !b.succeeded():
		bound := j.maxHold(c, ended, b)
		if c.deadline > 0 {
			bound = min(bound, max(0, c.deadline-ended))
		}
		if c.cancel >= 0 {
			bound = min(bound, max(0, c.cancel-ended))
		}
		allowed := bound + j.tolerance() + patience
		if stopped {
			allowed += sending
		}
		if endedHedged > ended+allowed && !unread && !(patience > 0 && endedHedged <= j.endWithoutOthers(c)+allowed) {
			say("2 held", fmt.Sprintf("the failure is held, for %v at most", bound))
		}
		farther := j.w.elsewhere.down || j.w.elsewhere.quicker || j.w.client.judges && j.w.elsewhere.away > 0 // all endpoints may be ejected
		if a.err != b.err && !((stopped || j.w.way.headerTimeout > 0) && (patience > 0 || j.w.way.dialling > 0 || farther)) && !(j.w.client.judges && b.answered()) {
			say("2 error", "it is another one")
		} else if a.answered() && b.answered() && a.status != b.status && !j.w.client.judges {
			say("2 status", "it is another failure")
		}
	}
	for _, end := range []time.Duration{c.deadline, c.cancel} {
		if end > 0 && endedHedged > end+sending+timeTolerance && ended <= end+timeTolerance && !(patience > 0 && j.endWithoutOthers(c) > end+timeTolerance) {
			say("1 deadline", "it returns late")
		}
	}
}

// endWithoutOthers returns when the call ends with the plain client and without other calls. Some calls ignore their
// context once they have a connection or an endpoint; net/http does so while it reads a body.
func (j *httpChecker) endWithoutOthers(c *httpCall) time.Duration {
	return j.by(c.number).results[c.number-1].header
}

// callerEndsBy reports whether the deadline or the cancellation of the caller is before t or at about t.
func (c *httpCall) callerEndsBy(t time.Duration) bool {
	return endsBy(c.deadline, c.cancel, t)
}

// checkAnswer compares an answer with the response of the winner alone.
func (j *httpChecker) checkAnswer(c *httpCall, plain, b *httpResult, say reportFunc) {
	alone := plain
	if b.act > 0 {
		play := j.again(b.act)
		if play.broken != "" {
			return
		}
		alone = play.results[c.number-1]
	}
	if !alone.answered() || alone.status != b.status || b.status == 401 && (j.w.server.connAuth || j.w.server.nonce) {
		return // the order of the calls and their connections differ
	}
	elsewhere := j.checkOrigin(c, b, say)
	copies := j.w.http2 && j.w.server.tls && c.body != "" // net/http, over a connection that was there before
	if !elsewhere && (plain.ownRequest != b.ownRequest && !copies || alone.url != b.url) {
		say("6 request", fmt.Sprintf("Response.Request is the caller's: %v, %s; plainly %v, %s", b.ownRequest, b.url, plain.ownRequest, alone.url))
	}
	stopped, reading, readingAlone := c.callerEndsBy(b.end) || c.callerEndsBy(alone.end), b.end-b.header, alone.end-alone.header
	switch {
	case stopped:
	case b.bodyErr != "" && alone.bodyErr == "" && j.w.client.resume && c.hasTruncatedBody() && !j.isReplaceable(c): // by a rest that had taken over
	case b.bodyErr != "" && alone.bodyErr == "":
		say("1 body error", fmt.Sprintf("alone it is whole: %v", alone))
	case b.bodyErr != "" && reading > readingAlone+j.maxHold(c, b.header+readingAlone, b)+timeTolerance && j.delayByOthers(c) == 0 && len(b.body) <= len(alone.body):
		say("2 body held", fmt.Sprintf("alone it fails sooner: %v", alone))
	case b.bodyErr != "" || alone.bodyErr != "":
	case alone.body != b.body || alone.length != b.length || alone.trailer != b.trailer && c.readsWholeBody(): // before the end, a trailer may be there or not
		say("1 bytes", fmt.Sprintf("length %d trailer %s; alone length %d trailer %s %v", b.length, b.trailer, alone.length, alone.trailer, alone))
	case reading > max(readingAlone, j.resumeTime(c, b)-b.header)+timeTolerance && !j.w.client.firstByte && j.delayByOthers(c) == 0:
		say("1 body later", fmt.Sprintf("alone: %v", alone))
	}
}

// isReplaceable reports whether a body that fails after a rest of it has taken over can be replaced by one more rest: the
// call has hedges left, or the last rest that was asked for is whole and comes at once.
func (j *httpChecker) isReplaceable(c *httpCall) bool {
	all := j.hedged.arrivals[c.number]
	if j.w.client.share == 1 && j.w.client.change == "" && len(all) <= cmp.Or(j.w.client.maxHedges, defaultMaxHedges) {
		return true
	}
	last := c.acts[min(all[len(all)-1].attempt, len(c.acts)-1)]
	return !last.cut && !last.reset && last.wait == 0 && last.status == http.StatusOK
}

// resumeTime returns the latest time, since the start of the call, at which a resumed body is read. The original
// response is closed when the rest is requested, and is not read even if the rest stalls as well. The pauses of the
// reader are included.
func (j *httpChecker) resumeTime(c *httpCall, b *httpResult) (latest time.Duration) {
	if !j.w.client.resume {
		return 0
	}
	for order, a := range j.hedged.arrivals[c.number] {
		n := a.attempt
		if j.w.server.unmarked {
			n = order
		}
		if act := c.acts[min(n, len(c.acts)-1)]; n > b.act {
			latest = max(latest, a.at-b.began+act.hintAt+5*ms+act.wait+j.w.past.outage+act.stall)
		}
	}
	return latest + c.readerPauses(len(b.body))
}

// checkArrivals checks the requests of a call at the server.
func (j *httpChecker) checkArrivals(c *httpCall, b *httpResult, say reportFunc) {
	all, usual := j.hedged.arrivals[c.number], max(1, len(j.plain.arrivals[c.number]))
	if len(all) > usual && !c.hasSafeMethod() && !c.allowed && !j.w.client.isDeclaredSafe(c) {
		say("3 write repeated", fmt.Sprintf("%s %s came %d times", c.method, c.path, len(all)))
	} else if len(all) > usual && c.isSingleUse(j.w.client.firstByte) {
		say("3 once", fmt.Sprintf("%s %s with %q came %d times", c.method, c.path, c.header, len(all)))
	}
	if len(all) == 0 || j.w.server.unmarked || j.w.server.places > 0 {
		return // behind a Limiter, a request arrives when it has a place
	}
	failed, records := time.Duration(0), j.hedged.records(c.number)
	for _, a := range all {
		if a.attempt == 0 && a.failed > 0 {
			failed = a.failed
		}
	}
	for i, a := range all {
		if a.attempt == 0 {
			continue
		}
		since := failed
		if j.w.way.bulkhead > 0 {
			since = max(failed, b.began+b.header) // a failure that is held gives its place to a hedge
		}
		// The rest of a hedge's body goes where primaries go, and so does the rest of a rest.
		restOfRest := slices.ContainsFunc(all, func(p *arrival) bool { return p.attempt > 0 && p.attempt < a.attempt && p.at >= b.began+b.header })
		rest := j.w.client.resume && (b.act > 0 && a.attempt > b.act || restOfRest)
		// With WithFirstByte a failure counts when its first byte arrives. The properties of a base for hedges alone
		// are unknown before its first answer. A layer may send a hedge while the layer below holds a failure.
		unknown := j.w.client.firstByte || j.w.way.layers > 1 || j.w.way.bulkhead > 0 && j.w.way.second
		late := ms + j.w.way.dialling
		if failed > 0 && a.at > since+late && !unknown && !rest && !startedByFailure(records, records[i], late) {
			say("2 hedge after failure", fmt.Sprintf("the primary failed at %v, and attempt %d came at %v", failed, a.attempt, a.at))
		}
		if j.w.http2 && !j.w.way.wrapped && !j.w.way.registered && !rest && j.w.way.layers == 1 && all[0].attempt == 0 && a.conn == all[0].conn {
			say("1 same connection", fmt.Sprintf("attempt %d shares the primary's", a.attempt))
		}
	}
	over := b.began + b.header
	for _, a := range all {
		grace := j.maxLinger()
		if c.acts[min(a.attempt, len(c.acts)-1)].hint > 0 {
			grace += time.Second // without a hook for statuses of 1xx, a loser that got one is taken for one that is being answered
		}
		if a.attempt != b.act && !j.w.client.resume && b.act >= 0 && a.left > over+grace {
			say("5 loser runs", fmt.Sprintf("attempt %d until %v, %v after the call", a.attempt, a.left, a.left-over))
		}
	}
}

// checkNoWait checks that a call returns a success when it arrives and does not wait for a loser.
func (j *httpChecker) checkNoWait(c *httpCall, b *httpResult, say reportFunc) {
	y := &j.w.way
	if !b.succeeded() || b.act < 0 || j.w.server.unmarked || j.w.client.firstByte || j.w.client.judges || y.cache || c.body == "pipe" || strings.HasPrefix(y.panics, "roundtrip") {
		return
	}
	answers := time.Duration(0)
	for _, a := range j.hedged.arrivals[c.number] {
		if a.attempt == b.act {
			answers = max(answers, a.answers)
		}
	}
	if returns := b.began + b.header; answers > 0 && returns > answers+timeTolerance {
		say("1 first success", fmt.Sprintf("attempt %d is answered at %v, and the call returns at %v", b.act, answers, returns))
	}
}

// defaultMaxHedges is the largest number of hedges of a call without WithMaxHedges.
const defaultMaxHedges = 2

// checkNesting checks that two layers of hedging hedge a call once.
func (j *httpChecker) checkNesting(c *httpCall, say reportFunc) {
	if j.w.way.layers == 1 || j.w.client.resume || j.w.elsewhere.endpoints > 0 {
		return
	}
	most := max(1, len(j.plain.arrivals[c.number])) + max(defaultMaxHedges, j.w.client.maxHedges)
	if n := len(j.hedged.arrivals[c.number]); n > most {
		say("3 nested", fmt.Sprintf("it came %d times, and %d are allowed", n, most))
	}
}

// isDeclaredSafe reports whether a pattern of the user declares the call safe to repeat.
func (c *httpClient) isDeclaredSafe(call *httpCall) bool {
	for _, pattern := range c.routes {
		method, path, ok := strings.Cut(pattern, " ")
		if !ok {
			method, path = call.method, pattern
		}
		subtree := strings.HasSuffix(path, "/") && strings.HasPrefix(call.path, path)
		wild := strings.HasSuffix(path, "/{id}") && strings.HasPrefix(call.path, "/items/") && len(call.path) > len("/items/")
		if method == call.method && (path == call.path || subtree || wild) {
			return true
		}
	}
	return false
}

// checkTotals checks the properties of all calls together.
func (j *httpChecker) checkTotals() {
	p, h := j.plain, j.hedged
	told := map[string]bool{}
	for _, n := range p.notes {
		told[n.Promise] = true
	}
	for _, n := range h.notes {
		if !told[n.Promise] {
			j.findings = append(j.findings, n)
		}
	}
	if h.openLate > p.openLate {
		j.add("5 bodies", "%d bodies of responses are open, plainly %d", h.openLate, p.openLate)
	}
	if h.connsEnd > p.connsEnd {
		j.add("5 connections", "%d are left, plainly %d", h.connsEnd, p.connsEnd)
	}
	warming := time.Duration(0)
	if j.w.way.bulkhead > 0 {
		warming = j.warmTime()
	}
	if a, b := p.next, h.next; a.succeeded() && !j.w.client.judges && (!b.succeeded() || b.header > a.header+j.tolerance()+warming) {
		j.add("5 next call", "plain %v, hedged %v", a, b)
	}
	if limit := j.w.way.maxConns; limit > 0 {
		pools := 1
		if !j.w.way.wrapped && (!j.w.way.second || j.w.way.layers > 1) {
			pools++ // hedges have connections of their own
		}
		if j.w.way.second {
			pools++
		}
		limit *= pools
		// Over HTTP/2, net/http exceeds the limit itself where connections do not stay open.
		ends := j.w.http2 && (j.w.way.noKeepAlives || j.w.client.change == "closeIdle" || j.w.closesConnections())
		nameless := j.w.way.replicas && j.w.past.hosts > 1 // hedges to all hosts are dialled by address
		if h.peak > max(limit, 2*p.peak) && !ends && !nameless {
			j.add("5 limit", "%d connections at once, plainly %d, MaxConnsPerHost %d", h.peak, p.peak, j.w.way.maxConns)
		}
	}
	calls := j.w.past.calls + len(j.w.calls)
	most := maxHedgeCount(j.w.client.share, calls) * float64(j.w.way.layers)
	if float64(h.hedges) > most {
		j.add("3 budget", "%d hedges, %d calls, %d hosts: %.0f at most", h.hedges, calls, j.w.past.hosts, most)
	}
	if dear := float64(2 * j.w.elsewhere.cost); float64(h.spent) > most+dear && j.w.way.layers == 1 {
		j.add("3 cost", "hedges cost %d, %d calls, %d hosts: %.0f at most, and the dearest twice: %.0f", h.spent, calls, j.w.past.hosts, most, dear)
	}
	if n := h.prepared.Load(); n > 0 && !strings.HasPrefix(j.w.way.panics, "roundtrip") { // a panic leaves bodies open
		j.add("5 bodies", "%d bodies that Prepare has set are open", n)
	}
	for _, r := range append(h.results, h.next) {
		if r.panicked != "" || r.isStuck() {
			return
		}
	}
	counted := h.stats.Snapshot()
	counted.HedgesSent += h.counter.refused.Load()
	if wrong := h.counter.findInconsistency(counted, calls+1); wrong != "" && !j.w.client.judges {
		j.add("5 counters", "%s", wrong)
	}
}
