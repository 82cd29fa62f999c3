package faultlab

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/netsim"
)

const (
	oneWayDelay = 10 * time.Millisecond
	jitter      = 200 * time.Microsecond

	defaultQueryTime = 5 * time.Second
)

// A scenario has one or two DNS servers and the queries that all resolvers get. The servers, or the paths to them, have
// faults.
type scenario struct {
	lab.Scenario

	first, second func(seed uint64) dnstest.Handler // second is nil if there is one server only
	loss          float64                           // share of the packets lost in each direction
	namesDiffer   bool                              // the servers know different names, so that their order matters
	query         func(i int) query

	duration time.Duration            // for which queries are sent; 0: defaultQueryTime
	prepare  func(*resolverLab) error // sets the links and resolv.conf; nil: both servers can be reached and are named
	events   []event                  // in the order of their times
}

// An event changes the servers or the network of the lab at a time after the first query.
type event struct {
	at    time.Duration
	apply func(*resolverLab) error
}

// A query is a DNS query that all contenders get, and the answers to it that count as right.
type query struct {
	name  string
	qtype uint16
	want  expectation
}

// An expectation says which answers to a query count as right.
type expectation uint8

const (
	wantRecords expectation = iota // of the query's type
	wantRecordsOrDenial
	wantNothing // the query may confuse a resolver, and is not counted
)

// queryTime returns for how long queries are sent.
func (s *scenario) queryTime() time.Duration {
	if s.duration > 0 {
		return s.duration
	}
	return defaultQueryTime
}

// linkProfile returns the delay and the loss of packets between resolvers and servers, in each direction.
func (s *scenario) linkProfile() netsim.Profile {
	return netsim.Profile{Delay: netsim.Uniform(oneWayDelay-jitter, oneWayDelay+jitter), Loss: s.loss}
}

// typeForHTTPS is the type that Go's resolver looks up in place of HTTPS, which it cannot look up. A server that drops
// one drops the other.
const typeForHTTPS = dns.TypeTXT

// Scenarios lists all scenarios.
var Scenarios = lab.ScenariosOf(scenarios)

var scenarios = []scenario{{
	Scenario: lab.Scenario{Name: "tenth", Description: "the first server answers one query in ten"},
	first:    answerTenth, second: ignoreSeed(answerAll), query: queryAddress,
}, {
	Scenario: lab.Scenario{Name: "drops-https", Description: "every other question is of type HTTPS, which the first server drops"},
	first:    ignoreSeed(dropHTTPS), second: ignoreSeed(answerAll),
	query: changeEvery(2, 1, func(_ int, q *query) { q.qtype = dns.TypeHTTPS }),
}, {
	Scenario: lab.Scenario{Name: "refuses", Description: "the first server refuses us (EDE 18)"},
	first:    ignoreSeed(failWith(dns.RcodeRefused, dns.ExtendedErrorCodeProhibited)), second: ignoreSeed(answerAll), query: queryAddress,
}, {
	Scenario: lab.Scenario{Name: "validator", Description: "the first server's validator is broken: SERVFAIL (EDE 7) for all names"},
	first:    ignoreSeed(failWith(dns.RcodeServerFailure, dns.ExtendedErrorCodeSignatureExpired)), second: ignoreSeed(answerAll), query: queryAddress,
}, {
	Scenario: lab.Scenario{Name: "probes", Description: "the first server refuses probes and fails a broken zone, and the second denies all names"},
	first:    ignoreSeed(answerPrivateNames), second: ignoreSeed(denyAll), namesDiffer: true,
	query: changeEvery(4, 0, func(i int, q *query) { q.name, q.want = fmt.Sprintf("n%d.broken.example.", i), wantNothing }),
}, {
	Scenario: lab.Scenario{Name: "restart", Description: "the only server restarts, for two seconds"},
	first:    ignoreSeed(answerAll), query: queryAddress,
	events: []event{{1003 * time.Millisecond, (*resolverLab).stopFirst}, {3003 * time.Millisecond, (*resolverLab).restartFirst}},
}, {
	Scenario: lab.Scenario{Name: "vpn", Description: "a VPN goes up and down: resolv.conf names the second server, the first, the second; the other is out of reach"},
	first:    ignoreSeed(answerAll), second: ignoreSeed(answerAll), query: queryAddress,
	duration: 18 * time.Second, prepare: switchTo("b"),
	events: []event{{5503 * time.Millisecond, switchTo("a")}, {12003 * time.Millisecond, switchTo("b")}},
}, {
	Scenario: lab.Scenario{Name: "lossy", Description: "10 % of the packets are lost each way"},
	first:    ignoreSeed(answerAll), second: ignoreSeed(answerAll), query: queryAddress, loss: 0.1,
}, {
	Scenario: lab.Scenario{Name: "denies", Description: "the first server denies every other name, and the second knows it"},
	first:    ignoreSeed(denySecondNames), second: ignoreSeed(answerAll), namesDiffer: true,
	query: changeEvery(2, 1, func(i int, q *query) { q.name, q.want = fmt.Sprintf("n%d.second.example.", i), wantRecordsOrDenial }),
}}

func (l *resolverLab) stopFirst() error    { l.servers["a"].Close(); return nil }
func (l *resolverLab) restartFirst() error { return l.startServer("a") }

// switchTo returns a change of the lab, for events. After it, resolv.conf names the server on host alone, and no other
// server can be reached.
func switchTo(host string) func(*resolverLab) error {
	return func(l *resolverLab) error {
		for _, h := range l.serverHosts() {
			p := l.linkProfile()
			p.BlackHole = h != host
			l.setLinks(h, p)
		}
		return l.writeResolvConf(host)
	}
}

// queryAddress returns the i-th query, for the IPv4 addresses of a name of its own.
func queryAddress(i int) query {
	return query{name: fmt.Sprintf("n%d.example.", i), qtype: dns.TypeA}
}

// changeEvery returns a function for scenario.query. It returns the queries of queryAddress, and applies change to the query
// at index rest of each period.
func changeEvery(period, rest int, change func(i int, q *query)) func(i int) query {
	return func(i int) query {
		q := queryAddress(i)
		if i%period == rest {
			change(i, &q)
		}
		return q
	}
}

// ignoreSeed returns a function that ignores its seed and returns the handler h, for servers without random faults.
func ignoreSeed(h dnstest.Handler) func(uint64) dnstest.Handler {
	return func(uint64) dnstest.Handler { return h }
}

// answerAll is the handler of a DNS server that answers all queries with a record, or without one if the type is
// unusual.
func answerAll(q dnstest.Query) dnstest.Reply {
	switch q.Question[0].Qtype {
	case dns.TypeA:
		return dnstest.Reply{Msg: dnstest.Answer(q, "A 192.0.2.1")}
	case dns.TypeHTTPS:
		return dnstest.Reply{Msg: dnstest.Answer(q, "HTTPS 1 .")}
	case dns.TypeTXT:
		return dnstest.Reply{Msg: dnstest.Answer(q, `TXT "x"`)}
	case dns.TypeNS:
		return dnstest.Reply{Msg: dnstest.Answer(q, "NS ns.example.")}
	}
	return dnstest.Reply{Msg: dnstest.Negative(q, dns.RcodeSuccess, 300, 300)}
}

// answerTenth returns the handler of a DNS server that answers one query in ten. The seed determines at random which
// queries it answers.
func answerTenth(seed uint64) dnstest.Handler {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 10))
	return func(q dnstest.Query) dnstest.Reply {
		mu.Lock()
		defer mu.Unlock()
		if rng.IntN(10) > 0 {
			return dnstest.Reply{}
		}
		return answerAll(q)
	}
}

// dropHTTPS is the handler of a DNS server that does not answer queries of type HTTPS and of typeForHTTPS, and answers
// all others.
func dropHTTPS(q dnstest.Query) dnstest.Reply {
	if t := q.Question[0].Qtype; t == dns.TypeHTTPS || t == typeForHTTPS {
		return dnstest.Reply{}
	}
	return answerAll(q)
}

// failWith returns the handler of a DNS server that fails all queries with a response code, rcode, and the extended
// error code (RFC 8914).
func failWith(rcode int, code uint16) dnstest.Handler {
	return func(q dnstest.Query) dnstest.Reply {
		return dnstest.Reply{Msg: dnstest.EDE(dnstest.Rcode(q, rcode), code)}
	}
}

// answerPrivateNames is the handler of a DNS server in a company network. It refuses queries for the root, answers
// SERVFAIL for one of its zones, and answers all other queries.
func answerPrivateNames(q dnstest.Query) dnstest.Reply {
	switch name := strings.ToLower(q.Question[0].Name); {
	case name == ".":
		return dnstest.Reply{Msg: dnstest.Rcode(q, dns.RcodeRefused)}
	case strings.HasSuffix(name, ".broken.example."):
		return dnstest.Reply{Msg: dnstest.Rcode(q, dns.RcodeServerFailure)}
	}
	return answerAll(q)
}

// denyAll is the handler of a DNS server that answers NXDOMAIN for all names except the root.
func denyAll(q dnstest.Query) dnstest.Reply {
	if q.Question[0].Name == "." {
		return answerAll(q)
	}
	return dnstest.Reply{Msg: dnstest.Negative(q, dns.RcodeNameError, 300, 300)}
}

// denySecondNames is the handler of a DNS server that answers NXDOMAIN for the names that only the second server knows,
// and answers all others.
func denySecondNames(q dnstest.Query) dnstest.Reply {
	if strings.HasSuffix(strings.ToLower(q.Question[0].Name), ".second.example.") {
		return denyAll(q)
	}
	return answerAll(q)
}
