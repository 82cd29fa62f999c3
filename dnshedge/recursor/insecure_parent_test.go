package recursor_test

import (
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
)

// TestZonesBelowAnInsecureZoneNeedNoDS has an unsigned zone, tld., whose server refuses questions for DS. The zones that it
// delegates are insecure, and once tld. is known to be so, it is not asked for their DS records.
func TestZonesBelowAnInsecureZoneNeedNoDS(t *testing.T) {
	bubble(t, `. served 198.41.0.4
tld. delegated 192.0.2.1
one.tld. delegated 192.0.2.2
  www A 192.0.2.81
two.tld. delegated 192.0.2.3
  www A 192.0.2.82
`, func(t *testing.T, w *testNetwork) {
		w.sign("tld.", "one.tld.", "two.tld.")
		refused := 0
		w.setFault("192.0.2.1", func(q query, r *dns.Msg) *dns.Msg {
			if q.qtype == dns.TypeDS && q.name != "tld." {
				refused++
				return respondRcode(dns.RcodeRefused)(q, r)
			}
			return r
		})
		r := newValidatingResolver(w)
		assert.Equal(t, "insecure", w.security(r, "www.one.tld. A"))
		first := refused
		assert.Equal(t, "insecure", w.security(r, "www.two.tld. A"))
		assert.Equal(t, first, refused, "questions for DS")
	})
}
