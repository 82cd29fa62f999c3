package recursor_test

import (
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/recursor"
)

// threeServersWithoutGlue has a zone whose three servers have names in another zone.
const threeServersWithoutGlue = `
. served 198.41.0.4
tld. delegated 192.0.2.1
  example NS ns0.other.
  example NS ns1.other.
  example NS ns2.other.
other. delegated 192.0.5.1
  ns0 A 192.0.6.1
  ns1 A 192.0.6.2
  ns2 A 192.0.6.3
example.tld. served 192.0.6.1 192.0.6.2 192.0.6.3
  @ NS ns0.other.
  @ NS ns1.other.
  @ NS ns2.other.
  www A 192.0.2.80
`

// TestResolverLooksUpAllServersUntilOneHasGoodKeys has a zone without glue. The server with valid keys may have the
// name that is looked up last.
func TestResolverLooksUpAllServersUntilOneHasGoodKeys(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long with the race detector")
	}
	unsigned, forgedKeys, staleKeys := withoutRecords(dns.TypeRRSIG), onlyForType(dns.TypeDNSKEY, forged), onlyForType(dns.TypeDNSKEY, stale)
	for name, faults := range map[string][]func(query, *dns.Msg) *dns.Msg{
		"no signatures":                 {unsigned, unsigned},
		"no signatures of keys":         {onlyForType(dns.TypeDNSKEY, unsigned), onlyForType(dns.TypeDNSKEY, unsigned)},
		"no signatures of addresses":    {onlyForType(dns.TypeA, unsigned), onlyForType(dns.TypeA, unsigned)},
		"no DNSSEC":                     {allStripped, allStripped},
		"no DNSSEC, no signatures":      {allStripped, unsigned},
		"forged keys":                   {forgedKeys, forgedKeys},
		"forged keys, no signatures":    {forgedKeys, unsigned},
		"stale keys, no signatures":     {staleKeys, unsigned},
		"forged answers, no signatures": {forged, unsigned},
		"REFUSED, no signatures":        {respondRcode(dns.RcodeRefused), unsigned},
		"REFUSED for keys":              {onlyForType(dns.TypeDNSKEY, respondRcode(dns.RcodeRefused)), onlyForType(dns.TypeDNSKEY, unsigned)},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, threeServersWithoutGlue, func(t *testing.T, w *testNetwork) {
				w.setFault("192.0.6.2", faults[0])
				w.setFault("192.0.6.3", faults[1])
				w.sign("other.")
				for range 30 {
					for _, minimise := range []bool{true, false} {
						r := newValidatingResolver(w, func(r *recursor.Resolver) { r.NoMinimise = !minimise })
						n := w.countQueries()
						assert.Equal(t, "secure", w.security(r, "www.example.tld. A"))
						assert.Equal(t, "secure", w.security(r, "none.example.tld. A"))
						assert.Less(t, w.countQueries()-n, 40)
						_ = r.Close()
					}
				}
			})
		})
	}
}
