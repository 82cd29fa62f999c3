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

// Whoever asks last may have aliases that use up all a question may spend, and lead to a zone of somebody else.
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
`, func(t *testing.T, w *world) {
		w.sign()
		failed := false
		for n := 8; n < 24; n++ {
			r := validator(w, limits(recursor.Limits{Queries: n}))
			evil := w.security(r, "a.evil.tld. A")
			failed = failed || evil != "secure"
			assert.Equal(t, "secure", w.security(r, "www.bank.tld. A"), "limit %d: %s", n, evil)
		}
		assert.True(t, failed)
	})
}

// A parent and an unsigned zone below it on the same servers, such as tld. and com.tld.: no referral tells of that zone.
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
	bubble(t, shared, func(t *testing.T, w *world) {
		w.sign("com.tld.", "site.com.tld.")
		r := validator(w)
		for range 3 {
			assert.Equal(t, "insecure", w.security(r, "www.site.com.tld. A"))
			assert.Equal(t, "insecure", w.security(r, "site.com.tld. DS"))
			assert.Equal(t, "secure", w.security(r, "com.tld. DS"))
			time.Sleep(2 * time.Hour)
		}
	})
	bubble(t, shared, func(t *testing.T, w *world) {
		w.sign("com.tld.", "site.com.tld.")
		r := validator(w, noMinimise)
		const long = "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r.com.tld. A"
		assert.Equal(t, "insecure", w.security(r, long))
		assert.Less(t, w.sent(), 25)
		for range 3 {
			time.Sleep(time.Minute)
			n := w.sent()
			assert.Equal(t, "insecure", w.security(r, long))
			assert.Equal(t, n+1, w.sent(), "what is known is not asked again")
		}
		assert.Zero(t, r.Stats().Lame, "the servers are right")
	})
	bubble(t, shared, func(t *testing.T, w *world) { // com.tld. is signed, but no server says so
		w.sign("site.com.tld.")
		w.fault("192.0.2.1 192.0.2.2", func(q query, r *dns.Msg) *dns.Msg {
			if strings.HasSuffix(q.name, "com.tld.") && q.name != "com.tld." {
				return allStripped(q, r)
			}
			return r
		})
		assert.Contains(t, w.security(validator(w), "www.site.com.tld. A"), "bogus")
		assert.Contains(t, w.security(validator(w), "www.com.tld. A"), "bogus")
	})
}

// Nobody knows where the servers of a zone are that only signatures, or names, tell of.
func TestResolverFindsZoneWithoutReferral(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
tld. delegated 192.0.2.1 192.0.2.2
one.tld. delegated 192.0.2.1 192.0.3.1
  www A 192.0.2.81
  sub.www A 192.0.2.81
`, func(t *testing.T, w *world) {
		w.sign()
		// The server that both zones share answers one question. The other one of tld. refers to those of one.tld.
		w.fault("192.0.2.1", onlyFor(dns.TypeDNSKEY, silent))
		for range 8 {
			r := validator(w, noMinimise)
			assert.Equal(t, "secure", w.security(r, "www.one.tld. A"))
			assert.Equal(t, "secure", w.security(r, "no.one.tld. A"))
		}
	})
}

// One response that claims to come of a zone is not what makes that zone bogus.
func TestFalseSignerNameSpoilsNoZone(t *testing.T) {
	for name, answer := range map[string]func(*signer, dns.RR) []dns.RR{
		"signed":   func(s *signer, a dns.RR) []dns.RR { return []dns.RR{a, s.sign([]dns.RR{a})} },
		"unsigned": func(_ *signer, a dns.RR) []dns.RR { return []dns.RR{a} },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, pairs, func(t *testing.T, w *world) {
				w.sign("unsigned.tld.")
				evil := newSigner("example.tld.", "evil")
				hits := 0
				w.fault("192.0.2.1 192.0.2.2", func(q query, r *dns.Msg) *dns.Msg {
					if q.name != "www.example.tld." || hits > 1 {
						return r
					}
					hits++
					r.Answer, r.Ns, r.Extra = answer(evil, record("www.example.tld. A 192.0.2.66")), nil, nil
					r.Authoritative = true
					r.SetEdns0(1232, true)
					return r
				})
				r := validator(w, noMinimise)
				assert.Equal(t, "secure", w.security(r, "www.example.tld. A"))
				assert.Equal(t, "secure", w.security(r, "mail.example.tld. A"))
				assert.NotZero(t, hits)
			})
		})
	}
}

func TestResolverRefreshesParentKeysBeforeBogus(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *world) {
		w.sign("unsigned.tld.")
		r := validator(w)
		require.Equal(t, "secure", w.security(r, "no.tld. A"))
		time.Sleep(10 * time.Minute)
		w.do(func() {
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
	bubble(t, pairs, func(t *testing.T, w *world) {
		w.sign()
		servers := "198.41.0.4 198.41.0.5 192.0.2.1 192.0.2.2 192.0.3.1 192.0.3.2"
		w.fault(servers, onlyFor(dns.TypeDNSKEY, silent))
		r := validator(w)
		for range 60 {
			assert.Contains(t, w.security(r, "www.example.tld. A"), "bogus")
			time.Sleep(10 * time.Second)
		}
		w.fault(servers, nil)
		time.Sleep(5 * time.Second)
		assert.Equal(t, "secure", w.security(r, "www.example.tld. A"))
	})
}

// An answer that is wrong has the keys asked for again. That nobody answers takes nothing away from what is known.
func TestResolverKeepsKeysWhileServersAreSilent(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *world) {
		w.sign()
		r := validator(w)
		require.Equal(t, "secure", w.security(r, "www.example.tld. A"))
		time.Sleep(time.Minute)
		w.fault("192.0.3.1 192.0.3.2", func(q query, m *dns.Msg) *dns.Msg {
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
	bubble(t, signed, func(t *testing.T, w *world) {
		signedWorld(w)
		r := validator(w)
		require.Equal(t, "secure", w.security(r, "no.example.tld. A"))
		require.Equal(t, "secure", w.security(r, "alias.example.tld. A"))
		n := w.sent()
		assert.Equal(t, "secure", w.security(r, "alias.example.tld. A"))
		assert.Equal(t, n+1, w.sent(), "the alias")
		time.Sleep(59 * time.Minute)
		m := w.security(r, "alias.example.tld. A")
		assert.Equal(t, "secure", m)
	})
}

// No other server's answer is better where a zone has no keys that fit.
func TestResolverAsksBogusZoneOnce(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *world) {
		w.sign()
		w.do(func() {
			p := w.zone("tld.")
			d := p.sets["example.tld."][dns.TypeDS][0].(*dns.DS)
			d.Digest = d.Digest[2:] + "00"
			p.sign()
		})
		r := validator(w)
		require.Equal(t, "bogus 9", w.security(r, "www.example.tld. A"))
		n := w.sent()
		assert.Equal(t, "bogus 9", w.security(r, "www.example.tld. A"))
		assert.Equal(t, n+1, w.sent())
	})
}

// Who takes a DS record back waits for its TTL, and then ends the signatures.
func TestKeysExpireWithDSRecord(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *world) {
		w.sign("unsigned.tld.")
		w.do(func() {
			z := w.zone("example.tld.")
			z.signer.key.Hdr.Ttl = 3000
			z.sign()
		})
		r := validator(w)
		require.Equal(t, "secure", w.security(r, "www.example.tld. A"))
		time.Sleep(time.Second)
		w.do(func() {
			p := w.zone("tld.")
			delete(p.sets["example.tld."], dns.TypeDS)
			p.sign()
		})
		time.Sleep(3500 * time.Second)
		require.Equal(t, "secure", w.security(r, "www.example.tld. A"))
		time.Sleep(101 * time.Second)
		w.do(func() {
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
	bubble(t, signed, func(t *testing.T, w *world) {
		signedWorld(w)
		w.fault("192.0.3.1 192.0.3.2", onlyFor(dns.TypeDNSKEY, silent))
		r := validator(w, func(r *recursor.Resolver) { r.Trust.Report = true })
		assert.Equal(t, "insecure", w.security(r, "www.example.tld. A"))
		assert.Equal(t, "insecure", w.security(r, "alias.example.tld. A"))
		assert.Equal(t, map[uint16]int64{9: 3}, r.Stats().Bogus)
		assert.Zero(t, r.Stats().Failures)
	})
}

func TestReportAnswersAtVerificationLimit(t *testing.T) {
	bubble(t, signed, func(t *testing.T, w *world) {
		signedWorld(w)
		w.fault("192.0.3.4", many)
		r := validator(w, limits(recursor.Limits{Verifications: 2}), func(r *recursor.Resolver) { r.Trust.Report = true })
		assert.Equal(t, "insecure", w.security(r, "www.broken.tld. A"))
		assert.Zero(t, r.Stats().Failures)
	})
}

// The referral leads to a stranger's server, and its proof is of a stranger's key.
func TestForgedReferralMakesNoZoneBogus(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *world) {
		w.sign("unsigned.tld.")
		evil := newSigner("tld.", "evil")
		hits := 0
		w.fault("192.0.2.1 192.0.2.2", func(q query, r *dns.Msg) *dns.Msg {
			if q.name != "example.tld." || hits > 0 {
				return r
			}
			hits++
			proof := []dns.RR{record("example.tld. 300 NSEC f.tld. NS RRSIG NSEC")}
			r = says("referral | example.tld. NS ns.example.tld. | ns.example.tld. A 192.0.9.9")(q, r)
			r.Ns = append(r.Ns, proof[0], evil.sign(proof))
			return r
		})
		w.fault("192.0.9.9", says("www.example.tld. A 192.0.2.66"))
		r := validator(w)
		assert.Equal(t, "secure", w.security(r, "www.example.tld. A"))
		assert.Equal(t, "secure", w.security(r, "mail.example.tld. A"))
		assert.Equal(t, 1, hits)
	})
}

func TestResolverRefreshesImportedDSBeforeBogus(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *world) {
		w.sign()
		old := validator(w)
		require.Equal(t, "secure", w.security(old, "www.example.tld. A"))
		var b bytes.Buffer
		require.NoError(t, old.Export(&b))
		time.Sleep(50 * time.Minute)
		w.do(func() { // the root has had the new DS record for long
			z, p := w.zone("tld."), w.zone(".")
			z.signer = newSigner("tld.", "new")
			z.sets[z.name][dns.TypeDNSKEY] = []dns.RR{z.signer.key}
			z.sign()
			p.sets[z.name][dns.TypeDS] = []dns.RR{z.signer.ds()}
			p.sign()
		})
		r := validator(w)
		require.NoError(t, r.Import(&b))
		assert.Equal(t, "secure", w.security(r, "www.example.tld. A"))
	})
}

func TestMaxBytesCountsZoneKeys(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *world) {
		w.sign("unsigned.tld.")
		r := validator(w, func(r *recursor.Resolver) { r.MaxBytes = 1 << 20 })
		require.Equal(t, "secure", w.security(r, "www.example.tld. A"))
		n := r.Stats().KeyQueries
		assert.EqualValues(t, 3, n)
		time.Sleep(10 * time.Minute)
		require.Equal(t, "secure", w.security(r, "no.example.tld. A"))
		assert.Equal(t, n, r.Stats().KeyQueries, "they are kept")
	})
}

// Whoever asks last may have aliases in zones whose servers' names do not exist, and lead to a zone of somebody else that has no glue.
func TestQuestionWithEmptyServerNamesMakesNoZoneBogus(t *testing.T) {
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
`, func(t *testing.T, w *world) {
		w.zone("tld.").put(record("bank.tld. NS ns.far."))
		for _, e := range []string{"e1", "e2", "e3"} {
			for _, dead := range []string{"x", "y"} {
				w.zone("tld.").put(record(e + ".tld. NS " + dead + "." + e + ".far."))
			}
		}
		w.sign()
		w.at("192.0.3.1 192.0.3.2 192.0.3.3", func(s *server) { s.rtt = 300 * ms })
		r := validator(w)
		assert.Contains(t, w.security(r, "a.e1.tld. A"), "bogus", "names of servers are looked up while a server is late, and do not exist")
		assert.Equal(t, "secure", w.security(r, "www.bank.tld. A"))
	})
}

// Who only reports is told of what no server has right.
func TestReportAsksOtherServersBeforeAnswer(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *world) {
		w.sign("unsigned.tld.")
		answers, keys := 0, 0
		w.fault("192.0.2.1 192.0.2.2", func(q query, r *dns.Msg) *dns.Msg {
			if q.qtype == dns.TypeDNSKEY && keys == 0 { // the answer comes first, and waits for keys
				keys++
				return nil
			}
			return r
		})
		w.fault("192.0.3.1 192.0.3.2", func(q query, r *dns.Msg) *dns.Msg {
			if q.name == "www.example.tld." {
				if answers++; answers == 1 {
					return forged(q, r)
				}
			}
			return r
		})
		r := validator(w, func(r *recursor.Resolver) { r.Trust.Report = true })
		assert.Equal(t, "secure", w.security(r, "www.example.tld. A"))
		assert.Equal(t, 2, answers)
		assert.Empty(t, r.Stats().Bogus)
	})
}

// Others are asked as long as there is time, and what came first is the answer if they are silent.
func TestReportAnswersWhileOtherServersAreSilent(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *world) {
		w.sign("unsigned.tld.")
		answers, keys := 0, 0
		w.fault("192.0.2.1 192.0.2.2", func(q query, r *dns.Msg) *dns.Msg {
			if q.qtype == dns.TypeDNSKEY && keys == 0 {
				keys++
				return nil
			}
			return r
		})
		w.fault("192.0.3.1 192.0.3.2", func(q query, r *dns.Msg) *dns.Msg {
			if q.name != "www.example.tld." {
				return r
			}
			if answers++; answers == 1 {
				return forged(q, r)
			}
			return nil
		})
		r := validator(w, func(r *recursor.Resolver) { r.Trust.Report = true })
		start := time.Now()
		assert.Equal(t, "insecure", w.security(r, "www.example.tld. A"))
		assert.Less(t, time.Since(start), 3*time.Second)
		assert.Greater(t, answers, 1)
		assert.Equal(t, map[uint16]int64{6: 1}, r.Stats().Bogus)
	})
}

// The denial of DS records often has a shorter TTL than NS records have.
func TestResolverBlamesNoServerForExpiredProof(t *testing.T) {
	bubble(t, `
. served 198.41.0.4 198.41.0.5
example. delegated 192.0.2.1
  www A 192.0.2.80
`, func(t *testing.T, w *world) {
		w.sign("example.")
		r := validator(w, noHedges)
		for range 5 {
			assert.Equal(t, "insecure", w.security(r, "www.example. A"))
			time.Sleep(10 * time.Minute)
		}
		assert.Zero(t, r.Stats().PassedOver)
		referrals := slices.DeleteFunc(w.since(0), func(a asked) bool { return a.name != "example." || a.qtype != dns.TypeA })
		assert.Len(t, referrals, 1, "the delegation is known for an hour")
	})
}

// Where a zone without signatures is on its parent's servers no referral tells of it, and an answer without signatures is right.
func TestSilentServerDelaysNoInsecureAnswer(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
tld. delegated 192.0.2.1 192.0.2.2
unsigned.tld. delegated 192.0.2.1 192.0.2.2
  www A 192.0.2.82
`, func(t *testing.T, w *world) {
		w.sign("unsigned.tld.")
		w.fault("192.0.2.2", silent)
		for range 8 { // either server may be asked first
			start := time.Now()
			assert.Equal(t, "insecure", w.security(validator(w), "www.unsigned.tld. A"))
			assert.LessOrEqual(t, time.Since(start), 1600*ms, "other servers are asked for a second, and the last query has its time")
		}
	})
}
