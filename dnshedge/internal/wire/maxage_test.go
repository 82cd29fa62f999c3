package wire_test

import (
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

func TestHTTPMaxAge(t *testing.T) {
	const (
		alias = "a.example. 86400 CNAME b.example."
		soa   = "example. 3600 SOA ns. mail. 1 1 1 1 60"
	)
	for name, row := range map[string]struct {
		rcode             int
		truncated         bool
		answer, authority []string
		want              uint32
	}{
		"address":                  {answer: []string{"a.example. 300 A 192.0.2.1", "a.example. 200 A 192.0.2.2"}, want: 200},
		"alias and address":        {answer: []string{alias, "b.example. 30 A 192.0.2.1"}, want: 30},
		"NODATA":                   {authority: []string{soa}, want: 60},
		"NXDOMAIN":                 {rcode: dns.RcodeNameError, authority: []string{soa}, want: 60},
		"alias and NODATA":         {answer: []string{alias}, authority: []string{soa}, want: 60},
		"alias and NXDOMAIN":       {rcode: dns.RcodeNameError, answer: []string{alias}, authority: []string{soa}, want: 60},
		"alias, NXDOMAIN, no SOA":  {rcode: dns.RcodeNameError, answer: []string{alias}},
		"nothing":                  {},
		"truncated":                {truncated: true, answer: []string{"a.example. 300 A 192.0.2.1"}},
		"SERVFAIL":                 {rcode: dns.RcodeServerFailure, answer: []string{"a.example. 300 A 192.0.2.1"}},
		"largest TTL of RFC 2181":  {answer: []string{"a.example. 4294967295 A 192.0.2.1"}, want: 1<<31 - 1},
		"referral without SOA":     {authority: []string{"example. 300 NS ns.example."}},
		"answer with NS authority": {answer: []string{"a.example. 300 A 192.0.2.1"}, authority: []string{"example. 20 NS ns.example."}, want: 300},
	} {
		m := new(dns.Msg).SetQuestion("a.example.", dns.TypeA)
		m.Response, m.Rcode, m.Truncated = true, row.rcode, row.truncated
		for _, s := range row.answer {
			m.Answer = append(m.Answer, parseRR(t, s))
		}
		for _, s := range row.authority {
			m.Ns = append(m.Ns, parseRR(t, s))
		}
		b, err := m.Pack()
		require.NoError(t, err)
		assert.Equal(t, row.want, wire.HTTPMaxAge(b), name)
	}
	assert.Zero(t, wire.HTTPMaxAge(nil))
}

func parseRR(t *testing.T, s string) dns.RR {
	rr, err := dns.NewRR(s)
	require.NoError(t, err)
	return rr
}
