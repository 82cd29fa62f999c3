package recursor_test

import (
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/recursor"
)

// withAnchorOf returns a setting that adds the trust anchor of a zone.
func withAnchorOf(w *testNetwork, zone string) func(*recursor.Resolver) {
	return func(r *recursor.Resolver) {
		r.Trust.Anchors = append(r.Trust.Anchors, w.zone(zone).signer.ds())
	}
}

// TestResolverDoesNotWaitForKeysAboveAnchor has a zone with an anchor on the servers of its parent zone, which send no
// referral to it. The lookup of the parent zone's keys takes longer than a question may take: two servers are silent, and
// one is silent or sends no signatures.
func TestResolverDoesNotWaitForKeysAboveAnchor(t *testing.T) {
	unsigned := withoutRecords(dns.TypeRRSIG)
	for name, faults := range map[string]struct {
		parentKeys, other func(query, *dns.Msg) *dns.Msg
	}{ // of the first server
		"silent":                 {parentKeys: silent},
		"unsigned keys":          {parentKeys: unsigned},
		"everything is unsigned": {parentKeys: unsigned, other: unsigned},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, `
. served 198.41.0.4
tld. delegated 192.0.2.1 192.0.2.2 192.0.2.3
example.tld. delegated 192.0.2.1 192.0.2.2 192.0.2.3
  www A 192.0.2.81
`, func(t *testing.T, w *testNetwork) {
				w.sign()
				setFaults := func(servers string, parentKeys, other func(query, *dns.Msg) *dns.Msg) {
					w.setFault(servers, func(q query, r *dns.Msg) *dns.Msg {
						switch {
						case q.name == "tld." && q.qtype == dns.TypeDNSKEY:
							return parentKeys(q, r)
						case other != nil:
							return other(q, r)
						}
						return r
					})
				}
				setFaults("192.0.2.1", faults.parentKeys, faults.other)
				setFaults("192.0.2.2 192.0.2.3", silent, nil)
				for range 5 { // the servers are queried in random order
					for _, question := range []string{"www.example.tld. A", "no.example.tld. A", "example.tld. SOA"} {
						r := newValidatingResolver(w, withAnchorOf(w, "example.tld."))
						start := time.Now()
						assert.Equal(t, "secure", w.security(r, question), question)
						assert.Less(t, time.Since(start), time.Second, question)
						_ = r.Close()
					}
				}
			})
		})
	}
}

// TestDenialAboveAnchorDoesNotDelayResponse has a zone with an anchor below a zone whose keys cannot be looked up. A server
// of both wrongly denies the name between them, with a signature.
func TestDenialAboveAnchorDoesNotDelayResponse(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
tld. delegated 192.0.2.1
island.example.tld. delegated 192.0.2.1
  www A 192.0.2.81
`, func(t *testing.T, w *testNetwork) {
		w.sign()
		denied := false
		w.setFault("192.0.2.1", func(q query, r *dns.Msg) *dns.Msg {
			switch {
			case q.name == "tld." && q.qtype == dns.TypeDNSKEY:
				return nil
			case q.name == "example.tld.":
				r.Rcode, denied = dns.RcodeNameError, true
			}
			return r
		})
		r := newValidatingResolver(w, withAnchorOf(w, "island.example.tld."))
		start := time.Now()
		assert.Equal(t, "secure", w.security(r, "www.island.example.tld. A"))
		assert.Less(t, time.Since(start), 500*ms)
		assert.True(t, denied)
	})
}

// TestInsecureZoneAboveAnchorProvesNothingBelowIt has a zone with an anchor below an insecure zone, on the same servers.
// Responses without signatures from the zone, and referrals without proof, are bogus.
func TestInsecureZoneAboveAnchorProvesNothingBelowIt(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
tld. delegated 192.0.2.1
open.tld. delegated 192.0.2.1
  www A 192.0.2.80
island.open.tld. delegated 192.0.2.1
  www A 192.0.2.81
sub.island.open.tld. delegated 192.0.3.1
  www A 192.0.2.82
`, func(t *testing.T, w *testNetwork) {
		w.sign("open.tld.")
		w.withLock(func() {
			w.zone("island.open.tld.").sign()
			w.zone("sub.island.open.tld.").sign()
		})
		r := newValidatingResolver(w, withAnchorOf(w, "island.open.tld."))
		assert.Equal(t, "insecure", w.security(r, "www.open.tld. A"))
		assert.Equal(t, "secure", w.security(r, "www.island.open.tld. A"))
		strip := withoutRecords(dns.TypeRRSIG, dns.TypeDS, dns.TypeNSEC)
		w.setFault("192.0.2.1", func(q query, r *dns.Msg) *dns.Msg {
			if q.qtype != dns.TypeDNSKEY && dns.IsSubDomain("island.open.tld.", q.name) {
				return strip(q, r)
			}
			return r
		})
		w.setFault("192.0.3.1", strip)
		for _, question := range []string{"www2.island.open.tld. A", "island.open.tld. TXT", "www.sub.island.open.tld. A"} {
			assert.Contains(t, w.security(r, question), "bogus", question)
		}
	})
}
