package worlds_test

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/internal/dnstest"
)

// A dnsJudge compares what the Client did with what a patient resolver did.
type dnsJudge struct {
	w               *dnsWorld
	patient, client *dnsPlay
	findings        []finding
}

// recovers is how long the Client may need to find out that a server is back that was gone for all questions: probes are ten
// seconds apart at most, and every other one is a question that fails.
const recovers = 30 * time.Second

// judge plays the world and says which promises it breaks.
func (w *dnsWorld) judge(s *stage) []finding {
	dnstest.Certificate() // outside the bubbles
	j := &dnsJudge{w: w, patient: playDNS(s, w, true), client: playDNS(s, w, false)}
	for i, a := range w.asks {
		if a.what == "past" && j.client.results != nil && j.client.results[i].good() && j.patient.results[i].good() {
			continue
		}
		var x, y *dnsResult
		if j.patient.results != nil && j.client.results != nil {
			x, y = j.patient.results[i], j.client.results[i]
		}
		s.log("%s %v at %v: patient %v, client %v", a.what, a.dnsKey, a.at, x, y)
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
			j.judgeMessage(a, j.client.results[i])
			continue
		}
		if w.isHosted(a) {
			j.judgeHosted(a, j.client.results[i])
			continue
		}
		j.ask(a, j.patient.results[i], j.client.results[i])
	}
	j.judgeOnce()
	j.judgeOrder()
	j.together()
	j.kept()
	j.bounded()
	j.hedged()
	return append(j.findings, j.client.notes...)
}

func (j *dnsJudge) add(promise, format string, args ...any) {
	j.findings = append(j.findings, finding{promise, fmt.Sprintf(format, args...)})
}

// ask judges what came of a question.
func (j *dnsJudge) ask(a *dnsAsk, x, r *dnsResult) {
	say := func(promise, format string, args ...any) {
		j.add(promise, "%s %v at %v: %s; patient %v, client %v", a.what, a.dnsKey, a.at, fmt.Sprintf(format, args...), x, r)
	}
	took := r.end - r.began
	if most := j.atMost(a); took > most {
		say("2 held", "for %v at most", most)
	}
	j.paid(r, say)
	if j.w.way.front != "" && a.malformed() {
		if r.msg != nil && r.msg.Rcode != dns.RcodeFormatError {
			say("1 option", "it is malformed")
		}
		return
	}
	if r.msg != nil {
		if wrong := wrongShape(a, r.msg); wrong != "" {
			say("1 form", "%s", wrong)
		}
	}
	if bound := j.failsIn(a, r); !r.good() && took > bound {
		say("2 late", "it fails after %v at most", bound)
	}
	switch {
	case r.closed:
	case a.noRD:
		if r.good() && a.class == dns.ClassINET {
			say("1 without RD", "it is answered with what others asked for")
		}
	case r.good():
		j.origin(a, r, say)
		bound := j.late(a, x, r)
		if j.w.way.front == "udp" && strings.HasPrefix(a.name, "long") {
			bound *= 2 // it is asked again over TCP
		}
		if x.good() && took > bound {
			say("1 later", "it takes %v at most", bound)
		}
	case x.good() && !j.mayFail(a, x, r):
		say("1 lost", "a patient resolver is answered")
	}
}

// atMost is when a question ends at the latest.
func (j *dnsJudge) atMost(a *dnsAsk) time.Duration {
	most := j.w.client.timeout
	switch j.w.way.front {
	case "udp":
		return 2*most + slack // and over TCP
	case "serveDNS", "tcp":
		return most + slack + 20*ms
	}
	if a.deadline > 0 {
		most = min(most, a.deadline)
	}
	if a.cancel >= 0 {
		most = min(most, a.cancel)
	}
	return most + slack
}

// wrongShape says what is wrong with the form of a response; "": nothing.
func wrongShape(a *dnsAsk, m *dns.Msg) string {
	ask := a.message()
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
	case (&dnsResult{msg: m}).good() && optionsOf(m) != a.options:
		return fmt.Sprintf("its options are%s", optionsOf(m))
	}
	return ""
}

// sick reports whether a server has a fault that may be felt by a question between two times. What a server does to all
// questions is felt for some time after; what it does to some is felt by those. One of which the Client knows nothing good may
// be taken for one that is down.
func (j *dnsJudge) sick(server int, k dnsKey, from, until time.Duration) bool {
	s := j.w.servers[server]
	if s.noTCP && strings.HasPrefix(k.name, "long") {
		return true
	}
	if j.w.way.change == "netdown" && from-recovers <= j.w.way.changeAt+netdownFor && until >= j.w.way.changeAt {
		return true
	}
	known := j.known(server)
	if j.w.past.broken && !known && from-recovers < j.w.start {
		return true
	}
	return slices.ContainsFunc(s.faults, func(f *dnsFault) bool {
		switch {
		case f.total():
			return f.during(from-recovers, until)
		case f.matches(k):
			return f.during(from-time.Second, until)
		}
		return !known && f.on != "probe" && f.during(from-recovers, until)
	})
}

// known reports whether the Client has an answer of a server from before the calls.
func (j *dnsJudge) known(server int) bool {
	return j.w.past.calls > 0 && j.w.way.change != "import" && (server == 0 || !j.w.strict()) &&
		!slices.ContainsFunc(j.w.servers[server].faults, func(f *dnsFault) bool { return f.from < j.w.start-ms && f.total() })
}

// well reports whether no server has a fault that may be felt.
func (j *dnsJudge) well(k dnsKey, from, until time.Duration) bool {
	if j.w.way.change == "resolvConf" && from < j.w.way.changeAt+6*time.Second && until > j.w.way.changeAt {
		return false
	}
	if j.w.way.others && from < j.w.way.changeAt && until > j.w.way.changeAt {
		return false
	}
	for _, s := range j.w.serversAt(from, k.name) {
		if j.sick(s, k, from, until) {
			return false
		}
	}
	return true
}

// late is how long an answer may take at most, if the patient resolver has one.
func (j *dnsJudge) late(a *dnsAsk, x, r *dnsResult) time.Duration {
	return min(j.joined(a, r)+j.lateByItself(a, x, r), j.w.client.timeout+slack)
}

// lateByItself is late without what others have asked.
func (j *dnsJudge) lateByItself(a *dnsAsk, x, r *dnsResult) time.Duration {
	switch first := j.w.serversAt(r.began, a.name); {
	case !j.noticedAll(a, r):
		return j.w.client.timeout + slack
	case j.well(a.dnsKey, r.began, r.end):
		return 300 * ms
	case j.w.strict() && !j.sick(first[0], a.dnsKey, r.began, r.end) && j.w.way.change != "resolvConf":
		return 300 * ms
	case j.w.strict():
		return j.w.client.timeout + slack
	}
	cut := j.w.way.change == "netdown" && r.began <= j.w.way.changeAt+netdownFor && r.end >= j.w.way.changeAt
	if cut || r.sent.more >= savedUp || j.outage(a, r) || j.alone(-1, a, r) && (j.poor(a, r) || j.seemsSilent(a, r)) {
		return j.w.client.timeout + slack
	}
	for i, b := range j.w.asks { // who asks the same at the same time shares an answer
		if o := j.patient.results[i]; b.dnsKey == a.dnsKey && b.at == a.at && o.end-o.began > x.end-x.began {
			x = o
		}
	}
	most := x.end - x.began + 3*time.Second + 200*ms + 5*slack // the last attempt begins with a hedge, and waits four timeouts, and for a round trip
	if slices.ContainsFunc(j.w.serversAt(r.began, a.name), func(s int) bool { return j.cutOff(s, a, r, r.end, "closes", io.EOF, syscall.ECONNRESET, syscall.EPIPE) }) {
		most += 2 * time.Second // the last attempt but one is lost as well, and the timeout doubles
	}
	for _, s := range j.w.serversAt(r.began, a.name) {
		if j.asksTwice(s) {
			most += j.slowest(s, a) + time.Second // it is asked again over TCP when it has answered
		}
	}
	return max(most, j.asLate(a, r)+slack)
}

// asLate is how long the first query takes to a server that is known to be late with answers, and may not be when it is asked again: it is not before
// three times as long as the latest answers took, without a hedge. What is too long for a datagram is asked for over TCP then.
func (j *dnsJudge) asLate(a *dnsAsk, r *dnsResult) (most time.Duration) {
	for _, s := range j.w.serversAt(r.began, a.name) {
		for _, f := range j.w.servers[s].faults {
			if f.matches(a.dnsKey) && f.from < r.began-f.delay() && f.during(r.began, r.began+slack) {
				late := f.delay() + 2*travel(s)
				if j.w.way.net == "udp" && strings.HasPrefix(a.name, "long") {
					if at := r.began + late; f.during(at, at+slack) {
						late += f.delay()
					}
					late += 4 * travel(s) // with the handshake
				}
				most = max(most, late)
			}
		}
	}
	return most
}

// joined is how long a question has waited for queries of callers who had asked the same before: the same question is asked once at a time. Their
// time is judged, unless they give up.
func (j *dnsJudge) joined(a *dnsAsk, r *dnsResult) (most time.Duration) {
	for _, t := range j.client.tries {
		if strings.EqualFold(t.Name, a.name) && t.Type == a.typ && t.began < r.began && t.end > r.began {
			most = max(most, min(t.end, r.end)-r.began)
		}
	}
	return most
}

// allDeaf reports whether no server has TCP.
func (j *dnsJudge) allDeaf(a *dnsAsk, r *dnsResult) bool {
	return !slices.ContainsFunc(j.w.serversAt(r.began, a.name), func(s int) bool { return !j.w.servers[s].noTCP })
}

// mayFail reports whether a question may fail that the patient resolver has an answer to.
func (j *dnsJudge) mayFail(a *dnsAsk, x, r *dnsResult) bool {
	change := j.w.way.changeAt
	switch j.w.way.change {
	case "close":
		if r.end >= change-slack {
			return true
		}
	case "netdown":
		if r.began <= change+netdownFor && r.end >= change {
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
		if r.end < change && strings.HasPrefix(a.name, "long") && j.allDeaf(a, r) { // they have said that they cannot answer
			return true
		}
	}
	if j.told(a, r) || j.w.unread(r) {
		return true
	}
	well := j.well(a.dnsKey, r.began, r.end)
	if j.client.callersGiveUp() && (a.deadline > 0 || a.cancel >= 0) {
		if a.ended(x.end-x.began) || a.ended(j.late(a, x, r)) {
			return true
		}
	}
	if j.failedBefore(a, r) {
		return true
	}
	return !well && (j.decided(a, r) || j.hurried(a, r) || j.alone(-1, a, r) && (j.outage(a, r) || j.poor(a, r) || j.lossy(a, r) || j.broken(a, r) || j.twice(a, r) || j.guessed(a, r)) || j.spent(a, r) || j.unpaid(a, r))
}

// told reports whether a question was over at every server in the time that it takes to hear from all of them: one has said that it cannot answer,
// closes the connection on it, or refuses connections. That is told at once (see failsIn, and Client), and a server that answers a moment later, when
// the patient resolver asks it, was not asked again. If none has said that it cannot answer, one that refuses connections is waited for; if one has,
// one that seems silent is not asked when the budget, which pays for that, may be used up.
func (j *dnsJudge) told(a *dnsAsk, r *dnsResult) bool {
	servers := j.w.serversAt(r.began, a.name)
	said, restarts := false, false
	for _, s := range servers {
		switch {
		case j.saidNo(s, a, r):
			said = true
		case j.cutOff(s, a, r, r.began+atOnce, "closes", io.EOF, syscall.ECONNRESET, syscall.EPIPE):
		case j.cutOff(s, a, r, r.began+atOnce, "down", syscall.ECONNREFUSED), r.sent.more >= savedUp && j.seemsGone(s, r):
			restarts = true
		default:
			return false
		}
	}
	return len(servers) > 0 && (said || !restarts)
}

// saidNo reports whether a server had said that it cannot answer a question.
func (j *dnsJudge) saidNo(server int, a *dnsAsk, r *dnsResult) bool {
	return slices.ContainsFunc(j.client.failures, func(said dnsFailed) bool {
		return said.server == server && said.key == a.dnsKey && said.at >= r.began && said.at <= min(r.end, r.began+atOnce) &&
			slices.ContainsFunc(j.w.servers[server].faults, func(f *dnsFault) bool {
				return f.failure() && f.matches(a.dnsKey) && f.during(said.at, said.at)
			})
	})
}

// seemsGone reports whether a server ended all connections when a question began.
func (j *dnsJudge) seemsGone(server int, r *dnsResult) bool {
	return slices.ContainsFunc(j.w.servers[server].faults, func(f *dnsFault) bool {
		return f.total() && f.ends() && f.during(r.began, r.began)
	})
}

// cutOff reports whether a query for a question had ended by then with one of these errors, because a server has a fault of that kind.
func (j *dnsJudge) cutOff(server int, a *dnsAsk, r *dnsResult, until time.Duration, kind string, errs ...error) bool {
	return slices.ContainsFunc(j.client.tries, func(t dnsTry) bool {
		mine := strings.EqualFold(t.Name, a.name) && t.Type == a.typ && j.asked(server, &t)
		return mine && t.began >= r.began && t.end > 0 && t.end <= min(r.end, until) &&
			slices.ContainsFunc(errs, func(err error) bool { return errors.Is(t.err, err) }) &&
			slices.ContainsFunc(j.w.servers[server].faults, func(f *dnsFault) bool {
				return f.kind == kind && f.matches(a.dnsKey) && f.during(t.began, t.end)
			})
	})
}

// poor reports whether a server has lost so many datagrams until a question ended that it is not asked again for each: its answers
// have to pay for that.
func (j *dnsJudge) poor(a *dnsAsk, r *dnsResult) bool {
	for _, s := range j.w.serversAt(r.began, a.name) {
		lost := 0
		for _, f := range j.w.servers[s].faults {
			most := map[string]int{"drops1": savedUp - 1, "drops2": savedUp / 2, "half": savedUp / 2}[f.kind]
			if most == 0 || !f.matches(a.dnsKey) {
				continue
			}
			for _, b := range j.w.asks {
				if b.at <= r.end && f.matches(b.dnsKey) && f.during(b.at, b.at) {
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

// seemsSilent reports whether one of several servers loses the first query of each question: three that it has not answered in a row are
// what a silent server is known by, and the others are asked three times more than that one.
func (j *dnsJudge) seemsSilent(a *dnsAsk, r *dnsResult) bool {
	servers := j.w.serversAt(r.began, a.name)
	return len(servers) > 1 && slices.ContainsFunc(servers, func(s int) bool {
		return slices.ContainsFunc(j.w.servers[s].faults, func(f *dnsFault) bool {
			before := 0
			for _, b := range j.w.asks {
				if b != a && b.at <= r.began && f.matches(b.dnsKey) && f.during(b.at, b.at) {
					before++
				}
			}
			return f.kind == "drops1" && f.matches(a.dnsKey) && f.during(r.began, r.end) && before > 0
		})
	})
}

// lossy reports whether a server loses more queries of a question than there is time for: the retransmission timeout doubles with each that is lost
// (RFC 6298), in others before as well as long as nothing is answered, and what is lost while it is silent comes on top. It is a second at first, and
// later up to three times as long as the latest answers take. The last attempt waits for another server meanwhile, for a second if nothing is known
// of that.
func (j *dnsJudge) lossy(a *dnsAsk, r *dnsResult) bool {
	servers := j.w.serversAt(r.began, a.name)
	others := time.Duration(len(servers) - 1)
	for _, s := range servers {
		rto, wait, gone := time.Second, time.Duration(0), time.Duration(0)
		if s == servers[0] && j.known(s) && len(j.w.servers[s].faults) == 1 {
			rto = 250 * ms
		}
		rto <<= min(j.failedInARow(r.began), 3)
		for _, f := range j.w.servers[s].faults {
			if f.from <= r.end {
				rto = max(rto, 3*f.delay())
			}
			if !f.matches(a.dnsKey) || !f.during(r.began, r.end) {
				continue
			}
			if f.mute(j.w.client.timeout) {
				gone = max(gone, f.until-r.began)
			}
			wait = max(wait, map[string]time.Duration{"drops1": 1, "drops2": 3, "half": 7}[f.kind])
			if f.kind == "half" { // which may lose all that there are
				wait = max(wait, 1<<j.seen(s, a, r)-1)
			}
		}
		doubled := (wait+1)<<others - 1 // by each query to another server too
		if wait > 0 && max(wait*rto+others*time.Second, doubled*rto)+gone >= j.w.client.timeout {
			return true
		}
	}
	return false
}

// seen counts the queries for a question that a server saw while it was asked.
func (j *dnsJudge) seen(server int, a *dnsAsk, r *dnsResult) (n int) {
	for _, q := range j.client.seen {
		if q.server == server && q.key == a.dnsKey && q.at >= r.began && q.at <= r.end {
			n++
		}
	}
	return min(n, 8)
}

// broken reports whether a server that was late with a question was gone before it answered, and did not come back. As its answers take so long, it
// was not asked again meanwhile: its retransmission timeout is up to three times as long as the latest ones took.
func (j *dnsJudge) broken(a *dnsAsk, r *dnsResult) bool {
	return slices.ContainsFunc(j.w.serversAt(r.began, a.name), func(s int) bool {
		faults := j.w.servers[s].faults
		return slices.ContainsFunc(faults, func(late *dnsFault) bool {
			answers := r.began + late.delay() + 2*travel(s)
			return late.delay() > 0 && late.matches(a.dnsKey) && late.from < r.began-late.delay() && late.during(r.began, r.began+slack) &&
				slices.ContainsFunc(faults, func(f *dnsFault) bool {
					return f.kind == "down" && f.from > r.began && f.from < answers && f.until >= r.end
				})
		})
	})
}

// failedInARow counts the questions that have failed until then since one was answered.
func (j *dnsJudge) failedInARow(until time.Duration) (n int) {
	last := -time.Hour
	for _, b := range j.client.results {
		if b.good() && b.end <= until {
			last = max(last, b.end)
		}
	}
	for _, b := range j.client.results {
		if !b.good() && b.end > last && b.end <= until {
			n++
		}
	}
	return n
}

// guessed reports whether somebody may have guessed twice what a server without TCP answers: nothing is believed then.
func (j *dnsJudge) guessed(a *dnsAsk, r *dnsResult) bool {
	return slices.ContainsFunc(j.w.serversAt(r.began, a.name), func(i int) bool {
		s := j.w.servers[i]
		return s.noTCP && s.stray && slices.ContainsFunc(s.faults, func(f *dnsFault) bool {
			return f.kind == "stray" && f.matches(a.dnsKey) && f.during(r.began, r.end)
		})
	})
}

// spent reports whether two servers say that they cannot answer, or one does and all have failed for
// a broken zone, and the budget, which pays for asking another one, may be used up.
func (j *dnsJudge) spent(a *dnsAsk, r *dnsResult) bool {
	failed := 0
	for _, s := range j.w.serversAt(r.began, a.name) {
		if slices.ContainsFunc(j.w.servers[s].faults, func(f *dnsFault) bool {
			return f.failure() && f.matches(a.dnsKey) && f.during(r.began, r.end)
		}) {
			failed++
		}
	}
	return (failed >= 2 || failed > 0 && j.w.past.broken) && r.sent.more >= savedUp
}

// unpaid reports whether a server that was silent, or refused connections, or failed probes, is not found to be back yet, however long ago that was,
// no other one is well, and the budget, which pays for asking it when another one has failed, may be used up.
func (j *dnsJudge) unpaid(a *dnsAsk, r *dnsResult) bool {
	hidden := func(s int) bool {
		if j.lost(s, r.began) {
			return true
		}
		return !j.noticed(s, r.end) && (j.w.past.broken && !j.known(s) || slices.ContainsFunc(j.w.servers[s].faults, func(f *dnsFault) bool {
			untold := f.failure() && j.w.servers[s].noRoot // no probe tells that it is back
			return f.total() && (f.mute(j.w.client.timeout) || f.ends() || untold) && f.until < r.end
		}))
	}
	servers := j.w.serversAt(r.began, a.name)
	return r.sent.more >= savedUp && slices.ContainsFunc(servers, hidden) &&
		!slices.ContainsFunc(servers, func(s int) bool { return !hidden(s) && !j.sick(s, a.dnsKey, r.began, r.end) })
}

// lost reports whether a server that is silent about some questions has lost the last one that it was asked before a time: it may be taken for one
// that is silent about all.
func (j *dnsJudge) lost(server int, before time.Duration) bool {
	var last *dnsTry
	for i := range j.client.tries {
		if t := &j.client.tries[i]; t.began < before && j.asked(server, t) && (last == nil || t.began > last.began) {
			last = t
		}
	}
	return last != nil && last.err != nil && slices.ContainsFunc(j.w.servers[server].faults, func(f *dnsFault) bool {
		return f.mute(j.w.client.timeout) && f.matches(dnsKey{name: strings.ToLower(last.Name), typ: last.Type})
	})
}

// asked reports whether a server was asked in a try.
func (j *dnsJudge) asked(server int, t *dnsTry) bool {
	return strings.HasPrefix(t.Upstream.Addr, j.client.hostOf(server)+":")
}

// savedUp is how many queries more than one for each question are saved up (see dnshedge.Hedge).
const savedUp = 20

// probeTimeout is how long a probe waits: a server that takes longer stays silent.
const probeTimeout = 2 * time.Second

// tellsRefusal is how long before the end of Timeout it may be told that a server refuses connections: the last pause is 200 ms, and no longer
// than half of the time that is left.
const tellsRefusal = 400 * ms

// outage reports whether a server was silent about such questions before this one, and still was then: its timeout doubles with each that
// is lost, for all questions (RFC 6298), and so is not longer than it has been silent, and a second. What is saved up pays for that; when it is
// used up, a probe finds out that the server is back. Or it has refused connections for as long as a question has time, and is not waited for; or is
// back so late that it has no time to answer: no pause takes more than half of the time that is left.
func (j *dnsJudge) outage(a *dnsAsk, r *dnsResult) bool {
	for _, s := range j.w.serversAt(r.began, a.name) {
		for _, f := range j.w.servers[s].faults {
			timeout := j.w.client.timeout
			if f.kind == "down" && (f.from < r.began-timeout && f.until > r.began || f.from < r.end-timeout+tellsRefusal && f.until > r.end) {
				return true
			}
			if f.kind == "down" && f.from < r.began && f.until > r.began && r.began+timeout-f.until < 2*(j.slowest(s, a)+j.needs(s)+slack) {
				return true // it is asked again with half of the time at least that is left when it is back
			}
			mute := f.mute(j.w.client.timeout)
			if !mute && !f.mute(probeTimeout) || !f.matches(a.dnsKey) || f.from >= r.began || f.until <= r.began {
				continue
			}
			waited := 0
			for _, b := range j.w.asks {
				if f.matches(b.dnsKey) && f.during(b.at, b.at) {
					waited++
				}
			}
			if until := j.muteUntil(s, f, a, r); waited > savedUp || mute && until+(until-f.from)+time.Second+j.slowest(s, a)+slack > r.end {
				return true
			}
		}
	}
	return false
}

// muteUntil returns when a server answers a question again that f keeps it from answering. If it is back for less than half of the time that is left
// then, it may not be asked in that time: no pause is longer.
func (j *dnsJudge) muteUntil(server int, f *dnsFault, a *dnsAsk, r *dnsResult) time.Duration {
	until := f.until
	pause := (r.began + j.w.client.timeout - until) / 2
	for _, next := range j.w.servers[server].faults {
		if next.mute(j.w.client.timeout) && next.matches(a.dnsKey) && next.from > f.until && next.from < f.until+pause {
			until = max(until, next.until)
		}
	}
	return until
}

// slowest is how late a server answers a question at most.
func (j *dnsJudge) slowest(server int, a *dnsAsk) (d time.Duration) {
	for _, f := range j.w.servers[server].faults {
		if f.matches(a.dnsKey) {
			d = max(d, f.delay())
		}
	}
	return d
}

// hurried reports whether so many servers are silent, or lose the first query, that there is no time to ask another one: the timeout is a second for
// one that has never answered, and doubles.
func (j *dnsJudge) hurried(a *dnsAsk, r *dnsResult) bool {
	wait, times := time.Duration(0), time.Duration(1)
	for _, s := range j.w.serversAt(r.began, a.name) {
		mute := func(f *dnsFault) bool {
			return (f.mute(j.w.client.timeout) || f.lossy() && j.w.way.net == "udp") && f.matches(a.dnsKey) && f.during(r.began, r.end)
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

// decided reports whether the failure is a decision of servers, which is not put to others, or one that three of them agree on.
func (j *dnsJudge) decided(a *dnsAsk, r *dnsResult) bool {
	servfails := 0
	for i, s := range j.w.serversAt(r.began, a.name) {
		for _, f := range j.w.servers[s].faults {
			if !f.matches(a.dnsKey) || !f.during(r.began, r.end) {
				continue
			}
			cut := f.kind == "cut" && j.w.servers[s].noTCP // it has said that it cannot answer
			if (cut || f.kind == "closes") && j.none(s, f, a, r) {
				return true // the question may be what has ended the connection
			}
			if f.decision() || i == 0 && f.failure() && j.w.way.by == "fallback" {
				return true
			}
			if f.kind == "servfail" {
				servfails++
			}
		}
	}
	return servfails >= 3 // RFC 9520: three servers are enough
}

// none reports whether no other server than that one, with that fault, answers during all of a question. If both close connections, that is
// an error when both have: the question is not asked again for as long as it has time.
func (j *dnsJudge) none(server int, fault *dnsFault, a *dnsAsk, r *dnsResult) bool {
	return !slices.ContainsFunc(j.w.serversAt(r.began, a.name), func(s int) bool {
		mute := j.w.servers[s].noTCP && strings.HasPrefix(a.name, "long")
		return s != server && !mute && !slices.ContainsFunc(j.w.servers[s].faults, func(f *dnsFault) bool {
			end := r.began + j.w.client.timeout
			if fault.kind == "closes" && (f.kind == "closes" || f.kind == "down") {
				end = r.end
			}
			never := f.kind == "down" || f.kind == "closes" || f.kind == "cut" && j.w.servers[s].noTCP || f.failure() || f.mute(j.w.client.timeout)
			return never && f.matches(a.dnsKey) && f.from <= r.began && f.until >= end
		})
	})
}

// alone reports whether no other server than that one was well during a question; -1: no server.
func (j *dnsJudge) alone(server int, a *dnsAsk, r *dnsResult) bool {
	return !slices.ContainsFunc(j.w.serversAt(r.began, a.name), func(s int) bool { return s != server && !j.sick(s, a.dnsKey, r.began, r.end) })
}

// failedBefore reports whether the failure may be that of a question before, which is kept.
func (j *dnsJudge) failedBefore(a *dnsAsk, r *dnsResult) bool {
	keep := 5 * time.Second
	if j.w.way.by == "exchanger" {
		keep = 20 * time.Second
	}
	for i, b := range j.w.asks {
		x := j.client.results[i]
		if b.dnsKey != a.dnsKey || x == r || x.good() || x.began > r.began || x.end < r.began-keep {
			continue
		}
		y := j.patient.results[i]
		if (j.w.client.cache || x.end >= r.began) && (!y.good() || j.decided(b, x) || x.began < r.began && j.mayFail(b, y, x)) {
			return true
		}
	}
	return j.w.client.cache && r.end == r.began && j.refreshed(a, r, keep)
}

// refreshed reports whether a server has decided about a question that was asked in the background, for an answer that was to be kept longer. Any
// server may be asked that.
func (j *dnsJudge) refreshed(a *dnsAsk, r *dnsResult, keep time.Duration) bool {
	return slices.ContainsFunc(j.client.failures, func(said dnsFailed) bool {
		return said.key == a.dnsKey && said.at < r.began && said.at > r.began-keep-travel(said.server) &&
			slices.ContainsFunc(j.w.servers[said.server].faults, func(f *dnsFault) bool { return f.decision() && f.matches(a.dnsKey) && f.during(said.at, said.at) })
	})
}

// origin judges an answer by the response that it is from.
func (j *dnsJudge) origin(a *dnsAsk, r *dnsResult, say func(string, string, ...any)) {
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
	if wrong := unlike(r.msg, s.msg); wrong != "" && !below {
		say("1 records", "%s; server %d said %v", wrong, s.server, s.msg)
	}
	j.whose(a, r, s, say)
	j.undone(s, say)
	j.age(a, r, s, say)
}

// whose judges which server an answer is from.
func (j *dnsJudge) whose(a *dnsAsk, r *dnsResult, s *dnsSaid, say func(string, string, ...any)) {
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
	if !j.w.strict() || j.w.way.change == "resolvConf" {
		return
	}
	for _, before := range servers[:at] {
		if !j.sick(before, s.key, s.at-j.w.client.timeout, s.at) && j.noticed(before, s.at) && !j.overtaken(a, before, 2*travel(0)) {
			say("1 server", "it is from server %d, and nothing is wrong with server %d", s.server, before)
		}
	}
}

// overtaken reports whether a caller has so little time that a server which is well may answer after the next one, whose round trip is given: the next
// one is asked when this one has had its part of the time, over a connection that may be open.
func (j *dnsJudge) overtaken(a *dnsAsk, server int, next time.Duration) bool {
	if a.deadline == 0 || !j.client.callersGiveUp() {
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
	needs := j.needs(server)
	if j.crowded(server, a.at+part) {
		needs += growAfter + j.needs(server)
	}
	return needs > part+next
}

// growAfter is how long a question is expected to wait for a stream of HTTPS, before a further connection is opened.
const growAfter = 50 * ms

// crowded reports whether more questions to a server over HTTPS are under way at a time than a connection has streams: one waits for a stream,
// until a further connection is opened.
func (j *dnsJudge) crowded(server int, at time.Duration) bool {
	n := 0
	for i := range j.client.tries {
		if t := &j.client.tries[i]; t.began <= at && (t.end == 0 || t.end > at) && j.asked(server, t) {
			n++
		}
	}
	return j.w.way.streams > 0 && n > j.w.way.streams
}

// needs is how long a server takes for a question at most, with handshakes, if nothing is wrong with it but that it closes connections on probes.
func (j *dnsJudge) needs(server int) time.Duration {
	trips := map[string]int{"udp": 1, "tcp": 2, "tls": 3, "https": 3}[j.w.way.net]
	if trips > 1 && slices.ContainsFunc(j.w.servers[server].faults, func(f *dnsFault) bool { return f.kind == "closes" && f.on == "probe" }) {
		trips *= 2 // a question that is under way on such a connection is asked again over another
	}
	if j.asksTwice(server) {
		trips = max(trips, 4)
	}
	return time.Duration(trips) * 2 * travel(server)
}

// asksTwice reports whether a question takes a server up to 80 ms: somebody guesses, so that names are spelled at random, which the server does
// not repeat, and it is asked over TCP as well, and if it has no TCP over another socket.
func (j *dnsJudge) asksTwice(server int) bool {
	s := j.w.servers[server]
	return s.lower && (s.stray || slices.ContainsFunc(s.faults, func(f *dnsFault) bool {
		return f.kind == "stray" || f.kind == "wrongID" || f.kind == "wrongName"
	}))
}

// twice reports whether a server is so late that there is no time to ask it twice.
func (j *dnsJudge) twice(a *dnsAsk, r *dnsResult) bool {
	return slices.ContainsFunc(j.w.serversAt(r.began, a.name), func(s int) bool {
		return j.asksTwice(s) && slices.ContainsFunc(j.w.servers[s].faults, func(f *dnsFault) bool {
			return f.matches(a.dnsKey) && f.during(r.began, r.end) && 2*f.delay()+time.Second > j.w.client.timeout
		})
	})
}

// noticed reports whether enough was asked since a server was gone for all questions, or had failed them, to find out that it is back.
func (j *dnsJudge) noticed(server int, at time.Duration) bool {
	gone := time.Duration(-1)
	if j.w.past.broken && !j.known(server) {
		gone = j.w.start // it has failed all that it was asked
	}
	if end := j.w.way.changeAt + netdownFor; j.w.way.change == "netdown" && end < at {
		gone = end
	}
	for _, f := range j.w.servers[server].faults {
		if f.total() && f.until < at {
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
	if gone >= 0 && server > 0 && noProbe && j.w.strict() && !j.answeredSince(server, gone, at-3*travel(server)) {
		return false // while servers before it are not down, probes have only names that it has failed (see dnshedge.OrderStrict)
	}
	n, last := 0, gone                // there may have been a probe a moment before
	for _, q := range j.client.seen { // what the cache answers is no reason to probe
		lost := slices.ContainsFunc(s.faults, func(f *dnsFault) bool { return f.matches(q.key) && f.during(q.at, q.at) })
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

// answeredSince reports whether a server has answered a question about a name that is not broken between two times.
func (j *dnsJudge) answeredSince(server int, from, until time.Duration) bool {
	for _, s := range j.client.said {
		asked := s.key.opcode == dns.OpcodeQuery && s.key.name != "." && !strings.HasPrefix(s.key.name, "broken")
		if s.server == server && asked && from <= s.at && s.at < until {
			return true
		}
	}
	return false
}

func (j *dnsJudge) noticedAll(a *dnsAsk, r *dnsResult) bool {
	for _, s := range j.w.serversAt(r.began, a.name) {
		if !j.noticed(s, r.began) {
			return false
		}
	}
	return true
}

// unlike says how the records of a response differ from what a server said; "": they do not.
func unlike(m, said *dns.Msg) string {
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

// age judges the TTLs of an answer.
func (j *dnsJudge) age(a *dnsAsk, r *dnsResult, s *dnsSaid, say func(string, string, ...any)) {
	c, age := &j.w.client, r.end-s.at-travel(s.server)
	live := s.at+travel(s.server) >= r.began-ms
	shared := j.w.strict() && age <= c.timeout // with one who had asked before, and for whom it was held back
	if !(c.cache && a.kept()) && !live && !shared {
		say("1 old", "it is %v old, and is not kept", age)
		return
	}
	keep := time.Duration(1<<63 - 1)
	for _, rr := range slices.Concat(s.msg.Answer, s.msg.Ns) {
		keep = min(keep, j.limit(rr))
	}
	over := age > keep+slack || !j.w.strict() && age >= keep && leastTTL(r.msg) > time.Second // what has just expired has that if it is stale
	stale := !live && over && !(shared && j.heldFor(a, r, s))
	for _, rr := range slices.Concat(r.msg.Answer, r.msg.Ns) {
		var most, least, held time.Duration
		for _, o := range slices.Concat(s.msg.Answer, s.msg.Ns) {
			if dns.IsDuplicate(rr, o) {
				most = j.limit(o)
				least = most
				if soa, ok := o.(*dns.SOA); ok { // RFC 2308 §5, of an answer that was held back
					least = min(least, time.Duration(soa.Minttl)*time.Second)
				}
				if j.w.strict() { // the limits hold from when it is not held back any more, and it may be kept then
					back := min(age, c.timeout)
					low := dns.Copy(o)
					low.Header().Ttl -= min(max(low.Header().Ttl, 1)-1, uint32(back/time.Second))
					held = j.limit(low) - (age - back).Truncate(time.Second)
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
		j.stale(a, r, s, age, keep, say)
	}
}

// leastTTL is the least TTL of a message's records.
func leastTTL(m *dns.Msg) time.Duration {
	least := uint32(math.MaxUint32)
	for _, rr := range slices.Concat(m.Answer, m.Ns) {
		least = min(least, rr.Header().Ttl)
	}
	return time.Duration(least) * time.Second
}

// heldFor reports whether a response came for another caller, who had asked the same before, was held back, and was given to both at the same
// time. Its TTL may have been over then, and is judged.
func (j *dnsJudge) heldFor(a *dnsAsk, r *dnsResult, s *dnsSaid) bool {
	for i, b := range j.w.asks {
		if o := j.client.results[i]; b != a && b.dnsKey == a.dnsKey && o.msg != nil && o.began < r.began && (r.end-o.end).Abs() < slack && s.at+travel(s.server) >= o.began-ms {
			return true
		}
	}
	return false
}

// limit is the TTL that a record of a server may have at first.
func (j *dnsJudge) limit(rr dns.RR) time.Duration {
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

// stale judges an answer that has expired.
func (j *dnsJudge) stale(a *dnsAsk, r *dnsResult, s *dnsSaid, age, keep time.Duration, say func(string, string, ...any)) {
	switch {
	case keep == 0:
		say("1 stale", "its TTL was 0")
	case age > keep+j.w.client.stale()+j.w.client.timeout+slack:
		say("1 stale", "it is %v old", age)
	case j.w.client.staleAfter >= 0 && j.well(s.key, r.began-35*time.Second, r.end) && j.well(a.dnsKey, r.began-35*time.Second, r.end): // that a name does not exist, one type may have said
		say("1 stale", "it is %v old, and servers would answer", age)
	}
}

// together judges whether the same question was asked once at a time.
func (j *dnsJudge) together() {
	for i, a := range j.w.asks {
		if i == 0 || a.dnsKey != j.w.asks[i-1].dnsKey || a.at != j.w.asks[i-1].at || a.noRD || a.cancel >= 0 {
			continue
		}
		if !j.well(a.dnsKey, a.at, a.at+ms) || a.deadline > 0 && a.deadline < j.w.client.timeout && !(j.w.client.cache && a.kept()) {
			continue
		}
		n := make(map[int]int) // a server that is measured may be asked as well
		for _, q := range j.client.seen {
			if q.key == a.dnsKey && a.at <= q.at && q.at <= a.at+15*ms {
				n[q.server]++
			}
		}
		most := 1
		for _, b := range j.w.asks { // who has less time than the others asks alone if nothing is kept
			if b.dnsKey == a.dnsKey && b.deadline > 0 && b.deadline < j.w.client.timeout && !(j.w.client.cache && b.kept()) && (b.at-a.at).Abs() <= 15*ms {
				most++
			}
		}
		for _, b := range j.w.asks { // who gives up ends its query if nothing is kept, and the next one asks anew
			if b.dnsKey == a.dnsKey && b.cancel >= 0 && j.client.callersGiveUp() && !(j.w.client.cache && b.kept()) && b.at >= a.at-15*ms && b.at+b.cancel <= a.at+15*ms {
				most++
			}
		}
		if slices.ContainsFunc(j.w.asks, func(b *dnsAsk) bool {
			return b.dnsKey == a.dnsKey && b.once() != a.once() && (b.at-a.at).Abs() <= 15*ms
		}) {
			most++ // who may be hedged is not served by one that may not (see dnshedge.Hedge)
		}
		for s, n := range n {
			if n > most {
				j.add("3 together", "%v: server %d had %d queries for the same question at once", a.dnsKey, s, n)
				return
			}
		}
	}
}

// kept judges whether what is kept is asked for again, where nothing else is a reason for that.
func (j *dnsJudge) kept() {
	w := j.w
	if !w.client.cache || len(w.servers) > 1 || len(w.servers[0].faults) > 0 || w.servers[0].stray || w.way.change != "" || w.way.by == "route" {
		return
	}
	for _, s := range j.client.said {
		keep := time.Duration(1<<63 - 1)
		for _, rr := range slices.Concat(s.msg.Answer, s.msg.Ns) {
			keep = min(keep, j.limit(rr))
		}
		if len(s.msg.Answer)+len(s.msg.Ns) == 0 { // a failure
			continue
		}
		for _, q := range j.client.seen {
			if s.msg.Rcode == dns.RcodeNameError && j.existsBelow(q.key.name, s.at, q.at) {
				continue // what is kept is not true any more
			}
			if since := q.at - s.at - 2*travel(s.server); q.key == s.key && q.key.kept() && since > ms && since < keep*9/10-ms {
				j.add("3 kept", "%v is asked for again %v after it was answered for %v", q.key, since, keep)
				return
			}
		}
	}
}

// existsBelow reports whether a server has said from one time on, and before another, that there is a name below that one.
func (j *dnsJudge) existsBelow(name string, from, until time.Duration) bool {
	for _, s := range j.client.said {
		if s.msg.Rcode == dns.RcodeSuccess && strings.HasSuffix(s.key.name, "."+name) && from <= s.at && s.at < until {
			return true
		}
	}
	return false
}

// bounded judges how many queries there are in all.
func (j *dnsJudge) bounded() {
	end := j.w.end + time.Minute
	probes := 3 * len(j.w.servers) * (12 + int(end/(10*time.Second)))
	most := probes + len(j.w.asks)*2*(4+len(j.w.servers))
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
