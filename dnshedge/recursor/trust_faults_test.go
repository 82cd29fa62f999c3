package recursor_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/recursor"
)

// TestQuestionAtLimitMakesNoZoneBogus has a question whose aliases use up its limits and end in a foreign zone.
func TestQuestionAtLimitMakesNoZoneBogus(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
tld. delegated 192.0.2.1
evil.tld. delegated 192.0.3.1
  a CNAME b
  b CNAME c
  c CNAME d
  d CNAME www.bank.tld.
bank.tld. delegated 192.0.4.1
  www A 192.0.2.81
`, func(t *testing.T, w *testNetwork) {
		w.sign()
		failed := false
		for n := 8; n < 24; n++ {
			r := newValidatingResolver(w, limits(recursor.Limits{Queries: n}))
			evil := w.security(r, "a.evil.tld. A")
			failed = failed || evil != "secure"
			assert.Equal(t, "secure", w.security(r, "www.bank.tld. A"), "limit %d: %s", n, evil)
		}
		assert.True(t, failed)
	})
}

// TestNamesBelowHiddenInsecureCutAreInsecure has a zone and an unsigned child zone on the same servers, such as tld.
// and com.tld. No referral shows the child zone.
func TestNamesBelowHiddenInsecureCutAreInsecure(t *testing.T) {
	shared := `
. served 198.41.0.4
tld. delegated 192.0.2.1 192.0.2.2
  www A 192.0.2.80
com.tld. delegated 192.0.2.1 192.0.2.2
  www A 192.0.2.81
site.com.tld. delegated 192.0.3.1
  www A 192.0.2.82
`
	bubble(t, shared, func(t *testing.T, w *testNetwork) {
		w.sign("com.tld.", "site.com.tld.")
		r := newValidatingResolver(w)
		for range 3 {
			assert.Equal(t, "insecure", w.security(r, "www.site.com.tld. A"))
			assert.Equal(t, "insecure", w.security(r, "site.com.tld. DS"))
			assert.Equal(t, "secure", w.security(r, "com.tld. DS"))
			time.Sleep(2 * time.Hour)
		}
	})
	bubble(t, shared, func(t *testing.T, w *testNetwork) {
		w.sign("com.tld.", "site.com.tld.")
		r := newValidatingResolver(w, noMinimise)
		const long = "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r.com.tld. A"
		assert.Equal(t, "insecure", w.security(r, long))
		assert.Less(t, w.countQueries(), 25)
		for range 3 {
			time.Sleep(time.Minute)
			n := w.countQueries()
			assert.Equal(t, "insecure", w.security(r, long))
			assert.Equal(t, n+1, w.countQueries(), "known data is not queried again")
		}
		assert.Zero(t, r.Stats().Lame, "the servers' answers are valid")
	})
	bubble(t, shared, func(t *testing.T, w *testNetwork) { // com.tld. is signed, but no server has its DS records
		w.sign("site.com.tld.")
		w.setFault("192.0.2.1 192.0.2.2", func(q query, r *dns.Msg) *dns.Msg {
			if strings.HasSuffix(q.name, "com.tld.") && q.name != "com.tld." {
				return allStripped(q, r)
			}
			return r
		})
		assert.Contains(t, w.security(newValidatingResolver(w), "www.site.com.tld. A"), "bogus")
		assert.Contains(t, w.security(newValidatingResolver(w), "www.com.tld. A"), "bogus")
	})
}

// TestResolverFindsZoneWithoutReferral has zones that only signatures or names show. Their servers are not known.
func TestResolverFindsZoneWithoutReferral(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
tld. delegated 192.0.2.1 192.0.2.2
one.tld. delegated 192.0.2.1 192.0.3.1
  www A 192.0.2.81
  sub.www A 192.0.2.81
`, func(t *testing.T, w *testNetwork) {
		w.sign()
		// The server that both zones share answers one question. The other server of tld. refers to the servers of one.tld.
		w.setFault("192.0.2.1", onlyForType(dns.TypeDNSKEY, silent))
		for range 8 {
			r := newValidatingResolver(w, noMinimise)
			assert.Equal(t, "secure", w.security(r, "www.one.tld. A"))
			assert.Equal(t, "secure", w.security(r, "no.one.tld. A"))
		}
	})
}

// TestFalseSignerNameMakesNoZoneBogus has one response with a false signer name. That makes the named zone not
// bogus.
func TestFalseSignerNameMakesNoZoneBogus(t *testing.T) {
	for name, answer := range map[string]func(*signer, dns.RR) []dns.RR{
		"signed":   func(s *signer, a dns.RR) []dns.RR { return []dns.RR{a, s.sign([]dns.RR{a})} },
		"unsigned": func(_ *signer, a dns.RR) []dns.RR { return []dns.RR{a} },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, pairs, func(t *testing.T, w *testNetwork) {
				w.sign("unsigned.tld.")
				evil := newSigner("example.tld.", "evil")
				hits := 0
				w.setFault("192.0.2.1 192.0.2.2", func(q query, r *dns.Msg) *dns.Msg {
					if q.name != "www.example.tld." || hits > 1 {
						return r
					}
					hits++
					r.Answer, r.Ns, r.Extra = answer(evil, record("www.example.tld. A 192.0.2.66")), nil, nil
					r.Authoritative = true
					r.SetEdns0(1232, true)
					return r
				})
				r := newValidatingResolver(w, noMinimise)
				assert.Equal(t, "secure", w.security(r, "www.example.tld. A"))
				assert.Equal(t, "secure", w.security(r, "mail.example.tld. A"))
				assert.NotZero(t, hits)
			})
		})
	}
}

func TestResolverRefreshesParentKeysBeforeBogus(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign("unsigned.tld.")
		r := newValidatingResolver(w)
		require.Equal(t, "secure", w.security(r, "no.tld. A"))
		time.Sleep(10 * time.Minute)
		w.withLock(func() {
			z, p := w.zone("tld."), w.zone(".")
			z.signer = newSigner("tld.", "new")
			z.sets[z.name][dns.TypeDNSKEY] = []dns.RR{z.signer.key}
			z.sign()
			p.sets[z.name][dns.TypeDS] = append(p.sets[z.name][dns.TypeDS], z.signer.ds())
			p.sign()
		})
		assert.Equal(t, "secure", w.security(r, "www.example.tld. A"))
		assert.Equal(t, "insecure", w.security(r, "www.unsigned.tld. A"))
		assert.Empty(t, r.Stats().Bogus)
	})
}

func TestResolverRestoresKeysAfterOutage(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign()
		servers := "198.41.0.4 198.41.0.5 192.0.2.1 192.0.2.2 192.0.3.1 192.0.3.2"
		w.setFault(servers, onlyForType(dns.TypeDNSKEY, silent))
		r := newValidatingResolver(w)
		for range 60 {
			assert.Contains(t, w.security(r, "www.example.tld. A"), "bogus")
			time.Sleep(10 * time.Second)
		}
		w.setFault(servers, nil)
		time.Sleep(5 * time.Second)
		assert.Equal(t, "secure", w.security(r, "www.example.tld. A"))
	})
}

// TestResolverKeepsKeysWhileServersAreUnresponsive has a bogus answer, after which the keys are queried again.
// Without a response, the known keys stay valid.
func TestResolverKeepsKeysWhileServersAreUnresponsive(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign()
		r := newValidatingResolver(w)
		require.Equal(t, "secure", w.security(r, "www.example.tld. A"))
		time.Sleep(time.Minute)
		w.setFault("192.0.3.1 192.0.3.2", func(q query, m *dns.Msg) *dns.Msg {
			switch {
			case q.qtype == dns.TypeDNSKEY:
				return nil
			case q.name == "no.example.tld.":
				return forged(q, m)
			}
			return m
		})
		for range 3 {
			assert.Contains(t, w.security(r, "no.example.tld. A"), "bogus")
			assert.Equal(t, "secure", w.security(r, "www.example.tld. A"))
			time.Sleep(time.Minute)
		}
	})
}

func TestResolverCachesSecureAliasTargets(t *testing.T) {
	bubble(t, signed, func(t *testing.T, w *testNetwork) {
		signZones(w)
		r := newValidatingResolver(w)
		require.Equal(t, "secure", w.security(r, "no.example.tld. A"))
		require.Equal(t, "secure", w.security(r, "alias.example.tld. A"))
		n := w.countQueries()
		assert.Equal(t, "secure", w.security(r, "alias.example.tld. A"))
		assert.Equal(t, n+1, w.countQueries(), "the alias")
		time.Sleep(59 * time.Minute)
		m := w.security(r, "alias.example.tld. A")
		assert.Equal(t, "secure", m)
	})
}

// TestResolverAsksBogusZoneOnce has a zone without valid keys. No other server can have a better answer, so none is
// queried.
func TestResolverAsksBogusZoneOnce(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign()
		w.withLock(func() {
			p := w.zone("tld.")
			d := p.sets["example.tld."][dns.TypeDS][0].(*dns.DS)
			d.Digest = d.Digest[2:] + "00"
			p.sign()
		})
		r := newValidatingResolver(w)
		require.Equal(t, "bogus 9", w.security(r, "www.example.tld. A"))
		n := w.countQueries()
		assert.Equal(t, "bogus 9", w.security(r, "www.example.tld. A"))
		assert.Equal(t, n+1, w.countQueries())
	})
}

// TestKeysExpireWithDSRecord removes a DS record, waits for its TTL, and then ends the signatures.
func TestKeysExpireWithDSRecord(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign("unsigned.tld.")
		w.withLock(func() {
			z := w.zone("example.tld.")
			z.signer.key.Hdr.Ttl = 3000
			z.sign()
		})
		r := newValidatingResolver(w)
		require.Equal(t, "secure", w.security(r, "www.example.tld. A"))
		time.Sleep(time.Second)
		w.withLock(func() {
			p := w.zone("tld.")
			delete(p.sets["example.tld."], dns.TypeDS)
			p.sign()
		})
		time.Sleep(3500 * time.Second)
		require.Equal(t, "secure", w.security(r, "www.example.tld. A"))
		time.Sleep(101 * time.Second)
		w.withLock(func() {
			z := w.zone("example.tld.")
			for _, sets := range z.sets {
				delete(sets, dns.TypeRRSIG)
				delete(sets, dns.TypeNSEC)
				delete(sets, dns.TypeDNSKEY)
			}
			z.signer.chain = nil
		})
		assert.Equal(t, "insecure", w.security(r, "www.example.tld. A"))
	})
}

func TestReportAnswersWithoutKeys(t *testing.T) {
	bubble(t, signed, func(t *testing.T, w *testNetwork) {
		signZones(w)
		w.setFault("192.0.3.1 192.0.3.2", onlyForType(dns.TypeDNSKEY, silent))
		r := newValidatingResolver(w, func(r *recursor.Resolver) { r.Trust.Report = true })
		assert.Equal(t, "insecure", w.security(r, "www.example.tld. A"))
		assert.Equal(t, "insecure", w.security(r, "alias.example.tld. A"))
		assert.Equal(t, map[uint16]int64{9: 3}, r.Stats().Bogus)
		assert.Zero(t, r.Stats().Failures)
	})
}

func TestReportAnswersAtVerificationLimit(t *testing.T) {
	bubble(t, signed, func(t *testing.T, w *testNetwork) {
		signZones(w)
		w.setFault("192.0.3.4", many)
		r := newValidatingResolver(w, limits(recursor.Limits{Verifications: 2}), func(r *recursor.Resolver) { r.Trust.Report = true })
		assert.Equal(t, "insecure", w.security(r, "www.broken.tld. A"))
		assert.Zero(t, r.Stats().Failures)
	})
}

// TestForgedReferralMakesNoZoneBogus has a forged referral to a false server, with a proof by a false key.
func TestForgedReferralMakesNoZoneBogus(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign("unsigned.tld.")
		evil := newSigner("tld.", "evil")
		hits := 0
		w.setFault("192.0.2.1 192.0.2.2", func(q query, r *dns.Msg) *dns.Msg {
			if q.name != "example.tld." || hits > 0 {
				return r
			}
			hits++
			proof := []dns.RR{record("example.tld. 300 NSEC f.tld. NS RRSIG NSEC")}
			r = respondWith("referral | example.tld. NS ns.example.tld. | ns.example.tld. A 192.0.9.9")(q, r)
			r.Ns = append(r.Ns, proof[0], evil.sign(proof))
			return r
		})
		w.setFault("192.0.9.9", respondWith("www.example.tld. A 192.0.2.66"))
		r := newValidatingResolver(w)
		assert.Equal(t, "secure", w.security(r, "www.example.tld. A"))
		assert.Equal(t, "secure", w.security(r, "mail.example.tld. A"))
		assert.Equal(t, 1, hits)
	})
}

func TestResolverRefreshesImportedDSBeforeBogus(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign()
		old := newValidatingResolver(w)
		require.Equal(t, "secure", w.security(old, "www.example.tld. A"))
		var b bytes.Buffer
		require.NoError(t, old.Export(&b))
		time.Sleep(50 * time.Minute)
		w.withLock(func() { // the root has had the new DS record for long
			z, p := w.zone("tld."), w.zone(".")
			z.signer = newSigner("tld.", "new")
			z.sets[z.name][dns.TypeDNSKEY] = []dns.RR{z.signer.key}
			z.sign()
			p.sets[z.name][dns.TypeDS] = []dns.RR{z.signer.ds()}
			p.sign()
		})
		r := newValidatingResolver(w)
		require.NoError(t, r.Import(&b))
		assert.Equal(t, "secure", w.security(r, "www.example.tld. A"))
	})
}

func TestMaxBytesCountsZoneKeys(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign("unsigned.tld.")
		r := newValidatingResolver(w, func(r *recursor.Resolver) { r.MaxBytes = 1 << 20 })
		require.Equal(t, "secure", w.security(r, "www.example.tld. A"))
		n := r.Stats().KeyQueries
		assert.EqualValues(t, 3, n)
		time.Sleep(10 * time.Minute)
		require.Equal(t, "secure", w.security(r, "no.example.tld. A"))
		assert.Equal(t, n, r.Stats().KeyQueries, "the keys are still cached")
	})
}

// TestQuestionWithUnresolvedServerNamesMakesNoZoneBogus has a question whose aliases are in zones with server names
// that do not exist, and end in a foreign zone without glue.
func TestQuestionWithUnresolvedServerNamesMakesNoZoneBogus(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
tld. delegated 192.0.2.1
far. delegated 192.0.2.2
  ns A 192.0.4.1
e1.tld. delegated 192.0.3.1
  a CNAME a.e2.tld.
e2.tld. delegated 192.0.3.2
  a CNAME a.e3.tld.
e3.tld. delegated 192.0.3.3
  a CNAME www.bank.tld.
bank.tld. served 192.0.4.1
  www A 192.0.2.81
`, func(t *testing.T, w *testNetwork) {
		w.zone("tld.").put(record("bank.tld. NS ns.far."))
		for _, e := range []string{"e1", "e2", "e3"} {
			for _, dead := range []string{"x", "y"} {
				w.zone("tld.").put(record(e + ".tld. NS " + dead + "." + e + ".far."))
			}
		}
		w.sign()
		w.updateServers("192.0.3.1 192.0.3.2 192.0.3.3", func(s *server) { s.rtt = 300 * ms })
		r := newValidatingResolver(w)
		assert.Contains(t, w.security(r, "a.e1.tld. A"), "bogus", "server names that do not exist are looked up while a server is late")
		assert.Equal(t, "secure", w.security(r, "www.bank.tld. A"))
	})
}

// TestReportAsksOtherServersBeforeAnswer requires that Trust.Report reports an answer only if no server has a valid
// one.
func TestReportAsksOtherServersBeforeAnswer(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign("unsigned.tld.")
		answers, keys := 0, 0
		w.setFault("192.0.2.1 192.0.2.2", func(q query, r *dns.Msg) *dns.Msg {
			if q.qtype == dns.TypeDNSKEY && keys == 0 { // the answer comes before the keys
				keys++
				return nil
			}
			return r
		})
		w.setFault("192.0.3.1 192.0.3.2", func(q query, r *dns.Msg) *dns.Msg {
			if q.name == "www.example.tld." {
				if answers++; answers == 1 {
					return forged(q, r)
				}
			}
			return r
		})
		r := newValidatingResolver(w, func(r *recursor.Resolver) { r.Trust.Report = true })
		assert.Equal(t, "secure", w.security(r, "www.example.tld. A"))
		assert.Equal(t, 2, answers)
		assert.Empty(t, r.Stats().Bogus)
	})
}

// TestReportAnswersWhileOtherServersAreUnresponsive queries other servers while there is time. If these do not
// answer, the first answer is used.
func TestReportAnswersWhileOtherServersAreUnresponsive(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign("unsigned.tld.")
		answers, keys := 0, 0
		w.setFault("192.0.2.1 192.0.2.2", func(q query, r *dns.Msg) *dns.Msg {
			if q.qtype == dns.TypeDNSKEY && keys == 0 {
				keys++
				return nil
			}
			return r
		})
		w.setFault("192.0.3.1 192.0.3.2", func(q query, r *dns.Msg) *dns.Msg {
			if q.name != "www.example.tld." {
				return r
			}
			if answers++; answers == 1 {
				return forged(q, r)
			}
			return nil
		})
		r := newValidatingResolver(w, func(r *recursor.Resolver) { r.Trust.Report = true })
		start := time.Now()
		assert.Equal(t, "insecure", w.security(r, "www.example.tld. A"))
		assert.Less(t, time.Since(start), 3*time.Second)
		assert.Greater(t, answers, 1)
		assert.Equal(t, map[uint16]int64{6: 1}, r.Stats().Bogus)
	})
}

// TestExpiredProofMakesNoServerBogus has a denial of DS records whose TTL is shorter than that of the NS records, as
// is common.
func TestExpiredProofMakesNoServerBogus(t *testing.T) {
	bubble(t, `
. served 198.41.0.4 198.41.0.5
example. delegated 192.0.2.1
  www A 192.0.2.80
`, func(t *testing.T, w *testNetwork) {
		w.sign("example.")
		r := newValidatingResolver(w, noHedges)
		for range 5 {
			assert.Equal(t, "insecure", w.security(r, "www.example. A"))
			time.Sleep(10 * time.Minute)
		}
		assert.Zero(t, r.Stats().PassedOver)
		referrals := slices.DeleteFunc(w.queriesSince(0), func(a asked) bool { return a.name != "example." || a.qtype != dns.TypeA })
		assert.Len(t, referrals, 1, "the delegation is cached for an hour")
	})
}

// TestUnresponsiveServerDelaysNoInsecureAnswer has an unsigned zone on its parent's servers. No referral shows it,
// and an answer without signatures is correct.
func TestUnresponsiveServerDelaysNoInsecureAnswer(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
tld. delegated 192.0.2.1 192.0.2.2
unsigned.tld. delegated 192.0.2.1 192.0.2.2
  www A 192.0.2.82
`, func(t *testing.T, w *testNetwork) {
		w.sign("unsigned.tld.")
		w.setFault("192.0.2.2", silent)
		for range 8 { // either server may be asked first
			start := time.Now()
			assert.Equal(t, "insecure", w.security(newValidatingResolver(w), "www.unsigned.tld. A"))
			assert.LessOrEqual(t, time.Since(start), 1600*ms, "other servers are queried for a second, and the last query runs to its timeout")
		}
	})
}
