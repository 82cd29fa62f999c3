package dnssec_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/internal/rpl"
)

// differs says which steps of a script for validators that forward do not pass, and why.
var differs = map[string]struct {
	why   string
	steps []int
}{
	"unbound_edns_attached_once_per_upstream.rpl": {"no setting adds an option for one upstream, and the stub zone of the script is not played", []int{20}},
	"unbound_val_cnametoinsecure.rpl":             {"the answer for the alias's target has a signed SOA record of the zone above and no proof; unbound finds the proof of the insecure delegation in the answer before, here DS is for the upstream to prove", []int{10, 30}},
}

// TestForwarderValidatorScripts plays the scripts of unbound for validators that forward, of those in the folders of the list RPL_VAL_DIR, with a
// Validator between two Clients in the place of unbound, and says which pass. AD has to be as in the scripts.
func TestForwarderValidatorScripts(t *testing.T) {
	files, err := rpl.Files(os.Getenv("RPL_VAL_DIR"))
	require.NoError(t, err)
	if len(files) == 0 {
		t.Skip("RPL_VAL_DIR names no folder of scripts")
	}
	t.Setenv("GODEBUG", "rsa1024min=0")
	passed, played := 0, 0
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			f, err := os.Open(file)
			require.NoError(t, err)
			defer f.Close()
			s, err := rpl.Parse(f)
			require.NoError(t, err)
			if !slices.ContainsFunc(s.Zones(), func(z *rpl.Zone) bool { return !z.Stub }) {
				return // a Resolver plays it
			}
			played++
			synctest.Test(t, func(t *testing.T) { err = play(t, s) })
			if err == nil {
				passed++
			}
			assert.Equal(t, differs[name].steps, rpl.FailedSteps(err), "%v", err)
		})
	}
	assert.NotZero(t, played)
	t.Logf("%d of %d pass", passed, played)
}

// play plays a script.
func play(t *testing.T, s *rpl.Script) error {
	trust, err := s.ValidatorSettings()
	require.NoError(t, err)
	if trust.AnyDate {
		trust.Date = time.Date(2012, 11, 20, 0, 0, 0, 0, time.UTC)
	}
	trust.SleepUntilDate()
	n := s.Network()
	n.AllowFewerQueries = true
	inner := &dnshedge.Client{Dialer: n}
	defer inner.Close()
	for _, z := range s.Zones() {
		if z.Name != "." {
			continue // the servers of the root stand for all others
		}
		for _, a := range z.Addrs {
			up, err := dnshedge.ParseUpstream(a)
			require.NoError(t, err)
			inner.Upstreams = append(inner.Upstreams, up)
			if z.Stub {
				n.Resolver = a
			}
		}
	}
	v := &dnssec.Validator{Exchanger: inner, Trust: dnssec.Trust{Anchors: append([]dns.RR{}, trust.Anchors...), Insecure: trust.Insecure, AllowSHA1: true, RequireAllAlgorithms: s.Get("harden-algo-downgrade") == "yes"}}
	defer v.Close()
	dnssec.ForScripts(v)
	c := &dnshedge.Client{Exchanger: v, Cache: &dnshedge.Cache{MaxStale: -1, NoRefresh: true}, SpecialUse: dnshedge.SpecialUseOff}
	defer c.Close()
	s.SetRecursionDesired()
	return n.Play(func(m *dns.Msg) *dns.Msg {
		r, _, err := c.ExchangeContext(context.Background(), m, "")
		if err != nil {
			t.Logf("%s: %v", m.Question[0].Name, err)
			r = new(dns.Msg).SetRcode(m, dns.RcodeServerFailure)
		}
		return r
	})
}
