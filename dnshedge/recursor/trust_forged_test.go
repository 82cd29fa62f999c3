package recursor_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/internal/doubles"
)

// forgedReferral makes the first referral to example.tld. lead to a false server with a key of its own. proof is the
// kind of proof in the referral.
func forgedReferral(w *testNetwork, proof string) {
	evil, stranger := newSigner("tld.", "evil"), newSigner("example.tld.", "evil")
	forgedYet := false
	w.setFault("192.0.2.1 192.0.2.2", func(q query, right *dns.Msg) *dns.Msg {
		if forgedYet || !dns.IsSubDomain("example.tld.", q.name) || q.qtype == dns.TypeDS {
			return right
		}
		forgedYet = true
		r := respondWith("referral | example.tld. NS ns.example.tld. | ns.example.tld. A 192.0.9.9")(q, nil)
		signed := func(rr dns.RR) { r.Ns = append(r.Ns, rr, evil.sign([]dns.RR{rr})) }
		switch proof {
		case "forged denial":
			signed(record("example.tld. 300 NSEC f.tld. NS RRSIG NSEC"))
		case "forged DS":
			signed(stranger.ds())
		case "DS":
			r.Ns = append(r.Ns, slices.DeleteFunc(right.Ns, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeNS })...)
		}
		return r
	})
	w.setFault("192.0.9.9", func(q query, _ *dns.Msg) *dns.Msg {
		if q.qtype == dns.TypeDNSKEY {
			r := respondWith("")(q, nil)
			r.Answer = []dns.RR{stranger.key, stranger.sign([]dns.RR{stranger.key})}
			return r
		}
		r := respondWith(q.name+" A 192.0.2.66")(q, nil)
		if proof == "forged DS" {
			r.Answer = append(r.Answer, stranger.sign(slices.Clone(r.Answer)))
		}
		return r
	})
}

// TestForgedReferralFailsNoQuestion has a forged referral. The NS records of a referral are unsigned, and its DS
// records may be genuine. The question queries the parent again, and then the zone's own servers.
func TestForgedReferralFailsNoQuestion(t *testing.T) {
	moments := []time.Duration{0, 1, 5, 9, 10, 11, 15, 20, 30, 40}
	if doubles.RaceEnabled {
		moments = []time.Duration{0, 10, 30}
	}
	for _, proof := range []string{"none", "forged denial", "forged DS", "DS"} {
		for _, warm := range []bool{true, false} {
			for _, minimise := range []bool{true, false} {
				for _, later := range moments {
					bubble(t, pairs, func(t *testing.T, w *testNetwork) {
						w.sign("unsigned.tld.")
						r := newValidatingResolver(w)
						if r.NoMinimise = !minimise; warm {
							w.security(r, "no.tld. A")
						}
						forgedReferral(w, proof)
						other := make(chan string)
						go func() {
							time.Sleep(later * ms)
							other <- w.security(r, "mail.example.tld. A")
						}()
						what := fmt.Sprint(proof, warm, minimise, later)
						assert.Equal(t, "secure", w.security(r, "www.example.tld. A"), what)
						assert.Equal(t, "secure", <-other, what)
						assert.Equal(t, "secure", w.security(r, "x.w.example.tld. A"), what)
					})
				}
			}
		}
	}
}

// TestResolverRechecksParentOfBogusZone queries the parent again, but not for each question, because the parent
// confirms the delegation.
func TestResolverRechecksParentOfBogusZone(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign()
		w.setFault("192.0.3.1 192.0.3.2", forged)
		r := newValidatingResolver(w)
		assert.Equal(t, "bogus 6", w.security(r, "www.example.tld. A"))
		n := w.countQueries("192.0.2.1", "192.0.2.2")
		for range 10 {
			assert.Equal(t, "bogus 6", w.security(r, "mail.example.tld. A"))
		}
		assert.LessOrEqual(t, w.countQueries("192.0.2.1", "192.0.2.2")-n, 1)
	})
}

// TestAbandonedRecheckConfirmsNoDelegation has a forged delegation in the cache. A question has no time or no queries
// left when it queries the parent again. The next question does so, too.
func TestAbandonedRecheckConfirmsNoDelegation(t *testing.T) {
	for _, timeout := range []time.Duration{200 * ms, time.Minute} {
		bubble(t, pairs, func(t *testing.T, w *testNetwork) {
			w.sign()
			r := newValidatingResolver(w, func(r *recursor.Resolver) { r.NoMinimise, r.Limits.ChainQueries = true, 3 })
			w.security(r, "no.tld. A") // the keys of tld. are now known
			forgedReferral(w, "DS")
			w.ask(r, "www.example.tld. A +cd")
			w.setFault("192.0.2.1 192.0.2.2", silent)
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			_, err := w.exchange(ctx, r, "mail.example.tld. A")
			assert.NoError(t, err)
			w.setFault("192.0.2.1 192.0.2.2", nil)
			assert.Equal(t, "secure", w.security(r, "mail.example.tld. A"), timeout)
		})
	}
}

// TestResolverRecoversFromForgedPriming has a priming response with forged addresses. Only the NS records of the
// root are signed.
func TestResolverRecoversFromForgedPriming(t *testing.T) {
	const bad = "192.0.9.9"
	for name, forge := range map[string]func(query, *dns.Msg) *dns.Msg{
		"unsigned": respondWith(". NS ns.evil. || ns.evil. A " + bad),
		"wrong signature": func(q query, r *dns.Msg) *dns.Msg {
			return forged(q, respondWith(". NS ns.evil. || ns.evil. A "+bad)(q, nil))
		},
		"another signature": func(q query, _ *dns.Msg) *dns.Msg {
			r := respondWith(". NS ns.evil. || ns.evil. A "+bad)(q, nil)
			r.Answer = append(r.Answer, newSigner(".", "evil").sign(r.Answer))
			return r
		},
		"wrong addresses": func(_ query, r *dns.Msg) *dns.Msg {
			for i, rr := range r.Extra {
				if rr.Header().Rrtype == dns.TypeA {
					r.Extra[i] = record(rr.Header().Name + " A " + bad)
				}
			}
			return r
		},
	} {
		for _, keysFirst := range []bool{true, false} {
			bubble(t, pairs, func(t *testing.T, w *testNetwork) {
				w.sign("unsigned.tld.")
				asked := map[uint16]int{}
				w.setFault("198.41.0.4 198.41.0.5", func(q query, r *dns.Msg) *dns.Msg {
					asked[q.qtype]++
					switch n := asked[q.qtype]; {
					case n == 1 && (q.qtype == dns.TypeNS) == keysFirst && (q.qtype == dns.TypeNS || q.qtype == dns.TypeDNSKEY):
						return nil
					case q.qtype == dns.TypeNS && (n == 1 || n == 2 && keysFirst):
						return forge(q, r)
					}
					return r
				})
				w.setFault(bad, func(q query, _ *dns.Msg) *dns.Msg { return respondWith(q.name+" A 192.0.2.66")(q, nil) })
				r := newValidatingResolver(w)
				if first := w.security(r, "www.example.tld. A"); keysFirst && name != "wrong addresses" {
					assert.Equal(t, "secure", first, name)
					assert.Zero(t, w.countQueries(bad), name)
				}
				time.Sleep(2 * time.Minute)
				if w.security(r, "www.example.tld. A"); name != "wrong addresses" {
					assert.Less(t, w.countQueries(bad), 10, name)
				}
				time.Sleep(2 * time.Minute)
				assert.Equal(t, "secure", w.security(r, "x.w.example.tld. A"), "%s %t", name, keysFirst)
			})
		}
	}
}
