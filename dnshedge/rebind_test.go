package dnshedge_test

import (
	"slices"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

func TestRebindFilterRemovesPrivateAddresses(t *testing.T) {
	const public = "A 198.51.100.1"
	for _, row := range []struct {
		records []string
		left    int
	}{
		{[]string{public}, 1},
		{[]string{"A 10.0.0.1"}, 0},
		{[]string{"A 172.31.0.1"}, 0},
		{[]string{"A 172.32.0.1"}, 1},
		{[]string{"A 192.168.0.1", public}, 1},
		{[]string{"A 127.0.0.1"}, 0},
		{[]string{"A 169.254.169.254"}, 0},
		{[]string{"A 100.64.0.1"}, 0},
		{[]string{"A 0.0.0.0"}, 0},
		{[]string{"A 192.0.0.192"}, 0}, // the metadata service of a cloud
		{[]string{"AAAA 64:ff9b::c000:c0"}, 0},
		{[]string{"A 192.0.0.170", "A 192.0.0.171", "A 192.0.0.9", "A 192.0.0.10"}, 4},
		{[]string{"A 0.1.2.3"}, 0},
		{[]string{"AAAA 2001:db8::1"}, 1},
		{[]string{"AAAA ::1"}, 0},
		{[]string{"AAAA ::"}, 0},
		{[]string{"AAAA fe80::1"}, 0},
		{[]string{"AAAA fd12::1"}, 0},
		{[]string{"AAAA fec0::1"}, 0},
		{[]string{"AAAA 64:ff9b:1::c0a8:101"}, 0},
		{[]string{"AAAA 64:ff9b:2::c0a8:101"}, 1},
		{[]string{"AAAA ::ffff:10.0.0.1"}, 0},
		{[]string{"AAAA ::10.0.0.1"}, 0},
		{[]string{"AAAA 64:ff9b::a00:1"}, 0},
		{[]string{"AAAA 64:ff9b::c633:6401"}, 1},
		{[]string{"AAAA 64:ff9b::"}, 0},
		{[]string{"AAAA 64:ff9b::7f00:1"}, 0},
		{[]string{"AAAA ::ffff:0.0.0.0"}, 0},
		{[]string{"AAAA ::ffff:169.254.169.254"}, 0},
		{[]string{"AAAA 2002:a00:1::1"}, 0},
		{[]string{"AAAA 2002:c633:6401::1"}, 1},
		{[]string{`HTTPS 1 . ipv4hint="10.0.0.1"`}, 0},
		{[]string{`HTTPS 1 . ipv6hint="2001:db8::1,fd00::1"`}, 0},
		{[]string{`HTTPS 1 . ipv4hint="198.51.100.1"`}, 1},
		{[]string{`SVCB 1 . ipv4hint="127.0.0.1"`}, 0},
		{[]string{"CNAME router.corp.example.", "router.corp.example. A 10.0.0.1"}, 1}, // the CNAME
		{[]string{`TXT "10.0.0.1"`}, 1},
	} {
		bubble(t, func(l *lab) {
			l.serve("a", func(q dnstest.Query) dnstest.Reply {
				m := dnstest.Answer(q, row.records...)
				m.AuthenticatedData = true
				return dnstest.Reply{Msg: m}
			})
			last, err := dnstest.RR("x.", row.records[len(row.records)-1])
			require.NoError(t, err)
			ask := func(c *dnshedge.Client, name string) *dns.Msg {
				m := question(name, last.Header().Rrtype)
				m.SetEdns0(1232, true)
				r, _, err := c.Exchange(m, "")
				require.NoError(t, err)
				return r
			}
			filter := &dnshedge.RebindFilter{Allow: []string{"corp.example", "Other.example."}}
			c := l.client(&dnshedge.Client{RebindFilter: filter, Cache: new(dnshedge.Cache)}, l.up("udp", "a"))
			for range 2 {
				r := ask(c, "x.example.")
				assert.Equal(t, dns.RcodeSuccess, r.Rcode)
				assert.Len(t, r.Answer, row.left, row.records)
				blocked := row.left < len(row.records)
				assert.Equal(t, blocked, slices.Contains(edes(r), 15), row.records)
				assert.Equal(t, !blocked, r.AuthenticatedData, row.records)
			}
			for _, name := range []string{"corp.example.", "a.b.CORP.example.", "x.other.example."} {
				r := ask(c, name)
				assert.Len(t, r.Answer, len(row.records), "%s may have them", name)
				assert.True(t, r.AuthenticatedData)
			}
			assert.Len(t, ask(c, "notcorp.example.").Answer, row.left)
			without := l.client(&dnshedge.Client{}, l.up("udp", "a"))
			assert.Len(t, ask(without, "x.example.").Answer, len(row.records))
			require.Equal(t, []string{"corp.example", "Other.example."}, filter.Allow)
		})
	}
}

func TestRebindFilterFiltersExchanger(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", with("A 10.0.0.1"))
		c := l.client(&dnshedge.Client{
			RebindFilter: new(dnshedge.RebindFilter), Exchanger: l.client(new(dnshedge.Client), l.up("udp", "a")),
		})
		r, _ := l.must(c, "x.example.")
		assert.Empty(t, r.Answer)
	})
}

func TestRebindFilterReportsInvalidDomain(t *testing.T) {
	c := &dnshedge.Client{RebindFilter: &dnshedge.RebindFilter{Allow: []string{"a..b"}}}
	_, _, err := c.Exchange(question("x.", dns.TypeA), "")
	assert.EqualError(t, err, `dnshedge: RebindFilter.Allow has "a..b"; want domain names`)
}
