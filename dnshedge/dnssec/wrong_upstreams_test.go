package dnssec_test

import (
	"fmt"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/dnssec"
)

// forgedAll is an upstream whose signatures are all wrong, the same ones each time.
func forgedAll(_, r *dns.Msg) *dns.Msg {
	for _, rrs := range []*[]dns.RR{&r.Answer, &r.Ns} {
		for i, rr := range *rrs {
			if sig, ok := rr.(*dns.RRSIG); ok {
				wrong := *sig
				wrong.Signature = "AAAA" + wrong.Signature[4:]
				(*rrs)[i] = &wrong
			}
		}
	}
	return r
}

// A wrong signature that comes several times is one failed verification. Otherwise the right upstream was not heard any more: each key of four zones is
// asked three times of the wrong one.
func TestValidatorRejectsUpstreamWithInvalidSignatures(t *testing.T) {
	const zones = ".\none.\na.one.\nb.a.one.\n  www A 192.0.2.80\n"
	for _, question := range []string{"www.b.a.one. A", "no.b.a.one. A", "www.b.a.one. AAAA", "b.a.one. DNSKEY"} {
		bubble(t, zones, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
			u.order = []string{"192.0.2.1:53", "192.0.2.2:53", "192.0.2.3:53"}
			u.set(forgedAll)
			got := security(t, v, question)
			assert.Regexp(t, "^secure( NXDOMAIN)?$", got, question)
		})
	}
}

// Up to three upstreams are wrong, and the last one is right: of keys as of answers.
func TestValidatorAsksLastOfSeveralUpstreams(t *testing.T) {
	const zones = ".\none.\na.one.\n  www A 192.0.2.80\n"
	expired := func(_, r *dns.Msg) *dns.Msg {
		for _, rrs := range []*[]dns.RR{&r.Answer, &r.Ns} {
			for i, rr := range *rrs {
				if sig, ok := rr.(*dns.RRSIG); ok {
					old := *sig
					old.Inception, old.Expiration = 883612800, 883612800+86400
					(*rrs)[i] = &old
				}
			}
		}
		return r
	}
	for name, twists := range map[string][]twist{
		"two of three":   {expired, without(dns.TypeRRSIG)},
		"three of four":  {expired, without(dns.TypeRRSIG), expired},
		"forged, forged": {forgedAll, forgedAll},
	} {
		bubble(t, zones, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
			for i := range len(twists) + 1 {
				u.order = append(u.order, fmt.Sprintf("192.0.2.%d:53", i+1))
			}
			u.set(twists...)
			for _, question := range []string{"www.a.one. A", "no.a.one. A"} {
				assert.Regexp(t, "^secure( NXDOMAIN)?$", security(t, v, question), "%s: %s", name, question)
			}
		})
	}
}
