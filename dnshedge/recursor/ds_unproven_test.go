package recursor_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/recursor"
)

// withoutDS returns the fault of a server of the root or tld. that has neither DS records of example.tld. nor their
// denial, in referrals and in answers.
func withoutDS(denial string) func(query, *dns.Msg) *dns.Msg {
	return func(q query, r *dns.Msg) *dns.Msg {
		if q.qtype == dns.TypeDNSKEY || !dns.IsSubDomain("example.tld.", q.name) {
			return r
		}
		if r = allStripped(q, r); q.qtype != dns.TypeDS {
			return r
		}
		switch denial {
		case "SOA":
			r.Ns = []dns.RR{record("tld. SOA ns.tld. admin.tld. 1 3600 600 86400 300")}
		case "NXDOMAIN":
			r.Ns, r.Rcode = []dns.RR{record("tld. SOA ns.tld. admin.tld. 1 3600 600 86400 300")}, dns.RcodeNameError
		case "another DS":
			r.Answer = []dns.RR{record("example.tld. DS 1 15 2 " + fmt.Sprintf("%064d", 1))}
		}
		return r
	}
}

// TestResolverAsksOtherServersOfTheParentForDSWithoutProof has a server of the parent without the DS records of a
// zone. The other servers of the parent are queried, with or without glue.
func TestResolverAsksOtherServersOfTheParentForDSWithoutProof(t *testing.T) {
	for name, c := range map[string]struct{ tld, bad string }{
		"the first":                             {"tld. delegated 192.0.2.1 192.0.2.2", "192.0.2.1"},
		"the second":                            {"tld. delegated 192.0.2.1 192.0.2.2", "192.0.2.2"},
		"two of three":                          {"tld. delegated 192.0.2.1 192.0.2.2 192.0.2.3", "192.0.2.1 192.0.2.2"},
		"four of five":                          {"tld. delegated 192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4 192.0.2.5", "192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4"},
		"IPv4, and IPv6 is right":               {"tld. delegated 192.0.2.1 2001:db8::1", "192.0.2.1"},
		"IPv6, and IPv4 is right":               {"tld. delegated 192.0.2.1 2001:db8::1", "2001:db8::1"},
		"IPv4, without glue for IPv6":           {"tld. delegated 192.0.2.1\n  ns1 AAAA 2001:db8::1", "192.0.2.1"},
		"IPv4 twice, without glue for IPv6":     {"tld. delegated 192.0.2.1 192.0.2.2\n  ns2 AAAA 2001:db8::1", "192.0.2.1 192.0.2.2"},
		"a server with glue beside one without": {"tld. delegated 192.0.2.1\n  @ NS ns.other.", "192.0.2.1"},
	} {
		for _, denial := range []string{"SOA", "NXDOMAIN", "nothing", "another DS"} {
			t.Run(name+", "+denial, func(t *testing.T) {
				bubble(t, ". served 198.41.0.4\n"+c.tld+`
example.tld. delegated 192.0.3.1
  www A 192.0.2.80
other. delegated 192.0.5.1
  ns A 192.0.2.9
`, func(t *testing.T, w *testNetwork) {
					tld, root := w.zone("tld."), w.zone(".")
					for _, addr := range []string{"2001:db8::1", "192.0.2.9"} {
						if s := w.server(addr); !slices.Contains(s.zones, tld) {
							s.zones = append(s.zones, tld)
						}
					}
					root.sets["tld."][dns.TypeNS] = tld.sets["tld."][dns.TypeNS]
					w.sign("other.")
					w.setFault(c.bad, withoutDS(denial))
					for range 4 {
						for _, minimise := range []bool{true, false} {
							r := newValidatingResolver(w, func(r *recursor.Resolver) { r.NoMinimise = !minimise })
							n := w.countQueries()
							assert.Equal(t, "secure", w.security(r, "www.example.tld. A"))
							assert.Less(t, w.countQueries()-n, 40)
							_ = r.Close()
						}
					}
				})
			})
		}
	}
}
