package recursor_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/recursor"
)

// TestServerNamesWithKnownAddressesAreNotUnresolved has a signed zone whose only healthy server sends no signatures.
// The names of its servers are looked up, in case the glue is wrong. They have the addresses of the glue, and the child
// zone still needs the lookup of its server name.
func TestServerNamesWithKnownAddressesAreNotUnresolved(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
tld. delegated 192.0.2.1 192.0.2.2 192.0.2.3
far. delegated 192.0.2.9
  ns A 192.0.4.1
sub.tld. served 192.0.4.1
  www A 192.0.2.80
`, func(t *testing.T, w *testNetwork) {
		w.zone("tld.").put(record("sub.tld. NS ns.far."))
		w.sign()
		w.setFault("192.0.2.1 192.0.2.3", respondRcode(5))
		w.setFault("192.0.2.2", allStripped)
		r := newValidatingResolver(w)
		assert.Equal(t, "NOERROR www.sub.tld. A 192.0.2.80", formatResponse(w.ask(r, "www.sub.tld. A +cd")))
	})
}

// TestServerNamesInDeadZonesAreNotUnresolved has a zone with three server names. Two are in a zone whose servers
// refuse all queries. The names of these servers have an address, with or without glue.
func TestServerNamesInDeadZonesAreNotUnresolved(t *testing.T) {
	for name, dead := range map[string]string{
		"with glue": "dead. delegated 192.0.5.1 192.0.5.2 192.0.5.3 192.0.5.4",
		"without glue, at one address": `
  dead NS ns1.far.
  dead NS ns2.far.
  dead NS ns3.far.
  dead NS ns4.far.
  dead NS ns5.far.
dead. served 192.0.5.1`,
	} {
		t.Run(name, func(t *testing.T) {
			for range 8 { // the names are looked up in random order
				bubble(t, ". served 198.41.0.4"+"\n"+dead+`
tld. delegated 192.0.2.1
  sub NS a.dead.
  sub NS b.dead.
  sub NS ns.far.
far. delegated 192.0.2.9
  ns A 192.0.4.1
  ns1 A 192.0.5.1
  ns2 A 192.0.5.1
  ns3 A 192.0.5.1
  ns4 A 192.0.5.1
  ns5 A 192.0.5.1
sub.tld. served 192.0.4.1
  www A 192.0.2.80
`, func(t *testing.T, w *testNetwork) {
					for _, addr := range []string{"192.0.5.1", "192.0.5.2", "192.0.5.3", "192.0.5.4"} {
						w.server(addr).change = respondRcode(5)
					}
					r := w.resolver(noHedges, func(r *recursor.Resolver) { r.NoIPv6 = true })
					assert.Equal(t, "NOERROR www.sub.tld. A 192.0.2.80", formatResponse(w.ask(r, "www.sub.tld. A")))
				})
			}
		})
	}
}

// TestServerNamesInCyclesAreNotUnresolved has two zones with the names of each other's servers. One zone has another
// server name as well.
func TestServerNamesInCyclesAreNotUnresolved(t *testing.T) {
	for range 30 { // the names are looked up in random order
		bubble(t, `
. served 198.41.0.4
tld. delegated 192.0.2.1
  x NS ns1.y
  x NS ns2.y
  x NS ns3.y
  y NS ns1.x
  y NS ns2.x
  y NS ns3.x
  y NS ns.far.
far. delegated 192.0.2.9
  ns A 192.0.4.1
x.tld. served 192.0.4.1
  www A 192.0.2.80
y.tld. served 192.0.4.1
  ns1 A 192.0.4.1
  ns2 A 192.0.4.1
  ns3 A 192.0.4.1
`, func(t *testing.T, w *testNetwork) {
			assert.Equal(t, "NOERROR www.x.tld. A 192.0.2.80", formatResponse(w.ask(w.resolver(), "www.x.tld. A")))
		})
	}
}
