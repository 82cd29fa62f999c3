package recursor_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

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

// serversInThreeZones has a zone whose three servers have names in zones with servers of their own.
const serversInThreeZones = `
. served 198.41.0.4
tld. delegated 192.0.2.1
  example NS ns.first.
  example NS ns.second.
  example NS ns.third.
first. delegated 192.0.5.1
  ns A 192.0.6.1
second. delegated 192.0.5.2
  ns A 192.0.6.2
third. delegated 192.0.5.3
  ns A 192.0.6.3
example.tld. served 192.0.6.1 192.0.6.2
  @ NS ns.first.
  @ NS ns.second.
  @ NS ns.third.
  www A 192.0.2.80
sub.example.tld. delegated 192.0.7.1
  www A 192.0.2.81
open.example.tld. delegated 192.0.7.2
  www A 192.0.2.82
`

// eightServers has a zone with eight servers.
const eightServers = `
. served 198.41.0.4
tld. delegated 192.0.2.1
example.tld. delegated 192.0.6.1 192.0.6.2 192.0.6.3 192.0.6.4 192.0.6.5 192.0.6.6 192.0.6.7 192.0.6.8
  www A 192.0.2.80
sub.example.tld. delegated 192.0.7.1
  www A 192.0.2.81
open.example.tld. delegated 192.0.7.2
  www A 192.0.2.82
`

// TestResolverQueriesAllServersAfterUnsignedResponse has a zone with one good server. Another server sends no
// signatures, and its address may arrive first, after more than a second. The others are silent.
func TestResolverQueriesAllServersAfterUnsignedResponse(t *testing.T) {
	unsigned := withoutRecords(dns.TypeRRSIG)
	slowAddresses := func(first, second time.Duration) func(w *testNetwork) {
		return func(w *testNetwork) {
			w.sign("first.", "second.", "third.", "open.example.tld.")
			w.updateServers("192.0.5.1", func(s *server) { s.rtt = first })
			w.updateServers("192.0.5.2", func(s *server) { s.rtt = second })
			w.setFault("192.0.6.3", silent)
		}
	}
	for name, n := range map[string]struct {
		text string
		set  func(w *testNetwork)
	}{
		"slow addresses": {serversInThreeZones, slowAddresses(1100*ms, 1400*ms)},
		"slow address":   {serversInThreeZones, slowAddresses(500*ms, 1400*ms)},
		"many silent servers": {eightServers, func(w *testNetwork) {
			w.sign("open.example.tld.")
			w.setFault("192.0.6.3 192.0.6.4 192.0.6.5 192.0.6.6 192.0.6.7 192.0.6.8", silent)
		}},
	} {
		for missing, fault := range map[string]func(query, *dns.Msg) *dns.Msg{"all": unsigned, "keys": onlyForType(dns.TypeDNSKEY, unsigned), "A": onlyForType(dns.TypeA, unsigned), "DS": onlyForType(dns.TypeDS, unsigned)} {
			for hedges, set := range map[string]func(*recursor.Resolver){"with hedges": func(*recursor.Resolver) {}, "without hedges": noHedges} {
				t.Run(name+", "+missing+", "+hedges, func(t *testing.T) {
					for question, want := range map[string]string{"www.example.tld. A": "secure", "none.example.tld. A": "secure", "www.sub.example.tld. A": "secure", "sub.example.tld. DS": "secure", "www.open.example.tld. A": "insecure"} {
						bubble(t, n.text, func(t *testing.T, w *testNetwork) {
							n.set(w)
							w.setFault("192.0.6.1", fault)
							for range 3 { // the servers are queried in random order
								r := newValidatingResolver(w, set)
								assert.Equal(t, want, w.security(r, question), question)
								_ = r.Close()
							}
						})
					}
				})
			}
		}
	}
}

// TestBogusKeysAreCachedDespiteNameLimit has a zone with more server names than may be looked up. Two servers send no
// signatures of the keys, and the others are silent. That the limit ends the search for other servers changes nothing:
// the zone is bogus for all questions of the next seconds.
func TestBogusKeysAreCachedDespiteNameLimit(t *testing.T) {
	for name, set := range map[string]func(*recursor.Resolver){"with hedges": func(*recursor.Resolver) {}, "without hedges": noHedges} {
		t.Run(name, func(t *testing.T) {
			bubble(t, strings.Replace(eightServers, "192.0.6.8", "192.0.6.8 192.0.6.9 192.0.6.10 192.0.6.11 192.0.6.12 192.0.6.13", 1), func(t *testing.T, w *testNetwork) {
				w.sign()
				w.setFault("192.0.6.3 192.0.6.4 192.0.6.5 192.0.6.6 192.0.6.7 192.0.6.8 192.0.6.9 192.0.6.10 192.0.6.11 192.0.6.12 192.0.6.13", silent)
				w.setFault("192.0.6.1 192.0.6.2", onlyForType(dns.TypeDNSKEY, withoutRecords(dns.TypeRRSIG)))
				r := newValidatingResolver(w, set)
				n, bogus := w.countQueries(), 0
				for i := range 10 {
					if w.security(r, fmt.Sprintf("n%d.example.tld. A", i)) == "bogus 10" {
						bogus++
					}
					time.Sleep(100 * ms)
				}
				assert.GreaterOrEqual(t, bogus, 7) // the lookup of the keys may take longer than the first questions
				assert.LessOrEqual(t, w.countQueries()-n, 100)
			})
		})
	}
}

// TestUnsignedResponseIsValidatedDuringServerSearch has an unsigned zone without a referral, because its server also
// serves the parent zone. The address of the parent zone's other server cannot be found.
func TestUnsignedResponseIsValidatedDuringServerSearch(t *testing.T) {
	for name, set := range map[string]func(*recursor.Resolver){"with hedges": func(*recursor.Resolver) {}, "without hedges": noHedges} {
		t.Run(name, func(t *testing.T) {
			bubble(t, `
. served 198.41.0.4
tld. delegated 192.0.2.1
  example NS ns.example
  example NS ns.dead.
  ns.example A 192.0.6.1
dead. delegated 192.0.5.1
example.tld. served 192.0.6.1
  @ NS ns
  @ NS ns.dead.
  ns A 192.0.6.1
hidden.example.tld. delegated 192.0.6.1
  www A 192.0.2.80
`, func(t *testing.T, w *testNetwork) {
				w.sign("dead.", "hidden.example.tld.")
				w.setFault("192.0.5.1", silent)
				for range 6 {
					r := newValidatingResolver(w, set)
					start := time.Now()
					assert.Equal(t, "insecure", w.security(r, "www.hidden.example.tld. A"))
					assert.Less(t, time.Since(start), 1500*ms)
					_ = r.Close()
				}
			})
		})
	}
}

// TestResolverLooksUpServerAddressAfterUnsignedResponse has a zone with one server, which has moved. At the address in
// the referral there still is a server without signatures.
func TestResolverLooksUpServerAddressAfterUnsignedResponse(t *testing.T) {
	unsigned := withoutRecords(dns.TypeRRSIG)
	for missing, fault := range map[string]func(query, *dns.Msg) *dns.Msg{"all": unsigned, "keys": onlyForType(dns.TypeDNSKEY, unsigned), "A": onlyForType(dns.TypeA, unsigned), "DS": onlyForType(dns.TypeDS, unsigned)} {
		for _, question := range []string{"www.example.tld. A", "none.example.tld. A", "www.sub.example.tld. A"} {
			bubble(t, `
. served 198.41.0.4
tld. delegated 192.0.2.1
  example NS ns.other
  ns.other A 192.0.6.1
other.tld. delegated 192.0.5.1
  ns A 192.0.6.2
example.tld. served 192.0.6.1 192.0.6.2
  @ NS ns.other.tld.
  www A 192.0.2.80
sub.example.tld. delegated 192.0.7.1
  www A 192.0.2.81
`, func(t *testing.T, w *testNetwork) {
				w.sign("other.tld.")
				w.setFault("192.0.6.1", fault)
				assert.Equal(t, "secure", w.security(newValidatingResolver(w), question), "%s without signatures, %s", missing, question)
			})
		}
	}
}
