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

	defaultQueryDuration = 5 * time.Second
)

// A scenario determines one or two DNS servers, their faults, and the queries that all resolvers get.
type scenario struct {
	lab.Scenario

	first, second func(seed uint64) dnstest.Handler // second is nil if there is one server only
	loss          float64                           // share of the packets lost in each direction
	namesDiffer   bool                              // the servers know different names, so that their order matters
	query         func(i int) query

	duration time.Duration        // for which queries are sent; 0: defaultQueryDuration
	prepare  func(*testbed) error // sets the links and resolv.conf; nil: both servers can be reached and are named
	events   []event              // in the order of their times
}

// An event is a change of the servers or of the network, at a time after the first query.
type event struct {
	at    time.Duration
	apply func(*testbed) error
}

// A query is a DNS query that all compared resolvers get, with the answers that count as right.
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

func (s *scenario) queryDuration() time.Duration {
	if s.duration > 0 {
		return s.duration
	}
	return defaultQueryDuration
}

func (s *scenario) linkProfile() netsim.Profile {
	return netsim.Profile{Delay: netsim.Uniform(oneWayDelay-jitter, oneWayDelay+jitter), Loss: s.loss}
}

// httpsSubstituteType is the record type that Go's resolver looks up in place of HTTPS records, which it cannot look
// up. A server that drops queries for one of the types also drops queries for the other.
const httpsSubstituteType = dns.TypeTXT

// Scenarios lists all scenarios.
var Scenarios = lab.ScenariosOf(scenarios)

var scenarios = []scenario{{
	Scenario: lab.Scenario{Name: "tenth", Description: "the first server answers one query in ten"},
	first:    answerOneInTen, second: ignoreSeed(answerAllQueries), query: addressQuery,
}, {
	Scenario: lab.Scenario{Name: "drops-https", Description: "every other question is of type HTTPS, which the first server drops"},
	first:    ignoreSeed(dropHTTPS), second: ignoreSeed(answerAllQueries),
	query: modifyEveryNth(2, 1, func(_ int, q *query) { q.qtype = dns.TypeHTTPS }),
}, {
	Scenario: lab.Scenario{Name: "refuses", Description: "the first server refuses us (EDE 18)"},
	first:    ignoreSeed(respondWithError(dns.RcodeRefused, dns.ExtendedErrorCodeProhibited)), second: ignoreSeed(answerAllQueries), query: addressQuery,
}, {
	Scenario: lab.Scenario{Name: "validator", Description: "the first server's validator is broken: SERVFAIL (EDE 7) for all names"},
	first:    ignoreSeed(respondWithError(dns.RcodeServerFailure, dns.ExtendedErrorCodeSignatureExpired)), second: ignoreSeed(answerAllQueries), query: addressQuery,
}, {
	Scenario: lab.Scenario{Name: "probes", Description: "the first server refuses probes and fails a broken zone, and the second denies all names"},
	first:    ignoreSeed(answerPrivateNames), second: ignoreSeed(denyAllNames), namesDiffer: true,
	query: modifyEveryNth(4, 0, func(i int, q *query) { q.name, q.want = fmt.Sprintf("n%d.broken.example.", i), wantNothing }),
}, {
	Scenario: lab.Scenario{Name: "restart", Description: "the only server restarts, for two seconds"},
	first:    ignoreSeed(answerAllQueries), query: addressQuery,
	events: []event{{1003 * time.Millisecond, (*testbed).stopFirstServer}, {3003 * time.Millisecond, (*testbed).restartFirstServer}},
}, {
	Scenario: lab.Scenario{Name: "vpn", Description: "a VPN goes up and down: resolv.conf names the second server, the first, the second; the other is out of reach"},
	first:    ignoreSeed(answerAllQueries), second: ignoreSeed(answerAllQueries), query: addressQuery,
	duration: 18 * time.Second, prepare: switchToServer("b"),
	events: []event{{5503 * time.Millisecond, switchToServer("a")}, {12003 * time.Millisecond, switchToServer("b")}},
}, {
	Scenario: lab.Scenario{Name: "lossy", Description: "10 % of the packets are lost each way"},
	first:    ignoreSeed(answerAllQueries), second: ignoreSeed(answerAllQueries), query: addressQuery, loss: 0.1,
}, {
	Scenario: lab.Scenario{Name: "denies", Description: "the first server denies every other name, and the second knows it"},
	first:    ignoreSeed(denySecondServerNames), second: ignoreSeed(answerAllQueries), namesDiffer: true,
	query: modifyEveryNth(2, 1, func(i int, q *query) { q.name, q.want = fmt.Sprintf("n%d.second.example.", i), wantRecordsOrDenial }),
}}

func (l *testbed) stopFirstServer() error    { l.servers["a"].Close(); return nil }
func (l *testbed) restartFirstServer() error { return l.startServer("a") }

// switchToServer returns a function for an event of a scenario. It writes a resolv.conf that names only the server on
// host, and makes all other servers unreachable.
func switchToServer(host string) func(*testbed) error {
	return func(l *testbed) error {
		for _, h := range l.serverHosts() {
			p := l.linkProfile()
			p.BlackHole = h != host
			l.setLinks(h, p)
		}
		return l.writeResolvConf(host)
	}
}

func addressQuery(i int) query { return query{name: fmt.Sprintf("n%d.example.", i), qtype: dns.TypeA} }

// modifyEveryNth returns a function that generates the i-th query of a run: for an address of a name of its own. The
// function change modifies each query for which i modulo period is remainder.
func modifyEveryNth(period, remainder int, change func(i int, q *query)) func(i int) query {
	return func(i int) query {
		q := addressQuery(i)
		if i%period == remainder {
			change(i, &q)
		}
		return q
	}
}

// ignoreSeed returns a function that returns h for each seed, for scenarios whose server does nothing at random.
func ignoreSeed(h dnstest.Handler) func(uint64) dnstest.Handler {
	return func(uint64) dnstest.Handler { return h }
}

// answerAllQueries answers queries for A, HTTPS, TXT and NS by one record, and queries for other types by an empty answer.
func answerAllQueries(q dnstest.Query) dnstest.Reply {
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

// answerOneInTen returns a handler that answers one query in ten, chosen at random by the seed, and drops the others.
func answerOneInTen(seed uint64) dnstest.Handler {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 10))
	return func(q dnstest.Query) dnstest.Reply {
		mu.Lock()
		defer mu.Unlock()
		if rng.IntN(10) > 0 {
			return dnstest.Reply{}
		}
		return answerAllQueries(q)
	}
}

// dropHTTPS drops queries for HTTPS records, and for TXT, which Go's resolver sends instead. It answers all others.
func dropHTTPS(q dnstest.Query) dnstest.Reply {
	if t := q.Question[0].Qtype; t == dns.TypeHTTPS || t == httpsSubstituteType {
		return dnstest.Reply{}
	}
	return answerAllQueries(q)
}

// respondWithError returns a handler that answers all queries with a response code and an extended error (RFC 8914).
func respondWithError(rcode int, code uint16) dnstest.Handler {
	return func(q dnstest.Query) dnstest.Reply {
		return dnstest.Reply{Msg: dnstest.EDE(dnstest.Rcode(q, rcode), code)}
	}
}

// answerPrivateNames acts as a server of a private zone: it refuses queries for the root, answers SERVFAIL for names in
// broken.example, and answers all other queries.
func answerPrivateNames(q dnstest.Query) dnstest.Reply {
	switch name := strings.ToLower(q.Question[0].Name); {
	case name == ".":
		return dnstest.Reply{Msg: dnstest.Rcode(q, dns.RcodeRefused)}
	case strings.HasSuffix(name, ".broken.example."):
		return dnstest.Reply{Msg: dnstest.Rcode(q, dns.RcodeServerFailure)}
	}
	return answerAllQueries(q)
}

// denyAllNames answers NXDOMAIN for all names except the root.
func denyAllNames(q dnstest.Query) dnstest.Reply {
	if q.Question[0].Name == "." {
		return answerAllQueries(q)
	}
	return dnstest.Reply{Msg: dnstest.Negative(q, dns.RcodeNameError, 300, 300)}
}

// denySecondServerNames acts as a first server that does not know the names of the second one, those in second.example: it
// answers NXDOMAIN for them, and answers all other queries.
func denySecondServerNames(q dnstest.Query) dnstest.Reply {
	if strings.HasSuffix(strings.ToLower(q.Question[0].Name), ".second.example.") {
		return denyAllNames(q)
	}
	return answerAllQueries(q)
}
