package reclab

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/signer"
)

// exchange sends a query with DO to a healthy server of a zone.
func (n *internet) exchange(t *testing.T, z *zone, name string, qtype uint16) *dns.Msg {
	t.Helper()
	i := slices.IndexFunc(z.servers, func(s *server) bool { return s.fault == healthy && !s.stale && s != z.refusing })
	require.GreaterOrEqual(t, i, 0, z.name)
	q := new(dns.Msg)
	q.SetQuestion(name, qtype)
	q.SetEdns0(4096, true)
	q.Id = 1
	b, err := q.Pack()
	require.NoError(t, err)
	m := new(dns.Msg)
	require.NoError(t, m.Unpack(n.answerQuery(z.servers[i], b, true)))
	return m
}

// verify validates all record sets with the keys of a zone, by package dns, and returns the number of sets.
func verify(t *testing.T, keys, all []dns.RR) (sets int) {
	t.Helper()
	for _, rr := range all {
		sig, ok := rr.(*dns.RRSIG)
		if !ok {
			continue
		}
		var set []dns.RR
		for _, rr := range all {
			if h := rr.Header(); h.Rrtype == sig.TypeCovered && h.Name == sig.Hdr.Name {
				set = append(set, rr)
			}
		}
		i := slices.IndexFunc(keys, func(k dns.RR) bool {
			key, ok := k.(*dns.DNSKEY)
			return ok && key.KeyTag() == sig.KeyTag
		})
		require.GreaterOrEqual(t, i, 0, sig)
		assert.NoError(t, sig.Verify(keys[i].(*dns.DNSKEY), set), sig)
		sets++
	}
	return sets
}

// Package dns accepts the keys, data and proofs of a signed internet, from the DS record of the root down.
func TestSignedZonesVerify(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	p := newInternetPlan("signed", 3)
	p.sites = 150
	n := newInternet(p)
	kinds := make(map[[2]any]int)
	for _, name := range slices.Sorted(maps.Keys(n.zones)) {
		z := n.zones[name]
		require.NotNil(t, z.signed, name)
		kinds[[2]any{z.signed.denial, z.signed.rsa}]++
		m := n.exchange(t, z, name, dns.TypeDNSKEY)
		keys := m.Answer
		assert.Equal(t, 1, verify(t, keys, m.Answer), name)
		ksk := keys[0].(*dns.DNSKEY)
		if name == "." {
			assert.Equal(t, n.trustAnchor(), func() string { d := ksk.ToDS(dns.SHA256); d.Hdr.Ttl = delegationTTL; return d.String() }())
		} else {
			parent := n.findZone(parentName(name))
			m = n.exchange(t, parent, name, dns.TypeDS)
			assert.Equal(t, ksk.ToDS(dns.SHA256).Digest, m.Answer[0].(*dns.DS).Digest, name)
			assert.Equal(t, 1, verify(t, parent.signed.keys().records, m.Answer))
		}
		assert.Equal(t, 1, verify(t, keys, n.exchange(t, z, name, dns.TypeSOA).Answer))
		m = n.exchange(t, z, name, dns.TypeTXT)
		assert.Equal(t, 2, verify(t, keys, m.Ns), "SOA and a denial: %v", m)
		m = n.exchange(t, z, "nobody."+strings.TrimPrefix(name, "."), dns.TypeA)
		assert.Equal(t, dns.RcodeNameError, m.Rcode)
		assert.GreaterOrEqual(t, verify(t, keys, m.Ns), 2, "SOA and a denial of the name and the wildcard: %v", m)
		for host := range z.hosts {
			if !z.isDelegated(host) {
				assert.Equal(t, 1, verify(t, keys, n.exchange(t, z, host, dns.TypeA).Answer), host)
			}
		}
	}
	for _, denial := range []signer.Denial{signer.NSEC, signer.NSEC3, signer.MinimalNSEC} {
		assert.Greater(t, kinds[[2]any{denial, false}], 20)
		assert.Greater(t, kinds[[2]any{denial, true}], 5)
	}
}

func TestDelegationsAreSignedOrProvenNotToBe(t *testing.T) {
	p := newInternetPlan("mixed", 3)
	p.sites = 300
	n := newInternet(p)
	signedOnes, others := 0, 0
	for _, name := range slices.Sorted(maps.Keys(n.zones)) {
		z := n.zones[name]
		if name == "." {
			continue
		}
		parent := n.findZone(parentName(name))
		if parent.signed == nil {
			continue
		}
		m := new(dns.Msg)
		n.addReferral(m, parent, z)
		m.SetEdns0(1232, true)
		n.addDNSSECRecords(m, parent.servers[0], parent, name)
		sets := verify(t, parent.signed.keys().records, m.Ns)
		if z.signed != nil {
			signedOnes++
			assert.Equal(t, 1, sets)
			assert.True(t, slices.ContainsFunc(m.Ns, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeDS }))
		} else {
			others++
			assert.GreaterOrEqual(t, sets, 1)
		}
		assert.Equal(t, dns.RcodeSuccess, n.exchange(t, parent, name, dns.TypeDS).Rcode, "a delegation exists")
	}
	assert.Greater(t, signedOnes, 100)
	assert.Greater(t, others, 100)
}

func TestAPlanSignsOneInternet(t *testing.T) {
	signatures := func(seed uint64) (all []string) {
		p := newInternetPlan("mixed-broken", seed)
		p.sites = 200
		n := newInternet(p)
		for _, name := range n.siteNames {
			z := n.findZone(name)
			all = append(all, n.exchange(t, z, name, dns.TypeA).String())
		}
		for _, q := range n.drawQuestions(p, 100, 0) {
			all = append(all, q.name)
		}
		return all
	}
	assert.Equal(t, signatures(5), signatures(5))
	assert.NotEqual(t, signatures(5), signatures(6))
}

// The shares in the descriptions of the scenarios.
func TestSignedInternetsAreAsDescribed(t *testing.T) {
	n := newInternet(newInternetPlan("mixed-broken", 1))
	counts := make(map[string]int)
	count := func(what string, is bool) {
		if is {
			counts[what]++
		}
	}
	for _, name := range n.siteNames {
		z := n.findZone(name)
		count("signed", z.signed != nil)
		count("bogus", z.signed != nil && z.signed.flaw != noFlaw)
		count("together", z.name == name)
		count("secure", n.securityStatusOf(question{name: name, qtype: dns.TypeA}) == secure)
		for ; z.name != "."; z = n.findZone(parentName(z.name)) {
			require.True(t, z.signed == nil || slices.ContainsFunc(z.servers, func(s *server) bool { return s.fault == healthy && !s.stale && s != z.refusing }), z.name)
		}
	}
	for _, s := range n.servers {
		count("stale", s.stale)
	}
	per := func(what string, of int) float64 { return 100 * float64(counts[what]) / float64(of) }
	assert.InDelta(t, 31, per("signed", siteCount), 3)
	assert.InDelta(t, 2, per("bogus", siteCount), 0.7)
	assert.InDelta(t, 4, per("together", siteCount), 1, "of those that are no alias, a twentieth")
	assert.InDelta(t, 24, per("secure", siteCount), 6, "not all aliases lead to signed zones")
	assert.InDelta(t, 1, per("stale", len(n.servers)), 0.6, "of those that are no zone's first")
	for _, name := range []string{"flood", "keytrap"} {
		n := newInternet(newInternetPlan(name, 1))
		assert.Len(t, n.targetZones, targetZoneCount)
		for i, q := range n.drawQuestions(newInternetPlan(name, 1), 50, 0) {
			focused := slices.Contains(n.targetZones, n.findZone(q.name))
			assert.Equal(t, name == "flood" || IsKeyTrapQuestion(int32(i)), focused)
		}
	}
}

func TestVerdicts(t *testing.T) {
	n := newInternet(newInternetPlan("mixed-broken", 1))
	n.signedShare = 1
	find := func(s securityStatus) question {
		i := slices.IndexFunc(n.siteNames, func(name string) bool {
			h := n.findZone(name).hosts[name]
			return n.securityStatusOf(question{name: name, qtype: dns.TypeA}) == s && h.alias == ""
		})
		return question{n.siteNames[i], dns.TypeA}
	}
	answer := func(q question, ad bool) *dns.Msg {
		m := new(dns.Msg)
		m.AuthenticatedData = ad
		addrs, _ := n.correctAddresses(q)
		for _, a := range addrs {
			m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: q.name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: a.AsSlice()})
		}
		return m
	}
	servfail := &dns.Msg{MsgHdr: dns.MsgHdr{Rcode: dns.RcodeServerFailure}}
	for _, tt := range []struct {
		status           securityStatus
		ad               bool
		validator, plain verdict
	}{
		{secure, true, correct, wrongAD}, {secure, false, wrongAD, correct}, {insecure, false, correct, correct}, {insecure, true, wrongAD, wrongAD},
		{bogus, false, answeredBogus, correct}, {bogus, true, answeredBogus, correct},
	} {
		q := find(tt.status)
		assert.Equal(t, tt.validator, n.checkAnswer(q, answer(q, tt.ad), true), tt)
		assert.Equal(t, tt.plain, n.checkAnswer(q, answer(q, tt.ad), false), tt)
		if tt.status == bogus {
			assert.Equal(t, correct, n.checkAnswer(q, servfail, true))
		} else {
			assert.Equal(t, incorrect, n.checkAnswer(q, servfail, true))
			assert.Equal(t, incorrect, n.checkAnswer(q, servfail, false))
		}
	}
}

// The keys and signatures of a key trap have the same tag, and no signature of the record is right.
func TestTrapsAreTraps(t *testing.T) {
	n := newInternet(newInternetPlan("keytrap", 1))
	z := n.targetZones[0]
	keys := n.exchange(t, z, z.name, dns.TypeDNSKEY).Answer
	tags := make(map[uint16]int)
	for _, rr := range keys {
		if k, ok := rr.(*dns.DNSKEY); ok {
			tags[k.KeyTag()]++
		}
	}
	assert.Equal(t, trapKeyCount, tags[trapKeyTag])
	assert.Equal(t, 1, verify(t, keys[:1], keys), "the set of keys is signed by its own")
	sigs := 0
	for _, rr := range n.exchange(t, z, "any."+z.name, dns.TypeA).Answer {
		if sig, ok := rr.(*dns.RRSIG); ok && sig.KeyTag == trapKeyTag {
			sigs++
		}
	}
	assert.Equal(t, trapKeyCount, sigs)
}
