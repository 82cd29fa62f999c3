package dnssec_test

import (
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/dnssec"
)

// A DNAME record of a wildcard is refused with a valid signature and a valid proof (RFC 4592 §4.4), as unbound does. The CNAME record of
// a wildcard in the same zone is secure.
func TestValidatorRefusesDNAMERecordOfWildcard(t *testing.T) {
	bubble(t, ".\n  www.to A 192.0.2.80\n  x.to A 192.0.2.81\n  *.w DNAME to.\n  *.c CNAME www.to.\n", func(t *testing.T, u *upstreams, v *dnssec.Validator) {
		assert.Equal(t, "secure", security(t, v, "y.c. A"))
		u.set(func(q, r *dns.Msg) *dns.Msg {
			if q.Question[0].Name != "x.y.w." {
				return r
			}
			z := u.world.zones["."]
			r.Rcode, r.Answer, r.Ns = dns.RcodeSuccess, nil, nil
			for _, rr := range z.signed(z.sets["*.w."][dns.TypeDNAME]) {
				rr = dns.Copy(rr)
				rr.Header().Name = "y.w."
				r.Answer = append(r.Answer, rr)
			}
			r.Answer = append(r.Answer, record(t, "x.y.w. 300 IN CNAME x.to."))
			for _, rr := range z.chain.ProveNoCloserName("y.w.") {
				r.Ns = append(r.Ns, z.signed([]dns.RR{rr})...)
			}
			return r
		})
		r, err := ask(v, "x.y.w. A")
		assert.NoError(t, err)
		assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
		assert.Contains(t, r.IsEdns0().String(), "a DNAME record was synthesized from a wildcard")
	})
}
