package recursor_test

import (
	"fmt"
	"slices"
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

// TestResolverFollowsReferralTowardsAnchor has an unsigned zone between the root and a zone with an anchor. The root has
// no proof that the zone is unsigned, and one of its servers denies every name.
func TestResolverFollowsReferralTowardsAnchor(t *testing.T) {
	bubble(t, `
. served 198.41.0.4 198.41.0.5
tld. delegated 192.0.2.1
example.tld. delegated 192.0.3.1
  www A 192.0.2.81
`, func(t *testing.T, w *testNetwork) {
		w.sign("tld.")
		w.withLock(func() { w.zone("example.tld.").sign() })
		w.setFault("198.41.0.4", func(q query, r *dns.Msg) *dns.Msg {
			if q.name == "." {
				return r
			}
			return respondNXDOMAIN("| . SOA a.root. h.root. 1 2 3 4 5")(q, r)
		})
		w.setFault("198.41.0.5", withoutRecords(dns.TypeNSEC))
		r := newValidatingResolver(w, func(r *recursor.Resolver) {
			r.Trust.Anchors = append(r.Trust.Anchors, w.zone("example.tld.").signer.ds())
		})
		assert.Equal(t, "secure", w.security(r, "www.example.tld. A"))
		assert.Equal(t, "secure", w.security(r, "no.example.tld. A"))
	})
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
				w.setFault("192.0.2.1", respondNXDOMAIN("| tld. SOA ns.tld. h.tld. 1 2 3 4 5"))
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

// TestResolverDropsForgedReferralBelowAnchor has a zone with a trust anchor below an insecure zone, on the same servers. So
// the servers refer from the insecure zone to zones below the anchor. The first of these referrals is forged: it leads to
// a false server. Its DS record has an invalid signature, or it has more signed RRsets than a response may have. So has the
// first response to a DS query.
func TestResolverDropsForgedReferralBelowAnchor(t *testing.T) {
	for _, forge := range []func(*dns.Msg, *signer, *signer){
		func(r *dns.Msg, parent, child *signer) {
			r.Ns = append(r.Ns, child.ds(), parent.sign([]dns.RR{child.ds()}))
		},
		func(r *dns.Msg, parent, _ *signer) { addSignedNSEC(r, parent, 30) },
	} {
		for _, report := range []bool{false, true} {
			bubble(t, `
. served 198.41.0.4
tld. delegated 192.0.2.1 192.0.2.2
example.tld. delegated 192.0.2.1 192.0.2.2
sub.example.tld. delegated 192.0.4.1
  www A 192.0.2.80
  mail A 192.0.2.81
`, func(t *testing.T, w *testNetwork) {
				const bad = "192.0.9.9"
				w.sign("tld.")
				evil, stranger := newSigner("example.tld.", "evil"), newSigner("sub.example.tld.", "evil")
				isForged, isDSForged := false, false
				w.setFault("192.0.2.1 192.0.2.2", func(q query, r *dns.Msg) *dns.Msg {
					if q.qtype == dns.TypeDS && !isDSForged {
						addSignedNSEC(r, evil, 30)
						isDSForged = q.tcp
					}
					if isForged || !dns.IsSubDomain("sub.example.tld.", q.name) || q.qtype == dns.TypeDS {
						return r
					}
					r = respondWith("referral | sub.example.tld. NS ns.sub.example.tld. | ns.sub.example.tld. A "+bad)(q, nil)
					forge(r, evil, stranger)
					isForged = q.tcp || r.Len() < 1200 // otherwise it is sent over TCP next
					return r
				})
				w.setFault(bad, func(q query, _ *dns.Msg) *dns.Msg {
					r := respondWith(q.name+" A 192.0.2.66")(q, nil)
					if q.qtype == dns.TypeDNSKEY {
						r.Answer = []dns.RR{stranger.key}
					}
					r.Answer = append(r.Answer, stranger.sign(r.Answer))
					return r
				})
				r := newValidatingResolver(w, func(r *recursor.Resolver) {
					r.Trust.Report = report
					r.Trust.Anchors = append(r.Trust.Anchors, w.zone("example.tld.").signer.ds())
				})
				for _, name := range []string{"www", "mail", "no"} {
					assert.Equal(t, "secure", w.security(r, name+".sub.example.tld. A"), "%s %t", name, report)
				}
			})
		}
	}
}

// addSignedNSEC adds n NSEC records to the authority section of r, each with a signature of s. A response with more than 24
// signed RRsets is not validated.
func addSignedNSEC(r *dns.Msg, s *signer, n int) {
	for i := range n {
		rr := record(fmt.Sprintf("x%d.%s NSEC y.%s A", i, s.zone, s.zone))
		r.Ns = append(r.Ns, rr, s.sign([]dns.RR{rr}))
	}
}

// TestResolverQueriesAnotherServerAfterTooManyRRsets has a response with more signed RRsets than are validated. The other
// server of the zone is then queried.
func TestResolverQueriesAnotherServerAfterTooManyRRsets(t *testing.T) {
	for servers, zone := range map[string]string{"192.0.2.1 192.0.2.2": "tld.", "192.0.3.1 192.0.3.2": "example.tld."} {
		bubble(t, deep, func(t *testing.T, w *testNetwork) {
			w.sign()
			r := newValidatingResolver(w)
			isSpoiled := false
			w.setFault(servers, func(q query, r *dns.Msg) *dns.Msg {
				if isSpoiled || q.name != "www.example.tld." && q.name != "example.tld." || q.qtype != dns.TypeA {
					return r
				}
				isSpoiled = q.tcp
				r.Ns = slices.DeleteFunc(slices.Clone(r.Ns), func(rr dns.RR) bool { return rr.Header().Rrtype != dns.TypeNS })
				addSignedNSEC(r, w.zone(zone).signer, 30)
				return r
			})
			for _, name := range []string{"www", "mail", "www.sub"} {
				assert.Equal(t, "secure", w.security(r, name+".example.tld. A"), "%s %s", name, servers)
			}
			assert.True(t, isSpoiled)
		})
	}
}
