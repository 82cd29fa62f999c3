package faultlab

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/netsim"
)

const (
	oneWay = 10 * time.Millisecond
	jitter = 200 * time.Microsecond

	usually = 5 * time.Second // that a world lasts, besides the wait for the last answers
)

// A world is two servers, what is wrong with them or the way there, and what they are asked.
type world struct {
	name, about string

	first, second func(seed uint64) dnstest.Handler // second is nil if there is one server only
	loss          float64                           // of packets, each way
	differ        bool                              // the servers know different names, and so their order counts
	question      func(i int) question

	span   time.Duration      // in which questions are asked; 0: usually
	start  func(*bench) error // sets the ways and resolv.conf; nil: both servers are there, and named
	events []event            // in the order of their times
}

// An event is what happens at a time after the first question.
type event struct {
	at time.Duration
	do func(*bench) error
}

// A question has an answer that is right.
type question struct {
	name string
	typ  uint16
	want want
}

type want uint8

const (
	records want = iota // of the type
	answer              // records or a denial
	nothing             // it is asked because it may confuse a resolver, and left out
)

func (w *world) lasts() time.Duration {
	if w.span > 0 {
		return w.span
	}
	return usually
}

func (w *world) profile() netsim.Profile {
	return netsim.Profile{Delay: netsim.Uniform(oneWay-jitter, oneWay+jitter), Loss: w.loss}
}

// insteadOfHTTPS is the type that Go's resolver is asked for where the others are asked for HTTPS, which it does not
// know. Servers that drop one drop the other.
const insteadOfHTTPS = dns.TypeTXT

// Worlds are the names of the worlds, and About says what each is.
var Worlds, About = func() (names []string, about map[string]string) {
	about = make(map[string]string)
	for _, w := range worlds {
		names = append(names, w.name)
		about[w.name] = w.about
	}
	return names, about
}()

var worlds = []world{{
	name: "tenth", about: "the first server answers one query in ten",
	first: tenth, second: always(good), question: addresses,
}, {
	name: "drops-https", about: "every other question is of type HTTPS, which the first server drops",
	first: always(dropping), second: always(good), question: everyOther,
}, {
	name: "refuses", about: "the first server refuses us (EDE 18)",
	first: always(saying(dns.RcodeRefused, dns.ExtendedErrorCodeProhibited)), second: always(good), question: addresses,
}, {
	name: "validator", about: "the first server's validator is broken: SERVFAIL (EDE 7) for all names",
	first: always(saying(dns.RcodeServerFailure, dns.ExtendedErrorCodeSignatureExpired)), second: always(good), question: addresses,
}, {
	name: "probes", about: "the first server refuses probes and fails a broken zone, and the second denies all names",
	first: always(company), second: always(denying), question: withBroken, differ: true,
}, {
	name: "restart", about: "the only server restarts, for two seconds",
	first: always(good), question: addresses,
	events: []event{{1003 * time.Millisecond, (*bench).down}, {3003 * time.Millisecond, (*bench).up}},
}, {
	name: "vpn", about: "a VPN goes up and down: resolv.conf names the second server, the first, the second; the other is out of reach",
	first: always(good), second: always(good), question: addresses,
	span: 18 * time.Second, start: onlyTo("b"),
	events: []event{{5503 * time.Millisecond, onlyTo("a")}, {12003 * time.Millisecond, onlyTo("b")}},
}, {
	name: "lossy", about: "10 % of the packets are lost each way",
	first: always(good), second: always(good), question: addresses, loss: 0.1,
}, {
	name: "denies", about: "the first server denies every other name, and the second knows it",
	first: always(half), second: always(good), question: halfKnown, differ: true,
}}

// down ends the first server, and up starts it.
func (b *bench) down() error { b.servers["a"].Close(); return nil }
func (b *bench) up() error   { return b.serve("a") }

// onlyTo has resolv.conf name one server, and no other be reached.
func onlyTo(host string) func(*bench) error {
	return func(b *bench) error {
		for _, h := range b.hosts() {
			p := b.profile()
			p.BlackHole = h != host
			b.way(h, p)
		}
		return b.names(host)
	}
}

func addresses(i int) question {
	return question{name: fmt.Sprintf("n%d.example.", i), typ: dns.TypeA}
}

func everyOther(i int) question {
	q := addresses(i)
	if i%2 == 1 {
		q.typ = dns.TypeHTTPS
	}
	return q
}

// withBroken has three names in the company's zone for one in a zone that nobody can resolve.
func withBroken(i int) question {
	q := addresses(i)
	if i%4 == 0 {
		q.name, q.want = fmt.Sprintf("n%d.broken.example.", i), nothing
	}
	return q
}

func halfKnown(i int) question {
	q := addresses(i)
	if i%2 == 1 {
		q.name, q.want = fmt.Sprintf("n%d.second.example.", i), answer
	}
	return q
}

func always(h dnstest.Handler) func(uint64) dnstest.Handler {
	return func(uint64) dnstest.Handler { return h }
}

// good knows all names.
func good(q dnstest.Query) dnstest.Reply {
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

// tenth answers one query in ten.
func tenth(seed uint64) dnstest.Handler {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 10))
	return func(q dnstest.Query) dnstest.Reply {
		mu.Lock()
		defer mu.Unlock()
		if rng.IntN(10) > 0 {
			return dnstest.Reply{}
		}
		return good(q)
	}
}

// dropping drops queries of type HTTPS, and of the type that Go's resolver asks for instead.
func dropping(q dnstest.Query) dnstest.Reply {
	if t := q.Question[0].Qtype; t == dns.TypeHTTPS || t == insteadOfHTTPS {
		return dnstest.Reply{}
	}
	return good(q)
}

// saying fails all queries, with an extended error (RFC 8914).
func saying(rcode int, code uint16) dnstest.Handler {
	return func(q dnstest.Query) dnstest.Reply {
		return dnstest.Reply{Msg: dnstest.EDE(dnstest.Rcode(q, rcode), code)}
	}
}

// company is a server that knows the names of a company, refuses to say who serves the root, and has a zone that is broken.
func company(q dnstest.Query) dnstest.Reply {
	switch name := strings.ToLower(q.Question[0].Name); {
	case name == ".":
		return dnstest.Reply{Msg: dnstest.Rcode(q, dns.RcodeRefused)}
	case strings.HasSuffix(name, ".broken.example."):
		return dnstest.Reply{Msg: dnstest.Rcode(q, dns.RcodeServerFailure)}
	}
	return good(q)
}

func denying(q dnstest.Query) dnstest.Reply {
	if q.Question[0].Name == "." {
		return good(q)
	}
	return dnstest.Reply{Msg: dnstest.Negative(q, dns.RcodeNameError, 300, 300)}
}

// half denies the names that only the second server knows.
func half(q dnstest.Query) dnstest.Reply {
	if strings.HasSuffix(strings.ToLower(q.Question[0].Name), ".second.example.") {
		return denying(q)
	}
	return good(q)
}
