package recursor_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/doubles"
)

// forgedReferral has the first referral to example.tld. lead to a stranger, who has a key of his own, with a proof of some kind.
func forgedReferral(w *world, proof string) {
	evil, stranger := newSigner("tld.", "evil"), newSigner("example.tld.", "evil")
	forgedYet := false
	w.fault("192.0.2.1 192.0.2.2", func(q query, right *dns.Msg) *dns.Msg {
		if forgedYet || !dns.IsSubDomain("example.tld.", q.name) || q.qtype == dns.TypeDS {
			return right
		}
		forgedYet = true
		r := says("referral | example.tld. NS ns.example.tld. | ns.example.tld. A 192.0.9.9")(q, nil)
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
	w.fault("192.0.9.9", func(q query, _ *dns.Msg) *dns.Msg {
		if q.qtype == dns.TypeDNSKEY {
			r := says("")(q, nil)
			r.Answer = []dns.RR{stranger.key, stranger.sign([]dns.RR{stranger.key})}
			return r
		}
		r := says(q.name+" A 192.0.2.66")(q, nil)
		if proof == "forged DS" {
			r.Answer = append(r.Answer, stranger.sign(slices.Clone(r.Answer)))
		}
		return r
	})
}

// A referral is not signed, and what it proves of keys may be right. Whoever meets one that is forged, when it comes or while
// the keys are looked for, asks the parent again, and the zone's own servers then.
func TestForgedReferralFailsNoQuestion(t *testing.T) {
	moments := []time.Duration{0, 1, 5, 9, 10, 11, 15, 20, 30, 40}
	if doubles.RaceEnabled {
		moments = []time.Duration{0, 10, 30}
	}
	for _, proof := range []string{"none", "forged denial", "forged DS", "DS"} {
		for _, warm := range []bool{true, false} {
			for _, minimise := range []bool{true, false} {
				for _, later := range moments {
					bubble(t, pairs, func(t *testing.T, w *world) {
						w.sign("unsigned.tld.")
						r := validator(w)
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

// The parent is asked again, and not for each question: it says the same.
func TestResolverRechecksParentOfBogusZone(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *world) {
		w.sign()
		w.fault("192.0.3.1 192.0.3.2", forged)
		r := validator(w)
		assert.Equal(t, "bogus 6", w.security(r, "www.example.tld. A"))
		n := w.sent("192.0.2.1", "192.0.2.2")
		for range 10 {
			assert.Equal(t, "bogus 6", w.security(r, "mail.example.tld. A"))
		}
		assert.LessOrEqual(t, w.sent("192.0.2.1", "192.0.2.2")-n, 1)
	})
}

// The NS records of the root are signed, and their addresses are not.
func TestResolverRecoversFromForgedPriming(t *testing.T) {
	const bad = "192.0.9.9"
	for name, forge := range map[string]func(query, *dns.Msg) *dns.Msg{
		"unsigned":        says(". NS ns.evil. || ns.evil. A " + bad),
		"wrong signature": func(q query, r *dns.Msg) *dns.Msg { return forged(q, says(". NS ns.evil. || ns.evil. A "+bad)(q, nil)) },
		"another signature": func(q query, _ *dns.Msg) *dns.Msg {
			r := says(". NS ns.evil. || ns.evil. A "+bad)(q, nil)
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
			bubble(t, pairs, func(t *testing.T, w *world) {
				w.sign("unsigned.tld.")
				asked := map[uint16]int{}
				w.fault("198.41.0.4 198.41.0.5", func(q query, r *dns.Msg) *dns.Msg {
					asked[q.qtype]++
					switch n := asked[q.qtype]; {
					case n == 1 && (q.qtype == dns.TypeNS) == keysFirst && (q.qtype == dns.TypeNS || q.qtype == dns.TypeDNSKEY):
						return nil
					case q.qtype == dns.TypeNS && (n == 1 || n == 2 && keysFirst):
						return forge(q, r)
					}
					return r
				})
				w.fault(bad, func(q query, _ *dns.Msg) *dns.Msg { return says(q.name+" A 192.0.2.66")(q, nil) })
				r := validator(w)
				if first := w.security(r, "www.example.tld. A"); keysFirst && name != "wrong addresses" {
					assert.Equal(t, "secure", first, name)
					assert.Zero(t, w.sent(bad), name)
				}
				time.Sleep(2 * time.Minute)
				if w.security(r, "www.example.tld. A"); name != "wrong addresses" {
					assert.Less(t, w.sent(bad), 10, name)
				}
				time.Sleep(2 * time.Minute)
				assert.Equal(t, "secure", w.security(r, "x.w.example.tld. A"), "%s %t", name, keysFirst)
			})
		}
	}
}
