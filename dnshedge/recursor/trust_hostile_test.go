package recursor_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/recursor"
)

// pairs is a testNetwork in which each zone has two servers.
const pairs = `
. served 198.41.0.4 198.41.0.5
tld. delegated 192.0.2.1 192.0.2.2
example.tld. delegated 192.0.3.1 192.0.3.2
  www A 192.0.2.80
  mail A 192.0.2.86
  *.w A 192.0.2.81
unsigned.tld. delegated 192.0.3.3 192.0.3.4
  www A 192.0.2.82
`

// onlyForType returns a fault that applies to questions of one type.
func onlyForType(qtype uint16, f func(query, *dns.Msg) *dns.Msg) func(query, *dns.Msg) *dns.Msg {
	return func(q query, r *dns.Msg) *dns.Msg {
		if q.qtype == qtype {
			return f(q, r)
		}
		return r
	}
}

// TestResolverRejectsServersWithInvalidSignatures has a server with invalid signatures. Another server's valid
// answer is used, and if there is none, the answer is SERVFAIL.
func TestResolverRejectsServersWithInvalidSignatures(t *testing.T) {
	faults := map[string]func(query, *dns.Msg) *dns.Msg{
		"stale":                     stale,
		"forged":                    forged,
		"no signatures":             withoutRecords(dns.TypeRRSIG),
		"nothing of DNSSEC":         allStripped,
		"no DS":                     withoutRecords(dns.TypeDS),
		"no proof":                  withoutRecords(dns.TypeNSEC),
		"stale keys":                onlyForType(dns.TypeDNSKEY, stale),
		"no keys":                   onlyForType(dns.TypeDNSKEY, withoutRecords(dns.TypeDNSKEY)),
		"no signatures of the keys": onlyForType(dns.TypeDNSKEY, withoutRecords(dns.TypeRRSIG)),
		"rejects EDNS":              respondRcode(dns.RcodeFormatError),
		"keys of another": onlyForType(dns.TypeDNSKEY, func(q query, r *dns.Msg) *dns.Msg {
			other := newSigner(q.name, "another")
			r.Answer = []dns.RR{other.key, other.sign([]dns.RR{other.key})}
			return r
		}),
	}
	for name, fault := range faults {
		for _, servers := range []string{"192.0.3.1", "192.0.2.1", "198.41.0.4"} {
			t.Run(name+" "+servers, func(t *testing.T) {
				bubble(t, pairs, func(t *testing.T, w *testNetwork) {
					w.sign("unsigned.tld.")
					w.setFault(servers, fault)
					for range 8 { // each Resolver begins with another server
						r := newValidatingResolver(w)
						assert.Equal(t, "secure", w.security(r, "www.example.tld. A"))
						assert.Equal(t, "secure", w.security(r, "no.example.tld. A"))
						assert.Equal(t, "secure", w.security(r, "x.w.example.tld. A"))
						assert.Equal(t, "insecure", w.security(r, "www.unsigned.tld. A"))
						s := r.Stats()
						assert.EqualValues(t, 3, s.Secure)
						assert.EqualValues(t, 1, s.Insecure)
						assert.Empty(t, s.Bogus)
					}
				})
			})
		}
	}
}

func TestResolverFailsWhenAllServersAreBogus(t *testing.T) {
	for name, c := range map[string]struct {
		servers string
		fault   func(query, *dns.Msg) *dns.Msg
		secure  []uint16 // the extended error of www.example.tld., of these; none: it is secure
		open    bool     // www.unsigned.tld. is insecure, and not bogus
	}{
		"stale":                  {"192.0.3.1 192.0.3.2", stale, []uint16{7}, true},
		"forged":                 {"192.0.3.1 192.0.3.2", forged, []uint16{6}, true},
		"without signatures":     {"192.0.3.1 192.0.3.2", withoutRecords(dns.TypeRRSIG), []uint16{9, 10}, true},
		"nothing of DNSSEC":      {"192.0.3.1 192.0.3.2", allStripped, []uint16{9, 10}, true},
		"stale keys":             {"192.0.3.1 192.0.3.2", onlyForType(dns.TypeDNSKEY, stale), []uint16{7}, true},
		"no keys":                {"192.0.3.1 192.0.3.2", onlyForType(dns.TypeDNSKEY, withoutRecords(dns.TypeDNSKEY)), []uint16{9}, true},
		"DS dropped":             {"192.0.2.1 192.0.2.2", withoutRecords(dns.TypeDS), []uint16{6, 10, 12}, true},
		"no proof of no DS":      {"192.0.2.1 192.0.2.2", withoutRecords(dns.TypeNSEC), nil, false},
		"a parent that is stale": {"192.0.2.1 192.0.2.2", stale, []uint16{7}, false},
		"the root is stale":      {"198.41.0.4 198.41.0.5", stale, []uint16{7}, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, pairs, func(t *testing.T, w *testNetwork) {
				w.sign("unsigned.tld.")
				w.setFault(c.servers, c.fault)
				r := newValidatingResolver(w)
				for range 2 {
					got := w.security(r, "www.example.tld. A")
					if c.secure == nil {
						assert.Equal(t, "secure", got)
					} else {
						assert.True(t, slices.ContainsFunc(c.secure, func(ede uint16) bool { return got == fmt.Sprint("bogus ", ede) }), got)
					}
					if got = w.security(r, "www.unsigned.tld. A"); c.open {
						assert.Equal(t, "insecure", got)
					} else {
						assert.Contains(t, got, "bogus")
					}
				}
				w.setFault(c.servers, nil)
				time.Sleep(6 * time.Minute)
				assert.Equal(t, "secure", w.security(r, "www.example.tld. A"), "the zone recovers without help")
				assert.Equal(t, "insecure", w.security(r, "www.unsigned.tld. A"))
			})
		})
	}
}

func TestResolverPrefetchesKeysWithFirstQuestion(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign("unsigned.tld.")
		took := func(r *recursor.Resolver, q string) time.Duration {
			start := time.Now()
			resp, _, err := r.ExchangeContext(context.Background(), parseQuestion(q), "")
			require.NoError(t, err)
			require.Equal(t, dns.RcodeSuccess, resp.Rcode)
			return time.Since(start)
		}
		without := took(w.resolver(noHedges), "www.example.tld. A")
		r := newValidatingResolver(w, noHedges)
		assert.Equal(t, without, took(r, "www.example.tld. A +ad"))
		assert.Equal(t, 10*ms, took(r, "mail.example.tld. A +ad"), "a name in a known zone takes one round trip")
		assert.Equal(t, 20*ms, took(r, "www.unsigned.tld. A +ad"), "one query to the parent, one to the zone")
		n := w.countQueries()
		assert.Equal(t, 10*ms, took(r, "www.unsigned.tld. A"))
		assert.Equal(t, n+1, w.countQueries())
	})
}

// TestResolverFindsZoneCutsWithoutReferral has a zone and its child zone on the same servers, so that no referral
// shows the child zone.
func TestResolverFindsZoneCutsWithoutReferral(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
tld. delegated 192.0.2.1 192.0.2.2
  www A 192.0.2.80
one.tld. delegated 192.0.2.1 192.0.2.2
  www A 192.0.2.81
ent.two.tld. delegated 192.0.2.1 192.0.2.2
  www A 192.0.2.82
  sub.www A 192.0.2.82
open.tld. delegated 192.0.2.1 192.0.2.2
  www A 192.0.2.83
  a.b.c A 192.0.2.83
deep.one.tld. delegated 192.0.2.1 192.0.2.2
  www A 192.0.2.84
`, func(t *testing.T, w *testNetwork) {
		w.sign("open.tld.")
		for question, want := range map[string]string{
			"www.tld. A":             "secure",
			"www.one.tld. A":         "secure",
			"no.one.tld. A":          "secure",
			"www.ent.two.tld. A":     "secure",
			"sub.www.ent.two.tld. A": "secure",
			"two.tld. A":             "secure",
			"www.deep.one.tld. A":    "secure",
			"www.open.tld. A":        "insecure",
			"a.b.c.open.tld. A":      "insecure",
			"no.open.tld. A":         "insecure",
			"one.tld. DS":            "secure",
			"open.tld. DS":           "secure",
		} {
			r := newValidatingResolver(w)
			assert.Equal(t, want, w.security(r, question), question)
			assert.Equal(t, want, w.security(r, question), question)
		}
		w.setFault("192.0.2.1 192.0.2.2", withoutRecords(dns.TypeRRSIG))
		r := newValidatingResolver(w)
		assert.Contains(t, w.security(r, "www.one.tld. A"), "bogus")
	})
}

func TestResolverRefreshesKeysAfterRollover(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign("unsigned.tld.")
		r := newValidatingResolver(w)
		require.Equal(t, "secure", w.security(r, "www.example.tld. A"))
		time.Sleep(10 * time.Minute)
		w.withLock(func() { // the parent has had the new DS for long
			z, p := w.zone("example.tld."), w.zone("tld.")
			z.signer = newSigner("example.tld.", "new")
			z.sets[z.name][dns.TypeDNSKEY] = []dns.RR{z.signer.key}
			z.sign()
			p.sets[z.name][dns.TypeDS] = append(p.sets[z.name][dns.TypeDS], z.signer.ds())
			p.sign()
		})
		fresh := newValidatingResolver(w)
		require.Equal(t, "secure", w.security(fresh, "no.example.tld. A"))
		// The Resolver knows a delegation without that DS record, and keys that fit nothing any more.
		assert.Equal(t, "secure", w.security(r, "no.example.tld. A"))
		assert.Empty(t, r.Stats().Bogus)
	})
}

func TestUnsupportedDSRecordsMakeZoneInsecure(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*dns.DS)
		keep   bool // a right one besides
		want   string
	}{
		"digest":             {func(d *dns.DS) { d.DigestType = 200 }, false, "insecure 2"},
		"algorithm":          {func(d *dns.DS) { d.Algorithm = 200 }, false, "insecure 1"},
		"digest and known":   {func(d *dns.DS) { d.DigestType = 200 }, true, "secure"},
		"of no key":          {func(d *dns.DS) { d.Digest = d.Digest[2:] + "00" }, false, "bogus 9"},
		"of no key and good": {func(d *dns.DS) { d.Digest = d.Digest[2:] + "00" }, true, "secure"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, pairs, func(t *testing.T, w *testNetwork) {
				w.sign()
				w.withLock(func() {
					p := w.zone("tld.")
					right := p.sets["example.tld."][dns.TypeDS][0].(*dns.DS)
					odd := dns.Copy(right).(*dns.DS)
					c.change(odd)
					p.sets["example.tld."][dns.TypeDS] = []dns.RR{odd}
					if c.keep {
						p.put(right)
					}
					p.sign()
				})
				assert.Equal(t, c.want, w.security(newValidatingResolver(w), "www.example.tld. A"))
			})
		})
	}
}

func TestResolverReportsWrongClockAndRecovers(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign()
		w.withLock(func() {
			for _, z := range w.zones() {
				z.signer.begin = time.Now().Add(48 * time.Hour)
				z.signer.end = time.Now().Add(1000 * time.Hour)
				z.sign()
			}
		})
		r := newValidatingResolver(w)
		assert.Equal(t, "bogus 8", w.security(r, "www.example.tld. A"))
		assert.Equal(t, -48*time.Hour, r.Stats().ClockOff.Round(time.Hour))
		m, err := w.exchange(t.Context(), r, "www.example.tld. A")
		require.NoError(t, err)
		_, text := readExtendedError(m)
		assert.Contains(t, text, "the clock says 2000-01-01")
		time.Sleep(50 * time.Hour)
		assert.Equal(t, "secure", w.security(r, "www.example.tld. A"))
		assert.Zero(t, r.Stats().ClockOff)
		time.Sleep(1000 * time.Hour)
		assert.Equal(t, "bogus 7", w.security(r, "www.example.tld. A"))
		assert.Positive(t, r.Stats().ClockOff)
	})
}

// TestDSOfIslandHasSecurityOfParent requires that the DS records of a zone belong to its parent, even if the zone
// has an anchor.
func TestDSOfIslandHasSecurityOfParent(t *testing.T) {
	bubble(t, deep, func(t *testing.T, w *testNetwork) {
		w.sign("example.tld.")
		r := w.resolver(func(r *recursor.Resolver) {
			r.Trust = dnssec.Trust{Anchors: []dns.RR{w.zone(".").signer.ds(), w.zone("sub.example.tld.").signer.ds()}}
		})
		assert.Equal(t, "secure", w.security(r, "www.sub.example.tld. A"))
		assert.Equal(t, "insecure", w.security(r, "www.example.tld. A"))
		assert.Equal(t, "insecure", w.security(r, "sub.example.tld. DS"))
	})
}

func TestOneMatchingAnchorSuffices(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign("unsigned.tld.")
		right, other := w.zone(".").signer, newSigner(".", "another")
		with := func(anchors ...dns.RR) *recursor.Resolver {
			return w.resolver(func(r *recursor.Resolver) { r.Trust = dnssec.Trust{Anchors: anchors} })
		}
		assert.Equal(t, "secure", w.security(with(right.key), "www.example.tld. A"), "a DNSKEY record")
		assert.Equal(t, "secure", w.security(with(other.ds(), right.ds()), "www.example.tld. A"))
		assert.Equal(t, "bogus 9", w.security(with(other.ds()), "www.example.tld. A"))
		assert.Equal(t, "bogus 9", w.security(w.resolver(func(r *recursor.Resolver) { r.Trust = dnssec.Trust{Insecure: []string{}} }), "www.example.tld. A"), "with the built-in keys of the root")
		island := with(w.zone("example.tld.").signer.ds())
		assert.Equal(t, "secure", w.security(island, "www.example.tld. A"))
		assert.Equal(t, "insecure", w.security(island, "www.unsigned.tld. A"))
		assert.Equal(t, "insecure", w.security(island, "example.tld. DS"), "the parent zone has the DS records")
		none := with([]dns.RR{}...)
		none.Trust.Anchors = []dns.RR{}
		assert.Equal(t, "insecure", w.security(none, "www.example.tld. A"))

		r := with(other.ds(), right.ds())
		w.security(r, "www.example.tld. A")
		s := r.Stats()
		require.Len(t, s.Anchors, 2)
		assert.Equal(t, other.key.KeyTag(), s.Anchors[0].Tag)
		assert.False(t, s.Anchors[0].Present || s.Anchors[0].Signs)
		assert.True(t, s.Anchors[1].Present && s.Anchors[1].Signs)
		assert.Empty(t, s.UnknownSEP)
		w.withLock(func() { w.zone(".").put(other.key); w.zone(".").sign() })
		r = with(right.ds())
		assert.Equal(t, "secure", w.security(r, "www.example.tld. A"))
		assert.Equal(t, []uint16{other.key.KeyTag()}, r.Stats().UnknownSEP)
	})
}

func TestTrustInsecureDisablesValidationBelow(t *testing.T) {
	for insecure, want := range map[string]string{
		"example.tld": "insecure", "EXAMPLE.tld.": "insecure", `ex\097mple.tld.`: "insecure", "tld.": "insecure", ".": "insecure",
		"www.example.tld.": "insecure", "x.www.example.tld.": "bogus 6", "ample.tld.": "bogus 6", "other.": "bogus 6",
	} {
		bubble(t, pairs, func(t *testing.T, w *testNetwork) {
			w.sign()
			w.setFault("192.0.3.1 192.0.3.2", forged)
			r := newValidatingResolver(w, func(r *recursor.Resolver) { r.Trust.Insecure = []string{insecure} })
			assert.Equal(t, want, w.security(r, "www.example.tld. A"), insecure)
		})
	}
	bubble(t, pairs, func(t *testing.T, w *testNetwork) { // an anchor below is nearer
		w.sign()
		r := newValidatingResolver(w, func(r *recursor.Resolver) {
			r.Trust.Insecure = []string{"tld"}
			r.Trust.Anchors = append(r.Trust.Anchors, w.zone("example.tld.").signer.ds())
		})
		assert.Equal(t, "secure", w.security(r, "www.example.tld. A"))
		assert.Equal(t, "insecure", w.security(r, "no.tld. A"))
	})
}

func TestCDAnswersWithoutValidationAndCachesNothing(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign()
		w.setFault("192.0.3.1 192.0.3.2", forged)
		r := newValidatingResolver(w)
		c := &dnshedge.Client{Exchanger: r, Cache: new(dnshedge.Cache)}
		defer c.Close()
		ask := func(q string) *dns.Msg {
			m, _, err := c.ExchangeContext(t.Context(), parseQuestion(q), "")
			require.NoError(t, err)
			return m
		}
		for range 2 {
			m := ask("www.example.tld. A +cd +do")
			assert.Equal(t, dns.RcodeSuccess, m.Rcode)
			assert.False(t, m.AuthenticatedData)
			assert.Equal(t, dns.RcodeServerFailure, ask("www.example.tld. A +do").Rcode)
		}
		w.setFault("192.0.3.1 192.0.3.2", nil)
		time.Sleep(6 * time.Minute)
		assert.True(t, ask("www.example.tld. A +do").AuthenticatedData)
		assert.False(t, ask("www.example.tld. A +do +cd").AuthenticatedData)
		assert.True(t, ask("www.example.tld. A +ad").AuthenticatedData)
		assert.False(t, ask("www.example.tld. A").AuthenticatedData, "the caller has set neither AD nor DO (RFC 6840 §5.8)")
	})
}

func TestClientServesNoStaleAnswerForBogus(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign()
		r := newValidatingResolver(w)
		c := &dnshedge.Client{Exchanger: r, Cache: new(dnshedge.Cache)}
		defer c.Close()
		ask := func() int {
			m, _, err := c.ExchangeContext(t.Context(), parseQuestion("www.example.tld. A +do"), "")
			require.NoError(t, err)
			return m.Rcode
		}
		require.Equal(t, dns.RcodeSuccess, ask())
		time.Sleep(2 * time.Hour)
		w.setFault("192.0.3.1 192.0.3.2", forged)
		assert.Equal(t, dns.RcodeServerFailure, ask())
	})
}

func TestReportAnswersBogusNames(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign()
		w.setFault("192.0.3.1 192.0.3.2", forged)
		r := newValidatingResolver(w, func(r *recursor.Resolver) { r.Trust.Report = true })
		assert.Equal(t, "insecure", w.security(r, "www.example.tld. A"))
		assert.Equal(t, map[uint16]int64{6: 1}, r.Stats().Bogus)
		assert.Zero(t, r.Stats().Failures)
	})
}

// TestResolverAsksBogusServerLast has com.tld., which no referral shows. So its keys are received after the answer.
func TestResolverAsksBogusServerLast(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
tld. delegated 192.0.2.1 192.0.2.2
  bad A 192.0.2.80
com.tld. delegated 192.0.2.1 192.0.2.2
  www A 192.0.2.81
`, func(t *testing.T, w *testNetwork) {
		w.sign()
		w.setFault("192.0.2.1", func(q query, r *dns.Msg) *dns.Msg {
			return onlyForQuestion("bad.tld. A", forged)(q, onlyForQuestion("www.com.tld. A", forged)(q, r))
		})
		w.setFault("192.0.2.2", onlyForQuestion("bad.tld. A", forged))
		for range 8 { // either server may be asked first
			r := newValidatingResolver(w)
			assert.Equal(t, "bogus 6", w.security(r, "bad.tld. A"), "all servers of tld. have sent a bogus answer")
			assert.Equal(t, "secure", w.security(r, "www.com.tld. A"))
		}
	})
}

func TestReportAsksOtherServersLikeValidation(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign()
		w.setFault("192.0.3.1", forged)
		for range 8 { // either server may be asked first
			r := newValidatingResolver(w, func(r *recursor.Resolver) { r.Trust.Report = true })
			assert.Equal(t, "secure", w.security(r, "www.example.tld. A"))
			assert.Empty(t, r.Stats().Bogus)
		}
		w.updateServers("192.0.3.2", func(s *server) { s.change = silent })
		r := newValidatingResolver(w, func(r *recursor.Resolver) { r.Trust.Report = true })
		assert.Equal(t, "insecure", w.security(r, "www.example.tld. A"))
		assert.Zero(t, r.Stats().Failures)
	})
}

func TestTrustOffIgnoresSignatures(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign()
		w.setFault("192.0.3.1 192.0.3.2", forged)
		r := newValidatingResolver(w, func(r *recursor.Resolver) { r.Trust.Off = true })
		assert.Equal(t, "insecure", w.security(r, "www.example.tld. A"))
		for _, a := range w.queriesSince(0) {
			assert.Equal(t, a.name == "www.example.tld.", a.msg.IsEdns0().Do(), a)
			assert.NotEqual(t, dns.TypeDNSKEY, a.qtype)
		}
		s := r.Stats()
		assert.Zero(t, s.Secure+s.Insecure+s.KeyQueries+s.Verifications)
		assert.Nil(t, s.Bogus)
	})
}

func TestTraceReportsSecurity(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign("unsigned.tld.")
		var all []recursor.AnswerInfo
		r := newValidatingResolver(w, func(r *recursor.Resolver) {
			r.Trace = &recursor.Trace{Answer: func(_ context.Context, a recursor.AnswerInfo) { all = append(all, a) }}
		})
		w.security(r, "www.example.tld. A")
		w.security(r, "www.unsigned.tld. A")
		w.security(r, "www.example.tld. A +cd")
		w.setFault("192.0.3.1 192.0.3.2", forged)
		w.security(r, "no.example.tld. A")
		require.Len(t, all, 4)
		for i, want := range []dnssec.Security{dnssec.Secure, dnssec.Insecure, dnssec.Unchecked, dnssec.Bogus} {
			assert.Equal(t, want, all[i].Security)
		}
		var why *dnssec.Error
		require.ErrorAs(t, all[3].Err, &why)
		assert.Equal(t, "example.tld.", why.Zone)
		assert.EqualValues(t, 6, why.EDE)
		assert.Contains(t, []string{"192.0.3.1:53", "192.0.3.2:53"}, why.Server.String())
	})
}

func TestResolverVerifiesImportedEvidence(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign()
		old := newValidatingResolver(w)
		require.Equal(t, "secure", w.security(old, "www.example.tld. A"))
		var right, forgery bytes.Buffer
		require.NoError(t, old.Export(&right))
		evil := newValidatingResolver(w)
		w.withLock(func() { // another key for tld., which the root has not signed
			z := w.zone("tld.")
			z.signer = newSigner("tld.", "evil")
			w.zone(".").sets["tld."][dns.TypeDS] = []dns.RR{z.signer.ds()}
			z.sets["tld."][dns.TypeDNSKEY] = []dns.RR{z.signer.key}
			z.sign()
		})
		w.security(evil, "no.tld. A")
		require.NoError(t, evil.Export(&forgery))
		r := newValidatingResolver(w)
		require.NoError(t, r.Import(&forgery))
		assert.Contains(t, w.security(r, "no.tld. A"), "bogus")
	})
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign()
		old := newValidatingResolver(w)
		require.Equal(t, "secure", w.security(old, "www.example.tld. A"))
		var b bytes.Buffer
		require.NoError(t, old.Export(&b))
		r := newValidatingResolver(w)
		require.NoError(t, r.Import(&b))
		n := len(w.queriesSince(0))
		assert.Equal(t, "secure", w.security(r, "www.example.tld. A"))
		for _, a := range w.queriesSince(n) {
			assert.False(t, a.name == "tld." && a.qtype != dns.TypeDNSKEY, "%v: the delegation and its proof are cached", a)
		}
	})
}

func TestWildcardNeedsNoCloserMatchProof(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign()
		w.setFault("192.0.3.1 192.0.3.2", func(q query, r *dns.Msg) *dns.Msg {
			if q.name == "x.w.example.tld." {
				r.Ns = nil
			}
			return r
		})
		assert.Contains(t, w.security(newValidatingResolver(w), "x.w.example.tld. A"), "bogus")
	})
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign()
		w.withLock(func() {
			w.zone("example.tld.").put(record("y.w.example.tld. A 192.0.2.99"))
			w.zone("example.tld.").sign()
		})
		w.setFault("192.0.3.1 192.0.3.2", func(q query, r *dns.Msg) *dns.Msg { // the wildcard is said to stand for a name that there is
			if q.name != "y.w.example.tld." {
				return r
			}
			z := w.zone("example.tld.")
			wild := z.sets["*.w.example.tld."]
			r.Answer = nil
			for _, rr := range slices.Concat(wild[dns.TypeA], wild[dns.TypeRRSIG]) {
				if sig, ok := rr.(*dns.RRSIG); ok && sig.TypeCovered != dns.TypeA {
					continue
				}
				rr = dns.Copy(rr)
				rr.Header().Name = "y.w.example.tld."
				r.Answer = append(r.Answer, rr)
			}
			r.Ns = z.coveringNSEC("x.w.example.tld.")
			return r
		})
		assert.Contains(t, w.security(newValidatingResolver(w), "y.w.example.tld. A"), "bogus")
	})
}

func TestValidateRejectsInvalidTrust(t *testing.T) {
	for _, c := range []struct {
		trust dnssec.Trust
		want  string
	}{
		{dnssec.Trust{Anchors: []dns.RR{nil}}, "Resolver.Trust.Anchors has a nil record"},
		{dnssec.Trust{Anchors: []dns.RR{new(dns.DNSKEY).ToDS(0)}}, "Resolver.Trust.Anchors has a nil record at index 0"},
		{dnssec.Trust{Anchors: []dns.RR{record("example. A 192.0.2.1")}}, "Resolver.Trust.Anchors"},
		{dnssec.Trust{Insecure: []string{"a..b"}}, `Resolver.Trust.Insecure has "a..b"`},
		{dnssec.Trust{Insecure: []string{""}}, `Resolver.Trust.Insecure has ""`},
	} {
		err := (&recursor.Resolver{Trust: c.trust}).Validate()
		assert.ErrorContains(t, err, c.want)
	}
	assert.NoError(t, (&recursor.Resolver{Trust: dnssec.Trust{AllowSHA1: true}}).Validate())
	err := (&recursor.Resolver{Limits: recursor.Limits{NSEC3Iterations: 501}}).Validate()
	assert.ErrorContains(t, err, "Resolver.Limits.NSEC3Iterations is 501; want 500 at most")
}
