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

// These are rules that documents of dnshedge state about queries and failures, beside those about answers.

// atOnce is how long it takes to hear from all servers, with handshakes.
const atOnce = 500 * ms

// failsIn is how long a failure may take at most.
func (j *dnsJudge) failsIn(a *dnsAsk, r *dnsResult) time.Duration {
	servers := j.w.serversAt(r.began, a.name)
	if len(servers) == 0 || j.w.way.change == "netdown" || j.w.way.change == "resolvConf" {
		return forever
	}
	told := !slices.ContainsFunc(servers, func(s int) bool { return !j.refuses(s, a.dnsKey, r) })
	gone := !slices.ContainsFunc(servers, func(s int) bool { return !j.gone(s, a, r) })
	if told || gone {
		return atOnce
	}
	return forever
}

// refuses reports whether a server says during a question that it cannot answer, and nothing else is wrong with it.
func (j *dnsJudge) refuses(server int, k dnsKey, r *dnsResult) bool {
	s := j.w.servers[server]
	if len(s.faults) != 1 || s.stray || s.noTCP {
		return false
	}
	f := s.faults[0]
	return f.failure() && f.matches(k) && f.from <= r.began && f.until >= r.end
}

// gone reports whether a server has refused connections for as long as a question has time, and was asked every minute meanwhile:
// it is not about to restart.
func (j *dnsJudge) gone(server int, a *dnsAsk, r *dnsResult) bool {
	s := j.w.servers[server]
	if !slices.ContainsFunc(s.faults, func(f *dnsFault) bool { return f.kind == "down" && f.from <= r.began && f.until >= r.end }) {
		return false
	}
	addr := j.client.hostOf(server)
	first, last := time.Duration(-1), r.began
	tries := slices.SortedStableFunc(slices.Values(j.client.tries), func(a, b dnsTry) int { return cmp.Compare(a.end, b.end) }) // an answer may come after a refusal over TCP
	for _, t := range slices.Backward(tries) {
		other := j.w.way.by == "route" && bad(t.Name) != bad(a.name) || j.w.way.change == "import" && t.began < j.w.way.changeAt+j.w.client.timeout // Client
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

// bad reports whether a name is in the zone that has a route.
func bad(name string) bool { return strings.HasSuffix(strings.ToLower(name), ".bad.example.") }

// undone judges whether an answer of a Fallback takes the place of a decision of the first server, which is healthy.
func (j *dnsJudge) undone(s *dnsSaid, say func(string, string, ...any)) {
	w := j.w
	if w.way.by != "fallback" || s.server == 0 || !j.known(0) || w.way.change == "netdown" {
		return
	}
	first := w.servers[0]
	if len(first.faults) != 1 || first.stray || first.noTCP {
		return
	}
	f, began := first.faults[0], s.at-w.client.timeout // the question was asked after that
	if !f.policy() && f.kind != "servfail" && f.kind != "refused" || !f.matches(s.key) || !f.during(began, began) || f.until < s.at {
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

// paid judges the queries that were sent again until a question ended. What pays for them says dnshedge.Hedge: answers, and what is
// saved up at first, for each server; the budget, and what is saved up of that, for each Client.
func (j *dnsJudge) paid(r *dnsResult, say func(string, string, ...any)) {
	if j.w.way.by == "loop" {
		return
	}
	clients := len(j.client.clients)
	most := r.sent.answers + savedUp*clients*(len(j.w.servers)+1) + r.sent.wire*5/100
	if r.sent.resends > most {
		say("3 resends", "%d until then: %d at most", r.sent.resends, most)
	}
}

// hedged judges whether what must not be hedged was.
func (j *dnsJudge) hedged() {
	if j.w.way.front != "" {
		return
	}
	for _, t := range j.client.tries {
		if !t.Hedge {
			continue
		}
		var mine []*dnsAsk
		for _, a := range j.w.asks {
			if a.typ == t.Type && a.name == strings.ToLower(t.Name) {
				mine = append(mine, a)
			}
		}
		if len(mine) == 0 {
			continue
		}
		kept := func(a *dnsAsk) bool { return j.w.client.cache && a.kept() } // it is asked for others as well
		if !slices.ContainsFunc(mine, func(a *dnsAsk) bool { return !a.once() || kept(a) }) {
			j.add("3 once", "%s %s is hedged at %v", t.Name, dns.TypeToString[t.Type], t.began)
			return
		}
	}
}
