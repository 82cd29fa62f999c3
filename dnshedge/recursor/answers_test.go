package recursor_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/recursor"
)

// small is a root and a zone.
const small = `
. served 198.41.0.4
example. delegated 192.0.2.1 192.0.2.2
  www A 192.0.2.80
  www AAAA 2001:db8::80
  mail A 192.0.2.81
  alias CNAME www
  @ MX 10 mail
  *.wild TXT "any"
  a.ent A 192.0.2.82
  old DNAME new
  x.new A 192.0.2.83
victim. delegated 192.0.2.9
  www A 192.0.2.90
`

// evil is the address that an attacker wants to receive queries. withEvil adds a server there that answers every
// question with its own address.
const evil = "203.0.113.66"

func (w *testNetwork) withEvil() *testNetwork {
	w.updateServers(evil, func(s *server) {
		s.change = func(q query, _ *dns.Msg) *dns.Msg {
			return respondWith(q.name+" A "+evil)(q, nil)
		}
	})
	return w
}

// setFaultOfFirstServer gives a fault to the server of addrs that is queried first. The returned function returns
// the address of that server.
func (w *testNetwork) setFaultOfFirstServer(addrs string, change func(query, *dns.Msg) *dns.Msg) (who func() string) {
	chosen := ""
	for _, a := range strings.Fields(addrs) {
		w.setFault(a, func(q query, r *dns.Msg) *dns.Msg {
			if chosen == "" {
				chosen = a
			}
			if chosen == a {
				return change(q, r)
			}
			return r
		})
	}
	return func() (a string) {
		w.withLock(func() { a = chosen })
		return a
	}
}

func TestResolverAnswersFromRootDown(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *testNetwork) {
		r := w.resolver()
		for _, c := range []struct{ question, want string }{
			{"www.example. A", "NOERROR www.example. A 192.0.2.80"},
			{"www.example. AAAA", "NOERROR www.example. AAAA 2001:db8::80"},
			{"WWW.eXample. A", "NOERROR www.example. A 192.0.2.80"},
			{"example. MX", "NOERROR example. MX 10 mail.example."},
			{"alias.example. A", "NOERROR alias.example. CNAME www.example., www.example. A 192.0.2.80"},
			{"alias.example. CNAME", "NOERROR alias.example. CNAME www.example."},
			{"x.wild.example. TXT", `NOERROR x.wild.example. TXT "any"`},
			{"x.old.example. A", "NOERROR old.example. DNAME new.example., x.new.example. A 192.0.2.83, x.old.example. CNAME x.new.example."},
			{"www.victim. A", "NOERROR www.victim. A 192.0.2.90"},
			{"www.example. TXT", "NOERROR"},
			{"ent.example. A", "NOERROR"},
			{"nx.example. A", "NXDOMAIN"},
			{"nx. A", "NXDOMAIN"},
		} {
			for range 2 {
				m := w.ask(r, c.question)
				assert.Equal(t, strings.ToLower(c.want), strings.ToLower(formatResponse(m)), c.question)
				if len(m.Answer) == 0 {
					require.Len(t, m.Ns, 1, c.question)
					assert.Equal(t, dns.TypeSOA, m.Ns[0].Header().Rrtype, c.question)
				}
			}
		}
		assert.Zero(t, r.Stats().Failures)
		assert.EqualValues(t, 26, r.Stats().Questions)
		assert.EqualValues(t, w.countQueries(), r.Stats().Wire)
	})
}

func TestResolverUsesNewSocketAndRandomIDForEachQuery(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *testNetwork) {
		r := w.resolver()
		for i := range 300 {
			w.ask(r, fmt.Sprintf("n%d.example. A", i))
		}
		sockets, ids, next := map[int]bool{}, map[uint16]bool{}, 0
		log := w.queriesSince(0)
		require.GreaterOrEqual(t, len(log), 300)
		for i, a := range log {
			assert.False(t, sockets[a.socket], "two queries over one socket")
			sockets[a.socket], ids[a.msg.Id] = true, true
			if i > 0 && a.msg.Id == log[i-1].msg.Id+1 {
				next++
			}
			require.NotNil(t, a.msg.IsEdns0())
		}
		assert.Greater(t, len(ids), len(log)*95/100)
		assert.Less(t, next, 5)
	})
}

func TestResolverIgnoresForgedMessages(t *testing.T) {
	for name, n := range map[string]int{"a few": 2, "a flood": 1000} {
		t.Run(name, func(t *testing.T) {
			bubble(t, small, func(t *testing.T, w *testNetwork) {
				zones := w.server("192.0.2.1").zones
				w.updateServers("192.0.2.1 192.0.2.2", func(s *server) {
					s.raw = func(q query) (all [][]byte) {
						forged := respondWith(q.name+" A "+evil)(q, nil)
						for i := range n {
							switch i % 4 {
							case 0:
								forged.Id = q.Id + uint16(i) + 1
							case 1:
								forged.Question[0].Name = "other.example."
							case 2:
								forged.Question[0].Qtype = dns.TypeTXT
							case 3:
								forged.Response = false
							}
							b, _ := forged.Pack()
							all = append(all, b)
							forged = respondWith(q.name+" A "+evil)(q, nil)
						}
						b, _ := answer(zones, q).Pack()
						return append(all, b)
					}
				})
				r := w.resolver()
				m := w.ask(r, "www.example. A")
				assert.NotContains(t, formatResponse(m), evil)
				if n < 10 {
					assert.Equal(t, "NOERROR www.example. A 192.0.2.80", formatResponse(m))
					assert.Zero(t, r.Stats().Failovers)
					assert.Positive(t, r.Stats().Ignored)
				}
			})
		})
	}
}

func TestResolverPassesFlagsToServersAndSignaturesToCallers(t *testing.T) {
	const sig = " RRSIG A 8 2 3600 20300101000000 20200101000000 1 example. AAAA"
	bubble(t, small+"\nsigned.example. delegated 192.0.2.3\n  @ A 192.0.2.84\n  @"+sig+"\n", func(t *testing.T, w *testNetwork) {
		r := w.resolver()
		for _, c := range []struct {
			flags  string
			do, cd bool
		}{{"", false, false}, {"+do", true, false}, {"+do +cd", true, true}, {"+ad", false, false}, {"+noedns", false, false}} {
			n := len(w.queriesSince(0))
			m := w.ask(r, "signed.example. A "+c.flags)
			assert.Equal(t, c.do, strings.Contains(formatResponse(m), "RRSIG"), c.flags)
			assert.Contains(t, formatResponse(m), "A 192.0.2.84")
			for _, a := range w.queriesSince(n) {
				if a.name == "signed.example." && a.qtype == dns.TypeA && a.to.String() == "192.0.2.3" {
					assert.Equal(t, c.cd, a.msg.CheckingDisabled, c.flags)
					assert.True(t, a.msg.IsEdns0().Do() || !c.do, c.flags)
				}
			}
			assert.Equal(t, c.cd, m.CheckingDisabled)
			if opt := m.IsEdns0(); opt != nil {
				assert.Equal(t, c.do, opt.Do())
			}
		}
	})
}

// TestResolverIgnoresDelegationsBesideAnswer adds NS records and addresses to answers, as in CVE-2025-11411 and
// CVE-2025-40778.
func TestResolverIgnoresDelegationsBesideAnswer(t *testing.T) {
	const soa = "example. 300 SOA ns.example. admin.example. 1 2 3 4 300; "
	for _, kind := range []string{"www.example. A 192.0.2.80 | ", "www.example. CNAME mail.example.; mail.example. A 192.0.2.81 | ", "| " + soa} {
		for _, owner := range []string{".", "example.", "victim.", "www.example.", "sub.example.", "ns1.example."} {
			t.Run(kind+owner, func(t *testing.T) {
				bubble(t, small+"\nsub.example. delegated 192.0.2.3\n www A 192.0.2.84\n", func(t *testing.T, w *testNetwork) {
					w.withEvil()
					w.setFault("192.0.2.1 192.0.2.2", onlyForQuestion("www.example. A", respondWith(
						kind+owner+" NS ns.evil.example. | ns.evil.example. A "+evil+"; ns1.example. A "+evil+"; ns1.victim. A "+evil+"; mail.example. A "+evil)))
					r := w.resolver()
					for _, q := range []string{"mail.example. A", "www.victim. A"} { // the name was not cached before
						if len(owner)%2 == 0 {
							w.ask(r, q)
						}
					}
					first := w.ask(r, "www.example. A")
					assert.NotContains(t, formatResponse(first), evil)
					for range 4 {
						assert.Equal(t, "NOERROR mail.example. A 192.0.2.81", formatResponse(w.ask(r, "mail.example. A")))
						assert.Equal(t, "NOERROR www.victim. A 192.0.2.90", formatResponse(w.ask(r, "www.victim. A")))
						assert.Equal(t, "NOERROR www.sub.example. A 192.0.2.84", formatResponse(w.ask(r, "www.sub.example. A")))
						assert.Equal(t, "NXDOMAIN", formatResponse(w.ask(r, "nx.victim. A")))
						assert.Equal(t, "NOERROR ns1.example. A 192.0.2.1", formatResponse(w.ask(r, "ns1.example. A")))
						time.Sleep(20 * time.Minute) // cached data expires
					}
					assert.Zero(t, w.countQueries(evil))
				})
			})
		}
	}
}

func TestResolverTreatsApexNSRecordsAsAnswerOnly(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *testNetwork) {
		w.withEvil()
		w.setFault("192.0.2.1 192.0.2.2", onlyForQuestion("example. NS", respondWith("example. NS ns.evil.example. | | ns.evil.example. A "+evil)))
		r := w.resolver()
		assert.Equal(t, "NOERROR example. NS ns.evil.example.", formatResponse(w.ask(r, "example. NS")))
		for i := range 20 {
			assert.Equal(t, "NXDOMAIN", formatResponse(w.ask(r, fmt.Sprintf("n%d.example. A", i))))
		}
		assert.Zero(t, w.countQueries(evil))
	})
}

func TestResolverIgnoresInvalidReferrals(t *testing.T) {
	const glue = " | ns.evil. A " + evil + "; ns.evil.example. A " + evil + "; ns.www.example. A " + evil
	for name, say := range map[string]func(query, *dns.Msg) *dns.Msg{
		"up":                 respondWith("referral | . NS ns.evil." + glue),
		"sideways":           respondWith("referral | victim. NS ns.evil." + glue),
		"to the zone itself": respondWith("referral | example. NS ns.evil.example." + glue),
		"beside the name":    respondWith("referral | mail.example. NS ns.evil.example." + glue),
		"below the name":     respondWith("referral | a.www.example. NS ns.evil.example." + glue),
		"with authority":     respondWith("| www.example. NS ns.www.example." + glue),
		"beside an answer":   respondWith("referral www.example. A " + evil + " | www.example. NS ns.www.example." + glue),
		"with an rcode":      respondNXDOMAIN("referral | www.example. NS ns.www.example." + glue),
		"neither NS nor SOA": respondWith("referral |" + glue),
		"of another class": func(q query, r *dns.Msg) *dns.Msg {
			m := respondWith("referral | www.example. NS ns.www.example."+glue)(q, r)
			m.Ns[0].Header().Class = dns.ClassCHAOS
			return m
		},
		"a SOA of another zone":   respondWith("| victim. SOA ns. admin. 1 2 3 4 5" + glue),
		"a SOA of the zone above": respondWith("| . SOA ns. admin. 1 2 3 4 5" + glue),
		"a SOA without authority": respondWith("referral | example. SOA ns. admin. 1 2 3 4 5" + glue),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, small, func(t *testing.T, w *testNetwork) {
				w.withEvil()
				r := w.resolver()
				w.ask(r, "nx1.example. A")
				n := w.countQueries()
				who := w.setFaultOfFirstServer("192.0.2.1 192.0.2.2", onlyForQuestion("www.example. A", say))
				start := time.Now()
				assert.Equal(t, "NOERROR www.example. A 192.0.2.80", formatResponse(w.ask(r, "www.example. A")))
				assert.NotEmpty(t, who())
				assert.Equal(t, 20*ms, time.Since(start), "the next server was not asked at once")
				assert.Equal(t, 2, w.countQueries()-n)
				assert.EqualValues(t, 1, r.Stats().Failovers)
				assert.Zero(t, r.Stats().Hedges)
				assert.Zero(t, w.countQueries(evil))
			})
		})
	}
}

func TestResolverUsesGlueOnlyForItsDelegation(t *testing.T) {
	const text = small + `
sub.example. served 192.0.2.3
  www A 192.0.2.84
  ns A 192.0.2.3
`
	for name, c := range map[string]struct{ referral, www string }{
		"of another zone":     {"sub.example. NS ns1.victim. | ns1.victim. A " + evil, ""},
		"of a name not there": {"sub.example. NS ns.sub.example. | ns.sub.example. A 192.0.2.3; www.victim. A " + evil + "; mail.example. A " + evil, "NOERROR www.sub.example. A 192.0.2.84"},
		"as an answer":        {"sub.example. NS ns.sub.example.; sub.example. NS mail.example. | ns.sub.example. A 192.0.2.3; mail.example. A " + evil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, text, func(t *testing.T, w *testNetwork) {
				if name != "as an answer" { // in that case the glue may be used
					w.withEvil()
				}
				refer := respondWith("referral | " + c.referral)
				w.setFault("192.0.2.1 192.0.2.2", func(q query, m *dns.Msg) *dns.Msg {
					if dns.IsSubDomain("sub.example.", q.name) {
						return refer(q, m)
					}
					return m
				})
				r := w.resolver()
				m := w.ask(r, "www.sub.example. A")
				if c.www != "" {
					assert.Equal(t, c.www, formatResponse(m))
				}
				assert.NotContains(t, formatResponse(m), evil)
				assert.Equal(t, "NOERROR www.victim. A 192.0.2.90", formatResponse(w.ask(r, "www.victim. A")))
				assert.Equal(t, "NOERROR mail.example. A 192.0.2.81", formatResponse(w.ask(r, "mail.example. A")))
				assert.Equal(t, "NOERROR ns1.victim. A 192.0.2.9", formatResponse(w.ask(r, "ns1.victim. A")))
				if name != "as an answer" {
					assert.Zero(t, w.countQueries(evil))
				}
			})
		})
	}
}

func TestResolverNeverAnswersWithGlue(t *testing.T) {
	bubble(t, small+"\nsub.example. served 192.0.2.3\n  ns A 192.0.2.33\n  www A 192.0.2.84\n", func(t *testing.T, w *testNetwork) {
		z := w.server("192.0.2.1").zones[0]
		z.add(t, "sub NS ns.sub")
		z.add(t, "ns.sub A 192.0.2.3")
		r := w.resolver()
		assert.Equal(t, "NOERROR www.sub.example. A 192.0.2.84", formatResponse(w.ask(r, "www.sub.example. A")))
		assert.Equal(t, "NOERROR ns.sub.example. A 192.0.2.33", formatResponse(w.ask(r, "ns.sub.example. A")))
		assert.Equal(t, "NOERROR ns.sub.example. A 192.0.2.33", formatResponse(w.ask(r, "ns.sub.example. A")))
		assert.Equal(t, "NXDOMAIN", formatResponse(w.ask(r, "nx.sub.example. A")))
		assert.Zero(t, w.countQueries("192.0.2.33"), "an answer was used as glue")
	})
}

func TestResolverLooksUpServerNamesWhenAllGlueFails(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
example. delegated 192.0.2.1
  moved NS ns.host
  ns.host A 192.0.2.5
  host NS ns1.host
  ns1.host A 192.0.2.6
host.example. served 192.0.2.6
  ns A 192.0.2.7
moved.example. served 192.0.2.7
  www A 192.0.2.84
`, func(t *testing.T, w *testNetwork) {
		r := w.resolver()
		assert.Equal(t, "NOERROR www.moved.example. A 192.0.2.84", formatResponse(w.ask(r, "www.moved.example. A")))
		assert.LessOrEqual(t, w.countQueries("192.0.2.5"), 3)
	})
}

func TestResolverAsksForApexNSRecordsLast(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
example. delegated 192.0.2.1
  half NS ns1.half
  ns1.half A 192.0.2.5
half.example. served 192.0.2.5 192.0.2.7
  @ NS ns2.half.example.
  ns1 A 192.0.2.5
  ns2 A 192.0.2.7
  www A 192.0.2.84
`, func(t *testing.T, w *testNetwork) {
		w.setFault("192.0.2.5", func(q query, r *dns.Msg) *dns.Msg {
			if q.name == "www.half.example." {
				return respondRcode(dns.RcodeServerFailure)(q, r)
			}
			return r
		})
		r := w.resolver()
		assert.Equal(t, "NOERROR www.half.example. A 192.0.2.84", formatResponse(w.ask(r, "www.half.example. A")))
		n := w.countQueries("192.0.2.7")
		w.setFault("192.0.2.5", nil)
		time.Sleep(16 * time.Minute)
		assert.Equal(t, "NXDOMAIN", formatResponse(w.ask(r, "nx.half.example. A")))
		assert.Equal(t, n, w.countQueries("192.0.2.7"), "the data was cached for other questions")
	})
}

func TestResolverSetsLowestTTLOfRRset(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *testNetwork) {
		w.setFault("192.0.2.1 192.0.2.2", onlyForQuestion("www.example. A", respondWith("www.example. 300 A 192.0.2.80; www.example. 60 A 192.0.2.81; www.example. 900 A 192.0.2.82")))
		m := w.ask(w.resolver(), "www.example. A")
		require.Len(t, m.Answer, 3)
		for _, rr := range m.Answer {
			assert.EqualValues(t, 60, rr.Header().Ttl)
		}
	})
}

// TestResolverRemovesDuplicateRecords requires RFC 2181 §5.
func TestResolverRemovesDuplicateRecords(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *testNetwork) {
		w.setFault("192.0.2.1 192.0.2.2", onlyForQuestion("www.example. A", respondWith("www.example. 300 A 192.0.2.80; WWW.example. 60 A 192.0.2.80; www.example. 900 A 192.0.2.81; www.example. 300 A 192.0.2.80")))
		m := w.ask(w.resolver(), "www.example. A")
		assert.Equal(t, "NOERROR www.example. A 192.0.2.80, www.example. A 192.0.2.81", formatResponse(m))
	})
}

func TestResolverExpiresZoneRemovedByParent(t *testing.T) {
	for _, question := range []string{"n%d.ghost.example. A", "ghost.example. NS", "ns1.ghost.example. A", "ghost.example. A"} {
		t.Run(question, func(t *testing.T) {
			bubble(t, `
. served 198.41.0.4
example. delegated 192.0.2.1
  ghost 100 NS ns1.ghost
  ns1.ghost 100 A 192.0.2.6
ghost.example. served 192.0.2.6
  @ 86400 NS ns1
  @ 1 A 192.0.2.6
  ns1 86400 A 192.0.2.6
  * 1 A 192.0.2.84
`, func(t *testing.T, w *testNetwork) {
				// The removed zone has its own NS records in every answer.
				w.setFault("192.0.2.6", func(q query, r *dns.Msg) *dns.Msg {
					if len(r.Answer) > 0 {
						r.Ns = []dns.RR{record("ghost.example. 86400 NS ns1.ghost.example.")}
						r.Extra = append([]dns.RR{record("ns1.ghost.example. 86400 A 192.0.2.6")}, r.Extra...)
					}
					return r
				})
				r := w.resolver()
				ask := func(i int) string {
					q := question
					if strings.Contains(q, "%d") {
						q = fmt.Sprintf(question, i)
					}
					return formatResponse(w.ask(r, q))
				}
				for i := range 40 { // the parent is queried again every 100 s
					require.Contains(t, ask(i), "NOERROR")
					time.Sleep(7 * time.Second)
				}
				w.withLock(func() {
					z := w.servers[netip.MustParseAddr("192.0.2.1")].zones[0]
					delete(z.sets, "ghost.example.")
					delete(z.sets, "ns1.ghost.example.")
				})
				n := len(w.queriesSince(0))
				gone := time.Since(w.start)
				for i := range 60 {
					ask(100 + i)
					time.Sleep(7 * time.Second)
				}
				for _, a := range w.queriesSince(n) {
					if a.to.String() == "192.0.2.6" {
						assert.LessOrEqual(t, a.at-gone, 100*time.Second)
					}
				}
				if strings.Contains(question, "%d") {
					assert.Equal(t, "NXDOMAIN", ask(999))
				}
			})
		})
	}
}

func TestResolverAppliesDNAMEToQuestionName(t *testing.T) {
	long := strings.Repeat("a23456789.", 20)
	bubble(t, small+"\nlong.example. delegated 192.0.2.4\n  @ DNAME "+strings.Repeat("b23456789.", 10)+"\n", func(t *testing.T, w *testNetwork) {
		r := w.resolver()
		assert.Contains(t, formatResponse(w.ask(r, "x.old.example. A")), "x.new.example. A 192.0.2.83")
		assert.Equal(t, "YXDOMAIN", dns.RcodeToString[w.ask(r, long+"long.example. A").Rcode])
		n := len(w.queriesSince(0))
		assert.Contains(t, formatResponse(w.ask(r, "y.old.example. A")), "NXDOMAIN")
		asked := false
		for _, a := range w.queriesSince(n) {
			asked = asked || a.name == "y.old.example."
		}
		assert.True(t, asked, "the DNAME of another answer was used")
	})
}

func TestResolverFailsAliasLoopAtOnce(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
one.example. delegated 192.0.2.1
  a CNAME b
  b CNAME a
  self CNAME self
  far CNAME far.two.example.
  old DNAME older.two.example.
two.example. delegated 192.0.2.2
  far CNAME far.one.example.
  older DNAME old.one.example.
`, func(t *testing.T, w *testNetwork) {
		r := w.resolver()
		for _, q := range []string{"a.one.example. A", "self.one.example. A", "far.one.example. A", "x.old.one.example. A"} {
			n, start := w.countQueries(), time.Now()
			m := w.ask(r, q)
			assert.Equal(t, dns.RcodeServerFailure, m.Rcode, q)
			assert.Less(t, time.Since(start), 100*ms, q)
			assert.LessOrEqual(t, w.countQueries()-n, 8, q)
		}
	})
}

func TestResolverMinimisesNames(t *testing.T) {
	bubble(t, small+"\nsub.example. delegated 192.0.2.3\n  a.b.c A 192.0.2.84\n", func(t *testing.T, w *testNetwork) {
		r := w.resolver()
		assert.Equal(t, "NOERROR a.b.c.sub.example. A 192.0.2.84", formatResponse(w.ask(r, "a.b.c.sub.example. A")))
		assert.Equal(t, []string{". NS", "example. A"}, w.questions("198.41.0.4"))
		assert.Equal(t, []string{"sub.example. A"}, append(w.questions("192.0.2.1"), w.questions("192.0.2.2")...))
		assert.Equal(t, []string{"c.sub.example. A", "b.c.sub.example. A", "a.b.c.sub.example. A"}, w.questions("192.0.2.3"))
		w.ask(r, "x.y.sub.example. TXT")
		assert.Equal(t, []string{"y.sub.example. A"}, w.questions("192.0.2.3")[3:4], "the type is hidden")
	})
}

func TestResolverMinimisesWithTenQueriesAtMost(t *testing.T) {
	deep := strings.Repeat("l.", 60) + "example."
	bubble(t, small, func(t *testing.T, w *testNetwork) {
		w.server("192.0.2.1").zones[0].add(t, deep+" A 192.0.2.84")
		r := w.resolver()
		assert.Equal(t, "NOERROR "+deep+" A 192.0.2.84", formatResponse(w.ask(r, deep+" A")))
		var labels []int
		for _, a := range w.queriesSince(1) { // after priming
			labels = append(labels, dns.CountLabel(a.name))
		}
		assert.LessOrEqual(t, len(labels), 11, "%v", labels)
		require.GreaterOrEqual(t, len(labels), 5)
		assert.Equal(t, []int{1, 2, 3, 4}, labels[:4], "the first minimised questions have one label more each")
		assert.Equal(t, 61, labels[len(labels)-1])
	})
}

func TestNoMinimiseSendsFullName(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *testNetwork) {
		w.ask(w.resolver(noMinimise), "a.b.c.example. TXT")
		assert.Equal(t, []string{". NS", "a.b.c.example. TXT"}, w.questions("198.41.0.4"))
	})
}

func TestResolverSendsFullNameAfterMinimisedFailure(t *testing.T) {
	for name, f := range map[string]func(query, *dns.Msg) *dns.Msg{
		"NXDOMAIN": respondNXDOMAIN("| example. 300 SOA ns. admin. 1 2 3 4 300"),
		"NODATA":   respondWith("| example. 300 SOA ns. admin. 1 2 3 4 300"),
		"CNAME":    respondWith("b.example. CNAME www.victim."),
		"SERVFAIL": respondRcode(dns.RcodeServerFailure),
		"REFUSED":  respondRcode(dns.RcodeRefused),
		"FORMERR":  respondRcode(dns.RcodeFormatError),
		"NOTIMP":   respondRcode(dns.RcodeNotImplemented),
		"silence":  silent,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, small, func(t *testing.T, w *testNetwork) {
				w.server("192.0.2.1").zones[0].add(t, "a.b A 192.0.2.84")
				w.setFault("192.0.2.1 192.0.2.2", onlyForQuestion("b.example.", f))
				r := w.resolver()
				start := time.Now()
				assert.Equal(t, "NOERROR a.b.example. A 192.0.2.84", formatResponse(w.ask(r, "a.b.example. A")))
				assert.Less(t, time.Since(start), 2*time.Second)
				assert.Zero(t, w.countQueries("192.0.2.9"))
			})
		})
	}
}

func TestResolverMinimisesServerNames(t *testing.T) {
	bubble(t, small+"\nlost.example. served 192.0.2.9\n  www A 192.0.2.84\n", func(t *testing.T, w *testNetwork) {
		w.server("192.0.2.1").zones[0].add(t, "lost NS a.ns.deep.victim.")
		w.server("192.0.2.9").zones[0].add(t, "a.ns.deep A 192.0.2.9")
		r := w.resolver()
		assert.Equal(t, "NOERROR www.lost.example. A 192.0.2.84", formatResponse(w.ask(r, "www.lost.example. A")))
		assert.NotContains(t, w.questions("198.41.0.4"), "a.ns.deep.victim. A")
		assert.Contains(t, w.questions("192.0.2.9"), "deep.victim. A")
	})
}

func TestResolverAsksParentForDS(t *testing.T) {
	bubble(t, small+"\nsub.example. delegated 192.0.2.3\n", func(t *testing.T, w *testNetwork) {
		w.server("192.0.2.1").zones[0].add(t, "sub DS 1 8 2 00112233445566778899AABBCCDDEEFF00112233445566778899AABBCCDDEEFF")
		r := w.resolver()
		w.ask(r, "www.sub.example. A")
		n := w.countQueries("192.0.2.3")
		assert.Contains(t, formatResponse(w.ask(r, "sub.example. DS")), "NOERROR sub.example. DS 1 8 2")
		assert.Equal(t, n, w.countQueries("192.0.2.3"))
		assert.Equal(t, "NOERROR", formatResponse(w.ask(r, "victim. DS")))
		assert.Zero(t, w.countQueries("192.0.2.9"))
	})
}

// TestResolverFollowsReferralOfRecursiveServer has an authoritative server that is also recursive: its referrals
// have RA.
func TestResolverFollowsReferralOfRecursiveServer(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *testNetwork) {
		w.setFault("198.41.0.4", func(_ query, r *dns.Msg) *dns.Msg { r.RecursionAvailable = true; return r })
		assert.Equal(t, "NOERROR www.example. A 192.0.2.80", formatResponse(w.ask(w.resolver(), "www.example. A")))
	})
}

func TestResolverAvoidsLameServerFor15Minutes(t *testing.T) {
	for name, f := range map[string]func(query, *dns.Msg) *dns.Msg{
		"REFUSED":    respondRcode(dns.RcodeRefused),
		"NOTAUTH":    respondRcode(dns.RcodeNotAuth),
		"upward":     respondWith("referral | . NS ns. "),
		"empty":      respondWith("referral"),
		"a recursor": func(_ query, r *dns.Msg) *dns.Msg { r.Authoritative, r.RecursionAvailable = false, true; return r },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, small, func(t *testing.T, w *testNetwork) {
				r := w.resolver()
				w.ask(r, "mail.example. A")
				who := w.setFaultOfFirstServer("192.0.2.1 192.0.2.2", f)
				start := time.Now()
				assert.Equal(t, "NOERROR www.example. A 192.0.2.80", formatResponse(w.ask(r, "www.example. A")))
				assert.Equal(t, 20*ms, time.Since(start))
				assert.EqualValues(t, 1, r.Stats().Lame)
				assert.EqualValues(t, 1, r.Stats().Failovers)
				assert.Zero(t, r.Stats().Hedges)
				n := w.countQueries(who())
				for i := range 14 {
					assert.Equal(t, "NXDOMAIN", formatResponse(w.ask(r, fmt.Sprintf("n%d.example. A", i))))
					time.Sleep(time.Minute)
				}
				assert.Equal(t, n+1, w.countQueries(who()), "one failed name does not make the server lame")
				w.setFault("192.0.2.1 192.0.2.2", nil)
				other := map[string]string{"192.0.2.1": "192.0.2.2", "192.0.2.2": "192.0.2.1"}[who()]
				w.setFault(other, silent)
				time.Sleep(2 * time.Minute)
				assert.Equal(t, "NXDOMAIN", formatResponse(w.ask(r, "later.example. A")))
				assert.Greater(t, w.countQueries(who()), n, "the server is lame for 15 minutes")
			})
		})
	}
}

// newResolverWithKnownRTTs returns a function that sends a question to a Resolver without hedges and returns the
// time to the answer. The Resolver has measured that 192.0.2.1 answers after 10 ms, and 192.0.2.2 after 300 ms.
func newResolverWithKnownRTTs(t *testing.T, w *testNetwork) func(question string) time.Duration {
	w.server("192.0.2.2").rtt = 300 * ms
	r := w.resolver(noHedges)
	took := func(question string) time.Duration {
		start := time.Now()
		w.ask(r, question)
		return time.Since(start)
	}
	for i := range 8 {
		took(fmt.Sprintf("n%d.example. A", i))
	}
	require.Equal(t, 10*ms, took("www.example. A"))
	return took
}

// TestResolverAsksServerForOtherNamesAfterFailure has a server that answers SERVFAIL. SERVFAIL concerns one name.
// After several names, the server is avoided like a lame server.
func TestResolverAsksServerForOtherNamesAfterFailure(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *testNetwork) {
		took := newResolverWithKnownRTTs(t, w)
		w.setFault("192.0.2.1", onlyForQuestion("bad.example.", respondRcode(dns.RcodeServerFailure)))
		for _, qtype := range []string{"A", "AAAA", "MX", "TXT", "HTTPS"} {
			assert.Equal(t, 310*ms, took("bad.example. "+qtype))
			assert.Equal(t, 10*ms, took("mail.example. "+qtype), "the server is not avoided for the zone")
		}
		w.setFault("192.0.2.1", respondRcode(dns.RcodeServerFailure))
		for i := range 4 {
			assert.Equal(t, 310*ms, took(fmt.Sprintf("m%d.example. A", i)))
		}
		assert.Equal(t, 300*ms, took("www.example. A"), "the server fails for all names")
		w.setFault("192.0.2.1", nil)
		time.Sleep(15 * time.Minute)
		assert.Equal(t, 10*ms, took("other.example. A"))
	})
}

// TestResolverAsksServerForOtherNamesAfterRefusal has a server that refuses one name of a zone, for example because
// it does not serve that part of the zone.
func TestResolverAsksServerForOtherNamesAfterRefusal(t *testing.T) {
	for said, f := range map[string]func(query, *dns.Msg) *dns.Msg{
		"REFUSED":            respondRcode(dns.RcodeRefused),
		"NOTAUTH":            respondRcode(dns.RcodeNotAuth),
		"a referral upwards": respondWith("referral | . NS ns.root."),
		"nothing":            respondWith("referral"),
	} {
		t.Run(said, func(t *testing.T) {
			bubble(t, small, func(t *testing.T, w *testNetwork) {
				took := newResolverWithKnownRTTs(t, w)
				w.setFault("192.0.2.1", onlyForQuestion("bad.example.", f))
				for range 3 {
					took("bad.example. TXT")
					for _, name := range []string{"mail", "www", "nx"} {
						assert.Equal(t, 10*ms, took(name+".example. MX"), "the server is not avoided for the zone")
					}
					time.Sleep(time.Minute)
				}
			})
		})
	}
}

// TestResolverPrefersFullAnswerToFallback has responses of load balancers to types that they do not know. Otherwise
// these are good servers.
func TestResolverPrefersFullAnswerToFallback(t *testing.T) {
	for name, f := range map[string]func(query, *dns.Msg) *dns.Msg{
		"no AA":              func(_ query, r *dns.Msg) *dns.Msg { r.Authoritative = false; return r },
		"NODATA without SOA": respondWith(""),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, small, func(t *testing.T, w *testNetwork) {
				r := w.resolver()
				w.ask(r, "mail.example. A")
				who := w.setFaultOfFirstServer("192.0.2.1 192.0.2.2", f)
				start := time.Now()
				assert.Equal(t, "NOERROR www.example. A 192.0.2.80", formatResponse(w.ask(r, "www.example. A")))
				assert.Equal(t, 20*ms, time.Since(start))
				assert.NotEmpty(t, who())
				w.setFault("192.0.2.1 192.0.2.2", f)
				n := w.countQueries()
				m := w.ask(r, "www.example. AAAA")
				assert.Equal(t, dns.RcodeSuccess, m.Rcode, "used if there is no better response")
				assert.Equal(t, 2, w.countQueries()-n, "each server is asked once")
				w.setFault("192.0.2.1 192.0.2.2", nil)
				time.Sleep(time.Minute)
				w.setFaultOfFirstServer("192.0.2.1 192.0.2.2", silent)
				start = time.Now()
				assert.Equal(t, "NXDOMAIN", formatResponse(w.ask(r, "nx.example. A")))
				assert.Less(t, time.Since(start), 100*ms, "other questions are still hedged")
			})
		})
	}
}

func TestResolverAsksAllServersBeforeFailure(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
example. delegated 192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4 192.0.2.5
  www A 192.0.2.80
`, func(t *testing.T, w *testNetwork) {
		all := "192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4 192.0.2.5"
		tried := map[netip.Addr]bool{}
		last := 5
		for _, a := range strings.Fields(all) {
			w.setFault(a, func(q query, m *dns.Msg) *dns.Msg {
				tried[netip.MustParseAddr(a)] = true
				if len(tried) == last {
					return m
				}
				return respondRcode([]int{dns.RcodeServerFailure, dns.RcodeRefused}[len(tried)%2])(q, m)
			})
		}
		r := w.resolver()
		assert.Equal(t, "NOERROR www.example. A 192.0.2.80", formatResponse(w.ask(r, "www.example. A")))
		time.Sleep(time.Hour)
		w.withLock(func() { last = 6; clear(tried) })
		assert.Equal(t, "SERVFAIL", formatResponse(w.ask(r, "nx.example. A")))
		w.withLock(func() { assert.Len(t, tried, 5) })
	})
}

func TestResolverRemembersServerWithoutEDNSForAnHour(t *testing.T) {
	noEDNS := map[string]func(query, *dns.Msg) *dns.Msg{
		"FORMERR": func(q query, r *dns.Msg) *dns.Msg {
			if q.IsEdns0() != nil {
				return respondRcode(dns.RcodeFormatError)(q, r)
			}
			return r
		},
		"BADVERS": func(q query, r *dns.Msg) *dns.Msg {
			if q.IsEdns0() != nil {
				r.Answer, r.Ns = nil, nil
				r.Rcode = dns.RcodeBadVers
			}
			return r
		},
	}
	for name, f := range noEDNS {
		t.Run(name, func(t *testing.T) {
			bubble(t, `
. served 198.41.0.4
example. delegated 192.0.2.1
  www A 192.0.2.80
`, func(t *testing.T, w *testNetwork) {
				w.setFault("192.0.2.1", f)
				r := w.resolver()
				opt := func(n int) (all []bool) {
					for _, a := range w.queriesSince(n) {
						if a.to.String() == "192.0.2.1" {
							all = append(all, a.msg.IsEdns0() != nil)
						}
					}
					return all
				}
				assert.Equal(t, "NOERROR www.example. A 192.0.2.80", formatResponse(w.ask(r, "www.example. A")))
				assert.Equal(t, []bool{true, false}, opt(0))
				n := len(w.queriesSince(0))
				assert.Equal(t, "NXDOMAIN", formatResponse(w.ask(r, "a.example. A")))
				time.Sleep(59 * time.Minute)
				assert.Equal(t, "NXDOMAIN", formatResponse(w.ask(r, "b.example. A")))
				assert.Equal(t, []bool{false, false}, opt(n))
				n = len(w.queriesSince(0))
				time.Sleep(2 * time.Minute)
				assert.Equal(t, "NXDOMAIN", formatResponse(w.ask(r, "c.example. A")))
				assert.Equal(t, []bool{true, false}, opt(n))
			})
		})
	}
}

func TestResolverKeepsEDNSAndUDPAfterTimeouts(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *testNetwork) {
		w.setFault("192.0.2.1 192.0.2.2", func(q query, r *dns.Msg) *dns.Msg {
			if q.IsEdns0() != nil {
				return nil
			}
			return r
		})
		r := w.resolver()
		assert.Equal(t, "SERVFAIL", formatResponse(w.ask(r, "www.example. A")))
		for _, a := range w.queriesSince(0) {
			assert.NotNil(t, a.msg.IsEdns0(), a)
			assert.False(t, a.tcp, a)
		}
	})
}

const big = `
. served 198.41.0.4
example. delegated 192.0.2.1 192.0.2.2
  www A 192.0.2.80
`

func withBig(t *testing.T, w *testNetwork) (want string) {
	text := strings.Repeat(`"`+strings.Repeat("x", 250)+`" `, 8)
	w.server("192.0.2.1").zones[0].add(t, "big TXT "+text)
	return "NOERROR big.example. TXT " + strings.TrimSpace(text)
}

func TestResolverRepeatsTruncatedQueryOverTCPOnce(t *testing.T) {
	bubble(t, big, func(t *testing.T, w *testNetwork) {
		want := withBig(t, w)
		r := w.resolver()
		w.ask(r, "www.example. A")
		n := len(w.queriesSince(0))
		start := time.Now()
		assert.Equal(t, want, formatResponse(w.ask(r, "big.example. TXT")))
		assert.Equal(t, 30*ms, time.Since(start), "a datagram, a connection and a query")
		log := w.queriesSince(n)
		require.Len(t, log, 2)
		assert.Equal(t, []bool{false, true}, []bool{log[0].tcp, log[1].tcp})
		assert.Equal(t, log[0].to, log[1].to)
		assert.EqualValues(t, 1, r.Stats().TCP)
		assert.Zero(t, r.Stats().Hedges)
		n = len(w.queriesSince(0))
		w.ask(r, "nx.example. A")
		log = w.queriesSince(n)
		require.Len(t, log, 1)
		assert.False(t, log[0].tcp, "the query over TCP repeats the question whose answer was truncated")
	})
}

func TestResolverAsksNextServerWhenTCPFails(t *testing.T) {
	bubble(t, big, func(t *testing.T, w *testNetwork) {
		want := withBig(t, w)
		w.updateServers("192.0.2.1", func(s *server) { s.noTCP = true })
		for range 8 { // either server may be queried first
			r := w.resolver()
			start := time.Now()
			assert.Equal(t, want, formatResponse(w.ask(r, "big.example. TXT")))
			assert.Less(t, time.Since(start), time.Second)
		}
		w.updateServers("192.0.2.2", func(s *server) { s.noTCP = true })
		r := w.resolver()
		n, start := w.countQueries(), time.Now()
		assert.Equal(t, "SERVFAIL", formatResponse(w.ask(r, "big.example. TXT")))
		assert.Less(t, time.Since(start), 5*time.Second)
		assert.Less(t, w.countQueries()-n, 12)
	})
}

func TestResolverAsksNextServerWhenTCPIsUnresponsive(t *testing.T) {
	bubble(t, big, func(t *testing.T, w *testNetwork) {
		want := withBig(t, w)
		w.setFaultOfFirstServer("192.0.2.1 192.0.2.2", func(q query, r *dns.Msg) *dns.Msg {
			if q.tcp {
				return nil
			}
			return r
		})
		start := time.Now()
		assert.Equal(t, want, formatResponse(w.ask(w.resolver(), "big.example. TXT")))
		assert.Less(t, time.Since(start), time.Second)
		w.setFault("192.0.2.1 192.0.2.2", func(q query, r *dns.Msg) *dns.Msg {
			if q.tcp {
				return nil
			}
			return r
		})
		start = time.Now()
		assert.Equal(t, "SERVFAIL", formatResponse(w.ask(w.resolver(), "big.example. TXT")))
		assert.LessOrEqual(t, time.Since(start), 5*time.Second)
	})
}

func TestResolverDoesNotRepeatTruncatedTCPQuery(t *testing.T) {
	bubble(t, big, func(t *testing.T, w *testNetwork) {
		want := withBig(t, w)
		w.setFaultOfFirstServer("192.0.2.1 192.0.2.2", func(q query, r *dns.Msg) *dns.Msg {
			r.Truncated, r.Answer, r.Ns = true, nil, nil
			return r
		})
		n := len(w.queriesSince(0))
		assert.Equal(t, want, formatResponse(w.ask(w.resolver(), "big.example. TXT")))
		assert.LessOrEqual(t, len(w.queriesSince(n)), 6)
	})
}

func TestResolverCachesNegativeAnswerForSOATTL(t *testing.T) {
	for _, c := range []struct{ ttl, minimum, want uint32 }{{300, 60, 60}, {60, 300, 60}, {300, 0, 0}} {
		for _, rc := range []int{dns.RcodeSuccess, dns.RcodeNameError} {
			bubble(t, small, func(t *testing.T, w *testNetwork) {
				w.setFault("192.0.2.1 192.0.2.2", onlyForQuestion("www.example. TXT", func(q query, _ *dns.Msg) *dns.Msg {
					m := respondWith(fmt.Sprintf("| example. %d SOA ns. admin. 1 2 3 4 %d", c.ttl, c.minimum))(q, nil)
					m.Rcode = rc
					return m
				}))
				m := w.ask(w.resolver(), "www.example. TXT")
				assert.Equal(t, rc, m.Rcode)
				require.Len(t, m.Ns, 1)
				assert.Equal(t, c.want, m.Ns[0].Header().Ttl)
			})
		}
	}
}

func TestResolverPrimesRootAndNeverAnswersWithHints(t *testing.T) {
	bubble(t, `
. served 198.41.0.4 198.41.0.5
  @ NS a.root.
  a.root A 198.41.0.5
  a.root AAAA 2001:db8::5
example. delegated 192.0.2.1
`, func(t *testing.T, w *testNetwork) {
		r := w.resolver(func(r *recursor.Resolver) { r.Hints = []netip.Addr{netip.MustParseAddr("198.41.0.4")}; r.NoIPv6 = true })
		w.ask(r, "www.example. A")
		assert.Equal(t, []string{". NS"}, w.questions("198.41.0.4"))
		assert.Equal(t, []string{"example. A"}, w.questions("198.41.0.5"))
		assert.Equal(t, "NOERROR . NS a.root.", formatResponse(w.ask(r, ". NS")))
		assert.Equal(t, "NOERROR a.root. A 198.41.0.5", formatResponse(w.ask(r, "a.root. A")))
		for i := range 10 {
			w.ask(r, fmt.Sprintf("n%d. A", i))
		}
		assert.Equal(t, 1, w.countQueries("198.41.0.4"))
	})
}

func TestResolverToleratesDeadHints(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *testNetwork) {
		r := w.resolver(func(r *recursor.Resolver) {
			r.Hints = append(r.Hints, netip.MustParseAddr("198.41.0.90"), netip.MustParseAddr("198.41.0.91"))
		})
		start := time.Now()
		assert.Equal(t, "NOERROR www.example. A 192.0.2.80", formatResponse(w.ask(r, "www.example. A")))
		assert.Less(t, time.Since(start), time.Second)
	})
}

func TestResolverAnswersSpecialUseNamesLocally(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *testNetwork) {
		r := w.resolver()
		for q, want := range map[string]string{
			"localhost. A": "NOERROR localhost. A 127.0.0.1", "a.localhost. AAAA": "NOERROR a.localhost. AAAA ::1",
			"x.invalid. A": "NXDOMAIN", "x.test. A": "NXDOMAIN", "x.onion. A": "NXDOMAIN", "printer.local. A": "NXDOMAIN",
			"x.home.arpa. A": "NXDOMAIN", "x.alt. A": "NXDOMAIN",
			"1.0.0.10.in-addr.arpa. PTR": "NXDOMAIN", "1.1.168.192.in-addr.arpa. PTR": "NXDOMAIN", "1.2.16.172.in-addr.arpa. PTR": "NXDOMAIN",
			"1.2.254.169.in-addr.arpa. PTR": "NXDOMAIN", "x.8.b.d.0.1.0.0.2.ip6.arpa. PTR": "NXDOMAIN", "x.d.f.ip6.arpa. PTR": "NXDOMAIN",
		} {
			assert.Equal(t, want, formatResponse(w.ask(r, q)), q)
		}
		assert.Zero(t, w.countQueries())
		assert.Zero(t, w.dials)
		assert.EqualValues(t, 14, r.Stats().Local)
	})
}

func TestResolverAsksStubZonesForSpecialUseNames(t *testing.T) {
	bubble(t, small+"\nhome.arpa. served 10.0.0.1\n  nas A 10.0.0.2\n10.in-addr.arpa. served 10.0.0.1\n  2.0.0 PTR nas.home.arpa.\n", func(t *testing.T, w *testNetwork) {
		r := w.resolver(func(r *recursor.Resolver) {
			at := []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:53")}
			r.Zones = map[string][]netip.AddrPort{"home.arpa": at, "10.in-addr.arpa.": at}
		})
		assert.Equal(t, "NOERROR nas.home.arpa. A 10.0.0.2", formatResponse(w.ask(r, "nas.home.arpa. A")))
		assert.Equal(t, "NOERROR 2.0.0.10.in-addr.arpa. PTR nas.home.arpa.", formatResponse(w.ask(r, "2.0.0.10.in-addr.arpa. PTR")))
		assert.Equal(t, w.countQueries(), w.countQueries("10.0.0.1"), "a stub zone queries no other servers")
	})
}

func TestResolverDoesNotAskPrivateAddresses(t *testing.T) {
	bad := []string{"0.0.0.0", "0.1.2.3", "192.0.0.192", "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "169.254.0.1", "::", "::1", "fc00::1", "fe80::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1"}
	for _, a := range bad {
		t.Run(a, func(t *testing.T) {
			bubble(t, small+"\nhome.example. served "+a+"\n  www A 192.0.2.84\n", func(t *testing.T, w *testNetwork) {
				z := w.server("192.0.2.1").zones[0]
				z.add(t, "home NS ns.home")
				z.put(address("ns.home.example.", netip.MustParseAddr(a)))
				r := w.resolver()
				m := w.ask(r, "www.home.example. A")
				assert.Equal(t, "SERVFAIL", formatResponse(m))
				for _, q := range w.queriesSince(0) {
					assert.Contains(t, []string{"198.41.0.4", "192.0.2.1", "192.0.2.2"}, q.to.String())
				}
				if strings.HasPrefix(a, "1") && a != "127.0.0.1" {
					ok := w.resolver(func(r *recursor.Resolver) { r.PrivateOK = true })
					assert.Equal(t, "NOERROR www.home.example. A 192.0.2.84", formatResponse(w.ask(ok, "www.home.example. A")))
				}
			})
		})
	}
}

func TestResolverAcceptsAnyOctetsInNames(t *testing.T) {
	long := strings.Repeat("a23456789.", 23) + "abcdefghijk." // with example., 255 octets
	bubble(t, small, func(t *testing.T, w *testNetwork) {
		z := w.server("192.0.2.1").zones[0]
		names := []string{`a\.b.example.`, `\000\255\032x.example.`, `_tcp._x.example.`, `\@.a\;b.example.`, `*.star.example.`, "UPPER.example.", long + "example.", `xn--bcher-kva.example.`, `\092.example.`}
		for _, n := range names {
			z.put(&dns.A{Hdr: dns.RR_Header{Name: n, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 300}, A: []byte{192, 0, 2, 84}})
		}
		r := w.resolver()
		for _, n := range names {
			for _, n := range []string{n, strings.ToUpper(n)} {
				m := new(dns.Msg).SetQuestion(n, dns.TypeA)
				got, _, err := r.ExchangeContext(t.Context(), m, "")
				require.NoError(t, err, n)
				assert.Equal(t, dns.RcodeSuccess, got.Rcode, n)
				require.Len(t, got.Answer, 1, n)
				assert.Equal(t, n, got.Question[0].Name)
			}
		}
		for _, q := range []string{". A", ". SOA", ". NS", "example. ANY", "example. RRSIG", "example. TYPE65280", "com. DS", ". DS"} {
			f := strings.Fields(q)
			typ, ok := dns.StringToType[f[1]]
			if !ok {
				typ = 65280
			}
			got, _, err := r.ExchangeContext(t.Context(), new(dns.Msg).SetQuestion(f[0], typ), "")
			require.NoError(t, err, q)
			assert.Contains(t, []int{dns.RcodeSuccess, dns.RcodeNameError}, got.Rcode, q)
		}
	})
}

func TestResolverReturnsResponseThatCallerMayChange(t *testing.T) {
	bubble(t, small+"\nfar. delegated 192.0.2.4\n  alias CNAME www.victim.\n  alias2 CNAME www.victim.\n", func(t *testing.T, w *testNetwork) {
		r := w.resolver()
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				for _, q := range []string{"alias.far. A", "alias2.far. A", "www.victim. A", "localhost. A", "x.test. A", "nx.victim. A"} {
					m := w.ask(r, q)
					for _, rr := range append(m.Answer, m.Ns...) {
						rr.Header().Ttl, rr.Header().Name = 7, "changed."
						if a, ok := rr.(*dns.A); ok {
							a.A[len(a.A)-1] = 66
						}
					}
					time.Sleep(time.Duration(i) * ms)
				}
			})
		}
		wg.Wait()
		assert.Equal(t, "NOERROR alias.far. CNAME www.victim., www.victim. A 192.0.2.90", formatResponse(w.ask(r, "alias.far. A")))
		assert.Equal(t, "NOERROR localhost. A 127.0.0.1", formatResponse(w.ask(r, "localhost. A")))
	})
}

func TestResolverLowersTTLsOfCachedRecords(t *testing.T) {
	bubble(t, small+"\nfar. delegated 192.0.2.4\n  alias CNAME www.victim.\n", func(t *testing.T, w *testNetwork) {
		r := w.resolver()
		var last uint32 = 3600
		for i := range 8 {
			m := w.ask(r, "alias.far. A")
			require.Len(t, m.Answer, 2)
			ttl := m.Answer[1].Header().Ttl
			if asked := i > 0 && w.questions("192.0.2.9")[len(w.questions("192.0.2.9"))-1] == "www.victim. A" && ttl == 3600; !asked {
				assert.LessOrEqual(t, ttl, last-uint32(min(i, 1))*600)
			}
			last = ttl
			time.Sleep(10 * time.Minute)
		}
		before := w.countQueries("192.0.2.9")
		time.Sleep(2 * time.Hour)
		w.ask(r, "alias.far. A")
		assert.Greater(t, w.countQueries("192.0.2.9"), before)
	})
}

func TestResolverContinuesSharedLookupAfterCallerLeaves(t *testing.T) {
	const text = small + "\nlost.example. served 192.0.2.9\n  * A 192.0.2.84\n"
	for _, leave := range []time.Duration{0, 5 * ms, 15 * ms, 25 * ms, 35 * ms, 45 * ms, 55 * ms} {
		bubble(t, text, func(t *testing.T, w *testNetwork) {
			w.server("192.0.2.1").zones[0].add(t, "lost NS ns.far.victim.")
			w.server("192.0.2.9").zones[0].add(t, "ns.far A 192.0.2.9")
			r := w.resolver()
			var wg sync.WaitGroup
			for i := range 10 {
				wg.Go(func() {
					ctx := t.Context()
					if i%2 == 0 {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, leave)
						defer cancel()
					}
					m, err := w.exchange(ctx, r, "www.lost.example. A")
					if i%2 == 1 {
						assert.NoError(t, err)
						assert.Equal(t, "NOERROR www.lost.example. A 192.0.2.84", formatResponse(m))
					}
				})
			}
			wg.Wait()
		})
	}
}

func TestResolverFailsAtOnceWithoutNetwork(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *testNetwork) {
		w.refuse = func(string, netip.Addr) error { return syscall.ENETUNREACH }
		r := w.resolver()
		start := time.Now()
		_, err := w.exchange(t.Context(), r, "www.example. A")
		assert.ErrorIs(t, err, syscall.ENETUNREACH)
		assert.Less(t, time.Since(start), time.Second)
		w.withLock(func() { w.refuse = nil })
		time.Sleep(6 * time.Second)
		assert.Equal(t, "NOERROR www.example. A 192.0.2.80", formatResponse(w.ask(r, "www.example. A")))
	})
}

func TestResolverKeepsSpellingOfEscapedNames(t *testing.T) {
	bubble(t, ". served 198.41.0.4\nexample. delegated 192.0.2.1\n  a\\.b A 192.0.2.80\n", func(t *testing.T, w *testNetwork) {
		r := w.resolver()
		for question, want := range map[string]string{
			`A\.b.Example. A`:          `NOERROR A\.b.Example. A 192.0.2.80`,
			`\065\046B.example. A`:     `NOERROR \065\046B.example. A 192.0.2.80`,
			`a.b.example. A`:           "NXDOMAIN",
			`\000\255\".example. A`:    "NXDOMAIN",
			`x.a\.b.example. A`:        "NXDOMAIN",
			`a\.b.example\.example. A`: "NXDOMAIN",
		} {
			m := w.ask(r, question)
			assert.Equal(t, want, formatResponse(m), question)
			b, err := m.Pack()
			require.NoError(t, err)
			require.NoError(t, new(dns.Msg).Unpack(b))
		}
	})
}
