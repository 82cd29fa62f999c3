package recursor_test

import (
	"net/netip"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/recursor"
)

func TestResolverReportsRefusalOfStubServer(t *testing.T) {
	for code, refused := range map[int]bool{dns.RcodeRefused: true, dns.RcodeServerFailure: false} {
		bubble(t, ". served 198.41.0.4\ncorp. served 192.0.2.1\n  www A 192.0.2.80\n", func(t *testing.T, w *testNetwork) {
			w.setFault("192.0.2.1", respondRcode(code))
			r := w.resolver(func(r *recursor.Resolver) {
				r.Zones = map[string][]netip.AddrPort{"corp": {netip.MustParseAddrPort("192.0.2.1:53")}}
			})
			m := w.ask(r, "www.corp. A")
			assert.Equal(t, "SERVFAIL", formatResponse(m))
			_, text := readExtendedError(m)
			assert.Contains(t, text, "no server answers: zone corp.")
			if refused {
				assert.Contains(t, text, "a server of Resolver.Zones has refused a query without RD")
			} else {
				assert.NotContains(t, text, "refused")
			}
		})
	}
}
