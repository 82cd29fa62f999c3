package recursor_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/recursor"
)

const deep = `
. served 198.41.0.4
tld. delegated 192.0.2.1 192.0.2.2
example.tld. delegated 192.0.3.1 192.0.3.2
  www A 192.0.2.80
  mail A 192.0.2.81
sub.example.tld. delegated 192.0.4.1
  www A 192.0.2.80
  mail A 192.0.2.81
`

// TestNameBelowBogusZoneCostsOneQuery has a zone that is known to be bogus. Names in zones below it cost no more
// queries than in a valid zone.
func TestNameBelowBogusZoneCostsOneQuery(t *testing.T) {
	for _, report := range []bool{false, true} {
		for _, servers := range []string{"198.41.0.4", "192.0.2.1 192.0.2.2", "192.0.3.1 192.0.3.2"} {
			bubble(t, deep, func(t *testing.T, w *testNetwork) {
				w.sign()
				w.setFault(servers, forged)
				r := newValidatingResolver(w, func(r *recursor.Resolver) { r.Trust.Report = report })
				want := "bogus 6"
				if report {
					want = "insecure"
				}
				for i, name := range []string{"www.sub", "mail.sub", "no.sub", "www", "mail"} {
					n, began := w.countQueries(), time.Now()
					what := fmt.Sprint(report, " ", servers, " ", name)
					if servers == "192.0.3.1 192.0.3.2" && i > 2 { // servers of the zone itself are queried, and not the servers of child zones
						break
					}
					assert.Equal(t, want, w.security(r, name+".example.tld. A"), what)
					if i == 0 {
						assert.LessOrEqual(t, w.countQueries()-n, 12, what)
						continue
					}
					assert.LessOrEqual(t, w.countQueries()-n, 2, what)
					assert.Equal(t, 10*ms, time.Since(began), what)
				}
			})
		}
	}
}

// TestNameBelowBogusReferralCostsOneQuery has servers whose signatures about child zones are invalid, while the keys
// of the zone are valid.
func TestNameBelowBogusReferralCostsOneQuery(t *testing.T) {
	for _, report := range []bool{false, true} {
		bubble(t, deep, func(t *testing.T, w *testNetwork) {
			w.sign()
			w.setFault("192.0.2.1 192.0.2.2", func(q query, r *dns.Msg) *dns.Msg {
				if q.qtype == dns.TypeDNSKEY {
					return r
				}
				return forged(q, r)
			})
			r := newValidatingResolver(w, func(r *recursor.Resolver) { r.Trust.Report = report })
			w.security(r, "www.sub.example.tld. A")
			for _, name := range []string{"mail.sub", "no.sub", "www", "mail"} {
				n := w.countQueries()
				w.security(r, name+".example.tld. A")
				assert.LessOrEqual(t, w.countQueries()-n, 2, "%t %s", report, name)
			}
			w.setFault("192.0.2.1 192.0.2.2", nil)
			time.Sleep(5*time.Minute + time.Second)
			assert.Equal(t, "secure", w.security(r, "www.sub.example.tld. A"))
		})
	}
}

// TestZonesBelowRecoveredZoneAreSecure repairs a bogus zone. The zones below it are secure at the same time.
func TestZonesBelowRecoveredZoneAreSecure(t *testing.T) {
	bubble(t, deep, func(t *testing.T, w *testNetwork) {
		w.sign()
		w.setFault("192.0.2.1 192.0.2.2", forged)
		r := newValidatingResolver(w)
		for range 10 {
			assert.Equal(t, "bogus 6", w.security(r, "www.sub.example.tld. A"))
			assert.Equal(t, "bogus 6", w.security(r, "mail.example.tld. A"))
			time.Sleep(time.Minute)
		}
		w.setFault("192.0.2.1 192.0.2.2", nil)
		time.Sleep(5*time.Minute + time.Second)
		assert.Equal(t, "secure", w.security(r, "www.sub.example.tld. A"))
		assert.Equal(t, "secure", w.security(r, "mail.example.tld. A"))
	})
}

// TestForgedReferralAboveZoneFailsNoQuestion has a forged referral to a false server, which delegates child zones
// with invalid keys. The Resolver queries the parent of the forged zone again, and not the false server.
func TestForgedReferralAboveZoneFailsNoQuestion(t *testing.T) {
	const bad = "192.0.9.9"
	stranger := newSigner("tld.", "evil")
	for _, real := range []bool{true, false} { // he refers to the servers of example.tld., or answers
		for _, minimise := range []bool{true, false} {
			t.Run(fmt.Sprint(real, minimise), func(t *testing.T) {
				bubble(t, deep, func(t *testing.T, w *testNetwork) {
					w.sign()
					w.stray(bad)
					w.setFault(bad, func(q query, _ *dns.Msg) *dns.Msg {
						switch {
						case q.qtype == dns.TypeDNSKEY:
							r := respondWith("")(q, nil)
							r.Answer = []dns.RR{stranger.key, stranger.sign([]dns.RR{stranger.key})}
							return r
						case real && dns.IsSubDomain("example.tld.", q.name):
							return respondWith("referral | example.tld. NS ns.example.tld. | ns.example.tld. A 192.0.3.1")(q, nil)
						}
						return respondWith(q.name+" A 192.0.2.66")(q, nil)
					})
					r := newValidatingResolver(w)
					r.NoMinimise = !minimise
					assert.Equal(t, "secure", w.security(r, "www.sub.example.tld. A"))
					assert.Equal(t, "secure", w.security(r, "mail.sub.example.tld. A"))
					assert.Equal(t, "secure", w.security(r, "www.example.tld. A"))
				})
			})
		}
	}
}
