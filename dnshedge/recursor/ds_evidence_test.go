package recursor_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/recursor"
)

const signedTree = `
. served 198.41.0.4
tld. delegated 192.0.2.1 192.0.2.2
example.tld. delegated 192.0.3.1
  www A 192.0.2.80
  a.b.c A 192.0.2.81
  * TXT any
  alias CNAME www
unsigned.tld. delegated 192.0.3.3
  www A 192.0.2.82
far.tld. served 192.0.3.4
  www A 192.0.2.83
named. delegated 192.0.2.3
  ns A 192.0.3.4
`

// newNonValidatingResolver returns a Resolver that sets DO in all queries and does not validate, because it has no
// trust anchor.
func newNonValidatingResolver(w *testNetwork, set ...func(*recursor.Resolver)) *recursor.Resolver {
	return w.resolver(append(set, func(r *recursor.Resolver) { r.Trust = dnssec.Trust{Anchors: []dns.RR{}} })...)
}

func TestResolverSetsDOInAllQueries(t *testing.T) {
	bubble(t, signedTree, func(t *testing.T, w *testNetwork) {
		w.zone("tld.").put(record("far.tld. NS ns.named."))
		w.sign("unsigned.tld.")
		r := newNonValidatingResolver(w)
		for _, q := range []string{"www.example.tld. A", "a.b.c.example.tld. A +do", "no.example.tld. A", "www.unsigned.tld. A", "www.far.tld. A", "tld. DS"} {
			w.ask(r, q)
		}
		seen := make(map[string]bool)
		for _, a := range w.queriesSince(0) {
			require.NotNil(t, a.msg.IsEdns0(), a)
			assert.True(t, a.msg.IsEdns0().Do(), a)
			seen[a.name] = true
		}
		for _, name := range []string{".", "c.example.tld.", "ns.named."} {
			assert.True(t, seen[name], "%s was asked for", name)
		}
	})
}

func TestReferralKeepsDSEvidence(t *testing.T) {
	bubble(t, signedTree, func(t *testing.T, w *testNetwork) {
		w.sign("unsigned.tld.")
		r := newNonValidatingResolver(w)
		w.ask(r, "www.example.tld. A")
		w.ask(r, "www.unsigned.tld. A")
		want := map[string][]string{
			"tld.":          {"DS DS", "RRSIG DS"},
			"example.tld.":  {"DS DS", "RRSIG DS"},
			"unsigned.tld.": {"NSEC NSEC", "RRSIG NSEC"},
		}
		assert.Equal(t, want, recursor.DSEvidenceOf(r))

		var b bytes.Buffer
		require.NoError(t, r.Export(&b))
		again := newNonValidatingResolver(w)
		require.NoError(t, again.Import(&b))
		assert.Equal(t, map[string][]string{"tld.": want["tld."]}, recursor.DSEvidenceOf(again))

		off := w.resolver()
		w.ask(off, "www.example.tld. A")
		assert.Equal(t, map[string][]string{"tld.": nil, "example.tld.": nil}, recursor.DSEvidenceOf(off))
	})
}

// TestExportReadsOnlyExportedData validates and exports the same records at the same time.
func TestExportReadsOnlyExportedData(t *testing.T) {
	rr := record("example. DS 1 8 2 0000000000000000000000000000000000000000000000000000000000000000")
	rr.Header().Rdlength = 1234
	before := dns.Copy(rr)
	require.Len(t, recursor.PackRecords([]dns.RR{rr}), 1)
	assert.Equal(t, before, rr)
}

func TestCacheEntryServesQuestionsWithAndWithoutDO(t *testing.T) {
	bubble(t, signedTree, func(t *testing.T, w *testNetwork) {
		w.sign()
		r := newNonValidatingResolver(w)
		types := func(rrs []dns.RR) (all []string) {
			for _, rr := range rrs {
				all = append(all, dns.TypeToString[rr.Header().Rrtype])
			}
			return all
		}
		plain := w.ask(r, "alias.example.tld. A")
		assert.Equal(t, []string{"CNAME", "A"}, types(plain.Answer))
		n := w.countQueries()
		signed := w.ask(r, "alias.example.tld. A +do")
		assert.Equal(t, []string{"CNAME", "RRSIG", "A", "RRSIG"}, types(signed.Answer))
		assert.Equal(t, n+1, w.countQueries(), "the alias target is cached, with its signature")

		assert.Equal(t, []string{"SOA"}, types(w.ask(r, "no.no.no.example.tld. A").Ns))
		assert.Equal(t, []string{"TXT"}, types(w.ask(r, "x.example.tld. TXT").Answer))
		assert.Empty(t, w.ask(r, "x.example.tld. TXT").Ns)
		assert.ElementsMatch(t, []string{"NSEC", "RRSIG"}, types(w.ask(r, "x.example.tld. TXT +do").Ns))
		assert.Equal(t, []string{"NSEC"}, types(w.ask(r, "www.example.tld. NSEC").Answer))
		assert.Subset(t, types(w.ask(r, "www.example.tld. RRSIG").Answer), []string{"RRSIG"})
	})
}

func TestCacheLimitsTTLBySignature(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*dns.RRSIG)
		want   time.Duration
	}{
		"expires in a minute":              {func(s *dns.RRSIG) { s.Expiration = uint32(time.Now().Unix()) + 60 }, time.Minute},
		"with an original TTL of a minute": {func(s *dns.RRSIG) { s.OrigTtl = 60 }, time.Minute},
		"as long as its TTL":               {func(*dns.RRSIG) {}, time.Hour},
		"expires in 2038":                  {func(s *dns.RRSIG) { s.Expiration = 1<<31 - 1 }, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, signedTree, func(t *testing.T, w *testNetwork) {
				w.sign()
				w.setFault("192.0.3.1", signaturesThat(c.change))
				r := newNonValidatingResolver(w)
				m := w.ask(r, "www.example.tld. A +do")
				for _, rr := range m.Answer {
					assert.Equal(t, uint32(c.want/time.Second), rr.Header().Ttl, rr)
				}
			})
		})
	}
}
