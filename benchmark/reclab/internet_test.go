package reclab

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The shares in the documentation of the package and of the scenarios.
func TestInternetsAreAsDescribed(t *testing.T) {
	for seed := range uint64(3) {
		n := newInternet(internetPlan{seed: seed, sites: siteCount})
		counts := map[string]int{}
		var rtts []time.Duration
		count := func(what string, is bool) {
			if is {
				counts[what]++
			}
		}
		for _, name := range n.siteNames {
			z := n.findZone(name)
			tld := n.zones[z.name[strings.LastIndexByte(strings.TrimSuffix(z.name, "."), '.')+1:]]
			require.NotNil(t, tld)
			require.True(t, slices.ContainsFunc(z.servers, func(s *server) bool { return s.canAnswer() && s != z.refusing }), "%s can be resolved", z.name)
			count("broken", slices.ContainsFunc(z.servers, func(s *server) bool { return !s.canAnswer() || s == z.refusing }))
			first := z.servers[0].name
			count("own", dns.IsSubDomain(z.name, first))
			count("elsewhere", !dns.IsSubDomain(tld.name, first))
			h := z.hosts[name]
			count("alias", h.alias != "")
			count("big", len(h.a) > 1)
			count("deep", dns.CountLabel(name) > 3)
		}
		for _, s := range n.servers {
			rtts = append(rtts, s.rtt)
			count("dead", s.fault == dead)
		}
		per := func(what string, of int) float64 { return 100 * float64(counts[what]) / float64(of) }
		assert.InDelta(t, 10, per("broken", siteCount), 3, "zones with a server that is broken or refuses, in percent")
		assert.InDelta(t, 22, per("own", siteCount), 2, "with their own servers")
		assert.InDelta(t, 55, per("elsewhere", siteCount), 12, "with servers below another zone")
		assert.InDelta(t, 25, per("alias", siteCount), 2)
		assert.InDelta(t, 0.4, per("big", siteCount), 0.3)
		assert.InDelta(t, 6, per("deep", siteCount), 1)
		assert.InDelta(t, 1.8, per("dead", len(n.servers)), 0.8, "servers that are dead")
		slices.Sort(rtts)
		assert.InDelta(t, 60, rtts[len(rtts)/2].Milliseconds(), 30)
		assert.LessOrEqual(t, rtts[len(rtts)-1], 352*time.Millisecond)
	}
}

func TestAPlanMakesOneInternet(t *testing.T) {
	shape := func(p internetPlan) (all []string) {
		n := newInternet(p)
		for _, s := range n.servers {
			all = append(all, s.String())
		}
		slices.Sort(all)
		for _, q := range n.drawQuestions(p, 500, 0.3) {
			all = append(all, q.name)
		}
		return all
	}
	p := internetPlan{seed: 7, sites: 300}
	assert.Equal(t, shape(p), shape(p))
	other := p
	other.seed++
	assert.NotEqual(t, shape(p), shape(other))

	p.clean = true
	for _, s := range newInternet(p).servers {
		require.Equal(t, healthy, s.fault)
	}
	for _, z := range newInternet(p).zones {
		require.Nil(t, z.refusing)
	}
	p.clean, p.dead = false, true
	n := newInternet(p)
	for _, s := range n.servers {
		require.True(t, n.topServers[s] || s.fault == dead, s)
	}
}

func TestQuestionsAreAskedOnceUnlessRepeated(t *testing.T) {
	p := internetPlan{seed: 1, sites: 1000}
	n := newInternet(p)
	once := make(map[string]bool)
	ipv6 := 0
	for _, q := range n.drawQuestions(p, 1000, 0) {
		assert.False(t, once[q.name], q.name)
		once[q.name] = true
		if q.qtype == dns.TypeAAAA {
			ipv6++
		}
	}
	assert.InDelta(t, 200, ipv6, 40)
	times := make(map[string]int)
	for _, q := range n.drawQuestions(p, 1000, 0.5) {
		times[q.name]++
	}
	assert.InDelta(t, 500, len(times), 50)
	assert.Greater(t, times[n.drawQuestions(p, 1, 0)[0].name], 20, "the first is the most popular")
	assert.Len(t, n.drawQuestions(p, 1500, 0), 1500, "more than there are names")
}

func TestServersAnswerAsTheirZonesSay(t *testing.T) {
	n := newInternet(internetPlan{seed: 1, sites: 300, clean: true})
	ask := func(s *server, name string, qtype uint16, edns bool, tcp bool) *dns.Msg {
		q := new(dns.Msg)
		q.SetQuestion(name, qtype)
		if edns {
			q.SetEdns0(4096, false)
		}
		b, err := q.Pack()
		require.NoError(t, err)
		out := n.answerQuery(s, b, tcp)
		if out == nil {
			return nil
		}
		m := new(dns.Msg)
		require.NoError(t, m.Unpack(out))
		assert.Equal(t, q.Id, m.Id)
		return m
	}
	root, com := n.roots[0], n.zones["com."].servers[0]
	m := ask(root, "COM.", dns.TypeA, true, false)
	assert.False(t, m.Authoritative)
	assert.Len(t, m.Ns, 8)
	assert.Len(t, m.Extra, 8+1, "glue and OPT")
	m = ask(root, ".", dns.TypeNS, true, false)
	assert.True(t, m.Authoritative)
	assert.Len(t, m.Answer, 13)
	assert.Len(t, m.Extra, 13+1)

	var own, hosted, alias, long string
	for _, name := range n.siteNames {
		z := n.findZone(name)
		switch {
		case dns.IsSubDomain(z.name, z.servers[0].name) && parentName(z.name) == "com.":
			own = z.name
		case parentName(z.name) == "com." && dns.CountLabel(z.servers[0].name) == 3 && !dns.IsSubDomain("com.", z.servers[0].name) && !dns.IsSubDomain("net.", z.servers[0].name):
			hosted = z.name
		}
		if z.hosts[name].alias != "" {
			alias = name
		} else if dns.CountLabel(name) > 3 {
			long = name
		}
	}
	m = ask(com, own, dns.TypeA, true, false)
	assert.Len(t, m.Extra, len(m.Ns)+1, "with glue")
	m = ask(com, hosted, dns.TypeA, true, false)
	assert.Len(t, m.Extra, 1, "without")
	m = ask(com, hosted, dns.TypeDS, true, false)
	assert.True(t, m.Authoritative, "a DS record is the parent's")

	m = ask(n.findZone(alias).servers[0], alias, dns.TypeAAAA, true, false)
	assert.IsType(t, new(dns.CNAME), m.Answer[0])
	z := n.findZone(long)
	m = ask(z.servers[0], parentName(long), dns.TypeA, true, false)
	assert.Equal(t, dns.RcodeSuccess, m.Rcode, "something is below it")
	assert.Empty(t, m.Answer)
	assert.IsType(t, new(dns.SOA), m.Ns[0])
	assert.Equal(t, dns.RcodeNameError, ask(z.servers[0], "no."+long, dns.TypeA, true, false).Rcode)
	assert.Equal(t, dns.RcodeRefused, ask(z.servers[0], "www.example.", dns.TypeA, true, false).Rcode)
	assert.Equal(t, dns.RcodeSuccess, ask(z.servers[0], z.name, dns.TypeSOA, true, false).Rcode)

	// Too big for a datagram.
	z.hosts[long].a = make([]netip.Addr, largeAddressCount)
	for i := range z.hosts[long].a {
		z.hosts[long].a[i] = netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
	}
	assert.True(t, ask(z.servers[0], long, dns.TypeA, true, false).Truncated)
	m = ask(z.servers[0], long, dns.TypeA, true, true)
	assert.Len(t, m.Answer, largeAddressCount)
	assert.True(t, n.isCorrectAnswer(question{long, dns.TypeA}, m))
	m.Answer = m.Answer[1:]
	assert.False(t, n.isCorrectAnswer(question{long, dns.TypeA}, m))

	// Broken servers.
	s := z.servers[0]
	s.fault = noEDNS
	assert.Equal(t, dns.RcodeFormatError, ask(s, z.name, dns.TypeA, true, false).Rcode)
	assert.Equal(t, dns.RcodeSuccess, ask(s, z.name, dns.TypeA, false, false).Rcode)
	s.fault = failing
	assert.Equal(t, dns.RcodeServerFailure, ask(s, z.name, dns.TypeA, true, false).Rcode)
	s.fault, z.refusing = healthy, s
	assert.Equal(t, dns.RcodeRefused, ask(s, z.name, dns.TypeA, true, false).Rcode)
	s.fault = dead
	assert.Nil(t, ask(s, z.name, dns.TypeA, true, false))
	assert.Nil(t, n.answerQuery(nil, nil, false))
}

func TestExchangesAreTheSameForAllContenders(t *testing.T) {
	n := newInternet(internetPlan{seed: 1, sites: 10})
	s := n.roots[0]
	draw := func(seed uint64, d impairment) (all []time.Duration, lost int) {
		network := newNetwork(n, d, seed)
		for range 2000 {
			took, ok := network.drawRoundTripTime(s)
			if !ok {
				lost++
				took = -1
			}
			all = append(all, took)
		}
		return all, lost
	}
	a, lost := draw(1, newImpairment("broken"))
	b, _ := draw(1, newImpairment("broken"))
	assert.Equal(t, a, b)
	c, _ := draw(2, newImpairment("broken"))
	assert.NotEqual(t, a, c)
	assert.InDelta(t, 30, lost, 20)
	late := 0
	for _, d := range a {
		if d > s.rtt+40*time.Millisecond {
			late++
		}
	}
	assert.InDelta(t, 20, late, 15)
}
