package recursor_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/internal/rpl"
)

// differs lists the steps of scripts that do not pass, with the reason. It may have six scripts.
var differs = map[string]differ{
	"unbound_iter_dname_insec.rpl":       {"aliases that lead to where they began are SERVFAIL; unbound answers with them", []int{220902}},
	"unbound_iter_nxns_cached.rpl":       {"unbound looks up a sixth name of a zone's servers after five that do not exist; five is a limit", []int{40}},
	"unbound_iter_pcnamech.rpl":          {"unbound believes the NS records beside an answer, when the servers of the referral fail later", []int{60}},
	"unbound_iter_resolve_minimised.rpl": {"unbound asks for the whole name with type A before the caller's type; RFC 9156 §2.3 does not", []int{40}},
	"unbound_iter_scrub_ns_min.rpl":      {"unbound is told to keep one server per zone, which is no setting here; 20 are kept", []int{20}},
	"unbound_iter_unverified_glue.rpl":   {"unbound is told to look up what glue says, which is no setting here", []int{10}},
}

// validates lists the scripts that also test a validator. AD is ignored in them.
var validates = map[string]struct {
	ad int // how many answers have it
	differ
}{
	"deckard_iter_multiple_A.rpl":                 {ad: 2},
	"deckard_iter_validate.rpl":                   {ad: 1},
	"deckard_iter_validate_child_zone_noaddr.rpl": {ad: 2},
	"deckard_iter_validate_extradata.rpl":         {ad: 1},
	"deckard_iter_validate_nsec_nxdomain.rpl":     {ad: 1},
	"unbound_iter_dname_ttl.rpl":                  {2, differ{"a DNAME that was validated is used for other names; one that was not is not", []int{50}}},
	"unbound_iter_dname_ttl0.rpl":                 {2, differ{"as dname_ttl", []int{40}}},
	"unbound_iter_cname_minimise_nx.rpl":          {ad: 3},
	"unbound_iter_emptydp.rpl":                    {ad: 1},
	"unbound_iter_emptydp_for_glue.rpl":           {ad: 1},
	"unbound_iter_primenoglue.rpl":                {ad: 1},
	"unbound_iter_scrub_dname_rev.rpl":            {ad: 1},
}

// fails lists scripts in which unbound gives more answers or sends other queries, with the reason and the failing
// steps.
var fails = map[string]differ{
	"unbound_iter_pcnamechrec.rpl":               {"as pcnamech: the zone's own servers are known only from NS records beside an answer, and when they are needed nobody answers who could be asked for them", []int{60}},
	"unbound_iter_resolve_minimised_timeout.rpl": {"as resolve_minimised: the query that the step wants is not sent, as the answer comes without it", []int{40}},
}

type differ struct {
	why   string
	steps []int
}

// settings lists the settings of unbound and deckard that scripts may have, with their meaning here. A script with
// other settings is skipped.
var settings = map[string]string{
	"do-ip4":                 "NoIPv4",
	"do-ip6":                 "NoIPv6",
	"do-not-query-localhost": "PrivateOK",
	"features":               "MinTTL and MaxTTL of the Cache",
	"name":                   "Hints and Zones",
	"qname-minimisation":     "NoMinimise",
	"query-minimization":     "NoMinimise",
	"server":                 "begins a section",
	"stub-addr":              "Hints and Zones",
	"stub-zone":              "Hints and Zones",

	"access-control":         "none: who may ask is the program's decision",
	"ede":                    "none: extended errors are always sent",
	"fake-sha1":              "none: for a validator",
	"harden-referral-path":   "none: for a validator",
	"harden-unverified-glue": "none: see differs",
	"iter-scrub-ns":          "none: see differs",
	"iter-scrub-promiscuous": "none: NS records beside an answer are never believed",
	"log-servfail":           "none: nothing is logged",
	"max-global-quota":       "none: Limits.Queries is less",
	"max-query-restarts":     "none: it is the default of Limits.Aliases",
	"minimal-responses":      "none: what responses need not have is not compared",
	"module-config":          "none: there are no modules",
	"outbound-msg-retry":     "none: servers are asked again as long as it makes sense",
	"rrset-roundrobin":       "none: answers are compared as sets",
	"stub-prime":             "none: the servers of Zones are taken as they are",
	"target-fetch-policy":    "none: names of servers are looked up when they are needed",
	"trust-anchor":           "none: for a validator",
	"trust-anchor-signaling": "none: for a validator",
	"val-override-date":      "none: for a validator",
	"val-override-timestamp": "none: for a validator",
	"verbosity":              "none: nothing is logged",
}

// TestUnboundScripts runs the scripts of unbound and deckard for resolvers, in the folder RPL_DIR. A Client whose
// Exchanger is a Resolver takes the place of unbound.
func TestUnboundScripts(t *testing.T) {
	dir := os.Getenv("RPL_DIR")
	if dir == "" {
		t.Skip("RPL_DIR names no folder of scripts")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.rpl"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	require.LessOrEqual(t, len(differs), 6)
	require.LessOrEqual(t, len(validates), 12)
	passed, skipped := 0, 0
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			s := parse(t, file)
			for _, c := range s.Settings {
				if settings[c.Key] == "" {
					skipped++
					t.Skipf("setting %s: %q", c.Key, c.Value)
				}
			}
			assert.Equal(t, validates[name].ad, s.ClearExpectedAD())
			err := playResolver(t, s, nil)
			if err == nil {
				passed++
			}
			assert.Equal(t, slices.Concat(differs[name].steps, validates[name].steps, fails[name].steps), rpl.FailedSteps(err), "%v", err)
		})
	}
	assert.Zero(t, skipped)
	t.Logf("%d of %d pass", passed, len(files))
}

// TestResolverScripts runs the scripts of this package.
func TestResolverScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.rpl")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".rpl"), func(t *testing.T) {
			assert.NoError(t, playResolver(t, parse(t, file), nil))
		})
	}
}

func parse(t *testing.T, file string) *rpl.Script {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	s, err := rpl.Parse(f)
	require.NoError(t, err)
	return s
}

// playResolver runs a script with a Resolver behind a Client with a Cache, set up as the script requires. prepare
// prepares both for a script of validators. It may be nil.
func playResolver(t *testing.T, s *rpl.Script, prepare func(*recursor.Resolver, *dnshedge.Cache)) (err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := s.Network()
		r := &recursor.Resolver{
			Trust:      dnssec.Trust{Off: true},
			Dialer:     n,
			NoMinimise: s.Get("qname-minimisation") == "no" || s.Get("query-minimization") == "off",
			NoIPv4:     s.Get("do-ip4") == "no",
			NoIPv6:     s.Get("do-ip6") == "no",
			PrivateOK:  s.Get("do-not-query-localhost") == "no" || s.Get("do-not-query-localhost") == "off",
		}
		r.Trace = newLoggingTrace(t)
		defer r.Close()
		n.ReferAnyType = s.Get("query-minimization") == "on"
		n.AllowFewerQueries, n.AwaitAnswers = true, strings.Contains(t.Name(), "/deckard_")
		for _, a := range s.Servers() {
			r.PrivateOK = r.PrivateOK || a.IsPrivate() // unbound asks them always
		}
		for _, z := range s.Zones() {
			for _, addr := range z.Addrs {
				a := netip.MustParseAddr(addr)
				if z.Name == "." {
					r.Hints = append(r.Hints, a)
					continue
				}
				if r.Zones == nil {
					r.Zones = make(map[string][]netip.AddrPort)
				}
				r.Zones[z.Name] = append(r.Zones[z.Name], netip.AddrPortFrom(a, 53))
			}
		}
		cache := &dnshedge.Cache{MaxStale: -1, NoRefresh: true}
		if s.Get("features") != "" {
			s.RaiseZeroTTL() // a Client raises no TTL of 0
		}
		for _, c := range s.Settings {
			if c.Key == "features" {
				which, seconds, _ := strings.Cut(c.Value, " = ")
				d, err := time.ParseDuration(seconds + "s")
				require.NoError(t, err)
				switch which {
				case "min_ttl":
					cache.MinTTL = d
				case "max_ttl":
					cache.MaxTTL = d
				}
			}
		}
		if prepare != nil {
			prepare(r, cache)
		}
		c := &dnshedge.Client{Exchanger: r, Cache: cache}
		if s.Get("private-address") != "" {
			c.RebindFilter = &dnshedge.RebindFilter{Allow: []string{s.Get("private-domain")}}
		}
		defer c.Close()
		err = n.Play(func(m *dns.Msg) *dns.Msg { return serve(t, c, m) })
	})
	return err
}

// newLoggingTrace returns a Trace that logs queries.
func newLoggingTrace(t *testing.T) *recursor.Trace {
	t.Helper()
	start := time.Now()
	log := func(a recursor.AttemptInfo, what any) {
		t.Logf("%v %s %s of %s, zone %s: %v", time.Since(start), a.Name, dns.Type(a.Type), a.Server.Addr(), a.Zone, what)
	}
	return &recursor.Trace{
		Attempt: func(_ context.Context, a recursor.AttemptInfo) { log(a, "asked") },
		Done:    func(_ context.Context, a recursor.AttemptInfo, _ time.Duration, err error) { log(a, err) },
		Answer:  func(_ context.Context, a recursor.AnswerInfo) { t.Logf("%v %+v", time.Since(start), a) },
	}
}

// serve returns the answer of c to a client's message.
func serve(t *testing.T, c *dnshedge.Client, m *dns.Msg) *dns.Msg {
	w := new(recorder)
	c.ServeDNS(w, m)
	answer := new(dns.Msg)
	if answer.Unpack(w.wire) == nil {
		return answer
	}
	// It has records that package dns cannot read.
	q, err := wire.NewQuery(m)
	if !assert.NoError(t, err) {
		return nil
	}
	a, err := wire.ParseAnswer(w.wire, q)
	if !assert.NoError(t, err) {
		return nil
	}
	return a.Message(answer, q, wire.ResponseOptions{})
}

// recorder is the response writer of a TCP client of ServeDNS.
type recorder struct {
	dns.ResponseWriter // nil: no other method is called
	wire               []byte
}

func (w *recorder) RemoteAddr() net.Addr { return new(net.TCPAddr) }

func (w *recorder) ConnectionState() *tls.ConnectionState { return nil } // as a dns.Server's own

func (w *recorder) Write(b []byte) (int, error) {
	w.wire = append([]byte(nil), b...)
	return len(b), nil
}

func (w *recorder) WriteMsg(m *dns.Msg) (err error) {
	w.wire, err = m.Pack()
	return err
}
