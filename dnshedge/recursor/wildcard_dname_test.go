package recursor_test

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
)

// TestResolverRefusesDNAMERecordOfWildcard has a wildcard DNAME record with valid signature and proof (RFC 4592
// §4.4). The Validator and unbound refuse it as well. A wildcard CNAME record in the same zone is secure.
func TestResolverRefusesDNAMERecordOfWildcard(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
example. delegated 192.0.2.1
  www.to A 192.0.2.80
  x.to A 192.0.2.81
  *.w DNAME to.example.
  *.c CNAME www.to.example.
`, func(t *testing.T, w *testNetwork) {
		w.sign()
		w.setFault("192.0.2.1", func(q query, r *dns.Msg) *dns.Msg {
			if !strings.HasSuffix(q.name, "y.w.example.") {
				return r
			}
			z := w.zone("example.")
			set := z.sets["*.w.example."]
			r.Rcode, r.Answer, r.Ns = dns.RcodeSuccess, nil, z.coveringNSEC("y.w.example.")
			for _, rr := range append(set[dns.TypeDNAME][:1:1], set[dns.TypeRRSIG]...) {
				if sig, ok := rr.(*dns.RRSIG); ok && sig.TypeCovered != dns.TypeDNAME {
					continue
				}
				rr = dns.Copy(rr)
				rr.Header().Name = "y.w.example."
				r.Answer = append(r.Answer, rr)
			}
			if prefix := strings.TrimSuffix(q.name, "y.w.example."); prefix != "" {
				r.Answer = append(r.Answer, record(q.name+" 300 IN CNAME "+prefix+"to.example."))
			}
			return r
		})
		r := newValidatingResolver(w, noMinimise)
		assert.Equal(t, "secure", w.security(r, "y.c.example. A"))
		m := w.ask(r, "x.y.w.example. A")
		assert.Equal(t, dns.RcodeServerFailure, m.Rcode)
		_, text := readExtendedError(m)
		assert.Contains(t, text, "a DNAME record was synthesized from a wildcard")
	})
}
