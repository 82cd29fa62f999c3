package dnshedge_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/internal/dnstest"
)

func TestZeroClientAsksSystemServers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	write := func(lines ...string) {
		require.NoError(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	}
	bubble(t, func(l *lab) {
		l.serve("a", with("A 192.0.2.1"))
		l.serve("b", with("A 192.0.2.2"))
		write("# a comment", "nameserver "+l.net.Host("a").Addr().String(), "options ndots:5")
		c := l.client(&dnshedge.Client{ResolvConf: file})
		r, _ := l.must(c, "x.example.")
		assert.Equal(t, "192.0.2.1", addr(r))
		write("nameserver " + l.net.Host("b").Addr().String() + " ")
		r, _ = l.must(c, "x.example.")
		assert.Equal(t, "192.0.2.1", addr(r), "looked at every five seconds")
		time.Sleep(5 * time.Second)
		r, _ = l.must(c, "x.example.")
		assert.Equal(t, "192.0.2.2", addr(r))
		require.NoError(t, os.Remove(file))
		time.Sleep(5 * time.Second)
		_, _, err := l.ask(c, "x.example.")
		require.ErrorContains(t, err, "127.0.0.1:53")
	})
}

func TestCacheDropsAnswersWhenSystemServersChange(t *testing.T) {
	bubble(t, func(l *lab) {
		never := func(q dnstest.Query) dnstest.Reply {
			return dnstest.Reply{Msg: dnstest.Negative(q, dns.RcodeNameError, 3600, 3600)}
		}
		office := l.serve("b", with("3600 A 10.0.0.5"))
		l.serve("a", never)
		at, wrote := filepath.Join(l.TempDir(), "resolv.conf"), time.Now()
		write := func(from string) {
			b, err := os.ReadFile(from)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(at, b, 0o600))
			wrote = wrote.Add(time.Second)
			require.NoError(t, os.Chtimes(at, wrote, wrote))
			time.Sleep(5 * time.Second)
		}
		route := &exchanger{addr: "192.0.2.9"}
		write(l.resolvConf("", "a"))
		c := l.client(&dnshedge.Client{
			Cache: new(dnshedge.Cache), ResolvConf: at, Routes: map[string]dnshedge.Exchanger{"route.example": route},
		})
		says := func(name, want, when string) {
			t.Helper()
			r, _ := l.must(c, name)
			assert.Equal(t, want, addr(r), "%s: %s", name, when)
		}
		says("wiki.example.", "", "at home")
		says("x.route.example.", "192.0.2.9", "at home")

		write(l.resolvConf("", "b", "a"))
		says("wiki.example.", "10.0.0.5", "the VPN is up, although the other server is still there")
		asked := office.Queries.Load()
		write(l.resolvConf("", "b", "a"))
		says("wiki.example.", "10.0.0.5", "the file was written, with the same servers")
		assert.Equal(t, asked, office.Queries.Load(), "nothing was forgotten")

		write(l.resolvConf("", "a"))
		says("wiki.example.", "", "the VPN is down: not even as what has expired")
		says("x.route.example.", "192.0.2.9", "whom the route names is still asked")
		assert.Len(t, route.asked, 1)
	})
}

// wrapper is an Exchanger that passes queries to another Exchanger.
type wrapper struct{ dnshedge.Exchanger }

func (w wrapper) Unwrap() any { return w.Exchanger }

func TestCacheDropsAnswersOfInnerClientWhenSystemServersChange(t *testing.T) {
	for name, set := range map[string]func(l *lab, c, below *dnshedge.Client){
		"Exchanger": func(_ *lab, c, below *dnshedge.Client) { c.Exchanger = below },
		"route": func(_ *lab, c, below *dnshedge.Client) {
			c.Exchanger, c.Routes = new(exchanger), map[string]dnshedge.Exchanger{"example": below}
		},
		"two Clients below": func(l *lab, c, below *dnshedge.Client) {
			middle := &dnshedge.Client{Exchanger: wrapper{below}}
			l.Cleanup(func() { middle.Close() })
			c.Exchanger = middle
		},
		"validator": func(_ *lab, c, below *dnshedge.Client) {
			c.Exchanger = &dnssec.Validator{Exchanger: below, Trust: dnssec.Trust{Off: true}}
		},
		"alias": func(_ *lab, c, below *dnshedge.Client) {
			c.Exchanger, c.Routes = below, map[string]dnshedge.Exchanger{"example": &aliasServer{target: "bank.test."}}
		},
		"circle": func(_ *lab, c, below *dnshedge.Client) {
			c.Exchanger, below.Routes = below, map[string]dnshedge.Exchanger{"other": c}
		},
	} {
		bubble(t, func(l *lab) {
			l.serve("a", with("3600 A 192.0.2.66"))
			l.serve("b", with("3600 A 192.0.2.1"))
			conf, next := l.resolvConf("", "a"), l.resolvConf("options edns0", "b")
			below := l.client(&dnshedge.Client{ResolvConf: conf})
			plain := &exchanger{addr: "192.0.2.9"}
			c := &dnshedge.Client{Cache: new(dnshedge.Cache)}
			set(l, c, below)
			if c.Routes == nil {
				c.Routes = make(map[string]dnshedge.Exchanger)
			}
			c.Routes["plain"] = plain
			defer c.Close()
			for range 2 {
				r, _ := l.must(c, "www.example.")
				assert.Equal(t, "192.0.2.66", addr(r), name)
				l.must(c, "www.plain.")
			}
			_, has := c.Cache.Get(question("www.example.", dns.TypeA))
			assert.True(t, has, name)
			require.NoError(t, os.Rename(next, conf))
			time.Sleep(5 * time.Second)
			r, _ := l.must(c, "www.example.")
			assert.Equal(t, "192.0.2.1", addr(r), name)
			l.must(c, "www.plain.")
			assert.Len(t, plain.asked, 1, "an answer of others is kept: %s", name)
		})
	}
}

// A question waits for a server that is unreachable because the network has changed.
func TestClientAsksNewSystemServersDuringQuestion(t *testing.T) {
	for _, servers := range [][]string{{"a"}, {"a", "c"}} {
		bubble(t, func(l *lab) {
			l.serve("a", drop)
			l.serve("b", with("A 192.0.2.2"))
			l.serve("c", drop)
			conf := l.resolvConf("", servers...)
			c := l.client(&dnshedge.Client{Timeout: 10 * time.Second, ResolvConf: conf})
			time.AfterFunc(time.Second+50*ms, func() {
				b, err := os.ReadFile(l.resolvConf("", "b"))
				if assert.NoError(t, err) {
					assert.NoError(t, os.WriteFile(conf, append(b, '\n'), 0o600))
				}
			})
			r, took := l.must(c, "x.example.")
			assert.Equal(t, "192.0.2.2", addr(r))
			assert.Equal(t, 5020*ms, took, "the file is read every five seconds")
		})
	}
}
