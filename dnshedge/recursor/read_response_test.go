package recursor_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/recursor"
)

// TestReadResponseKeepsTTLOfEachRRset requires RFC 2181 §5.2: each RRset has its own TTL, and an answer to ANY has
// several RRsets.
func TestReadResponseKeepsTTLOfEachRRset(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *testNetwork) {
		const sig = "8 2 3600 20300101000000 20200101000000 1 example. AAAA"
		w.setFault("192.0.2.1 192.0.2.2", onlyForQuestion("www.example. ANY", respondWith(
			"www.example. 3600 A 192.0.2.80; www.example. 30 TXT x; www.example. 20 TXT y; www.example. 1800 A 192.0.2.81;"+
				"www.example. 900 RRSIG A "+sig+"; www.example. 15 RRSIG TXT "+sig)))
		ttls := map[string]uint32{}
		for _, rr := range w.ask(w.resolver(), "www.example. ANY").Answer {
			k := dns.TypeToString[rr.Header().Rrtype]
			if sig, ok := rr.(*dns.RRSIG); ok {
				k += " " + dns.TypeToString[sig.TypeCovered]
			}
			if ttl, ok := ttls[k]; ok {
				assert.Equal(t, ttl, rr.Header().Ttl, k)
			}
			ttls[k] = rr.Header().Ttl
		}
		assert.Equal(t, map[string]uint32{"A": 1800, "TXT": 20, "RRSIG A": 900, "RRSIG TXT": 15}, ttls)
	})
}

// TestReadResponseIgnoresRecordsBesideAlias requires RFC 1034 §3.6.2: a name with an alias has no other records,
// except DNSSEC records (RFC 4034 §3).
func TestReadResponseIgnoresRecordsBesideAlias(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *testNetwork) {
		w.setFault("192.0.2.1 192.0.2.2", onlyForQuestion("both.example.", respondWith(
			"both.example. A 192.0.2.99; both.example. MX 10 elsewhere.; both.example. CNAME www.example.; both.example. NSEC c.example. A")))
		r := w.resolver()
		for question, want := range map[string]string{
			"both.example. A":     "NOERROR both.example. CNAME www.example., www.example. A 192.0.2.80",
			"both.example. MX":    "NOERROR both.example. CNAME www.example.",
			"both.example. AAAA":  "NOERROR both.example. CNAME www.example., www.example. AAAA 2001:db8::80",
			"both.example. CNAME": "NOERROR both.example. CNAME www.example.",
			"both.example. NSEC":  "NOERROR both.example. NSEC c.example. A",
		} {
			assert.Equal(t, want, formatResponse(w.ask(r, question)), question)
		}
	})
}

// TestResolverTakesDenialWithForeignSOALast has a server that serves many zones with one SOA record.
func TestResolverTakesDenialWithForeignSOALast(t *testing.T) {
	for _, soa := range []string{". 300 SOA a. b. 1 2 3 4 300", "elsewhere. 300 SOA a. b. 1 2 3 4 300", "sub.example. 300 SOA a. b. 1 2 3 4 300"} {
		foreign := func(_ query, r *dns.Msg) *dns.Msg {
			r.Answer, r.Ns = nil, []dns.RR{record(soa)}
			return r
		}
		denied := func(q query, r *dns.Msg) *dns.Msg {
			r.Rcode = dns.RcodeNameError
			return foreign(q, r)
		}
		bubble(t, small, func(t *testing.T, w *testNetwork) {
			w.setFault("192.0.2.1 192.0.2.2", onlyForQuestion("nx.example.", foreign))
			r := w.resolver()
			m := w.ask(r, "nx.example. A")
			assert.Equal(t, "NXDOMAIN", formatResponse(m), soa)
			assert.Empty(t, m.Ns, "the SOA record is ignored")
			assert.Equal(t, "NXDOMAIN", formatResponse(w.ask(r, "a.b.nx.example. A")), soa)
		})
		bubble(t, small, func(t *testing.T, w *testNetwork) {
			r := w.resolver()
			w.ask(r, "mail.example. A")
			w.setFaultOfFirstServer("192.0.2.1 192.0.2.2", denied)
			start := time.Now()
			assert.Equal(t, "NOERROR www.example. A 192.0.2.80", formatResponse(w.ask(r, "www.example. A")), "the other server has a better response")
			assert.Equal(t, 20*ms, time.Since(start))
		})
	}
}

// TestResolverTakesAnswerOfRecursiveServerLast has a forwarder, such as dnsmasq or a load balancer, in place of a
// server of the zone.
func TestResolverTakesAnswerOfRecursiveServerLast(t *testing.T) {
	recursive := func(_ query, r *dns.Msg) *dns.Msg {
		r.Authoritative, r.RecursionAvailable = false, true
		return r
	}
	all := map[string]string{
		"www.example. A":    "NOERROR www.example. A 192.0.2.80",
		"www.example. AAAA": "NOERROR www.example. AAAA 2001:db8::80",
		"mail.example. TXT": "NOERROR",
		"alias.example. A":  "NOERROR alias.example. CNAME www.example., www.example. A 192.0.2.80",
		"a.ent.example. A":  "NOERROR a.ent.example. A 192.0.2.82",
		"nx.example. A":     "NXDOMAIN",
		"b.ent.example. A":  "NXDOMAIN",
	}
	bubble(t, small, func(t *testing.T, w *testNetwork) {
		w.setFault("192.0.2.1 192.0.2.2", recursive)
		r := w.resolver()
		for question, want := range all {
			assert.Equal(t, want, formatResponse(w.ask(r, question)), question)
		}
	})
	bubble(t, small, func(t *testing.T, w *testNetwork) { // a poor answer of a server with authority counts more
		w.setFault("192.0.2.1", func(_ query, r *dns.Msg) *dns.Msg {
			r.Answer = []dns.RR{record("www.example. A 192.0.2.99")}
			return recursive(query{}, r)
		})
		w.setFault("192.0.2.2", onlyForQuestion("www.example. A", respondWith("")))
		assert.Equal(t, "NOERROR", formatResponse(w.ask(w.resolver(), "www.example. A")))
	})
}

// TestResolverFollowsReferralInAnswerSectionLast has a non-authoritative referral in the answer section, which BIND
// follows as well.
func TestResolverFollowsReferralInAnswerSectionLast(t *testing.T) {
	const text = small + `
sub.example. delegated 192.0.2.3
  www A 192.0.2.84
`
	for answer, want := range map[string]string{
		"sub.example. NS ns1.sub.example. || ns1.sub.example. A 192.0.2.3":                                  "NOERROR www.sub.example. A 192.0.2.84",
		"sub.example. NS ns1.sub.example.; sub.example. NS nx.sub.example. || ns1.sub.example. A 192.0.2.3": "NOERROR www.sub.example. A 192.0.2.84",
		"sub.example. NS ns1.sub.example.; sub.example. TXT x || ns1.sub.example. A 192.0.2.3":              "SERVFAIL",
		"victim. NS ns1.sub.example. || ns1.sub.example. A " + evil:                                         "SERVFAIL",
		"example. NS ns1.example. || ns1.example. A " + evil:                                                "SERVFAIL",
		". NS ns1.example. || ns1.example. A " + evil:                                                       "SERVFAIL",
	} {
		bubble(t, text, func(t *testing.T, w *testNetwork) {
			w.withEvil()
			w.setFault("192.0.2.1 192.0.2.2", func(q query, r *dns.Msg) *dns.Msg {
				if dns.IsSubDomain("sub.example.", q.name) {
					return respondWith("referral "+answer)(q, r)
				}
				return r
			})
			r := w.resolver()
			assert.Equal(t, want, formatResponse(w.ask(r, "www.sub.example. A")), answer)
			assert.Equal(t, "NOERROR www.example. A 192.0.2.80", formatResponse(w.ask(r, "www.example. A")), answer)
			assert.Equal(t, "NOERROR www.victim. A 192.0.2.90", formatResponse(w.ask(r, "www.victim. A")), answer)
			assert.Zero(t, w.countQueries(evil), answer)
		})
	}
	bubble(t, text, func(t *testing.T, w *testNetwork) { // the other server knows better
		r := w.resolver()
		w.ask(r, "mail.example. A")
		w.setFaultOfFirstServer("192.0.2.1 192.0.2.2", onlyForQuestion("www.example.", respondWith("referral www.example. NS ns1.sub.example. || ns1.sub.example. A 192.0.2.3")))
		assert.Equal(t, "NOERROR www.example. A 192.0.2.80", formatResponse(w.ask(r, "www.example. A")))
	})
}

// TestReadResponseTakesUpperOfTwoReferrals has NS records of a zone and of its child zone. The queried server
// delegates the upper zone, whose servers delegate the lower one.
func TestReadResponseTakesUpperOfTwoReferrals(t *testing.T) {
	const text = small + `
sub.example. delegated 192.0.2.3
  www A 192.0.2.84
deep.sub.example. delegated 192.0.2.4
  www A 192.0.2.85
`
	const upper, lower = "sub.example. NS ns1.sub.example.", "deep.sub.example. NS ns1.sub.example."
	for _, ns := range []string{upper + ";" + lower, lower + ";" + upper, lower + ";" + upper + "; victim. NS ns1.sub.example."} {
		bubble(t, text, func(t *testing.T, w *testNetwork) {
			w.setFault("192.0.2.1 192.0.2.2", func(q query, r *dns.Msg) *dns.Msg {
				if dns.IsSubDomain("sub.example.", q.name) {
					return respondWith("referral |"+ns+"| ns1.sub.example. A 192.0.2.3")(q, r)
				}
				return r
			})
			r := w.resolver(func(r *recursor.Resolver) { r.NoMinimise = true })
			assert.Equal(t, "NOERROR www.deep.sub.example. A 192.0.2.85", formatResponse(w.ask(r, "www.deep.sub.example. A")), ns)
			assert.Equal(t, "NOERROR www.sub.example. A 192.0.2.84", formatResponse(w.ask(r, "www.sub.example. A")), ns)
			assert.Equal(t, "NOERROR www.victim. A 192.0.2.90", formatResponse(w.ask(r, "www.victim. A")), ns)
			assert.Equal(t, 1, w.countQueries("192.0.2.4"), "the server of the upper zone has delegated the lower zone")
		})
	}
}

// TestResolverTakesUnprovenDenialLast has denials as unbound and BIND accept them. A referral to the zone itself or
// to a zone above it is no denial.
func TestResolverTakesUnprovenDenialLast(t *testing.T) {
	denied := func(code int, recursive bool, ns string) func(query, *dns.Msg) *dns.Msg {
		return func(q query, _ *dns.Msg) *dns.Msg {
			r := respondWith("referral |"+ns)(q, nil)
			r.Rcode, r.RecursionAvailable = code, recursive
			return r
		}
	}
	const itself, upward = "example. NS ns1.example.", ". NS a.root."
	for _, c := range []struct {
		name  string
		fault func(query, *dns.Msg) *dns.Msg
		want  string
	}{
		{"NODATA", denied(dns.RcodeSuccess, false, ""), "NOERROR"},
		{"NXDOMAIN", denied(dns.RcodeNameError, false, ""), "NXDOMAIN"},
		{"NODATA of a recursor", denied(dns.RcodeSuccess, true, itself), "NOERROR"},
		{"NXDOMAIN of a recursor", denied(dns.RcodeNameError, true, itself), "NXDOMAIN"},
		{"referral to the zone itself", denied(dns.RcodeSuccess, false, itself), "SERVFAIL"},
		{"referral upwards", denied(dns.RcodeSuccess, false, upward), "SERVFAIL"},
		{"referral upwards of a recursor", denied(dns.RcodeSuccess, true, upward), "SERVFAIL"},
		{"other records", respondWith("referral www.example. TXT x"), "NOERROR"},
		{"a name that is too long and has records", rcodeOf(dns.RcodeYXDomain, respondWith("www.example. A 192.0.2.99")), "SERVFAIL"},
	} {
		bubble(t, small, func(t *testing.T, w *testNetwork) {
			w.setFault("192.0.2.1 192.0.2.2", onlyForQuestion("www.example. A", c.fault))
			r := w.resolver()
			assert.Equal(t, c.want, formatResponse(w.ask(r, "www.example. A")), c.name)
			assert.Equal(t, "NOERROR www.example. AAAA 2001:db8::80", formatResponse(w.ask(r, "www.example. AAAA")), c.name)
		})
		bubble(t, small, func(t *testing.T, w *testNetwork) {
			r := w.resolver()
			w.ask(r, "mail.example. A")
			w.setFaultOfFirstServer("192.0.2.1 192.0.2.2", onlyForQuestion("www.example. A", c.fault))
			assert.Equal(t, "NOERROR www.example. A 192.0.2.80", formatResponse(w.ask(r, "www.example. A")), "%s: the other server has a better response", c.name)
		})
	}
}

// rcodeOf returns the fault f with another RCODE.
func rcodeOf(code int, f func(query, *dns.Msg) *dns.Msg) func(query, *dns.Msg) *dns.Msg {
	return func(q query, r *dns.Msg) *dns.Msg {
		r = f(q, r)
		r.Rcode = code
		return r
	}
}

// TestResolverConfirmsDenialWithoutSOA has responses of load balancers to types that they do not know. A client
// cannot cache them longer than the Resolver, because they have no TTL (RFC 2308 §5).
func TestResolverConfirmsDenialWithoutSOA(t *testing.T) {
	const n = 8
	text := ". served 198.41.0.4\nexample. delegated"
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("192.0.2.%d", i+1))
	}
	text += " " + strings.Join(all, " ") + "\n  www A 192.0.2.80\n"
	for name, c := range map[string]struct {
		change func(query, *dns.Msg) *dns.Msg
		want   string
		cost   int
	}{
		"NODATA":                  {respondWith(""), "NOERROR", 2},
		"NXDOMAIN":                {rcodeAA(dns.RcodeNameError, ""), "NXDOMAIN", 1},
		"NXDOMAIN, a foreign SOA": {rcodeAA(dns.RcodeNameError, "elsewhere. 300 SOA a. b. 1 2 3 4 300"), "NXDOMAIN", 2},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, text, func(t *testing.T, w *testNetwork) {
				w.setFault(strings.Join(all, " "), onlyForQuestion("www.example. AAAA", c.change))
				cl := w.client(w.resolver())
				w.askClient(cl, "www.example. A")
				start, before := time.Now(), w.countQueries()
				for range 10 {
					assert.Equal(t, c.want, formatResponse(w.askClient(cl, "www.example. AAAA")))
				}
				assert.Equal(t, c.cost, w.countQueries()-before)
				assert.Equal(t, time.Duration(c.cost)*10*ms, time.Since(start))
				assert.Equal(t, "NOERROR www.example. A 192.0.2.80", formatResponse(w.askClient(cl, "www.example. A")))
				time.Sleep(5 * time.Second)
				assert.Equal(t, c.want, formatResponse(w.askClient(cl, "www.example. AAAA")))
				assert.Equal(t, 2*c.cost, w.countQueries()-before)
			})
		})
	}
}

// rcodeAA returns a fault: an authoritative response with an RCODE and, unless ns is "", a record in the authority
// section.
func rcodeAA(code int, ns string) func(query, *dns.Msg) *dns.Msg {
	return func(q query, _ *dns.Msg) *dns.Msg {
		r := respondWith("|"+ns)(q, nil)
		r.Rcode = code
		return r
	}
}
