package dnshedge_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/rpl"
)

// differs says why a script of unbound fails or is not played.
var differs = map[string]string{}

// TestScriptsOfUnbound plays unbound's scripts for forwarders, which are in the folder
// forward of RPL_DIR, with a Client in the place of unbound.
func TestScriptsOfUnbound(t *testing.T) {
	dir := os.Getenv("RPL_DIR")
	if dir == "" {
		t.Skip("RPL_DIR names no folder of scripts")
	}
	files, err := filepath.Glob(filepath.Join(dir, "forward", "*.rpl"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	passed := 0
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			f, err := os.Open(file)
			require.NoError(t, err)
			defer f.Close()
			s, err := rpl.Parse(f)
			require.NoError(t, err)
			synctest.Test(t, func(t *testing.T) { err = playForwarder(t, s) })
			if err == nil {
				passed++
			}
			if why := differs[name]; why == "" {
				assert.NoError(t, err)
			} else {
				assert.Error(t, err, "passes, and differs says %q", why)
			}
		})
	}
	t.Logf("%d of %d pass", passed, len(files))
}

// playForwarder plays a script with a Client that is set up as the script wants.
func playForwarder(t *testing.T, s *rpl.Script) error {
	n := s.Network()
	c := &dnshedge.Client{Dialer: n, Cache: &dnshedge.Cache{MaxStale: -1, NoRefresh: s.Get("prefetch") != "yes"}}
	defer c.Close()
	number := func(key string, unit time.Duration) time.Duration {
		v, _ := strconv.Atoi(s.Get(key))
		return time.Duration(v) * unit
	}
	for _, z := range s.Zones() {
		// A forwarder's server is a resolver; the servers of a zone are not, and so the
		// script's servers together are one.
		n.Recursive = n.Recursive || z.Stub
		for _, a := range z.Addrs {
			up, err := dnshedge.ParseUpstream(a)
			require.NoError(t, err)
			c.Upstreams = append(c.Upstreams, up)
		}
	}
	if s.Get("serve-expired") == "yes" {
		c.Cache.MaxStale = number("serve-expired-ttl", time.Second)
		if c.Cache.StaleAfter = number("serve-expired-client-timeout", time.Millisecond); c.Cache.StaleAfter == 0 && s.Get("serve-expired-client-timeout") == "0" {
			c.Cache.StaleAfter = -1
		}
	}
	c.Cache.MaxTTL, c.Cache.MinTTL = number("cache-max-ttl", time.Second), number("cache-min-ttl", time.Second)
	if s.Get("forward-no-cache") == "yes" {
		c.Cache = nil
	}
	return n.Play(func(m *dns.Msg) (*dns.Msg, error) {
		if s.Get("ede") == "yes" && m.IsEdns0() == nil {
			m.SetEdns0(4096, false)
		}
		return serve(t, c, "tcp", m), nil
	})
}
