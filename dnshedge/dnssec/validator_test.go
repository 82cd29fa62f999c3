package dnssec_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/dnssec"
)

const estate = `
.
example.
  @ A 192.0.2.1
  www A 192.0.2.80
  a.b.c A 192.0.2.81
  *.w TXT any
  alias CNAME www.example.
  gone CNAME no.example.
  out CNAME www.plain.
  far CNAME x.d.other.
  bad CNAME www.expired.
  unsigned TXT here
other. nsec3
  d DNAME e.other.
  x.e A 192.0.2.84
  *.w TXT any
deep.other. nsec3
  www A 192.0.2.85
plain. unsigned
  www A 192.0.2.82
  in CNAME www.example.
sub.plain. unsigned
  www A 192.0.2.83
signed.plain.
  www A 192.0.2.86
optout. optout
  www A 192.0.2.87
child.optout. unsigned
  www A 192.0.2.88
many. iterations
  www A 192.0.2.89
expired. expired
  www A 192.0.2.90
forged. forged
  www A 192.0.2.91
`

func TestValidatorReportsSecurityOfAnswers(t *testing.T) {
	for question, want := range map[string]string{
		". SOA":                "secure",
		". DNSKEY":             "secure",
		"nothing. A":           "secure NXDOMAIN",
		"example. A":           "secure",
		"example. DS":          "secure",
		"example. DNSKEY":      "secure",
		"www.example. A":       "secure",
		"WWW.Example. A":       "secure",
		"www.example. AAAA":    "secure",
		"a.b.c.example. A":     "secure",
		"c.example. A":         "secure",
		"no.example. A":        "secure NXDOMAIN",
		"no.no.no.example. A":  "secure NXDOMAIN",
		"x.w.example. TXT":     "secure",
		"x.y.w.example. TXT":   "secure",
		"x.w.example. A":       "secure",
		"alias.example. A":     "secure",
		"alias.example. CNAME": "secure",
		"gone.example. A":      "secure NXDOMAIN",
		"far.example. A":       "secure",
		"x.d.other. A":         "secure",
		"x.d.other. CNAME":     "secure",
		"no.d.other. A":        "secure NXDOMAIN",
		"no.other. A":          "secure NXDOMAIN",
		"x.w.other. TXT":       "secure",
		"x.w.other. A":         "secure",
		"www.deep.other. A":    "secure",
		"deep.other. DS":       "secure",
		"no.deep.other. A":     "secure NXDOMAIN",
		"plain. DS":            "secure",
		"www.optout. A":        "secure",
		"out.example. A":       "insecure",
		"www.plain. A":         "insecure",
		"no.plain. A":          "insecure NXDOMAIN",
		"in.plain. A":          "insecure",
		"www.sub.plain. A":     "insecure",
		"sub.plain. DS":        "insecure",
		"www.signed.plain. A":  "insecure", // whose parent cannot vouch for it
		"www.child.optout. A":  "insecure",
		"child.optout. DS":     "insecure",
		"no.optout. A":         "insecure NXDOMAIN", // opt-out
		"no.many. A":           "insecure NXDOMAIN 27",
		"www.example. RRSIG":   "insecure",
		"www.expired. A":       "bogus 7",
		"no.expired. A":        "bogus 7",
		"www.expired. AAAA":    "bogus 7",
		"bad.example. A":       "bogus 7",
		"www.forged. A":        "bogus 6",
		"no.forged. A":         "bogus 6",
	} {
		t.Run(question, func(t *testing.T) {
			bubble(t, estate, func(t *testing.T, _ *upstreams, v *dnssec.Validator) {
				assert.Equal(t, want, security(t, v, question))
				assert.Equal(t, want, security(t, v, question), "when keys are known")
				time.Sleep(48 * time.Hour)
				assert.Equal(t, want, security(t, v, question), "when they are known no more")
			})
		})
	}
}
