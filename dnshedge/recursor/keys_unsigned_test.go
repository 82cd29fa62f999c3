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

// The servers of a zone have no glue. A server with good keys may have the name that is looked up last.
func TestResolverLooksUpAllServersUntilOneHasGoodKeys(t *testing.T) {
	unsigned, forgedKeys, staleKeys := stripped(dns.TypeRRSIG), onlyFor(dns.TypeDNSKEY, forged), onlyFor(dns.TypeDNSKEY, stale)
	for name, faults := range map[string][]func(query, *dns.Msg) *dns.Msg{
		"no signatures":                 {unsigned, unsigned},
		"no signatures of keys":         {onlyFor(dns.TypeDNSKEY, unsigned), onlyFor(dns.TypeDNSKEY, unsigned)},
		"no signatures of addresses":    {onlyFor(dns.TypeA, unsigned), onlyFor(dns.TypeA, unsigned)},
		"no DNSSEC":                     {allStripped, allStripped},
		"no DNSSEC, no signatures":      {allStripped, unsigned},
		"forged keys":                   {forgedKeys, forgedKeys},
		"forged keys, no signatures":    {forgedKeys, unsigned},
		"stale keys, no signatures":     {staleKeys, unsigned},
		"forged answers, no signatures": {forged, unsigned},
		"REFUSED, no signatures":        {rcode(dns.RcodeRefused), unsigned},
		"REFUSED for keys":              {onlyFor(dns.TypeDNSKEY, rcode(dns.RcodeRefused)), onlyFor(dns.TypeDNSKEY, unsigned)},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, threeServersWithoutGlue, func(t *testing.T, w *world) {
				w.fault("192.0.6.2", faults[0])
				w.fault("192.0.6.3", faults[1])
				w.sign("other.")
				for range 30 {
					for _, minimise := range []bool{true, false} {
						r := validator(w, func(r *recursor.Resolver) { r.NoMinimise = !minimise })
						n := w.sent()
						assert.Equal(t, "secure", w.security(r, "www.example.tld. A"))
						assert.Equal(t, "secure", w.security(r, "none.example.tld. A"))
						assert.Less(t, w.sent()-n, 40)
						_ = r.Close()
					}
				}
			})
		})
	}
}
