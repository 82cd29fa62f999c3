package dnssec_test

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/dnssec"
)

const signedFacts = `
.
example.
corp.example.
  *  CNAME svc.sub.corp.example.
  y  CNAME no.sub.corp.example.
  d  DNAME sub.corp.example.
sub.corp.example.
  svc A 192.0.2.1
`

// An upstream, or somebody on the way, raises all TTLs and spells all owners in upper case. RFC 4035 section 5.3.3.
func TestValidatorTakesTTLsAndOwnersFromSignatures(t *testing.T) {
	for question, most := range map[string]uint32{
		"svc.sub.corp.example. A": 3600, "x.corp.example. A": 3600, "svc.d.corp.example. A": 3600, "no.example. A": 60, "svc.sub.corp.example. TXT": 300, "corp.example. DS": 3600,
	} {
		bubble(t, signedFacts, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
			u.world.zones["example."].sets["example."][dns.TypeSOA][0].Header().Ttl = 60 // MINIMUM is 300
			u.set(func(_, r *dns.Msg) *dns.Msg {
				for _, rrs := range [...][]dns.RR{r.Answer, r.Ns} {
					for i, rr := range rrs {
						rrs[i] = dns.Copy(rr)
						rrs[i].Header().Ttl, rrs[i].Header().Name = 604800, strings.ToUpper(rr.Header().Name)
					}
				}
				return r
			})
			m, err := ask(v, question)
			require.NoError(t, err)
			require.True(t, m.AuthenticatedData, m)
			for _, rr := range append(m.Answer, m.Ns...) {
				assert.LessOrEqual(t, rr.Header().Ttl, most, "%s: %v", question, rr)
				assert.Equal(t, strings.ToLower(rr.Header().Name), rr.Header().Name)
			}
		})
	}
}

// The response has the proof of the wildcard, of the anchor's zone, beside the denial of a zone below it.
func TestValidatorFindsTheZoneThatDeniesTheEndOfAnAlias(t *testing.T) {
	for _, question := range []string{"x.corp.example. AAAA", "x.corp.example. A", "y.corp.example. A", "y.corp.example. AAAA", "svc.d.corp.example. AAAA", "no.d.corp.example. A"} {
		for _, anchor := range []string{".", "example.", "corp.example."} {
			bubble(t, signedFacts, func(t *testing.T, u *upstreams, _ *dnssec.Validator) {
				v := &dnssec.Validator{Exchanger: u, Trust: dnssec.Trust{Anchors: []dns.RR{u.world.zones[anchor].key.ToDS(dns.SHA256)}}}
				defer v.Close()
				for range 2 {
					m, err := ask(v, question)
					require.NoError(t, err)
					assert.True(t, m.AuthenticatedData, "%s from %s: %v", question, anchor, m)
				}
			})
		}
	}
}

func TestTrustRejectsInsecureWildcard(t *testing.T) {
	v := &dnssec.Validator{Exchanger: new(upstreams), Trust: dnssec.Trust{Insecure: []string{"*.corp.example"}}}
	assert.EqualError(t, v.Validate(), `dnssec: Validator.Trust.Insecure has "*.corp.example"; want "corp.example.", which covers all names below it`)
}
