package recursor_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/recursor"
)

// queryCost calls f and returns the number of queries that it causes, without hedges. It waits until no lookup of the
// question can run any more.
func (w *testNetwork) queryCost(r *recursor.Resolver, f func()) int {
	n, hedges := w.countQueries(), r.Stats().Hedges
	f()
	time.Sleep(15 * time.Second)
	return w.countQueries() - n - int(r.Stats().Hedges-hedges)
}

const aliasAttack = `
. served 198.41.0.4
attack. delegated 192.0.2.66
helper. delegated 192.0.2.68
  * A 192.0.2.67
victim. delegated 192.0.2.9
  www A 192.0.2.90
`

// setUpAliasAttack makes the servers of aliasAttack send an endless chain of aliases, each in a zone of its own. Of the
// five servers of each zone, four have names that do not exist in a victim's zone. The chain begins at x.z0.attack.
func setUpAliasAttack(w *testNetwork) {
	w.setFault("192.0.2.66", func(q query, r *dns.Msg) *dns.Msg {
		labels := dns.SplitDomainName(q.name)
		if len(labels) < 2 {
			return r
		}
		zone := labels[len(labels)-2]
		text := fmt.Sprintf("referral | %s.attack. NS ns-%[1]s.helper.", zone)
		for i := range 4 {
			text += fmt.Sprintf("; %s.attack. NS n%d.%[1]s.victim.", zone, i)
		}
		return respondWith(text)(q, r)
	})
	w.setFault("192.0.2.67", func(q query, r *dns.Msg) *dns.Msg {
		var i int
		if _, err := fmt.Sscanf(q.name, "x.z%d.", &i); err != nil {
			return r
		}
		return respondWith(fmt.Sprintf("%s CNAME x.z%d.attack.", q.name, i+1))(q, r)
	})
}

// TestAliasesTimesServerNamesCost64Queries is compositional amplification (CAMP).
func TestAliasesTimesServerNamesCost64Queries(t *testing.T) {
	bubble(t, aliasAttack, func(t *testing.T, w *testNetwork) {
		setUpAliasAttack(w)
		r := w.resolver()
		require.Equal(t, "NOERROR www.victim. A 192.0.2.90", formatResponse(w.ask(r, "www.victim. A")))
		for i := range 5 {
			victim := w.countQueries("192.0.2.9")
			cost := w.queryCost(r, func() {
				assert.Equal(t, "SERVFAIL", formatResponse(w.ask(r, fmt.Sprintf("x.z%d.attack. A", 100*i))))
			})
			t.Logf("%d queries, %d to the victim, %v", cost, w.countQueries("192.0.2.9")-victim, r.Stats().Limited)
			assert.Greater(t, cost, 8, "the attack has no effect, so this proves nothing")
			assert.LessOrEqual(t, cost, 64)
			assert.LessOrEqual(t, w.countQueries("192.0.2.9")-victim, 20)
		}
	})
}

const addressAttack = `
. served 198.41.0.4
attack. delegated 192.0.2.66
hoster. delegated 192.0.2.67
victim. delegated 192.0.2.9
  www A 192.0.2.90
`

// setUpAddressAttack makes the servers of addressAttack delegate sub.attack. to a server name with 1,000 addresses,
// which come as glue, or by a lookup of the name. The servers at these addresses have the fault.
func setUpAddressAttack(w *testNetwork, glue bool, fault func(query, *dns.Msg) *dns.Msg) {
	addresses := func(owner string, qtype uint16) (all [][]byte) {
		for i := range 1000 {
			a := []byte{203, 0, 113 + byte(i/250), byte(i%250) + 1}
			if qtype == dns.TypeAAAA {
				a = append([]byte{0x2a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, a...)
			}
			all = append(all, raw(wireName(owner), qtype, a))
		}
		return all
	}
	w.updateServers("192.0.2.66", func(s *server) {
		s.raw = stream(0, func(query) (s [3][][]byte) {
			s[1] = [][]byte{raw(wireName("sub.attack."), dns.TypeNS, wireName("ns.hoster."))}
			if glue {
				s[1] = [][]byte{raw(wireName("sub.attack."), dns.TypeNS, wireName("ns.sub.attack."))}
				s[2] = addresses("ns.sub.attack.", dns.TypeA)
			}
			return s
		})
	})
	w.updateServers("192.0.2.67", func(s *server) {
		s.raw = stream(1<<10, func(q query) (s [3][][]byte) {
			s[0] = addresses("ns.hoster.", q.qtype)
			return s
		})
	})
	w.other = func(netip.Addr) *server { return &server{change: fault} }
}

// TestServersOfManyAddressesCost64Queries has servers that do not answer, or fail.
func TestServersOfManyAddressesCost64Queries(t *testing.T) {
	for _, glue := range []bool{true, false} {
		for name, fault := range map[string]func(query, *dns.Msg) *dns.Msg{
			"silent": silent, "SERVFAIL": respondRcode(dns.RcodeServerFailure), "REFUSED": respondRcode(dns.RcodeRefused), "no records": respondWith(""),
		} {
			t.Run(fmt.Sprintf("glue %v, %s", glue, name), func(t *testing.T) {
				bubble(t, addressAttack, func(t *testing.T, w *testNetwork) {
					setUpAddressAttack(w, glue, fault)
					r := w.resolver()
					for i := range 6 {
						cost := w.queryCost(r, func() { assert.Empty(t, w.ask(r, fmt.Sprintf("www%d.sub.attack. A", i)).Answer) })
						assert.LessOrEqual(t, cost, 64, "32 for the name, and as many for the name of the server")
					}
					s := r.Stats()
					t.Logf("%d queries, %d servers, %v", w.countQueries(), s.Servers, s.Limited)
					assert.Greater(t, w.countQueries(), 8, "the attack has no effect, so this proves nothing")
					assert.LessOrEqual(t, s.Servers, 3+2*64)
					assert.Equal(t, "NOERROR www.victim. A 192.0.2.90", formatResponse(w.ask(r, "www.victim. A")))
				})
			})
		}
	}
}

// repeatedValidation returns a network with ten aliases, each in a signed zone of its own. The first is www.z0.tld. bad
// are the addresses of four of the five servers of each zone.
func repeatedValidation() (text, bad string) {
	text = ". served 198.41.0.4\ntld. delegated 192.0.2.1\n  www A 192.0.2.90\n"
	for i := range 10 {
		text += fmt.Sprintf("z%d.tld. delegated", i)
		for j := range 5 {
			text += fmt.Sprintf(" 192.0.4.%d", i*5+j+1)
			if j < 4 {
				bad += fmt.Sprintf(" 192.0.4.%d", i*5+j+1)
			}
		}
		text += fmt.Sprintf("\n  www CNAME www.z%d.tld.\n", i+1)
	}
	return text + "z10.tld. delegated 192.0.5.1\n  www A 192.0.2.80\n", bad
}

// TestRepeatedValidationCosts64Queries has faults that make a Resolver ask other servers. A question has one budget for
// all of that (CVE-2026-50045).
func TestRepeatedValidationCosts64Queries(t *testing.T) {
	text, bad := repeatedValidation()
	for name, fault := range map[string]func(query, *dns.Msg) *dns.Msg{"forged": forged, "many signatures": many, "stale": stale, "stripped": allStripped} {
		t.Run(name, func(t *testing.T) {
			bubble(t, text, func(t *testing.T, w *testNetwork) {
				w.sign()
				w.setFault(bad, fault)
				r := newValidatingResolver(w)
				require.Equal(t, "secure", w.security(r, "www.tld. A"))
				for i := range 4 {
					before := r.Stats().Verifications
					cost := w.queryCost(r, func() { assert.NotEqual(t, "insecure", w.security(r, "www.z0.tld. A")) })
					t.Logf("question %d: %d queries, %d units of verification, %v", i, cost, r.Stats().Verifications-before, r.Stats().Limited)
					assert.LessOrEqual(t, cost, 64)
					assert.LessOrEqual(t, r.Stats().Verifications-before, int64(8*128))
					assert.Equal(t, "secure", w.security(r, "www.tld. A"), "others are unharmed")
				}
			})
		})
	}
}

// TestUnsignedAnswerForLongNameCosts64Queries has unsigned answers in a signed zone. The Resolver searches for an insecure
// zone at each label of the name.
func TestUnsignedAnswerForLongNameCosts64Queries(t *testing.T) {
	bubble(t, replayed, func(t *testing.T, w *testNetwork) {
		w.sign()
		w.setFault("192.0.3.3 192.0.3.4", onlyForType(dns.TypeA, func(q query, r *dns.Msg) *dns.Msg { return respondWith(q.name+" A 203.0.113.66")(q, r) }))
		r := newValidatingResolver(w)
		for i := range 4 {
			before := r.Stats().Verifications
			cost := w.queryCost(r, func() {
				if got := formatResponse(w.ask(r, strings.Repeat("a.", 100)+fmt.Sprintf("n%d.evil.tld. A", i))); i == 0 || got != "NXDOMAIN" { // which follows from the proofs
					assert.Equal(t, "SERVFAIL", got)
				}
			})
			t.Logf("question %d: %d queries, %d units of verification, %v", i, cost, r.Stats().Verifications-before, r.Stats().Limited)
			assert.LessOrEqual(t, cost, 64)
			assert.LessOrEqual(t, r.Stats().Verifications-before, int64(8*128))
			assert.Equal(t, "secure", w.security(r, "www.example.tld. A"), "others are unharmed")
		}
	})
}

// message makes a server send messages that begin with the header and the question of a response. tail is the rest, with
// the numbers of records that the header has. Over UDP, a message of more than 1,232 bytes is truncated.
func message(counts [3]uint16, tail func(q query) []byte) func(query) [][]byte {
	return func(q query) [][]byte {
		b := stream(1<<10, func(query) [3][][]byte { return [3][][]byte{} })(query{q.Msg, q.name, q.qtype, true})[0]
		for i, n := range counts {
			b[6+2*i], b[7+2*i] = byte(n>>8), byte(n)
		}
		if b = append(b, tail(q)...); len(b) > 1232 && !q.tcp {
			return stream(1<<10, nil)(q)
		}
		return [][]byte{b}
	}
}

// malformedMessages returns the messages of servers by what is wrong with them: they are malformed, or valid and costly.
func malformedMessages() map[string]func(query) [][]byte {
	opt := func(data []byte) []byte { return raw([]byte{0}, dns.TypeOPT, data) }
	always := func(b []byte) func(query) []byte { return func(query) []byte { return b } }
	address := raw(nil, dns.TypeA, []byte{203, 0, 113, 66})
	return map[string]func(query) [][]byte{
		"counts without records":     message([3]uint16{65535, 65535, 65535}, always(nil)),
		"record longer than message": message([3]uint16{1}, always(address[:len(address)-2])),
		"name that points to itself": message([3]uint16{1}, func(q query) []byte {
			at := 12 + len(wireName(q.name)) + 4
			return raw([]byte{0xc0, byte(at)}, dns.TypeA, make([]byte, 4))
		}),
		"name that points forward":      message([3]uint16{1}, always(raw([]byte{0xc0, 200}, dns.TypeA, make([]byte, 4)))),
		"label of a reserved type":      message([3]uint16{1}, always(raw([]byte{0x80, 1, 0}, dns.TypeA, make([]byte, 4)))),
		"address of three bytes":        message([3]uint16{1}, always(raw(nil, dns.TypeA, make([]byte, 3)))),
		"address of no bytes":           message([3]uint16{1}, always(raw(nil, dns.TypeA, nil))),
		"alias of no bytes":             message([3]uint16{1}, always(raw(nil, dns.TypeCNAME, nil))),
		"alias with bytes after it":     message([3]uint16{1}, always(raw(nil, dns.TypeCNAME, append(wireName("www.victim."), 1)))),
		"signature without signer":      message([3]uint16{1}, always(raw(nil, dns.TypeRRSIG, make([]byte, 18)))),
		"16,000 options":                message([3]uint16{0, 0, 1}, always(opt(make([]byte, 64000)))),
		"option longer than the record": message([3]uint16{0, 0, 1}, always(opt([]byte{0, 10, 255, 255}))),
		"many cookies and NSIDs":        message([3]uint16{0, 0, 1}, always(opt([]byte(strings.Repeat("\x00\x0a\x00\x10cookiecookiecook\x00\x03\x00\x04nsid\x00\x0c\x00\x00", 1500))))),
		"two OPT records":               message([3]uint16{0, 0, 2}, always(append(opt(nil), opt(nil)...))),
		"OPT record of a name":          message([3]uint16{0, 0, 1}, always(raw(nil, dns.TypeOPT, nil))),
		"texts without characters":      message([3]uint16{0, 1}, always(raw(nil, dns.TypeTXT, make([]byte, 60000)))),
		"4,000 aliases of one name":     message([3]uint16{4000}, always([]byte(strings.Repeat(string(raw(nil, dns.TypeCNAME, []byte{0xc0, 12})), 4000)))),
		"only a header": func(q query) [][]byte {
			return [][]byte{stream(1<<10, func(query) [3][][]byte { return [3][][]byte{} })(query{q.Msg, q.name, q.qtype, true})[0][:12]}
		},
		"half a header":              func(q query) [][]byte { return [][]byte{{byte(q.Id >> 8), byte(q.Id), 0x84}} },
		"no bytes":                   func(query) [][]byte { return [][]byte{{}} },
		"truncated over TCP as well": func(q query) [][]byte { return stream(1<<10, nil)(query{q.Msg, q.name, q.qtype, false}) },
	}
}

func TestMalformedMessagesCost64Queries(t *testing.T) {
	for name, messages := range malformedMessages() {
		t.Run(name, func(t *testing.T) {
			bubble(t, `
. served 198.41.0.4
example. delegated 192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4 192.0.2.5
victim. delegated 192.0.2.9
  www A 192.0.2.90
`, func(t *testing.T, w *testNetwork) {
				w.updateServers("192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4 192.0.2.5", func(s *server) { s.raw = messages })
				r := w.resolver()
				for _, question := range []string{"www.example. A", "a.b.c.d.example. TXT +do"} {
					cost := w.queryCost(r, func() {
						assert.Empty(t, w.ask(r, question).Answer)
					})
					assert.LessOrEqual(t, cost, 64)
				}
				assert.Equal(t, "NOERROR www.victim. A 192.0.2.90", formatResponse(w.ask(r, "www.victim. A")))
			})
		})
	}
}

// TestRemovedZoneLosesZonesBelow is the Phoenix domain attack (CVE-2022-30698). The servers of a zone that its parent has
// removed delegate new names below it with long TTLs, until the zone expires. Slow servers answer when it has expired.
func TestRemovedZoneLosesZonesBelow(t *testing.T) {
	const ghost, below, names = "192.0.2.6", "192.0.2.7", "192.0.2.8"
	for _, rtt := range []time.Duration{10 * ms, time.Second} {
		bubble(t, `
. served 198.41.0.4
example. delegated 192.0.2.1
  ghost 100 NS ns1.ghost
  ns1.ghost 100 A 192.0.2.6
`, func(t *testing.T, w *testNetwork) {
			delegate := func(labels int, addr string) func(query, *dns.Msg) *dns.Msg {
				return func(q query, r *dns.Msg) *dns.Msg {
					all := dns.SplitDomainName(q.name)
					zone := strings.Join(all[max(0, len(all)-labels):], ".") + "."
					return respondWith(fmt.Sprintf("referral | %s 86400 NS ns.%[1]s | ns.%[1]s 86400 A %s", zone, addr))(q, r)
				}
			}
			w.setFault(ghost, delegate(3, below))
			w.setFault(below, delegate(4, names))
			w.setFault(names, func(q query, r *dns.Msg) *dns.Msg { return respondWith(q.name+" 1 A 203.0.113.66")(q, r) })
			w.updateServers(strings.Join([]string{ghost, below, names}, " "), func(s *server) { s.rtt = rtt })
			r := w.resolver(noMinimise)
			ask := func(i int) string { return formatResponse(w.ask(r, fmt.Sprintf("www.b%d.a.ghost.example. A", i))) }
			for i := range 30 {
				require.Contains(t, ask(i), "203.0.113.66")
				time.Sleep(7 * time.Second)
			}
			w.withLock(func() {
				z := w.server("192.0.2.1").zones[0]
				delete(z.sets, "ghost.example.")
				delete(z.sets, "ns1.ghost.example.")
			})
			n, gone := len(w.queriesSince(0)), time.Since(w.start)
			for i := range 40 {
				ask(i)
				ask(100 + i)
				time.Sleep(7 * time.Second)
			}
			for _, a := range w.queriesSince(n) {
				if a.to.String() == ghost || a.to.String() == below || a.to.String() == names {
					assert.LessOrEqual(t, a.at-gone, 105*time.Second, "the TTL of the parent, and the time of a question: %v", a)
				}
			}
			for _, i := range []int{0, 29, 100, 139, 999} {
				assert.Equal(t, "NXDOMAIN", ask(i))
			}
		})
	}
}
