package worlds_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/internal/dnstest"
)

// withOpcode returns a message of call i that is an update of a zone, or a notification about it. Each call has a zone of its own, so
// that the judge can count its message at the servers.
func (a *dnsAsk) withOpcode(opcode, i int) *dnsAsk {
	_, parent, _ := strings.Cut(a.name, ".")
	m := &dnsAsk{what: a.what, at: a.at, deadline: a.deadline, cancel: a.cancel, noRD: true, edns: a.edns, upper: a.upper, values: a.values}
	m.dnsKey = dnsKey{name: fmt.Sprintf("zone%d.%s", i, parent), typ: dns.TypeSOA, class: dns.ClassINET, opcode: opcode}
	return m
}

// acceptMessage returns the response of a server to an update or a notification. The response to an update has no section,
// which RFC 2136 §3.8 permits.
func acceptMessage(q dnstest.Query, k dnsKey) *dns.Msg {
	m := dnstest.Rcode(q, dns.RcodeSuccess)
	if k.opcode == dns.OpcodeUpdate {
		m.Question, m.Extra = nil, nil
	}
	return m
}

// judgeMessage judges the result of an update or a notification.
func (j *dnsJudge) judgeMessage(a *dnsAsk, r *dnsResult) {
	say := func(promise, format string, args ...any) {
		j.add(promise, "%s %v at %v: %s; client %v", a.what, a.dnsKey, a.at, fmt.Sprintf(format, args...), r)
	}
	took := r.end - r.began
	if most := j.atMost(a); took > most {
		say("2 held", "for %v at most", most)
	}
	j.paid(r, say)
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

// answersMessage reports whether the server of a message certainly accepts it. A server that closes the connection on another question
// ends the message with it, because the message is not sent again.
func (j *dnsJudge) answersMessage(a *dnsAsk, r *dnsResult) bool {
	w := j.w
	switch {
	case w.way.by == "loop", w.way.front != "", a.ended(300 * ms): // a Server has no zones, and Dial is for questions
		return false
	case w.way.change == "close" && r.end >= w.way.changeAt-slack, w.unread(r):
		return false
	case w.way.streams > 0 && strings.Contains(r.err, "REFUSED_STREAM"): // net/http would repeat the message also where a server may have received it
		return false
	}
	closes := slices.ContainsFunc(w.servers, func(s *dnsServer) bool {
		return slices.ContainsFunc(s.faults, func(f *dnsFault) bool { return f.kind == "closes" })
	})
	return !closes && j.well(a.dnsKey, r.began, r.end) && j.noticedAll(a, r)
}

// judgeOnce judges that each update and each notification was sent once, to one server, whatever came of it.
func (j *dnsJudge) judgeOnce() {
	sent := make(map[dnsKey]int)
	for _, q := range j.client.seen {
		sent[q.key]++
	}
	for _, a := range j.w.asks {
		if a.opcode == dns.OpcodeQuery {
			continue
		}
		if sent[a.dnsKey]--; sent[a.dnsKey] < 0 {
			delete(sent, a.dnsKey) // it may not have been sent at all
		}
	}
	for k, n := range sent {
		if k.opcode != dns.OpcodeQuery && n > 0 {
			j.add("3 sent twice", "%v: servers had %d messages more than callers have sent", k, n)
			return
		}
	}
}

// judgeOrder judges that a server is asked for no name, not even in a probe, while a server before it in a strict order answers. A
// probe may have a name that the server was asked for before.
func (j *dnsJudge) judgeOrder() {
	w := j.w
	if !w.strict() || w.way.change == "resolvConf" {
		return
	}
	known := make(map[dnsCount]bool)
	for _, q := range j.client.seen {
		name := q.key.name
		one := dnsCount{q.server, dnsKey{name: name}}
		if name == "." || strings.HasPrefix(name, "broken") || known[one] { // every server fails for a broken name
			continue
		}
		known[one] = true
		servers := w.serversAt(q.at, name)
		for _, before := range servers[:max(0, slices.Index(servers, q.server))] {
			again := time.Duration(0)
			if w.way.net == "udp" && strings.HasPrefix(name, "long") {
				again = 4 * travel(before) // over TCP, with the handshake
			}
			hurried := slices.ContainsFunc(w.asks, func(a *dnsAsk) bool {
				return a.name == name && a.at <= q.at && a.at > q.at-w.client.timeout-time.Second && j.overtaken(a, before, -again)
			})
			if !hurried && !j.sick(before, q.key, q.at-w.client.timeout, q.at) && j.noticed(before, q.at) {
				j.add("3 order", "server %d is asked for %v at %v, and nothing is wrong with server %d", q.server, q.key, q.at, before)
				return
			}
		}
	}
}
