package dnshedge_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

func TestClientAsksSystemServersOfDomain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	bubble(t, func(l *lab) {
		all := l.serve("a", with("A 192.0.2.1"))
		l.serve("b", with("A 10.0.0.2"))
		l.serve("c", with("A 192.0.2.3"))
		require.NoError(t, os.WriteFile(file, []byte("nameserver "+l.net.Host("c").Addr().String()+"\n"), 0o600))
		resolver := func(domain, host string) string {
			return fmt.Sprintf("resolver #1\n%s  nameserver[0] : %s\n", domain, l.net.Host(host).Addr())
		}
		normal := resolver("", "a") + resolver("  domain : corp.example\n", "b") + resolver("  domain : test\n", "b")
		out, err := normal, error(nil)
		c := l.client(&dnshedge.Client{
			ResolvConf: file, Cache: new(dnshedge.Cache), SpecialUse: dnshedge.SpecialUseForwarder, RebindFilter: new(dnshedge.RebindFilter),
			Routes: map[string]dnshedge.Exchanger{"public.corp.example": exchangeFunc(func(m *dns.Msg) *dns.Msg {
				r := new(dns.Msg)
				r.SetRcode(m, dns.RcodeRefused)
				return r
			}), "corp.example": nil},
		})
		require.NoError(t, dnshedge.AskScutil(c, func() (string, error) { return out, err }))
		answers := func(want map[string]string) {
			t.Helper()
			for name, address := range want {
				r, _ := l.must(c, name)
				assert.Equal(t, address, addr(r), name)
			}
		}
		answers(map[string]string{
			"x.test.": "10.0.0.2", "corp.example.": "10.0.0.2", "X.Corp.Example.": "10.0.0.2", // private addresses, which are wanted there
			"xcorp.example.": "192.0.2.1", "example.": "192.0.2.1",
			"public.corp.example.": "", // Routes count more
		})
		assert.Len(t, c.Addresses("example."), 1)
		for _, name := range []string{"x.test.", "x.corp.example.", "public.corp.example."} {
			assert.Nil(t, c.Addresses(name), name)
		}

		// The question must not go to other servers if there is no response.
		out, err = "", errors.New("busy")
		time.Sleep(time.Minute)
		before := all.Queries.Load()
		answers(map[string]string{"y.corp.example.": "10.0.0.2"})
		assert.Equal(t, before, all.Queries.Load())

		out, err = "No DNS configuration available", nil
		time.Sleep(time.Minute)
		answers(map[string]string{"z.corp.example.": "192.0.2.3"})

		out = normal
		time.Sleep(time.Minute)
		answers(map[string]string{"z2.corp.example.": "10.0.0.2", "z2.example.": "192.0.2.1"})
	})
}

func TestClientReadsResolvConfWithoutScutil(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	bubble(t, func(l *lab) {
		l.serve("c", with("A 192.0.2.3"))
		require.NoError(t, os.WriteFile(file, []byte("nameserver "+l.net.Host("c").Addr().String()+"\n"), 0o600))
		c := l.client(&dnshedge.Client{ResolvConf: file})
		require.NoError(t, dnshedge.AskScutil(c, func() (string, error) { return "", os.ErrNotExist }))
		for range 2 {
			r, _ := l.must(c, "x.example.")
			assert.Equal(t, "192.0.2.3", addr(r))
			time.Sleep(time.Minute)
		}
	})
}

func TestProbeFindsRecoveredServerOfDomain(t *testing.T) {
	for name, outage := range map[string]dnstest.Handler{"silence": drop, "SERVFAIL": rcode(dns.RcodeServerFailure), "REFUSED": rcode(dns.RcodeRefused)} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(l *lab) {
				end := time.Now().Add(20 * time.Second)
				l.serve("a", switchable(end, outage, with("A 10.0.0.1")))
				l.serve("b", with("A 10.0.0.2"))
				c := l.client(&dnshedge.Client{ResolvConf: l.resolvConf("", "c")})
				out := fmt.Sprintf("resolver #1\n  nameserver[0] : %s\nresolver #2\n  domain : corp.example\n  nameserver[0] : %s\n  nameserver[1] : %s\n",
					l.net.Host("c").Addr(), l.net.Host("a").Addr(), l.net.Host("b").Addr())
				require.NoError(t, dnshedge.AskScutil(c, func() (string, error) { return out, nil }))
				for i := 0; time.Now().Before(end); i++ {
					l.must(c, fmt.Sprintf("outage%d.corp.example.", i))
					time.Sleep(500 * ms)
				}
				time.Sleep(10 * time.Second)
				for i := range 4 {
					r, _ := l.must(c, fmt.Sprintf("back%d.corp.example.", i))
					if i > 0 {
						assert.Equal(t, "10.0.0.1", addr(r))
					}
					time.Sleep(5 * time.Second)
				}
			})
		})
	}
}
