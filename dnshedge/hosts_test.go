package dnshedge_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
)

func hostsFile(t *testing.T, text string) string {
	return write(t, filepath.Join(t.TempDir(), "hosts"), text)
}

func TestHostsFileComesFirst(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", with("A 198.51.100.1"))
		c := l.client(&dnshedge.Client{SpecialUse: dnshedge.SpecialUseForwarder, Hosts: hostsFile(t, `
# a comment
127.0.0.1 localhost
10.0.0.7	Printer.home.arpa printer # its name, an alias
2001:db8::7 printer
10.0.0.8 printer
10.0.0.7 second
0.0.0.0 ads.example
fe80::1%eth0 zone
300.1.1.1 bad
10.0.0.9
10.0.0.9 `+"a..b"+`
10.0.0.11 `+strings.Repeat("x", 64)+` fits.example
::ffff:10.0.0.10 mapped.example.
`)}, l.up("udp", "a"))
		for _, row := range []struct {
			name    string
			typ     uint16
			answers []string
		}{
			{"printer.", dns.TypeA, []string{"10.0.0.7", "10.0.0.8"}},
			{"PRINTER.home.arpa.", dns.TypeA, []string{"10.0.0.7"}},
			{"printer.", dns.TypeAAAA, []string{"2001:db8::7"}},
			{"printer.home.arpa.", dns.TypeAAAA, nil},
			{"printer.home.arpa.", dns.TypeHTTPS, nil},
			{"ads.example.", dns.TypeA, []string{"0.0.0.0"}},
			{"ads.example.", dns.TypeAAAA, nil},
			{"mapped.example.", dns.TypeA, []string{"10.0.0.10"}},
			{reverse(l, "10.0.0.7"), dns.TypePTR, []string{"Printer.home.arpa."}},
			{reverse(l, "2001:db8::7"), dns.TypePTR, []string{"printer."}},
			{reverse(l, "10.0.0.11"), dns.TypePTR, []string{"fits.example."}},
		} {
			r, queries := asks(l, c, row.name, row.typ)
			assert.Zero(t, queries, row.name)
			assert.Equal(t, dns.RcodeSuccess, r.Rcode)
			var got []string
			for _, rr := range r.Answer {
				assert.Equal(t, row.name, rr.Header().Name)
				assert.EqualValues(t, 30, rr.Header().Ttl)
				got = append(got, dns.Field(rr, 1))
			}
			assert.Equal(t, row.answers, got, "%s %s", row.name, dns.TypeToString[row.typ])
			if row.answers == nil {
				require.Len(t, r.Ns, 1)
				assert.Equal(t, row.name, r.Ns[0].(*dns.SOA).Hdr.Name)
			}
		}
		for name, typ := range map[string]uint16{
			"printer.": dns.TypeMX, "zone.": dns.TypeA, "bad.": dns.TypeA, "other.example.": dns.TypeA, "0.0.0.0.in-addr.arpa.": dns.TypeDS,
		} {
			r, queries := asks(l, c, name, typ)
			if name == "0.0.0.0.in-addr.arpa." {
				assert.Equal(t, dns.RcodeNameError, r.Rcode, "the unspecified address has no name")
				continue
			}
			assert.EqualValues(t, 1, queries, name)
		}
	})
}

func TestHostsFileIsReadAgainWhenItChanges(t *testing.T) {
	path := hostsFile(t, "192.0.2.1 x.example\n")
	bubble(t, func(l *lab) {
		l.serve("a", with("A 198.51.100.1"))
		c := l.client(&dnshedge.Client{Hosts: path}, l.up("udp", "a"))
		is := func(want string) {
			t.Helper()
			r, _ := l.must(c, "x.example.")
			assert.Equal(t, want, addr(r))
		}
		is("192.0.2.1")
		write(t, path, "192.0.2.22 x.example\n")
		is("192.0.2.1")
		time.Sleep(5 * time.Second)
		is("192.0.2.22")
		require.NoError(t, os.Remove(path))
		time.Sleep(5 * time.Second)
		is("192.0.2.22") // rather than none
		write(t, path, "")
		time.Sleep(5 * time.Second)
		is("198.51.100.1")
	})
}

func TestHostsFileLongIsReadInBackground(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", with("A 198.51.100.1"))
		long := func(ip string) string { // the first line is very long, and the last line has no line feed
			return "# " + strings.Repeat("a comment of many words ", 5000) + "\n" + ip + " printer.home.arpa"
		}
		path := hostsFile(t, long("10.0.0.7"))
		c := l.client(&dnshedge.Client{SpecialUse: dnshedge.SpecialUseForwarder, Hosts: path}, l.up("udp", "a"))
		ask := func() string {
			r, queries := asks(l, c, "printer.home.arpa.", dns.TypeA)
			assert.Zero(t, queries)
			return addr(r)
		}
		assert.Equal(t, "10.0.0.7", ask())
		write(t, path, long("10.0.0.88"))
		time.Sleep(6 * time.Second)
		ask() // the old address, unless the file was read in the meantime
		synctest.Wait()
		assert.Equal(t, "10.0.0.88", ask())
	})
}

func TestHostsFileLimitsAddressesPerName(t *testing.T) {
	var b strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&b, "10.0.%d.%d many.home.arpa\n", i/256, i%256)
	}
	c := &dnshedge.Client{Hosts: hostsFile(t, b.String())}
	defer c.Close()
	r, _, err := c.Exchange(question("many.home.arpa.", dns.TypeA), "")
	require.NoError(t, err)
	assert.Len(t, r.Answer, 256)
}

func TestHostsFileThatCannotBeReadIsAnError(t *testing.T) {
	c := &dnshedge.Client{Hosts: filepath.Join(t.TempDir(), "none")}
	_, _, err := c.Exchange(question("x.", dns.TypeA), "")
	assert.ErrorIs(t, err, os.ErrNotExist)
	assert.ErrorContains(t, err, "dnshedge: Client.Hosts: ")
}

func TestExchangerAnswersOtherTypesOfNamesInHostsFile(t *testing.T) {
	c := &dnshedge.Client{Exchanger: echoExchanger{}, Hosts: hostsFile(t, "192.0.2.1 x.example\n")}
	defer c.Close()
	m, _, err := c.ExchangeContext(t.Context(), new(dns.Msg).SetQuestion("x.example.", dns.TypeTXT), "")
	require.NoError(t, err)
	assert.Equal(t, dns.RcodeSuccess, m.Rcode)
}

// An echoExchanger answers each query without records.
type echoExchanger struct{}

func (echoExchanger) ExchangeContext(_ context.Context, m *dns.Msg, _ string) (*dns.Msg, time.Duration, error) {
	return new(dns.Msg).SetReply(m), 0, nil
}
