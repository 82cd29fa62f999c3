package recursor_test

import (
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/recursor"
)

// TestResolverLooksUpOtherServersOfAZoneWhoseAnchorIsBelow has a zone and its child zone, which has the only trust
// anchor, on the same servers without glue. The first known address may be that of the server without signatures.
func TestResolverLooksUpOtherServersOfAZoneWhoseAnchorIsBelow(t *testing.T) {
	bubble(t, threeServersWithoutGlue+`sub.example.tld. delegated 192.0.6.1 192.0.6.2 192.0.6.3
  www A 192.0.2.81
`, func(t *testing.T, w *testNetwork) {
		w.setFault("192.0.6.3", onlyForType(dns.TypeA, withoutRecords(dns.TypeRRSIG)))
		w.sign("other.")
		for range 30 {
			for _, minimise := range []bool{true, false} {
				r := w.resolver(func(r *recursor.Resolver) {
					r.NoMinimise = !minimise
					r.Trust = dnssec.Trust{Anchors: []dns.RR{w.zone("sub.example.tld.").signer.ds()}}
				})
				n := w.countQueries()
				assert.Equal(t, "insecure", w.security(r, "www.example.tld. A"))
				assert.Equal(t, "secure", w.security(r, "www.sub.example.tld. A"))
				assert.Less(t, w.countQueries()-n, 40)
				_ = r.Close()
			}
		}
	})
}
