package worlds_test

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

// This file checks the rules in the documentation of dnshedge about queries and failures.

// immediately is the time for responses of all servers, including handshakes.
const immediately = 500 * ms

// maxFailureTime returns the longest time of a failure.
func (j *dnsChecker) maxFailureTime(a *dnsQuestion, r *dnsResult) time.Duration {
	servers := j.w.serversAt(r.began, a.name)
	if len(servers) == 0 || j.w.way.change == "netdown" || j.w.way.change == "resolvConf" {
		return forever
	}
	told := !slices.ContainsFunc(servers, func(s int) bool { return !j.reportsRefusalOnly(s, a.dnsQuestionKey, r) })
	gone := !slices.ContainsFunc(servers, func(s int) bool { return !j.refusedConnections(s, a, r) })
	if told || gone {
		return immediately + j.extraStreamWait(r)
	}
	return forever
}

// reportsRefusalOnly reports whether a server reports during a question that it cannot answer, and has no other fault.
func (j *dnsChecker) reportsRefusalOnly(server int, k dnsQuestionKey, r *dnsResult) bool {
	s := j.w.servers[server]
	if len(s.faults) != 1 || s.stray || s.noTCP {
		return false
	}
	f := s.faults[0]
	return f.isFailure() && f.matches(k) && f.from <= r.began && f.until >= r.end
}

// refusedConnections reports whether a server has refused connections for the time of a question, with a query in every minute. It
// does not restart soon.
func (j *dnsChecker) refusedConnections(server int, a *dnsQuestion, r *dnsResult) bool {
	s := j.w.servers[server]
	if !slices.ContainsFunc(s.faults, func(f *dnsFault) bool { return f.kind == "down" && f.from <= r.began && f.until >= r.end }) {
		return false
	}
	addr := j.client.hostOf(server)
	first, last := time.Duration(-1), r.began
	tries := slices.SortedStableFunc(slices.Values(j.client.tries), func(a, b dnsTracedQuery) int { return cmp.Compare(a.end, b.end) }) // an answer may come after a refusal over TCP
	for _, t := range slices.Backward(tries) {
		other := j.w.way.by == "route" && isBadName(t.Name) != isBadName(a.name) || j.w.way.change == "import" && t.began < j.w.way.changeAt+j.w.client.timeout // Client
		if t.end == 0 || t.end > r.began || !strings.HasPrefix(t.Upstream.Addr, addr+":") || other {
			continue
		}
		if !errors.Is(t.err, syscall.ECONNREFUSED) || last-t.end > 55*time.Second {
			break
		}
		first, last = t.end, t.end
	}
	return first >= 0 && first+j.w.client.timeout+time.Second < r.began
}

// isBadName reports whether a name is in the zone with a route.
func isBadName(name string) bool { return strings.HasSuffix(strings.ToLower(name), ".bad.example.") }

// checkDecision checks that no answer of a Fallback replaces a decision of the first server while that is healthy.
func (j *dnsChecker) checkDecision(s *dnsSentAnswer, say func(string, string, ...any)) {
	w := j.w
	if w.way.by != "fallback" || s.server == 0 || !j.answeredInWarmUp(0) || w.way.change == "netdown" {
		return
	}
	first := w.servers[0]
	if len(first.faults) != 1 || first.stray || first.noTCP {
		return
	}
	f, began := first.faults[0], s.at-w.client.timeout // the question was asked after that
	if !f.isPolicy() && f.kind != "servfail" && f.kind != "refused" || !f.matches(s.key) || !f.isActiveDuring(began, began) || f.until < s.at {
		return
	}
	failed := make(map[string]bool) // names: with three of them it is in doubt
	for _, one := range j.client.failures {
		if one.server == 0 && one.key.name != "." && one.at < s.at {
			failed[one.key.name] = true
		}
	}
	if len(failed) < 3 {
		say("1 undone", "the first server is healthy, and has said that there is none: %s", f.kind)
	}
}

// checkRetransmissions checks the number of retransmissions until the end of a question, see dnshedge.Hedge. Answers
// and an initial burst pay for them at each server, and the budget with its burst at each Client.
func (j *dnsChecker) checkRetransmissions(r *dnsResult, say func(string, string, ...any)) {
	if j.w.way.by == "loop" {
		return
	}
	clients := len(j.client.clients)
	most := r.sent.answers + burst*clients*(len(j.w.servers)+1) + r.sent.wire*5/100
	if r.sent.resends > most {
		say("3 resends", "%d until then: %d at most", r.sent.resends, most)
	}
}

// checkUnhedged checks that questions which forbid hedges have none.
func (j *dnsChecker) checkUnhedged() {
	if j.w.way.front != "" {
		return
	}
	for _, t := range j.client.tries {
		if !t.Hedge {
			continue
		}
		var mine []*dnsQuestion
		for _, a := range j.w.asks {
			if a.typ == t.Type && a.name == strings.ToLower(t.Name) {
				mine = append(mine, a)
			}
		}
		if len(mine) == 0 {
			continue
		}
		kept := func(a *dnsQuestion) bool { return j.w.client.cache && a.isCacheable() } // it is asked for others as well
		if !slices.ContainsFunc(mine, func(a *dnsQuestion) bool { return !a.forbidsHedges() || kept(a) }) {
			j.add("3 once", "%s %s is hedged at %v", t.Name, dns.TypeToString[t.Type], t.began)
			return
		}
	}
}
