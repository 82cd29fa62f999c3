package recursor_test

import (
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/recursor"
)

// The nearest anchor counts: what is wrong with the zone above it does not matter, also where one server has both zones and refers nobody to the
// lower one.
func TestResolverUsesAnchorBelowBogusZone(t *testing.T) {
	for _, servers := range []string{"192.0.2.1", "192.0.3.1"} {
		bubble(t, `
. served 198.41.0.4
tld. delegated 192.0.2.1
  www A 192.0.2.80
example.tld. delegated `+servers+`
  www A 192.0.2.81
`, func(t *testing.T, w *world) {
			w.sign("tld.")
			w.do(func() { w.zone("example.tld.").sign() })
			w.fault("198.41.0.4", stripped(dns.TypeNSEC)) // that tld. is not signed is not proven
			r := validator(w, func(r *recursor.Resolver) {
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
