package worlds_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/internal/dnstest"
)

// A dnsChecker compares the answers of the Client with those of the patient resolver.
type dnsChecker struct {
	findingList
	w               *dnsScenario
	patient, client *dnsPlay
}

// maxRecovery is the longest time in which the Client detects the return of a server that was gone for all questions.
// Probes are at most ten seconds apart, and every other probe may be a question that fails.
const maxRecovery = 30 * time.Second

// check plays the scenario and returns the broken promises.
func (w *dnsScenario) check(s *stage) []finding {
	dnstest.Certificate() // outside the bubbles
	j := &dnsChecker{w: w, patient: playDNS(s, w, true), client: playDNS(s, w, false)}
	for i, a := range w.asks {
		if a.what == "past" && j.client.results != nil && j.client.results[i].succeeded() && j.patient.results[i].succeeded() {
			continue
		}
		var x, y *dnsResult
		if j.patient.results != nil && j.client.results != nil {
			x, y = j.patient.results[i], j.client.results[i]
		}
		s.log("%s %v at %v: patient %v, client %v", a.what, a.dnsQuestionKey, a.at, x, y)
	}
	if j.patient.broken != "" {
		return []finding{{"0 patient", j.patient.broken}}
	}
	if j.client.broken != "" {
		return []finding{{"5 goroutines", j.client.broken}}
	}
	for _, q := range j.client.seen {
		s.log("server %d saw %v over %s at %v", q.server, q.key, q.net, q.at)
	}
	for _, t := range j.client.tries {
		s.log("client at %s", &t)
	}
	for i, a := range w.asks {
		if a.opcode != dns.OpcodeQuery {
			j.checkMessage(a, j.client.results[i])
			continue
		}
		if w.isHosted(a) {
			j.checkHosted(a, j.client.results[i])
			continue
		}
		j.checkQuestion(a, j.patient.results[i], j.client.results[i])
	}
	j.checkSentOnce()
	j.checkOrder()
	j.checkCoalescing()
	j.checkCached()
	j.checkQueryCount()
	j.checkUnhedged()
	return append(j.findings, j.client.notes...)
}

// checkQuestion checks the result of a question.
func (j *dnsChecker) checkQuestion(a *dnsQuestion, x, r *dnsResult) {
	say := func(promise, format string, args ...any) {
		j.add(promise, "%s %v at %v: %s; patient %v, client %v", a.what, a.dnsQuestionKey, a.at, fmt.Sprintf(format, args...), x, r)
	}
	took := r.end - r.began
	if most := j.latestEnd(a); took > most {
		say("2 held", "for %v at most", most)
	}
	j.checkRetransmissions(r, say)
	if j.w.way.front != "" && a.isMalformed() {
		if r.msg != nil && r.msg.Rcode != dns.RcodeFormatError {
			say("1 option", "it is malformed")
		}
		return
	}
	if r.msg != nil {
		if wrong := findFormError(a, r.msg); wrong != "" {
			say("1 form", "%s", wrong)
		}
	}
	if bound := j.maxFailureTime(a, r); !r.succeeded() && took > bound {
		say("2 late", "it fails after %v at most", bound)
	}
	switch {
	case r.closed:
	case a.noRD:
		if r.succeeded() && a.class == dns.ClassINET {
			say("1 without RD", "it is answered with what others asked for")
		}
	case r.succeeded():
		j.checkOrigin(a, r, say)
		bound := j.maxAnswerTime(a, x, r)
		if j.w.way.front == "udp" && strings.HasPrefix(a.name, "long") {
			bound *= 2 // it is asked again over TCP
		}
		if x.succeeded() && took > bound {
			say("1 later", "it takes %v at most", bound)
		}
	case x.succeeded() && !j.mayFail(a, x, r):
		say("1 lost", "a patient resolver is answered")
	}
}

// latestEnd returns the latest end of a question.
func (j *dnsChecker) latestEnd(a *dnsQuestion) time.Duration {
	most := j.w.client.timeout
	switch j.w.way.front {
	case "udp":
		return 2*most + timeTolerance // and over TCP
	case "serveDNS", "tcp":
		return most + timeTolerance + 20*ms
	}
	if a.deadline > 0 {
		most = min(most, a.deadline)
	}
	if a.cancel >= 0 {
		most = min(most, a.cancel)
	}
	return most + timeTolerance
}

// findFormError returns the error in the form of a response, or "".
func findFormError(a *dnsQuestion, m *dns.Msg) string {
	ask := a.newMessage()
	switch {
	case !m.Response, m.Opcode != dns.OpcodeQuery, m.RecursionDesired != ask.RecursionDesired, m.CheckingDisabled != a.cd:
		return "its flags are not those of a response to the question"
	case len(m.Question) != 1 || m.Question[0] != ask.Question[0]:
		return fmt.Sprintf("its question is %v", m.Question)
	case m.AuthenticatedData && !a.do:
		return "AD was not asked for"
	case (m.IsEdns0() != nil) != a.edns:
		return "an OPT record is there and was not asked for, or the other way round"
	case a.edns && m.IsEdns0().Do() != a.do:
		return "the DO bit is another one"
	case (&dnsResult{msg: m}).succeeded() && formatOptions(m) != a.options:
		return fmt.Sprintf("its options are%s", formatOptions(m))
	}
	return ""
}

// mayBeFaulty reports whether a fault of a server may affect a question between two times. A fault for all questions
// has effects for some time after its end. A fault for some questions affects these alone. The Client may treat a
// server without a good answer so far as down.
func (j *dnsChecker) mayBeFaulty(server int, k dnsQuestionKey, from, until time.Duration) bool {
	s := j.w.servers[server]
	if s.noTCP && strings.HasPrefix(k.name, "long") {
		return true
	}
	if j.w.way.change == "netdown" && from-maxRecovery <= j.w.way.changeAt+networkOutage && until >= j.w.way.changeAt {
		return true
	}
	known := j.answeredInWarmUp(server)
	if j.w.past.broken && !known && from-maxRecovery < j.w.start {
		return true
	}
	return slices.ContainsFunc(s.faults, func(f *dnsFault) bool {
		switch {
		case f.affectsAll():
			return f.isActiveDuring(from-maxRecovery, until)
		case f.matches(k):
			return f.isActiveDuring(from-time.Second, until)
		}
		return !known && f.on != "probe" && f.isActiveDuring(from-maxRecovery, until)
	})
}

// answeredInWarmUp reports whether the Client has an answer of a server from the warm-up.
func (j *dnsChecker) answeredInWarmUp(server int) bool {
	return j.w.past.calls > 0 && j.w.way.change != "import" && j.w.way.files != "confLate" && (server == 0 || !j.w.hasStrictOrder()) &&
		!slices.ContainsFunc(j.w.servers[server].faults, func(f *dnsFault) bool { return f.from < j.w.start-ms && f.affectsAll() })
}

// allHealthy reports whether no fault of a server may affect a question.
func (j *dnsChecker) allHealthy(k dnsQuestionKey, from, until time.Duration) bool {
	if j.w.way.change == "resolvConf" && from < j.w.way.changeAt+6*time.Second && until > j.w.way.changeAt {
		return false
	}
	if j.w.way.others && from < j.w.way.changeAt && until > j.w.way.changeAt {
		return false
	}
	for _, s := range j.w.serversAt(from, k.name) {
		if j.mayBeFaulty(s, k, from, until) {
			return false
		}
	}
	return true
}

// maxAnswerTime returns the longest time of an answer if the patient resolver has one.
func (j *dnsChecker) maxAnswerTime(a *dnsQuestion, x, r *dnsResult) time.Duration {
	return min(j.sharedQueryTime(a, r)+j.maxOwnAnswerTime(a, x, r), j.w.client.timeout+timeTolerance)
}

// maxOwnAnswerTime is maxAnswerTime without the effects of other questions.
func (j *dnsChecker) maxOwnAnswerTime(a *dnsQuestion, x, r *dnsResult) time.Duration {
	switch first := j.w.serversAt(r.began, a.name); {
	case !j.allReturnsWereDetected(a, r):
		return j.w.client.timeout + timeTolerance
	case j.allHealthy(a.dnsQuestionKey, r.began, r.end),
		j.w.hasStrictOrder() && !j.mayBeFaulty(first[0], a.dnsQuestionKey, r.began, r.end) && j.w.way.change != "resolvConf":
		if slices.ContainsFunc(first, func(s int) bool { return j.endsConnections(s, r) }) {
			return max(300*ms, maxSends*j.maxExchangeTime(first[0])+timeTolerance) + j.extraStreamWait(r)
		}
		return 300 * ms
	case j.w.hasStrictOrder():
		return j.w.client.timeout + timeTolerance
	}
	cut := j.w.way.change == "netdown" && r.began <= j.w.way.changeAt+networkOutage && r.end >= j.w.way.changeAt
	if cut || r.sent.more >= burst || j.isInOutage(a, r) || j.isOnlyHealthy(-1, a, r) && (j.lacksRetransmissions(a, r) || j.seemsSilent(a, r) || j.allLoseTwo(a, r)) {
		return j.w.client.timeout + timeTolerance
	}
	for i, b := range j.w.asks { // equal questions at the same time share an answer
		if o := j.patient.results[i]; b.dnsQuestionKey == a.dnsQuestionKey && b.at == a.at && o.end-o.began > x.end-x.began {
			x = o
		}
	}
	most := x.end - x.began + 3*time.Second + 200*ms + 5*timeTolerance // the last attempt begins with a hedge, and waits four timeouts, and for a round trip
	if slices.ContainsFunc(j.w.serversAt(r.began, a.name), func(s int) bool {
		return j.failedWith(s, a, r, r.end, "closes", io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE)
	}) {
		most += 2 * time.Second // the last attempt but one is lost as well, and the timeout doubles
	}
	for _, s := range j.w.serversAt(r.began, a.name) {
		if j.asksTwice(s) {
			most += j.maxServerDelay(s, a) + time.Second // it is asked again over TCP when it has answered
		}
	}
	return max(most, j.slowFirstQuery(a, r)+timeTolerance)
}

// slowFirstQuery returns the longest time of the first query to a server with slow answers. Without a hedge, the second
// query follows after three times the latency of the latest answers. A truncated answer is queried over TCP after that.
func (j *dnsChecker) slowFirstQuery(a *dnsQuestion, r *dnsResult) (most time.Duration) {
	for _, s := range j.w.serversAt(r.began, a.name) {
		for _, f := range j.w.servers[s].faults {
			if f.matches(a.dnsQuestionKey) && f.from < r.began-f.answerDelay() && f.isActiveDuring(r.began, r.began+timeTolerance) {
				late := f.answerDelay() + 2*oneWayDelay(s)
				if j.w.way.net == "udp" && strings.HasPrefix(a.name, "long") {
					if at := r.began + late; f.isActiveDuring(at, at+timeTolerance) {
						late += f.answerDelay()
					}
					late += 4 * oneWayDelay(s) // with the handshake
				}
				most = max(most, late)
			}
		}
	}
	return most
}

// sharedQueryTime returns the time that a question has waited for the queries of earlier callers with the same question.
// Their time is checked, unless they end early.
func (j *dnsChecker) sharedQueryTime(a *dnsQuestion, r *dnsResult) (most time.Duration) {
	for _, t := range j.client.tries {
		if strings.EqualFold(t.Name, a.name) && t.Type == a.typ && t.began < r.began && t.end > r.began {
			most = max(most, min(t.end, r.end)-r.began)
		}
	}
	return most
}

// allWithoutTCP reports whether no server has TCP.
func (j *dnsChecker) allWithoutTCP(a *dnsQuestion, r *dnsResult) bool {
	return !slices.ContainsFunc(j.w.serversAt(r.began, a.name), func(s int) bool { return !j.w.servers[s].noTCP })
}

// mayFail reports whether a question may fail though the patient resolver has an answer.
func (j *dnsChecker) mayFail(a *dnsQuestion, x, r *dnsResult) bool {
	change := j.w.way.changeAt
	switch j.w.way.change {
	case "close":
		if r.end >= change-timeTolerance {
			return true
		}
	case "netdown":
		if r.began <= change+networkOutage && r.end >= change {
			return true
		}
	case "resolvConf":
		if r.end >= change && r.end <= change+7*time.Second { // it looks every five seconds
			return true
		}
		serial, _ := serialOf(x.msg)
		if said := j.patient.said[serial]; said != nil && !slices.Contains(j.w.serversAt(x.end, a.name), said.server) {
			return true // the patient resolver waits for servers that the system names no more
		}
		if r.end < change && strings.HasPrefix(a.name, "long") && j.allWithoutTCP(a, r) { // they have said that they cannot answer
			return true
		}
	}
	if j.failedEverywhere(a, r) || j.w.mayBeUnread(r) {
		return true
	}
	well := j.allHealthy(a.dnsQuestionKey, r.began, r.end)
	if j.client.passesContext() && (a.deadline > 0 || a.cancel >= 0) {
		if a.callerEndsBy(x.end-x.began) || a.callerEndsBy(j.maxAnswerTime(a, x, r)) {
			return true
		}
	}
	if j.isCachedFailure(a, r) {
		return true
	}
	return !well && (j.isDecision(a, r) || j.lacksTime(a, r) || j.isOnlyHealthy(-1, a, r) && (j.isInOutage(a, r) || j.lacksRetransmissions(a, r) || j.losesTooMany(a, r) || j.disappearedWhileSlow(a, r) || j.lacksTimeForTwo(a, r) || j.waitsForConnections(a, r) || j.mayBeForged(a, r)) || j.lacksBudget(a, r) || j.lacksBudgetForReturnedServer(a, r))
}

// failedEverywhere reports whether a question failed at every server at once: each server reports that it cannot
// answer, closes the connection, or refuses connections. The Client returns that failure at once (see maxFailureTime).
// It does not ask again a server that answers a moment later.
//
// If no server reports that it cannot answer, the Client waits for a server that refuses connections. If a server does,
// the Client does not ask an apparently silent server without budget.
func (j *dnsChecker) failedEverywhere(a *dnsQuestion, r *dnsResult) bool {
	servers := j.w.serversAt(r.began, a.name)
	said, restarts := false, false
	for _, s := range servers {
		switch {
		case j.hasRefused(s, a, r):
			said = true
		case j.failedWith(s, a, r, r.began+immediately, "closes", io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE):
		case j.failedWith(s, a, r, r.began+immediately, "down", syscall.ECONNREFUSED), r.sent.more >= burst && j.endedAllConnections(s, r):
			restarts = true
		default:
			return false
		}
	}
	return len(servers) > 0 && (said || !restarts)
}

// hasRefused reports whether a server has reported that it cannot answer a question.
func (j *dnsChecker) hasRefused(server int, a *dnsQuestion, r *dnsResult) bool {
	return slices.ContainsFunc(j.client.failures, func(said dnsSentFailure) bool {
		return said.server == server && said.key == a.dnsQuestionKey && said.at >= r.began && said.at <= min(r.end, r.began+immediately) &&
			slices.ContainsFunc(j.w.servers[server].faults, func(f *dnsFault) bool {
				return f.isFailure() && f.matches(a.dnsQuestionKey) && f.isActiveDuring(said.at, said.at)
			})
	})
}

// endedAllConnections reports whether a server ended all connections at the start of a question, so that the Client may
// treat the server as down.
func (j *dnsChecker) endedAllConnections(server int, r *dnsResult) bool {
	return slices.ContainsFunc(j.w.servers[server].faults, func(f *dnsFault) bool {
		return f.affectsAll() && f.endsConnections() && f.isActiveDuring(r.began, r.began)
	})
}

// failedWith reports whether a query for a question had ended by a time with one of the errors because of a fault of
// that kind.
func (j *dnsChecker) failedWith(server int, a *dnsQuestion, r *dnsResult, until time.Duration, kind string, errs ...error) bool {
	return slices.ContainsFunc(j.client.tries, func(t dnsTracedQuery) bool {
		mine := strings.EqualFold(t.Name, a.name) && t.Type == a.typ && j.wasSentTo(server, &t)
		return mine && t.began >= r.began && t.end > 0 && t.end <= min(r.end, until) &&
			slices.ContainsFunc(errs, func(err error) bool { return errors.Is(t.err, err) }) &&
			slices.ContainsFunc(j.w.servers[server].faults, func(f *dnsFault) bool {
				return f.kind == kind && f.matches(a.dnsQuestionKey) && f.isActiveDuring(t.began, t.end)
			})
	})
}

// lacksRetransmissions reports whether a server has lost so many datagrams until the end of a question that its answers
// do not pay for all retransmissions.
func (j *dnsChecker) lacksRetransmissions(a *dnsQuestion, r *dnsResult) bool {
	for _, s := range j.w.serversAt(r.began, a.name) {
		lost := 0
		for _, f := range j.w.servers[s].faults {
			most := map[string]int{"drops1": burst - 1, "drops2": burst / 2, "half": burst / 2}[f.kind]
			if most == 0 || !f.matches(a.dnsQuestionKey) {
				continue
			}
			for _, b := range j.w.asks {
				if b.at <= r.end && f.matches(b.dnsQuestionKey) && f.isActiveDuring(b.at, b.at) {
					lost++
				}
			}
			if lost > most {
				return true
			}
		}
	}
	return false
}

// allLoseTwo reports whether several servers lose the first two queries of a question, and there is no other. The retransmission
// timeout doubles with each lost query, whichever server has lost it.
func (j *dnsChecker) allLoseTwo(a *dnsQuestion, r *dnsResult) bool {
	servers := j.w.serversAt(r.began, a.name)
	return len(servers) > 1 && !slices.ContainsFunc(servers, func(s int) bool {
		return !slices.ContainsFunc(j.w.servers[s].faults, func(f *dnsFault) bool {
			return f.kind == "drops2" && f.matches(a.dnsQuestionKey) && f.isActiveDuring(r.began, r.end)
		})
	})
}

// seemsSilent reports whether one of several servers loses the first query of each question. The Client treats a server
// as silent after three unanswered queries in a row, and asks the other servers three times more.
func (j *dnsChecker) seemsSilent(a *dnsQuestion, r *dnsResult) bool {
	servers := j.w.serversAt(r.began, a.name)
	return len(servers) > 1 && slices.ContainsFunc(servers, func(s int) bool {
		return slices.ContainsFunc(j.w.servers[s].faults, func(f *dnsFault) bool {
			before := 0
			for _, b := range j.w.asks {
				if b != a && b.at <= r.began && f.matches(b.dnsQuestionKey) && f.isActiveDuring(b.at, b.at) {
					before++
				}
			}
			return f.kind == "drops1" && f.matches(a.dnsQuestionKey) && f.isActiveDuring(r.began, r.end) && before > 0
		})
	})
}

// losesTooMany reports whether a server loses more queries of a question than there is time for. The retransmission
// timeout doubles with each lost query (RFC 6298), also with queries of other questions while none is answered.
//
// The timeout is a second at first, and later up to three times the latency of the latest answers. The last attempt
// also waits for another server, for a second if its latency is unknown.
func (j *dnsChecker) losesTooMany(a *dnsQuestion, r *dnsResult) bool {
	servers := j.w.serversAt(r.began, a.name)
	others := time.Duration(len(servers) - 1)
	for _, s := range servers {
		rto, wait, gone := time.Second, time.Duration(0), time.Duration(0)
		if s == servers[0] && j.answeredInWarmUp(s) && len(j.w.servers[s].faults) == 1 {
			rto = 250 * ms
		}
		rto <<= min(j.countFailedInARow(r.began), 3)
		for _, f := range j.w.servers[s].faults {
			if f.from <= r.end {
				rto = max(rto, 3*f.answerDelay())
			}
			if !f.matches(a.dnsQuestionKey) || !f.isActiveDuring(r.began, r.end) {
				continue
			}
			if f.isSilent(j.w.client.timeout) {
				gone = max(gone, f.until-r.began)
			}
			wait = max(wait, map[string]time.Duration{"drops1": 1, "drops2": 3, "half": 7}[f.kind])
			if f.kind == "half" { // which may lose all that there are
				wait = max(wait, 1<<j.countQueries(s, a, r)-1)
			}
		}
		doubled := (wait+1)<<others - 1 // by each query to another server too
		if wait > 0 && max(wait*rto+others*time.Second, doubled*rto)+gone >= j.w.client.timeout {
			return true
		}
	}
	return false
}

// countQueries returns the number of queries at a server during a question.
func (j *dnsChecker) countQueries(server int, a *dnsQuestion, r *dnsResult) (n int) {
	for _, q := range j.client.seen {
		if q.server == server && q.key == a.dnsQuestionKey && q.at >= r.began && q.at <= r.end {
			n++
		}
	}
	return min(n, 8)
}

// disappearedWhileSlow reports whether a slow server went away before it answered, and did not return. The Client did not ask
// it again: the retransmission timeout is up to three times the latency of the latest answers.
func (j *dnsChecker) disappearedWhileSlow(a *dnsQuestion, r *dnsResult) bool {
	return slices.ContainsFunc(j.w.serversAt(r.began, a.name), func(s int) bool {
		faults := j.w.servers[s].faults
		return slices.ContainsFunc(faults, func(late *dnsFault) bool {
			answers := r.began + late.answerDelay() + 2*oneWayDelay(s)
			return late.answerDelay() > 0 && late.matches(a.dnsQuestionKey) && late.from < r.began-late.answerDelay() && late.isActiveDuring(r.began, r.began+timeTolerance) &&
				slices.ContainsFunc(faults, func(f *dnsFault) bool {
					return f.kind == "down" && f.from > r.began && f.from < answers && f.until >= r.end
				})
		})
	})
}

// countFailedInARow returns the number of questions that have failed since the last answer before a time.
func (j *dnsChecker) countFailedInARow(until time.Duration) (n int) {
	last := -time.Hour
	for _, b := range j.client.results {
		if b.succeeded() && b.end <= until {
			last = max(last, b.end)
		}
	}
	for _, b := range j.client.results {
		if !b.succeeded() && b.end > last && b.end <= until {
			n++
		}
	}
	return n
}

// mayBeForged reports whether an attacker may have guessed the response of a server without TCP twice. The Client then
// accepts no response.
func (j *dnsChecker) mayBeForged(a *dnsQuestion, r *dnsResult) bool {
	return slices.ContainsFunc(j.w.serversAt(r.began, a.name), func(i int) bool {
		s := j.w.servers[i]
		return s.noTCP && s.stray && slices.ContainsFunc(s.faults, func(f *dnsFault) bool {
			return f.kind == "stray" && f.matches(a.dnsQuestionKey) && f.isActiveDuring(r.began, r.end)
		})
	})
}

// lacksBudget reports whether the budget for a query to another server may be empty: after two servers report that they
// cannot answer, or after one does and all have failed for a broken zone.
func (j *dnsChecker) lacksBudget(a *dnsQuestion, r *dnsResult) bool {
	failed := 0
	for _, s := range j.w.serversAt(r.began, a.name) {
		if slices.ContainsFunc(j.w.servers[s].faults, func(f *dnsFault) bool {
			return f.isFailure() && f.matches(a.dnsQuestionKey) && f.isActiveDuring(r.began, r.end)
		}) {
			failed++
		}
	}
	return (failed >= 2 || failed > 0 && j.w.past.broken) && r.sent.more >= burst
}

// lacksBudgetForReturnedServer reports whether the return of a server is still undetected, no other server is healthy, and
// the budget for a query to the server may be empty. The server was silent, refused connections, or failed probes.
func (j *dnsChecker) lacksBudgetForReturnedServer(a *dnsQuestion, r *dnsResult) bool {
	hidden := func(s int) bool {
		if j.lostLastQuery(s, r.began) {
			return true
		}
		return !j.returnWasDetected(s, r.end) && (j.w.past.broken && !j.answeredInWarmUp(s) || slices.ContainsFunc(j.w.servers[s].faults, func(f *dnsFault) bool {
			untold := f.isFailure() && j.w.servers[s].noRoot // no probe tells that it is back
			return f.affectsAll() && (f.isSilent(j.w.client.timeout) || f.endsConnections() || untold) && f.until < r.end
		}))
	}
	servers := j.w.serversAt(r.began, a.name)
	return r.sent.more >= burst && slices.ContainsFunc(servers, hidden) &&
		!slices.ContainsFunc(servers, func(s int) bool { return !hidden(s) && !j.mayBeFaulty(s, a.dnsQuestionKey, r.began, r.end) })
}

// lostLastQuery reports whether a server that is silent for some questions has lost the last query before a time. The Client
// may treat it as silent for all questions.
//
// A later query that was in flight at that time, and had no response until the end of its question, shows nothing else.
func (j *dnsChecker) lostLastQuery(server int, before time.Duration) bool {
	latestFirst := slices.Clone(j.client.tries)
	slices.SortStableFunc(latestFirst, func(a, b dnsTracedQuery) int { return cmp.Compare(b.began, a.began) })
	for _, t := range latestFirst {
		if t.began >= before || !j.wasSentTo(server, &t) {
			continue
		}
		if t.err != nil && slices.ContainsFunc(j.w.servers[server].faults, func(f *dnsFault) bool {
			return f.isSilent(j.w.client.timeout) && f.matches(dnsQuestionKey{name: strings.ToLower(t.Name), typ: t.Type})
		}) {
			return true
		}
		if t.end <= before || !errors.Is(t.err, context.DeadlineExceeded) {
			return false
		}
	}
	return false
}

// wasSentTo reports whether a query was sent to the given server.
func (j *dnsChecker) wasSentTo(server int, t *dnsTracedQuery) bool {
	return strings.HasPrefix(t.Upstream.Addr, j.client.hostOf(server)+":")
}

// burst is the largest number of saved tokens for further queries, see dnshedge.Hedge.
const burst = 20

// probeTimeout is the timeout of a probe. A slower server stays silent.
const probeTimeout = 2 * time.Second

// lastPause is the time before the end of Timeout at which the Client may report that a server refuses connections. The
// last pause is 200 ms, and at most half of the time that is left.
const lastPause = 400 * ms

// isInOutage reports whether a server was silent for earlier questions and at the start of this one. Its timeout
// doubles with each lost query (RFC 6298): it is at most the time of the silence and a second. Saved tokens pay for
// these queries; without tokens a probe detects the return.
//
// It also reports a server that refuses connections for the time of a question, and a server that returns too late to
// answer: a pause takes at most half of the time that is left.
func (j *dnsChecker) isInOutage(a *dnsQuestion, r *dnsResult) bool {
	for _, s := range j.w.serversAt(r.began, a.name) {
		for _, f := range j.w.servers[s].faults {
			timeout := j.w.client.timeout
			if f.kind == "down" && (f.from < r.began-timeout && f.until > r.began || f.from < r.end-timeout+lastPause && f.until > r.end) {
				return true
			}
			if f.kind == "down" && f.from < r.began && f.until > r.began && r.began+timeout-f.until < 2*(j.maxServerDelay(s, a)+j.maxExchangeTime(s)+timeTolerance) {
				return true // it is asked again with half of the time at least that is left when it is back
			}
			mute := f.isSilent(j.w.client.timeout)
			if !mute && !f.isSilent(probeTimeout) || !f.matches(a.dnsQuestionKey) || f.from >= r.began || f.until <= r.began {
				continue
			}
			waited := 0
			for _, b := range j.w.asks {
				if f.matches(b.dnsQuestionKey) && f.isActiveDuring(b.at, b.at) {
					waited++
				}
			}
			if until := j.silentUntil(s, f, a, r); waited > burst || mute && until+(until-f.from)+time.Second+j.maxServerDelay(s, a)+timeTolerance > r.end {
				return true
			}
		}
	}
	return false
}

// silentUntil returns the end of the silence that the fault f causes. A return for less than half of the remaining time
// does not count: the Client may pause for that long.
func (j *dnsChecker) silentUntil(server int, f *dnsFault, a *dnsQuestion, r *dnsResult) time.Duration {
	until := f.until
	pause := (r.began + j.w.client.timeout - until) / 2
	for _, next := range j.w.servers[server].faults {
		if next.isSilent(j.w.client.timeout) && next.matches(a.dnsQuestionKey) && next.from > f.until && next.from < f.until+pause {
			until = max(until, next.until)
		}
	}
	return until
}

// maxServerDelay returns the longest delay of a server's answers to a question.
func (j *dnsChecker) maxServerDelay(server int, a *dnsQuestion) (d time.Duration) {
	for _, f := range j.w.servers[server].faults {
		if f.matches(a.dnsQuestionKey) {
			d = max(d, f.answerDelay())
		}
	}
	return d
}

// lacksTime reports whether so many servers are silent, or lose the first query, that there is no time to ask another
// server. The timeout of a server without answers is a second, and doubles.
func (j *dnsChecker) lacksTime(a *dnsQuestion, r *dnsResult) bool {
	wait, times := time.Duration(0), time.Duration(1)
	for _, s := range j.w.serversAt(r.began, a.name) {
		mute := func(f *dnsFault) bool {
			return (f.isSilent(j.w.client.timeout) || f.losesQueries() && j.w.way.net == "udp") && f.matches(a.dnsQuestionKey) && f.isActiveDuring(r.began, r.end)
		}
		if !slices.ContainsFunc(j.w.servers[s].faults, mute) {
			continue
		}
		rto := time.Second
		for _, said := range j.client.said {
			if said.server == s && said.at < r.began {
				rto = 250 * ms
			}
		}
		wait, times = wait+rto*times, times*2
	}
	return wait >= j.w.client.timeout
}

// isDecision reports whether the failure is final: a decision of a server, after which the Client asks no other server,
// or a failure at three servers.
func (j *dnsChecker) isDecision(a *dnsQuestion, r *dnsResult) bool {
	servfails := 0
	for i, s := range j.w.serversAt(r.began, a.name) {
		for _, f := range j.w.servers[s].faults {
			if !f.matches(a.dnsQuestionKey) || !f.isActiveDuring(r.began, r.end) {
				continue
			}
			cut := f.kind == "cut" && j.w.servers[s].noTCP // it has said that it cannot answer
			if (cut || f.kind == "closes") && j.hasNoOtherServer(s, f, a, r) {
				return true // this question may have ended the connection
			}
			if f.isDecision() || i == 0 && f.isFailure() && j.w.way.by == "fallback" {
				return true
			}
			if f.kind == "servfail" {
				servfails++
			}
		}
	}
	return servfails >= 3 // RFC 9520: three servers are enough
}

// hasNoOtherServer reports whether no server answers during a question, apart from the given server, which has the
// given fault. If both servers close connections, the question fails at once and is not asked again.
func (j *dnsChecker) hasNoOtherServer(server int, fault *dnsFault, a *dnsQuestion, r *dnsResult) bool {
	return !slices.ContainsFunc(j.w.serversAt(r.began, a.name), func(s int) bool {
		mute := j.w.servers[s].noTCP && strings.HasPrefix(a.name, "long")
		return s != server && !mute && !slices.ContainsFunc(j.w.servers[s].faults, func(f *dnsFault) bool {
			end := r.began + j.w.client.timeout
			if fault.kind == "closes" && (f.kind == "closes" || f.kind == "down") {
				end = r.end
			}
			never := f.kind == "down" || f.kind == "closes" || f.kind == "cut" && j.w.servers[s].noTCP || f.isFailure() || f.isSilent(j.w.client.timeout)
			return never && f.matches(a.dnsQuestionKey) && f.from <= r.began && f.until >= end
		})
	})
}

// isOnlyHealthy reports whether no other server was healthy during a question. -1 means no server at all.
func (j *dnsChecker) isOnlyHealthy(server int, a *dnsQuestion, r *dnsResult) bool {
	return !slices.ContainsFunc(j.w.serversAt(r.began, a.name), func(s int) bool { return s != server && !j.mayBeFaulty(s, a.dnsQuestionKey, r.began, r.end) })
}

// isCachedFailure reports whether the failure may be the cached failure of an earlier question.
func (j *dnsChecker) isCachedFailure(a *dnsQuestion, r *dnsResult) bool {
	keep := 5 * time.Second
	if j.w.way.by == "exchanger" {
		keep = 20 * time.Second
	}
	for i, b := range j.w.asks {
		x := j.client.results[i]
		if b.dnsQuestionKey != a.dnsQuestionKey || x == r || x.succeeded() || x.began > r.began || x.end < r.began-keep {
			continue
		}
		y := j.patient.results[i]
		if (j.w.client.cache || x.end >= r.began) && (!y.succeeded() || j.isDecision(b, x) || x.began < r.began && j.mayFail(b, y, x)) {
			return true
		}
	}
	return j.w.client.cache && r.end == r.began && j.isRefreshed(a, r, keep)
}

// isRefreshed reports whether a server has decided about a question that the Client asked in the background to refresh
// an answer. It may ask any server for that.
func (j *dnsChecker) isRefreshed(a *dnsQuestion, r *dnsResult, keep time.Duration) bool {
	return slices.ContainsFunc(j.client.failures, func(said dnsSentFailure) bool {
		return said.key == a.dnsQuestionKey && said.at < r.began && said.at > r.began-keep-oneWayDelay(said.server) &&
			slices.ContainsFunc(j.w.servers[said.server].faults, func(f *dnsFault) bool {
				return f.isDecision() && f.matches(a.dnsQuestionKey) && f.isActiveDuring(said.at, said.at)
			})
	})
}

// checkOrigin checks an answer against its original response.
func (j *dnsChecker) checkOrigin(a *dnsQuestion, r *dnsResult, say func(string, string, ...any)) {
	serial, ok := serialOf(r.msg)
	s := j.client.said[serial]
	if !ok || s == nil || s.at > r.end {
		say("1 foreign", "no server said that")
		return
	}
	below := j.w.client.trustAD && r.msg.Rcode == dns.RcodeNameError && strings.HasSuffix(a.name, "."+s.key.name)
	switch k := s.key; {
	case k.do != a.do || k.cd != a.cd || k.class != a.class || k.options != a.options:
		say("1 foreign", "it is the answer to %v", k)
	case k.name != a.name && !below, k.typ != a.typ && r.msg.Rcode != dns.RcodeNameError:
		say("1 foreign", "it is the answer to %v", k)
	}
	if wrong := findDifference(r.msg, s.msg); wrong != "" && !below {
		say("1 records", "%s; server %d said %v", wrong, s.server, s.msg)
	}
	j.checkServer(a, r, s, say)
	j.checkDecision(s, say)
	j.checkTTLs(a, r, s, say)
}

// checkServer checks the server of an answer.
func (j *dnsChecker) checkServer(a *dnsQuestion, r *dnsResult, s *dnsSentAnswer, say func(string, string, ...any)) {
	servers := j.w.serversAt(r.began-6*time.Second, a.name)
	if j.w.way.others { // an answer of the servers of another Client is not imported
		servers = j.w.serversAt(r.began, a.name)
	}
	if j.w.way.change == "resolvConf" && r.end > j.w.way.changeAt && r.began < j.w.way.changeAt+6*time.Second {
		servers = append(slices.Clone(servers), j.w.serversAt(r.end, a.name)...)
	}
	at := slices.Index(servers, s.server)
	if at < 0 {
		say("1 server", "server %d is not asked about that", s.server)
		return
	}
	if !j.w.hasStrictOrder() || j.w.way.change == "resolvConf" {
		return
	}
	for _, before := range servers[:at] {
		if !j.mayBeFaulty(before, s.key, s.at-j.w.client.timeout, s.at) && j.returnWasDetected(before, s.at) && !j.mayBeOvertaken(a, before, 2*oneWayDelay(0)) {
			say("1 server", "it is from server %d, and nothing is wrong with server %d", s.server, before)
		}
	}
}

// mayBeOvertaken reports whether the next server may answer before a healthy server because the caller has little time.
// The Client asks the next server after this server's part of the time, over a connection that may be open. next is its
// round trip.
func (j *dnsChecker) mayBeOvertaken(a *dnsQuestion, server int, next time.Duration) bool {
	if a.deadline == 0 || !j.client.passesContext() {
		return false
	}
	n := len(j.w.serversAt(a.at, a.name))
	part := a.deadline / time.Duration(n)
	if j.w.way.by == "fallback" { // which gets half of the time
		part = a.deadline / 2
		if server > 0 {
			part /= time.Duration(max(1, n-1))
		}
	}
	return j.maxExchangeTime(server)+j.connectionWait(server, j.countInFlight(server, a.at+part)) > part+next
}

// growAfter is the expected wait for a stream of HTTPS after which the Client opens a further connection.
const growAfter = 50 * ms

// countInFlight returns the number of queries to a server that are in flight at a time.
func (j *dnsChecker) countInFlight(server int, at time.Duration) (n int) {
	for i := range j.client.tries {
		if t := &j.client.tries[i]; t.began <= at && (t.end == 0 || t.end > at) && j.wasSentTo(server, t) {
			n++
		}
	}
	return n
}

// connectionWait returns how long a query to a server may wait for a further connection if n queries are in flight, of
// which each needs a stream. The Client opens at most as many connections at a time as are open, so that their number
// doubles, and the query that waits longest gets the last one.
func (j *dnsChecker) connectionWait(server, n int) time.Duration {
	if j.w.way.net != "https" || j.w.way.streams == 0 || n <= j.w.way.streams {
		return 0
	}
	const handshake = 2 // round trips, of TCP and TLS
	rounds := bits.Len(uint((n - 1) / j.w.way.streams))
	return growAfter + time.Duration(rounds*handshake)*2*oneWayDelay(server)
}

// maxExchangeTime returns the longest exchange with a server, including handshakes. The server has no fault, except
// that it may close connections after probes.
func (j *dnsChecker) maxExchangeTime(server int) time.Duration {
	trips := map[string]int{"udp": 1, "tcp": 2, "tls": 3, "https": 3}[j.w.way.net]
	if trips > 1 && slices.ContainsFunc(j.w.servers[server].faults, func(f *dnsFault) bool { return f.kind == "closes" && f.on == "probe" }) {
		trips *= 2 // a query in flight on a connection that ends is sent again over another one
	}
	if j.asksTwice(server) {
		trips = max(trips, 4)
	}
	return time.Duration(trips) * 2 * oneWayDelay(server)
}

// asksTwice reports whether an exchange takes up to 80 ms: the Client randomizes the case of names because of forged
// responses, the server does not repeat the case, and the Client asks again over TCP, or over another socket if the
// server has no TCP.
func (j *dnsChecker) asksTwice(server int) bool {
	s := j.w.servers[server]
	return s.lower && (s.stray || slices.ContainsFunc(s.faults, func(f *dnsFault) bool {
		return f.kind == "stray" || f.kind == "wrongID" || f.kind == "wrongName"
	}))
}

// lacksTimeForTwo reports whether a server is so slow that there is no time for two queries.
func (j *dnsChecker) lacksTimeForTwo(a *dnsQuestion, r *dnsResult) bool {
	return slices.ContainsFunc(j.w.serversAt(r.began, a.name), func(s int) bool {
		return j.asksTwice(s) && slices.ContainsFunc(j.w.servers[s].faults, func(f *dnsFault) bool {
			return f.matches(a.dnsQuestionKey) && f.isActiveDuring(r.began, r.end) && 2*f.answerDelay()+time.Second > j.w.client.timeout
		})
	})
}

// waitsForConnections reports whether a slow server has too few streams over HTTPS for all questions in flight, and there is
// no time for their connections.
func (j *dnsChecker) waitsForConnections(a *dnsQuestion, r *dnsResult) bool {
	n := 0
	for _, b := range j.w.asks {
		if b.at <= r.end && b.at >= r.began-j.w.client.timeout {
			n++
		}
	}
	return slices.ContainsFunc(j.w.serversAt(r.began, a.name), func(s int) bool {
		wait := j.connectionWait(s, n)
		return wait > 0 && wait+j.maxServerDelay(s, a)+j.maxExchangeTime(s)+timeTolerance > j.w.client.timeout
	})
}

// maxSends is the number of times that a question is sent to a server that ends its connections: again while a probe may be the
// reason, at most three times, then once more, and once over a connection of its own.
const maxSends = 6

// endsConnections reports whether a server may end connections during a question, because of this question or another.
func (j *dnsChecker) endsConnections(server int, r *dnsResult) bool {
	return slices.ContainsFunc(j.w.servers[server].faults, func(f *dnsFault) bool { return f.kind == "closes" && f.isActiveDuring(r.began, r.end) })
}

// extraStreamWait returns the longest time that a question waits for free streams over HTTPS if questions are asked more than once,
// so that they need more streams than there are questions. In each round of handshakes the Client opens at most as many connections
// as are open, and the question that waits longest gets the last stream.
func (j *dnsChecker) extraStreamWait(r *dnsResult) time.Duration {
	if j.w.way.net != "https" || j.w.way.streams == 0 {
		return 0
	}
	const sendsPerQuestion = 3
	n := 0
	for _, o := range j.client.results {
		if o.began <= r.end && o.end >= r.began {
			n++
		}
	}
	return time.Duration(bits.Len(uint(sendsPerQuestion*n/j.w.way.streams))) * (growAfter + j.maxExchangeTime(0))
}

// returnWasDetected reports whether there were enough queries to detect the return of a server that was gone for all
// questions, or had failed them.
func (j *dnsChecker) returnWasDetected(server int, at time.Duration) bool {
	gone := time.Duration(-1)
	if j.w.past.broken && !j.answeredInWarmUp(server) {
		gone = j.w.start // it has failed all that it was asked
	}
	if end := j.w.way.changeAt + networkOutage; j.w.way.change == "netdown" && end < at {
		gone = end
	}
	for _, f := range j.w.servers[server].faults {
		if f.affectsAll() && f.until < at {
			gone = max(gone, f.until)
		}
	}
	s := j.w.servers[server]
	noProbe := s.noRoot || slices.ContainsFunc(s.faults, func(f *dnsFault) bool { return f.on == "probe" })
	if noProbe {
		for _, said := range j.client.failures { // it may be taken for one that fails all questions, and no probe tells
			if said.server == server && said.at < at {
				gone = max(gone, said.at)
			}
		}
	}
	if gone >= 0 && server > 0 && noProbe && j.w.hasStrictOrder() && !j.answeredSince(server, gone, at-j.w.client.timeout) {
		// While servers before it are not down, probes have only names that it has failed (see dnshedge.OrderStrict). A
		// trial counts for later questions.
		return false
	}
	n, last := 0, gone                // there may have been a probe a moment before
	for _, q := range j.client.seen { // a cached answer is no reason for a probe
		lost := slices.ContainsFunc(s.faults, func(f *dnsFault) bool { return f.matches(q.key) && f.isActiveDuring(q.at, q.at) })
		if q.key.name != "." && q.key.opcode == dns.OpcodeQuery && !lost && q.at < at-10*time.Second && q.at >= last+10*time.Second { // probes are as far apart
			n, last = n+1, q.at
		}
	}
	enough := 2
	if s.noRoot { // every other probe asks for the root
		enough = 3
	}
	return gone < 0 || n >= enough
}

// answeredSince reports whether a server has answered a question about a healthy name between two times.
func (j *dnsChecker) answeredSince(server int, from, until time.Duration) bool {
	for _, s := range j.client.said {
		asked := s.key.opcode == dns.OpcodeQuery && s.key.name != "." && !strings.HasPrefix(s.key.name, "broken")
		if s.server == server && asked && from <= s.at && s.at < until {
			return true
		}
	}
	return false
}

func (j *dnsChecker) allReturnsWereDetected(a *dnsQuestion, r *dnsResult) bool {
	for _, s := range j.w.serversAt(r.began, a.name) {
		if !j.returnWasDetected(s, r.began) {
			return false
		}
	}
	return true
}

// findDifference returns the difference between the records of a response and those that a server sent, or "".
func findDifference(m, said *dns.Msg) string {
	if m.Rcode != said.Rcode {
		return "the response code is another one"
	}
	for _, s := range [][2][]dns.RR{{m.Answer, said.Answer}, {m.Ns, said.Ns}} {
		if len(s[0]) != len(s[1]) {
			return "it has not as many records"
		}
		for _, rr := range s[0] {
			if !slices.ContainsFunc(s[1], func(o dns.RR) bool { return dns.IsDuplicate(rr, o) }) {
				return fmt.Sprintf("nobody said %v", rr)
			}
		}
	}
	return ""
}

// checkTTLs checks the TTLs of an answer.
func (j *dnsChecker) checkTTLs(a *dnsQuestion, r *dnsResult, s *dnsSentAnswer, say func(string, string, ...any)) {
	c, age := &j.w.client, r.end-s.at-oneWayDelay(s.server)
	live := s.at+oneWayDelay(s.server) >= r.began-ms
	shared := j.w.hasStrictOrder() && age <= c.timeout // with an earlier caller, for whom it was delayed
	if !(c.cache && a.isCacheable()) && !live && !shared {
		say("1 old", "it is %v old, and is not kept", age)
		return
	}
	keep := time.Duration(1<<63 - 1)
	for _, rr := range slices.Concat(s.msg.Answer, s.msg.Ns) {
		keep = min(keep, j.maxInitialTTL(rr))
	}
	over := age > keep+timeTolerance || !j.w.hasStrictOrder() && age >= keep && minTTL(r.msg) > time.Second // a stale answer that has just expired has this TTL
	stale := !live && over && !(shared && j.wasHeldForOther(a, r, s))
	for _, rr := range slices.Concat(r.msg.Answer, r.msg.Ns) {
		var most, least, held time.Duration
		for _, o := range slices.Concat(s.msg.Answer, s.msg.Ns) {
			if dns.IsDuplicate(rr, o) {
				most = j.maxInitialTTL(o)
				least = most
				if soa, ok := o.(*dns.SOA); ok { // RFC 2308 §5, of an answer that was held back
					least = min(least, time.Duration(soa.Minttl)*time.Second)
				}
				if j.w.hasStrictOrder() { // the limits hold from when it is not held back any more, and it may be kept then
					back := min(age, c.timeout)
					low := dns.Copy(o)
					low.Header().Ttl -= min(max(low.Header().Ttl, 1)-1, uint32(back/time.Second))
					held = j.maxInitialTTL(low) - (age - back).Truncate(time.Second)
				}
			}
		}
		ttl := time.Duration(rr.Header().Ttl) * time.Second
		switch {
		case stale:
			if ttl > 30*time.Second {
				say("1 TTL", "the TTL of what is stale is %v", ttl)
			}
		case ttl > max(0, held, most-age.Truncate(time.Second))+time.Second, live && ttl < least-age-2*time.Second:
			say("1 TTL", "%v, of %v %v ago", ttl, most, age)
		}
	}
	if stale {
		j.checkStale(a, r, s, age, keep, say)
	}
}

// minTTL returns the smallest TTL of the records of a message.
func minTTL(m *dns.Msg) time.Duration {
	least := uint32(math.MaxUint32)
	for _, rr := range slices.Concat(m.Answer, m.Ns) {
		least = min(least, rr.Header().Ttl)
	}
	return time.Duration(least) * time.Second
}

// wasHeldForOther reports whether a response for an earlier caller with the same question was delayed and given to both
// callers. Its TTL may have ended then, and is checked.
func (j *dnsChecker) wasHeldForOther(a *dnsQuestion, r *dnsResult, s *dnsSentAnswer) bool {
	for i, b := range j.w.asks {
		if o := j.client.results[i]; b != a && b.dnsQuestionKey == a.dnsQuestionKey && o.msg != nil && o.began < r.began && (r.end-o.end).Abs() < timeTolerance && s.at+oneWayDelay(s.server) >= o.began-ms {
			return true
		}
	}
	return false
}

// maxInitialTTL returns the largest initial TTL of a record.
func (j *dnsChecker) maxInitialTTL(rr dns.RR) time.Duration {
	c, ttl := &j.w.client, time.Duration(rr.Header().Ttl)*time.Second
	if !c.cache {
		return ttl
	}
	if soa, ok := rr.(*dns.SOA); ok {
		ttl = min(ttl, time.Duration(soa.Minttl)*time.Second)
		if c.maxNegative > 0 {
			ttl = min(ttl, c.maxNegative)
		}
	} else if ttl > 0 {
		ttl = max(ttl, c.minTTL)
	}
	if c.maxTTL > 0 {
		ttl = min(ttl, c.maxTTL)
	}
	return ttl
}

// checkStale checks an answer that has expired.
func (j *dnsChecker) checkStale(a *dnsQuestion, r *dnsResult, s *dnsSentAnswer, age, keep time.Duration, say func(string, string, ...any)) {
	switch {
	case keep == 0:
		say("1 stale", "its TTL was 0")
	case age > keep+j.w.client.staleLimit()+j.w.client.timeout+timeTolerance:
		say("1 stale", "it is %v old", age)
	case j.w.client.staleAfter >= 0 && j.allHealthy(s.key, r.began-35*time.Second, r.end) && j.allHealthy(a.dnsQuestionKey, r.began-35*time.Second, r.end): // that a name does not exist, one type may have said
		say("1 stale", "it is %v old, and servers would answer", age)
	}
}

// checkCoalescing checks that equal questions have one query at a time.
func (j *dnsChecker) checkCoalescing() {
	for i, a := range j.w.asks {
		if i == 0 || a.dnsQuestionKey != j.w.asks[i-1].dnsQuestionKey || a.at != j.w.asks[i-1].at || a.noRD || a.cancel >= 0 {
			continue
		}
		if !j.allHealthy(a.dnsQuestionKey, a.at, a.at+ms) || a.deadline > 0 && a.deadline < j.w.client.timeout && !(j.w.client.cache && a.isCacheable()) {
			continue
		}
		n := make(map[int]int) // a server that is measured may be asked as well
		for _, q := range j.client.seen {
			if q.key == a.dnsQuestionKey && a.at <= q.at && q.at <= a.at+15*ms {
				n[q.server]++
			}
		}
		most := 1
		for _, b := range j.w.asks { // without a cache, a caller with less time than the others has a query of its own
			if b.dnsQuestionKey == a.dnsQuestionKey && b.deadline > 0 && b.deadline < j.w.client.timeout && !(j.w.client.cache && b.isCacheable()) && (b.at-a.at).Abs() <= 15*ms {
				most++
			}
		}
		for _, b := range j.w.asks { // without a cache, a caller that ends early ends its query, and the next caller starts another
			if b.dnsQuestionKey == a.dnsQuestionKey && b.cancel >= 0 && j.client.passesContext() && !(j.w.client.cache && b.isCacheable()) && b.at >= a.at-15*ms && b.at+b.cancel <= a.at+15*ms {
				most++
			}
		}
		if slices.ContainsFunc(j.w.asks, func(b *dnsQuestion) bool {
			return b.dnsQuestionKey == a.dnsQuestionKey && b.forbidsHedges() != a.forbidsHedges() && (b.at-a.at).Abs() <= 15*ms
		}) {
			most++ // a question that may be hedged does not share the query of a question that may not (see dnshedge.Hedge)
		}
		for s, n := range n {
			if n > most {
				j.add("3 together", "%v: server %d had %d queries for the same question at once", a.dnsQuestionKey, s, n)
				return
			}
		}
	}
}

// checkCached checks that the Client sends no query for a cached answer without a reason.
func (j *dnsChecker) checkCached() {
	w := j.w
	if !w.client.cache || len(w.servers) > 1 || len(w.servers[0].faults) > 0 || w.servers[0].stray || w.way.change != "" || w.way.by == "route" {
		return
	}
	for _, s := range j.client.said {
		keep := time.Duration(1<<63 - 1)
		for _, rr := range slices.Concat(s.msg.Answer, s.msg.Ns) {
			keep = min(keep, j.maxInitialTTL(rr))
		}
		if len(s.msg.Answer)+len(s.msg.Ns) == 0 { // a failure
			continue
		}
		for _, q := range j.client.seen {
			if s.msg.Rcode == dns.RcodeNameError && j.existsBelow(q.key.name, s.at, q.at) {
				continue // the cached answer has become wrong
			}
			if since := q.at - s.at - 2*oneWayDelay(s.server); q.key == s.key && q.key.isCacheable() && since > ms && since < keep*9/10-ms {
				j.add("3 kept", "%v is asked for again %v after it was answered for %v", q.key, since, keep)
				return
			}
		}
	}
}

// existsBelow reports whether a server has reported between two times that a name below another name exists.
func (j *dnsChecker) existsBelow(name string, from, until time.Duration) bool {
	for _, s := range j.client.said {
		if s.msg.Rcode == dns.RcodeSuccess && strings.HasSuffix(s.key.name, "."+name) && from <= s.at && s.at < until {
			return true
		}
	}
	return false
}

// checkQueryCount checks the total number of queries. A question that may be the reason for the end of its connection is
// repeated eight times. Each time, each server that closes connections gets a query and a hedge.
func (j *dnsChecker) checkQueryCount() {
	end := j.w.end + time.Minute
	probes := 3 * len(j.w.servers) * (12 + int(end/(10*time.Second)))
	closing := 0
	for _, s := range j.w.servers {
		if slices.ContainsFunc(s.faults, func(f *dnsFault) bool { return f.kind == "closes" }) {
			closing++
		}
	}
	most := probes + len(j.w.asks)*2*max(4+len(j.w.servers), 9*closing)
	if j.w.way.by == "loop" {
		wire := int64(0)
		for _, c := range j.client.clients {
			wire += c.Stats().Wire
		}
		if wire > int64(most+len(j.w.asks)*16) {
			j.add("3 loop", "%d queries to itself for %d questions", wire, len(j.w.asks))
		}
		return
	}
	if n := len(j.client.seen); n > most {
		j.add("3 queries", "%d for %d questions: %d at most", n, len(j.w.asks), most)
	}
}
