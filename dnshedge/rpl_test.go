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

// differs lists the scripts of unbound that do not pass, with the reasons.
var differs = map[string]string{
	"fwd_any.rpl":              "unbound answers ANY from what it has; a Client asks, and keeps no answer to ANY",
	"fwd_minimal.rpl":          "asks with RD=0 for what unbound knows of other servers; its first three questions pass",
	"fwd_scrub_rrsig.rpl":      "unbound drops signatures beyond the eighth, because it validates",
	"iter_prefetch_change.rpl": "a Client refreshes in its last tenth what was asked for twice before, unbound what is asked for then",

	"iter_prefetch_childns.rpl": "as iter_prefetch_change",
	"iter_prefetch_ns.rpl":      "as iter_prefetch_change",

	"rrset_use_cached.rpl": "unbound's messages share RRsets, and so one that expires ends others",
	"ttl_msg.rpl":          "unbound's messages share RRsets, and so an SOA is renewed by another answer",
	"ttl_max.rpl":          "asks with RD=0 for the root's servers; its question about TTLs passes",
	"ttl_min.rpl":          "as ttl_max",

	"serve_expired_client_timeout_servfail.rpl": "unbound asks again 5 s after a failure, a Client after 30 s (RFC 8767 §5)",
	"serve_expired_ttl_reset.rpl":               "unbound can make expired answers young again; MaxStale is a limit",

	"serve_expired_client_timeout_val_insecure_delegation.rpl": "fails in unbound's validator; a Client does not validate",
	"serve_expired_wildcard_swap_ad.rpl":                       "AD is unbound's validator's",
	"serve_expired_respip_cname.rpl":                           "a response policy changes the answer; a Client has none",
}

// TestScriptsOfUnbound runs unbound's scripts for forwarders, in the folder forward of RPL_DIR, with a Client instead
// of unbound.
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

// playForwarder runs a script with a Client that is configured as the script demands.
func playForwarder(t *testing.T, s *rpl.Script) error {
	n := s.Network()
	c := &dnshedge.Client{Dialer: n, Cache: &dnshedge.Cache{MaxStale: -1, NoRefresh: s.Get("prefetch") != "yes"}}
	defer c.Close()
	number := func(key string, unit time.Duration) time.Duration {
		v, _ := strconv.Atoi(s.Get(key))
		return time.Duration(v) * unit
	}
	zones := s.Zones()
	for _, z := range zones {
		to := c
		if z.Name != "." && len(zones) > 1 {
			to = &dnshedge.Client{Dialer: n}
			defer to.Close()
			if c.Routes == nil {
				c.Routes = make(map[string]dnshedge.Exchanger)
			}
			c.Routes[z.Name] = to
		}
		for _, a := range z.Addrs {
			up, err := dnshedge.ParseUpstream(a)
			require.NoError(t, err)
			to.Upstreams = append(to.Upstreams, up)
			if z.Name == "." && z.Stub {
				n.Resolver = a
			}
		}
	}
	if ttl := number("serve-expired-reply-ttl", 1); ttl > 0 {
		s.ReplaceExpectedTTL(uint32(ttl), 30)
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
	return n.Play(func(m *dns.Msg) *dns.Msg {
		// A Client keeps answers with and without signatures apart, and unbound does not.
		m.Extra = nil
		m.SetEdns0(4096, false)
		return serve(t, c, "tcp", m)
	})
}
