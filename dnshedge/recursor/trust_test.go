package recursor_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/recursor"
)

// newValidatingResolver returns a Resolver that validates from the root of a signed testNetwork.
func newValidatingResolver(w *testNetwork, set ...func(*recursor.Resolver)) *recursor.Resolver {
	r := w.resolver(func(r *recursor.Resolver) { r.Trust = dnssec.Trust{Anchors: []dns.RR{w.zone(".").signer.ds()}} })
	for _, f := range set {
		f(r)
	}
	return r
}

// security returns the security status of an answer: secure, insecure, or the code of the extended error of a bogus
// answer. It adds the RCODE if that is not as expected.
func (w *testNetwork) security(r *recursor.Resolver, question string) string {
	w.t.Helper()
	q := parseQuestion(question)
	if q.IsEdns0() != nil {
		q.IsEdns0().SetDo()
	}
	m, _, err := r.ExchangeContext(context.Background(), q, "")
	require.NoError(w.t, err)
	code, _ := readExtendedError(m)
	switch {
	case m.Rcode == dns.RcodeServerFailure:
		return fmt.Sprint("bogus ", code)
	case m.AuthenticatedData:
		return "secure"
	case code != 0:
		return fmt.Sprint("insecure ", code)
	}
	return "insecure"
}

const signed = `
. served 198.41.0.4
tld. delegated 192.0.2.1
example.tld. delegated 192.0.3.1 192.0.3.2
  www A 192.0.2.80
  a.b.c A 192.0.2.81
  *.w TXT any
  alias CNAME www
  mail A 192.0.2.86
  gone CNAME no
  out CNAME www.unsigned.tld.
  bad CNAME www.broken.tld.
  d DNAME e
  x.e A 192.0.2.84
unsigned.tld. delegated 192.0.3.3
  www A 192.0.2.82
  in CNAME www.example.tld.
below.unsigned.tld. delegated 192.0.3.5
  www A 192.0.2.85
broken.tld. delegated 192.0.3.4
  www A 192.0.2.83
`

// signZones signs the zones of signed. unsigned. has no keys, and the signatures of broken. are invalid.
func signZones(w *testNetwork) {
	w.sign("unsigned.tld.")
	w.setFault("192.0.3.4", forged)
}

func TestResolverReportsSecurityOfAnswers(t *testing.T) {
	for question, want := range map[string]string{
		"www.example.tld. A":        "secure",
		"a.b.c.example.tld. A":      "secure",
		"c.example.tld. A":          "secure", // an empty non-terminal
		"no.example.tld. A":         "secure",
		"no.no.no.example.tld. A":   "secure",
		"www.example.tld. AAAA":     "secure",
		"x.w.example.tld. TXT":      "secure",
		"x.y.w.example.tld. TXT":    "secure",
		"x.w.example.tld. A":        "secure",
		"alias.example.tld. A":      "secure",
		"gone.example.tld. A":       "secure",
		"x.d.example.tld. A":        "secure",
		"example.tld. DNSKEY":       "secure",
		"example.tld. DS":           "secure",
		"example.tld. SOA":          "secure",
		"tld. NS":                   "secure",
		"unsigned.tld. DS":          "secure",
		". SOA":                     "secure",
		". DNSKEY":                  "secure",
		"nothing. A":                "secure",
		"out.example.tld. A":        "insecure",
		"www.unsigned.tld. A":       "insecure",
		"no.unsigned.tld. A":        "insecure",
		"in.unsigned.tld. A":        "insecure",
		"www.below.unsigned.tld. A": "insecure",
		"below.unsigned.tld. DS":    "insecure",
		"www.example.tld. RRSIG":    "insecure",
		"localhost. A":              "insecure",
		"www.broken.tld. A":         "bogus 6",
		"bad.example.tld. A":        "bogus 6",
		"no.broken.tld. A":          "bogus 6",
	} {
		t.Run(question, func(t *testing.T) {
			bubble(t, signed, func(t *testing.T, w *testNetwork) {
				signZones(w)
				r := newValidatingResolver(w)
				assert.Equal(t, want, w.security(r, question))
				assert.Equal(t, want, w.security(r, question), "when the keys are cached")
				time.Sleep(2 * time.Hour)
				assert.Equal(t, want, w.security(r, question), "when the keys have expired")
			})
		})
	}
}

func TestResolverRejectsSignedZoneServerWithoutEDNS(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
example. delegated 192.0.2.1 192.0.2.2
  www A 192.0.2.80
  mail A 192.0.2.81
`, func(t *testing.T, w *testNetwork) {
		w.sign()
		w.setFault("192.0.2.1", func(q query, r *dns.Msg) *dns.Msg {
			if q.IsEdns0() != nil {
				return respondRcode(dns.RcodeFormatError)(q, r)
			}
			return r
		})
		r := newValidatingResolver(w)
		for _, name := range []string{"www", "mail"} {
			for range 5 {
				assert.Equal(t, "secure", w.security(r, name+".example. A"))
				time.Sleep(time.Second)
			}
		}
		for _, a := range w.queriesSince(0) {
			assert.NotNil(t, a.msg.IsEdns0(), a)
		}
		assert.LessOrEqual(t, w.countQueries("192.0.2.1"), 2, "except for two concurrent queries, the server is not queried again for 15 minutes")
	})
}
