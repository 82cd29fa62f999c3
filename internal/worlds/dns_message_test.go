package worlds_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/internal/dnstest"
)

// withOpcode returns the message of call i: an update of a zone, or a notification. Each call has a zone of its own, by
// which the checker counts its messages at the servers.
func (a *dnsQuestion) withOpcode(opcode, i int) *dnsQuestion {
	_, parent, _ := strings.Cut(a.name, ".")
	m := &dnsQuestion{what: a.what, at: a.at, deadline: a.deadline, cancel: a.cancel, noRD: true, edns: a.edns, upper: a.upper, values: a.values}
	m.dnsQuestionKey = dnsQuestionKey{name: fmt.Sprintf("zone%d.%s", i, parent), typ: dns.TypeSOA, class: dns.ClassINET, opcode: opcode}
	return m
}

// acceptMessage returns the response of a server to an update or a notification. The response to an update has no
// sections (RFC 2136 §3.8).
func acceptMessage(q dnstest.Query, k dnsQuestionKey) *dns.Msg {
	m := dnstest.Rcode(q, dns.RcodeSuccess)
	if k.opcode == dns.OpcodeUpdate {
		m.Question, m.Extra = nil, nil
	}
	return m
}

// checkMessage checks the result of an update or a notification.
func (j *dnsChecker) checkMessage(a *dnsQuestion, r *dnsResult) {
	say := func(promise, format string, args ...any) {
		j.add(promise, "%s %v at %v: %s; client %v", a.what, a.dnsQuestionKey, a.at, fmt.Sprintf(format, args...), r)
	}
	took := r.end - r.began
	if most := j.latestEnd(a); took > most {
		say("2 held", "for %v at most", most)
	}
	j.checkRetransmissions(r, say)
	if r.msg != nil && (!r.msg.Response || r.msg.Opcode != a.opcode) {
		say("1 form", "it is no response to the message")
	}
	if !j.answersMessage(a, r) {
		return
	}
	if r.msg == nil || r.msg.Rcode != dns.RcodeSuccess {
		say("1 lost", "every server would accept it")
	} else if took > 300*ms {
		say("1 later", "it takes %v at most", 300*ms)
	}
}

// answersMessage reports whether the server of a message certainly accepts it. A server that closes the connection
// because of another question ends the message as well: a message is not sent again.
func (j *dnsChecker) answersMessage(a *dnsQuestion, r *dnsResult) bool {
	w := j.w
	switch {
	case w.way.by == "loop", w.way.front != "", a.callerEndsBy(300 * ms): // a Server has no zones, and Dial is for questions
		return false
	case w.way.change == "close" && r.end >= w.way.changeAt-timeTolerance, w.mayBeUnread(r):
		return false
	case w.way.streams > 0 && strings.Contains(r.err, "REFUSED_STREAM"): // net/http would repeat the message also where a server may have received it
		return false
	}
	closes := slices.ContainsFunc(w.servers, func(s *dnsServer) bool {
		return slices.ContainsFunc(s.faults, func(f *dnsFault) bool { return f.kind == "closes" })
	})
	return !closes && j.allHealthy(a.dnsQuestionKey, r.began, r.end) && j.allReturnsWereDetected(a, r)
}

// checkSentOnce checks that each update and each notification was sent once, to one server.
func (j *dnsChecker) checkSentOnce() {
	sent := make(map[dnsQuestionKey]int)
	for _, q := range j.client.seen {
		sent[q.key]++
	}
	for _, a := range j.w.asks {
		if a.opcode == dns.OpcodeQuery {
			continue
		}
		if sent[a.dnsQuestionKey]--; sent[a.dnsQuestionKey] < 0 {
			delete(sent, a.dnsQuestionKey) // it may not have been sent at all
		}
	}
	for k, n := range sent {
		if k.opcode != dns.OpcodeQuery && n > 0 {
			j.add("3 sent twice", "%v: servers had %d messages more than callers have sent", k, n)
			return
		}
	}
}

// checkOrder checks that a server gets no name, not even in a probe, while an earlier server in a strict order answers.
// A probe may have a name that the server got before.
func (j *dnsChecker) checkOrder() {
	w := j.w
	if !w.hasStrictOrder() || w.way.change == "resolvConf" {
		return
	}
	known := make(map[dnsQueryCountKey]bool)
	for _, q := range j.client.seen {
		name := q.key.name
		one := dnsQueryCountKey{q.server, dnsQuestionKey{name: name}}
		if name == "." || strings.HasPrefix(name, "broken") || known[one] { // every server fails for a broken name
			continue
		}
		known[one] = true
		servers := w.serversAt(q.at, name)
		for _, before := range servers[:max(0, slices.Index(servers, q.server))] {
			again := time.Duration(0)
			if w.way.net == "udp" && strings.HasPrefix(name, "long") {
				again = 4 * oneWayDelay(before) // over TCP, with the handshake
			}
			hurried := slices.ContainsFunc(w.asks, func(a *dnsQuestion) bool {
				return a.name == name && a.at <= q.at && a.at > q.at-w.client.timeout-time.Second && j.mayBeOvertaken(a, before, -again)
			})
			if !hurried && !j.mayBeFaulty(before, q.key, q.at-w.client.timeout, q.at) && j.returnWasDetected(before, q.at) {
				j.add("3 order", "server %d is asked for %v at %v, and nothing is wrong with server %d", q.server, q.key, q.at, before)
				return
			}
		}
	}
}
