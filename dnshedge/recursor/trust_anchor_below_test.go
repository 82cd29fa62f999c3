package recursor_test

import (
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/recursor"
)

// TestResolverUsesAnchorBelowBogusZone requires that the closest anchor counts. A bogus zone above has no effect,
// even if one server has both zones and sends no referral to the lower one.
func TestResolverUsesAnchorBelowBogusZone(t *testing.T) {
	for _, servers := range []string{"192.0.2.1", "192.0.3.1"} {
		bubble(t, `
. served 198.41.0.4
tld. delegated 192.0.2.1
  www A 192.0.2.80
example.tld. delegated `+servers+`
  www A 192.0.2.81
`, func(t *testing.T, w *testNetwork) {
			w.sign("tld.")
			w.withLock(func() { w.zone("example.tld.").sign() })
			w.setFault("198.41.0.4", withoutRecords(dns.TypeNSEC)) // without the proof that tld. is unsigned
			r := newValidatingResolver(w, func(r *recursor.Resolver) {
				r.Trust.Anchors = append(r.Trust.Anchors, w.zone("example.tld.").signer.ds())
			})
			for range 2 {
				assert.Equal(t, "bogus 12", w.security(r, "www.tld. A"), servers)
				assert.Equal(t, "secure", w.security(r, "www.example.tld. A"), servers)
				assert.Equal(t, "secure", w.security(r, "no.example.tld. A"), servers)
				assert.Equal(t, "secure", w.security(r, "example.tld. SOA"), servers)
			}
		})
	}
}

// TestResolverFollowsBogusReferralToZoneWithAnchor has a zone whose keys are valid and whose other signatures are not.
// One of its servers denies every name. Zones below it that have an anchor are secure all the same.
func TestResolverFollowsBogusReferralToZoneWithAnchor(t *testing.T) {
	for _, lies := range []bool{false, true} {
		bubble(t, deep, func(t *testing.T, w *testNetwork) {
			w.sign()
			forgeAllButKeys := func(q query, r *dns.Msg) *dns.Msg {
				if q.qtype == dns.TypeDNSKEY {
					return r
				}
				return forged(q, r)
			}
			w.setFault("192.0.2.1 192.0.2.2", forgeAllButKeys)
			if lies {
				w.setFault("192.0.2.1", func(q query, r *dns.Msg) *dns.Msg {
					m := respondWith("| tld. SOA ns.tld. h.tld. 1 2 3 4 5")(q, r)
					m.Rcode = dns.RcodeNameError
					return m
				})
			}
			r := newValidatingResolver(w, func(r *recursor.Resolver) {
				r.Trust.Anchors = append(r.Trust.Anchors, w.zone("example.tld.").signer.ds())
			})
			w.security(r, "www.tld. A") // the keys of tld. are now known
			assert.Equal(t, "secure", w.security(r, "www.example.tld. A"), lies)
			assert.Equal(t, "secure", w.security(r, "www.sub.example.tld. A"), lies)
			assert.Equal(t, "secure", w.security(r, "no.example.tld. A"), lies)
		})
	}
}

// TestResolverRejectsUnsignedReferralToZoneWithAnchor has a server that refers to a false server without signatures. The other
// server of the zone is queried, and the false one is not, although the zone has an anchor of its own.
func TestResolverRejectsUnsignedReferralToZoneWithAnchor(t *testing.T) {
	bubble(t, deep, func(t *testing.T, w *testNetwork) {
		const bad = "192.0.9.9"
		w.sign()
		w.setFault(bad, respondRcode(dns.RcodeRefused))
		w.setFault("192.0.2.1", func(q query, r *dns.Msg) *dns.Msg {
			if dns.IsSubDomain("example.tld.", q.name) {
				return respondWith("referral | example.tld. NS ns.example.tld. | ns.example.tld. A "+bad)(q, r)
			}
			return r
		})
		r := newValidatingResolver(w, func(r *recursor.Resolver) {
			r.Trust.Anchors = append(r.Trust.Anchors, w.zone("example.tld.").signer.ds())
		})
		assert.Equal(t, "secure", w.security(r, "www.tld. A"))
		for _, name := range []string{"www", "mail", "www.sub", "mail.sub"} {
			assert.Equal(t, "secure", w.security(r, name+".example.tld. A"), name)
		}
	})
}
