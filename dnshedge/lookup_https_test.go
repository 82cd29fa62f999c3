package dnshedge_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

func TestLookupHTTPSReturnsRecords(t *testing.T) {
	records := map[string][]string{
		"plain.example.":              {`300 HTTPS 2 fallback.example. alpn="h2" port="8443"`, `300 HTTPS 1 . alpn="h3,h2" no-default-alpn ipv4hint="192.0.2.1" ipv6hint="2001:db8::1" ech="AAE="`},
		"_8443._https.plain.example.": {`60 HTTPS 1 other.example.`},
		"cname.example.":              {`20 CNAME plain2.example.`, `plain2.example. 300 HTTPS 1 . alpn="h2"`},
		"alias.example.":              {`30 HTTPS 0 pool.example.`, `300 HTTPS 1 ignored.example.`},
		"pool.example.":               {`300 HTTPS 1 . alpn="h2"`},
		"bare.example.":               {`30 HTTPS 0 none.example.`},
		"closed.example.":             {`300 HTTPS 0 .`},
		"loop.example.":               {`300 HTTPS 0 loop.example.`},
		"odd.example.":                {`300 HTTPS 1 . no-default-alpn`, `300 HTTPS 1 . mandatory=alpn,key100 alpn=h2 key100=x`, `300 HTTPS 1 . mandatory=port alpn=h2`, `300 HTTPS 3 . alpn="h2"`},
	}
	bubble(t, func(l *lab) {
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			if rrs, ok := records[q.Question[0].Name]; ok && q.Question[0].Qtype == dns.TypeHTTPS {
				return dnstest.Reply{Msg: dnstest.Answer(q, rrs...)}
			}
			return zone(q)
		})
		c := l.client(off(), l.up("udp", "a"))
		h2 := []string{"h2", "http/1.1"}
		for _, test := range []struct {
			host string
			port uint16
			want []dnshedge.HTTPSService
		}{
			{"plain.example", 443, []dnshedge.HTTPSService{
				{
					Priority: 1, Target: "plain.example.", ALPN: []string{"h3", "h2"}, ECH: []byte{0, 1}, TTL: 300 * time.Second,
					Hints: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
				},
				{Priority: 2, Target: "fallback.example.", Port: 8443, ALPN: h2, TTL: 300 * time.Second},
			}},
			{"plain.example.", 8443, []dnshedge.HTTPSService{{Priority: 1, Target: "other.example.", ALPN: []string{"http/1.1"}, TTL: time.Minute}}},
			{"cname.example", 0, []dnshedge.HTTPSService{{Priority: 1, Target: "plain2.example.", ALPN: h2, TTL: 20 * time.Second}}},
			{"alias.example", 0, []dnshedge.HTTPSService{{Priority: 1, Target: "pool.example.", ALPN: h2, TTL: 30 * time.Second}}},
			{"bare.example", 0, []dnshedge.HTTPSService{{Target: "none.example.", TTL: 30 * time.Second}}},
			{"odd.example", 0, []dnshedge.HTTPSService{{Priority: 3, Target: "odd.example.", ALPN: h2, TTL: 300 * time.Second}}},
			{"mx.example", 0, nil},
			{"nx.example", 0, nil},
		} {
			got, err := c.LookupHTTPS(background, test.host, test.port)
			require.NoError(t, err, test.host)
			assert.Equal(t, test.want, got, test.host)
		}
		for host, notFound := range map[string]bool{"closed.example": true, "loop.example": false, "broken.example": false} {
			_, err := c.LookupHTTPS(background, host, 0)
			var e *net.DNSError
			require.ErrorAs(t, err, &e, host)
			assert.Equal(t, notFound, e.IsNotFound, host)
		}
	})
}

// RFC 9460 §2.2.
func TestLookupHTTPSIgnoresAllRecordsIfOneIsMalformed(t *testing.T) {
	for _, rdata := range []string{"0001" + "00" + "0003" + "0001" + "01" /* a port of one byte */, "00"} {
		bubble(t, func(l *lab) {
			l.serve("a", func(q dnstest.Query) dnstest.Reply {
				m := dnstest.Answer(q, `HTTPS 2 . alpn=h2`)
				h := dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeHTTPS, Class: dns.ClassINET, Ttl: 300}
				m.Answer = append(m.Answer, &dns.RFC3597{Hdr: h, Rdata: rdata})
				return dnstest.Reply{Msg: m}
			})
			c := l.client(&dnshedge.Client{}, l.up("udp", "a"))
			got, err := c.LookupHTTPS(background, "www.example.", 0)
			require.NoError(t, err)
			assert.Empty(t, got)
		})
	}
}
