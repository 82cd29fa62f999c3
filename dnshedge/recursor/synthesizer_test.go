package recursor_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/internal/doubles"
	sign "github.com/gohedge/hedge/internal/signer"
)

// A prover makes the proofs of denials in a zone by another method than a chain of NSEC records.
type prover struct {
	*sign.Chain
	signed map[string][]dns.RR
}

// proveBy makes a signed zone prove denials by a method.
func (z *zone) proveBy(how sign.Denial, h sign.NSEC3Params) *prover {
	types := make(map[string][]uint16)
	for name, sets := range z.sets {
		if cut := z.cut(name); len(sets) == 0 || cut != "" && cut != name || !z.holds(name) {
			continue
		}
		for t := range sets {
			if t != dns.TypeRRSIG && t != dns.TypeNSEC && (z.cut(name) == "" || t == dns.TypeNS || t == dns.TypeDS) {
				types[name] = append(types[name], t)
			}
		}
		slices.Sort(types[name])
		delete(sets, dns.TypeNSEC)
		sets[dns.TypeRRSIG] = slices.DeleteFunc(sets[dns.TypeRRSIG], func(rr dns.RR) bool { return rr.(*dns.RRSIG).TypeCovered == dns.TypeNSEC })
	}
	z.signer.other = &prover{sign.NewChain(z.name, how, h, 300, types), make(map[string][]dns.RR)}
	return z.signer.other
}

// prove returns the proof that a name has no records of the type, or that it does not exist, with its closest
// encloser.
func (p *prover) prove(z *zone, name string) []dns.RR {
	if z.sets[name] != nil {
		return p.sign(z, p.ProveNoData(name))
	}
	return p.sign(z, p.ProveNoCloserName(name))
}

func (p *prover) sign(z *zone, rrs []dns.RR) (all []dns.RR) {
	for _, rr := range rrs {
		k := rr.String()
		if p.signed[k] == nil {
			p.signed[k] = []dns.RR{rr, z.signer.sign([]dns.RR{rr})}
		}
		all = append(all, p.signed[k]...)
	}
	return all
}

// ways are the methods by which zones prove denials.
var ways = map[string]func(*zone) int{
	"NSEC":    func(z *zone) int { return len(z.signer.chain) },
	"NSEC3":   func(z *zone) int { return z.proveBy(sign.NSEC3, sign.NSEC3Params{Iterations: 1, Salt: "aabb"}).Len() },
	"opt-out": func(z *zone) int { return z.proveBy(sign.NSEC3OptOut, sign.NSEC3Params{}).Len() },
	"minimal": func(z *zone) int { return z.proveBy(sign.MinimalNSEC, sign.NSEC3Params{}).Len() },
}

const few = `
. served 198.41.0.4
tld. delegated 192.0.2.1
example.tld. delegated 192.0.3.1
  www A 192.0.2.80
  mail A 192.0.2.86
  a.b A 192.0.2.81
  *.w TXT any
  unsigned NS ns.unsigned
  ns.unsigned A 192.0.3.9
unsigned.example.tld. served 192.0.3.9
  x A 192.0.2.82
`

// flood resolves random names below a zone, and returns the number of queries to its server.
func (w *testNetwork) flood(r *recursor.Resolver, n int, zone string) int {
	w.t.Helper()
	rnd := rand.New(rand.NewPCG(1, 2))
	before := w.countQueries("192.0.3.1")
	for range n {
		q := parseQuestion(fmt.Sprintf("r%x.%s A", rnd.Uint64(), zone))
		q.IsEdns0().SetDo()
		m, _, err := r.ExchangeContext(context.Background(), q, "")
		require.NoError(w.t, err)
		require.Equal(w.t, dns.RcodeNameError, m.Rcode)
	}
	return w.countQueries("192.0.3.1") - before
}

func TestSynthesizerAnswersFloodOfMissingNames(t *testing.T) {
	for how, prove := range ways {
		t.Run(how, func(t *testing.T) {
			bubble(t, few, func(t *testing.T, w *testNetwork) {
				w.sign("unsigned.example.tld.")
				records := prove(w.zone("example.tld."))
				off := newValidatingResolver(w)
				recursor.DisableSynthesis(off)
				asked := w.flood(off, 200, "example.tld.")
				require.Greater(t, asked, 200)
				require.Zero(t, off.Stats().Synthesized)

				r := newValidatingResolver(w)
				if how == "NSEC" || how == "NSEC3" {
					assert.LessOrEqual(t, w.flood(r, 1000, "example.tld."), records+2, "including the queries for keys")
					assert.Greater(t, r.Stats().Synthesized, int64(950))
					assert.EqualValues(t, 1000, r.Stats().Secure)
					return
				}
				assert.LessOrEqual(t, w.flood(r, 200, "example.tld."), asked, "as without synthesized answers")
				assert.LessOrEqual(t, r.Stats().Bytes, off.Stats().Bytes+2048, "no proof is cached")
			})
		})
	}
}

// TestSynthesizerAnswersFloodBelowLargeZone has a zone of more than 250 NSEC ranges. Each range is queried once at
// most.
func TestSynthesizerAnswersFloodBelowLargeZone(t *testing.T) {
	var b strings.Builder
	b.WriteString(few[:strings.Index(few, "unsigned.example.tld. served")])
	for i := range 250 {
		fmt.Fprintf(&b, "  r%02x A 192.0.2.90\n", i)
	}
	for _, how := range []string{"NSEC", "NSEC3"} {
		bubble(t, b.String(), func(t *testing.T, w *testNetwork) {
			w.sign()
			records := ways[how](w.zone("example.tld."))
			r := newValidatingResolver(w)
			asked := w.flood(r, 1000, "example.tld.")
			assert.LessOrEqual(t, asked, records+2, how)
			assert.EqualValues(t, 1000, r.Stats().Secure)
			t.Logf("%s: %d records, %d queries", how, records, asked)
		})
	}
}

// TestSynthesizerAnswersLikeServers requires that synthesized answers have the RCODE, records and security status of
// the servers' answers, and a valid proof.
func TestSynthesizerAnswersLikeServers(t *testing.T) {
	seeds := uint64(10)
	if doubles.RaceEnabled || testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		rnd := rand.New(rand.NewPCG(seed, 7))
		text := randomText(rnd)
		for _, how := range []string{"NSEC", "NSEC3", "opt-out", "minimal"} {
			t.Run(fmt.Sprint(how, seed), func(t *testing.T) {
				bubble(t, text, func(t *testing.T, w *testNetwork) {
					w.sign("u.example.tld.")
					ways[how](w.zone("example.tld."))
					on, off := newValidatingResolver(w), newValidatingResolver(w)
					recursor.DisableSynthesis(off)
					rnd := rand.New(rand.NewPCG(seed, 9))
					for range 60 {
						q := parseQuestion(randomName(rnd) + "example.tld. " + []string{"A", "TXT", "DS", "NS", "CNAME", "MX"}[rnd.IntN(6)])
						q.IsEdns0().SetDo()
						before := on.Stats().Synthesized
						got, _, err := on.ExchangeContext(t.Context(), q.Copy(), "")
						require.NoError(t, err)
						want, _, err := off.ExchangeContext(t.Context(), q.Copy(), "")
						require.NoError(t, err)
						name := fmt.Sprint(q.Question[0].Name, " ", dns.Type(q.Question[0].Qtype))
						require.Equal(t, []any{want.Rcode, want.AuthenticatedData, dataOf(want.Answer)}, []any{got.Rcode, got.AuthenticatedData, dataOf(got.Answer)}, name)
						if on.Stats().Synthesized > before && len(got.Answer) == 0 && got.Rcode != dns.RcodeServerFailure {
							w.checkProof(t, got)
						}
					}
				})
			})
		}
	}
}

// checkProof requires that a negative response has a valid proof.
func (w *testNetwork) checkProof(t *testing.T, m *dns.Msg) {
	t.Helper()
	soa := slices.IndexFunc(m.Ns, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeSOA })
	require.GreaterOrEqual(t, soa, 0, "%v", m)
	s := w.zone(m.Ns[soa].Header().Name).signer
	ds, err := validate.TrustAnchors(s.ds())
	require.NoError(t, err)
	work := new(validate.Validation)
	keys := []dns.RR{s.key}
	k, _, err := work.VerifyDNSKEY(ds, validate.NewRRset(keys, s.sign(keys)), time.Now())
	require.NoError(t, err)
	sets, err := validate.GroupRRsets(m.Ns)
	require.NoError(t, err)
	q := m.Question[0]
	d, err := work.VerifyDenial(q.Name, q.Qtype, sets[0], k, time.Now())
	require.NoError(t, err, "%v", m)
	assert.Equal(t, validate.Secure, d.Status)
	assert.Equal(t, m.Rcode == dns.RcodeNameError, d.Kind == validate.NameError)
	for _, rr := range m.Ns {
		assert.LessOrEqual(t, rr.Header().Ttl, uint32(300))
	}
}

// dataOf returns records without TTLs as sorted text.
func dataOf(rrs []dns.RR) (all []string) {
	for _, rr := range rrs {
		rr = dns.Copy(rr)
		rr.Header().Ttl = 0
		all = append(all, rr.String())
	}
	slices.Sort(all)
	return all
}

func randomName(r *rand.Rand) (name string) {
	for range r.IntN(4) {
		name = []string{"a.", "b.", "c.", "s.", "u.", "x.", "*.", "B.", "z-"}[r.IntN(8)] + name
	}
	return name
}

// randomText returns the text of a testNetwork with a random zone and two child zones.
func randomText(r *rand.Rand) string {
	b := strings.Builder{}
	b.WriteString(". served 198.41.0.4\ntld. delegated 192.0.2.1\nexample.tld. delegated 192.0.3.1\n")
	seen := map[string]bool{"": true, "s.": true, "u.": true}
	for range 2 + r.IntN(8) {
		name := strings.ToLower(randomName(r))
		if seen[name] || strings.HasSuffix(name, "s.") || strings.HasSuffix(name, "u.") || strings.Contains(name, ".*.") {
			continue
		}
		seen[name] = true
		data := []string{"A 192.0.2.80", "TXT t", "CNAME a.example.tld.", "DNAME b.a.example.tld.", "MX 1 a.example.tld."}[r.IntN(5)]
		if strings.HasPrefix(name, "*") && strings.HasPrefix(data, "DNAME") {
			continue
		}
		fmt.Fprintf(&b, "  %s %s\n", strings.TrimSuffix(name, "."), data)
	}
	b.WriteString("s.example.tld. delegated 192.0.3.2\n  a A 192.0.2.83\nu.example.tld. delegated 192.0.3.3\n  a A 192.0.2.84\n")
	return b.String()
}

const ranged = `
. served 198.41.0.4
tld. delegated 192.0.2.1
example.tld. delegated 192.0.3.1
  b A 192.0.2.80
  a.b.c.d A 192.0.2.81
  *.w A 192.0.2.82
  z A 192.0.2.83
sub.example.tld. delegated 192.0.3.2
  www A 192.0.2.84
bad.tld. delegated 192.0.3.3
  www A 192.0.2.85
corp.example.tld. served 10.0.0.1
  www A 192.0.2.86
`

// TestSynthesizerAnswersCoveredNames resolves some questions, whose proofs are cached, and then one more. A row has
// the answer to that question and the number of its queries.
func TestSynthesizerAnswersCoveredNames(t *testing.T) {
	nothing := func(*recursor.Resolver) {}
	insecure := func(names ...string) func(*recursor.Resolver) {
		return func(r *recursor.Resolver) { r.Trust.Insecure = names }
	}
	stub := func(r *recursor.Resolver) { r.Zones = zonesOf("corp.example.tld.", "10.0.0.1:53") }
	for name, tt := range map[string]struct {
		set    func(*recursor.Resolver)
		before []string
		asked  string
		want   string
		cost   int
	}{
		"a name in a range":                   {nothing, []string{"e.example.tld. A"}, "f.example.tld. AAAA", "NXDOMAIN secure", 0},
		"in another case":                     {nothing, []string{"e.example.tld. A"}, "F.eXample.tld. AAAA", "NXDOMAIN secure", 0},
		"with escapes":                        {nothing, []string{"e.example.tld. A"}, `\102.example.tld. A`, "NXDOMAIN secure", 0},
		"below a name in a range":             {nothing, []string{"e.example.tld. A"}, "x.y.f.example.tld. A", "NXDOMAIN secure", 0},
		"a name that exists, of another type": {nothing, []string{"b.example.tld. AAAA"}, "b.example.tld. TXT", "NOERROR secure", 0},
		"of the type that it has":             {nothing, []string{"b.example.tld. AAAA"}, "b.example.tld. A", "NOERROR secure 1", 1},
		"the end of the range":                {nothing, []string{"e.example.tld. A"}, "sub.example.tld. TXT", "NOERROR secure", 3}, // a referral, the answer, keys
		"an empty non-terminal":               {nothing, []string{"c.d.example.tld. A"}, "d.example.tld. TXT", "NOERROR secure", 0},
		"a part of a name that is kept":       {nothing, []string{"c.d.example.tld. A"}, "a.b.c.d.example.tld. A", "NOERROR secure 1", 1},
		"below a name that does not exist":    {nothing, []string{"z.example.tld. A"}, "x.y.e.example.tld. A", "NXDOMAIN secure", 1},
		"a wildcard":                          {nothing, []string{"x.w.example.tld. A"}, "y.w.example.tld. A", "NOERROR secure 1", 0},
		"a wildcard, of a type that has none": {nothing, []string{"x.w.example.tld. A", "x.w.example.tld. MX"}, "y.w.example.tld. TXT", "NOERROR secure", 0},
		"a wildcard that was not asked for":   {nothing, []string{"z.example.tld. A", "x.w.example.tld. MX"}, "y.w.example.tld. A", "NOERROR secure 1", 1},
		"DS at a cut, of the parent":          {nothing, []string{"e.example.tld. A"}, "ee.example.tld. DS", "NXDOMAIN secure", 0},
		"DS at a cut, after the child's apex": {nothing, []string{"sub.example.tld. MX"}, "sub.example.tld. DS", "NOERROR secure 1", 1},
		"of the child, after the parent's":    {nothing, []string{"sun.example.tld. A"}, "www.sub.example.tld. A", "NOERROR secure 1", 3}, // as well
		"of the root":                         {nothing, []string{"no. A"}, "nn. A", "NXDOMAIN secure", 0},
		"CD":                                  {nothing, []string{"e.example.tld. A"}, "f.example.tld. A +cd", "NXDOMAIN", 1},
		"after CD":                            {nothing, []string{"e.example.tld. A +cd"}, "f.example.tld. A", "NXDOMAIN secure", 3}, // with the keys of two zones: those of the root are known
		"an insecure name in the range":       {insecure("f.example.tld."), []string{"e.example.tld. A"}, "x.f.example.tld. A", "NXDOMAIN", 2},
		"beside an insecure name":             {insecure("f.example.tld."), []string{"e.example.tld. A"}, "g.example.tld. A", "NXDOMAIN secure", 0},
		"an insecure zone":                    {insecure("tld."), []string{"e.example.tld. A"}, "f.example.tld. A", "NXDOMAIN", 1},
		"a zone of the user's in the range":   {stub, []string{"cc.example.tld. A"}, "www.corp.example.tld. A", "NOERROR 1", 1},
		"the name of a zone of the user's":    {stub, []string{"cc.example.tld. A"}, "corp.example.tld. TXT", "NOERROR", 1},
		"beside a zone of the user's":         {stub, []string{"cc.example.tld. A"}, "cd.example.tld. A", "NXDOMAIN secure", 0},
		"a zone whose signatures do not fit":  {nothing, []string{"e.bad.tld. A"}, "f.bad.tld. A", "SERVFAIL", -1},
		"RRSIG":                               {nothing, []string{"e.example.tld. A"}, "f.example.tld. RRSIG", "NXDOMAIN", 1},
		"an alias's target would be the same": {nothing, []string{"e.example.tld. A"}, "e.example.tld. ANY", "NXDOMAIN secure", 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, ranged, func(t *testing.T, w *testNetwork) {
				w.sign("corp.example.tld.")
				w.setFault("192.0.3.3", forged)
				r := newValidatingResolver(w, tt.set)
				ask := func(question string) (string, int) {
					n := w.countQueries()
					m, _, err := r.ExchangeContext(t.Context(), parseQuestion(question+" +ad"), "")
					require.NoError(t, err)
					got := dns.RcodeToString[m.Rcode]
					if m.AuthenticatedData {
						got += " secure"
					}
					if len(m.Answer) > 0 {
						got += fmt.Sprint(" ", len(m.Answer))
					}
					return got, w.countQueries() - n
				}
				for _, q := range tt.before {
					ask(q)
				}
				got, cost := ask(tt.asked)
				assert.Equal(t, tt.want, got)
				if tt.cost >= 0 {
					assert.Equal(t, tt.cost, cost)
				}
			})
		})
	}
}

func TestSynthesizerUsesProofUntilTTLEnds(t *testing.T) {
	bubble(t, ranged, func(t *testing.T, w *testNetwork) {
		w.sign("corp.example.tld.")
		r := newValidatingResolver(w)
		rcodeOf := func(q string) int {
			m, _, err := r.ExchangeContext(t.Context(), parseQuestion(q), "")
			require.NoError(t, err)
			return m.Rcode
		}
		require.Equal(t, dns.RcodeNameError, rcodeOf("e.example.tld. A"))
		w.withLock(func() {
			z := w.zone("example.tld.")
			z.add(t, "f A 192.0.2.99")
			z.sign()
		})
		time.Sleep(299 * time.Second)
		assert.Equal(t, dns.RcodeNameError, rcodeOf("f.example.tld. A"))
		time.Sleep(time.Second)
		assert.Equal(t, dns.RcodeSuccess, rcodeOf("f.example.tld. A"))
		assert.Equal(t, dns.RcodeNameError, rcodeOf("g.example.tld. A"))
	})
}

func TestSynthesizerNeedsTrustAnchor(t *testing.T) {
	bubble(t, ranged, func(t *testing.T, w *testNetwork) {
		w.sign("corp.example.tld.")
		r := newValidatingResolver(w, func(r *recursor.Resolver) { r.Trust.Anchors = []dns.RR{w.zone("example.tld.").signer.ds()} })
		for _, name := range []string{"e.", "f.", "e.tld.", "f.tld."} {
			assert.Equal(t, "insecure", w.security(r, name+" A"))
		}
		for i, name := range []string{"e.example.tld.", "f.example.tld."} {
			assert.Equal(t, "secure", w.security(r, name+" A +ad"))
			assert.EqualValues(t, i, r.Stats().Synthesized)
		}
	})
}

func TestTraceCountsSynthesizedAnswers(t *testing.T) {
	bubble(t, ranged, func(t *testing.T, w *testNetwork) {
		w.sign("corp.example.tld.")
		var last recursor.AnswerInfo
		r := newValidatingResolver(w, func(r *recursor.Resolver) {
			r.Trace = &recursor.Trace{Answer: func(_ context.Context, a recursor.AnswerInfo) { last = a }}
		})
		for i, name := range []string{"e", "f"} {
			_, _, err := r.ExchangeContext(t.Context(), parseQuestion(name+".example.tld. A"), "")
			require.NoError(t, err)
			assert.Equal(t, i, last.Proofs)
			assert.Equal(t, i == 1, last.Queries == 0)
			assert.EqualValues(t, i, r.Stats().Synthesized)
		}
	})
}

// TestMinimisedQuestionsCountForVerifications verifies the proofs in the answers to minimised questions, which other
// questions may use. A question pays for that, and still has enough left for its own proofs with any number of
// labels and aliases.
func TestMinimisedQuestionsCountForVerifications(t *testing.T) {
	const limit = 12
	var b strings.Builder
	for i := range 5 {
		fmt.Fprintf(&b, "  a.b.c.d.e.f.g.h.n%d CNAME a.b.c.d.e.f.g.h.n%d.example.tld.\n", i, i+1)
	}
	b.WriteString("  a.b.c.d.e.f.g.h.n5 A 192.0.2.77\n  www A")
	bubble(t, strings.Replace(few, "  www A", b.String(), 1), func(t *testing.T, w *testNetwork) {
		w.sign("unsigned.example.tld.")
		w.zone("example.tld.").proveBy(sign.MinimalNSEC, sign.NSEC3Params{})
		r := newValidatingResolver(w, limits(recursor.Limits{Verifications: limit}))
		require.Equal(t, "secure", w.security(r, "www.example.tld. A +ad"))
		before := r.Stats().Verifications
		assert.Equal(t, "secure", w.security(r, "a.b.c.d.e.f.g.h.n0.example.tld. A +ad"))
		assert.LessOrEqual(t, r.Stats().Verifications-before, int64(limit))
	})
}
