package recursor_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/dnssec"
	keys "github.com/gohedge/hedge/internal/signer"
)

// replayed has a zone whose signed records an attacker replays, and a signed zone of the attacker.
const replayed = `
. served 198.41.0.4
tld. delegated 192.0.2.1
example.tld. delegated 192.0.3.1 192.0.3.2
  www A 192.0.2.80
  mail A 192.0.2.86
  *.w A 192.0.2.81
  host.w A 192.0.2.87
  alias CNAME mail
evil.tld. delegated 192.0.3.3 192.0.3.4
  www A 203.0.113.66
`

// A replay is a response that an attacker makes of signed records. All servers of the zone send it.
type replay struct {
	question          string
	rcode             int
	answer, authority []dns.RR
}

// replays returns the attacks by name. The zones of w must be signed.
func replays(w *testNetwork) map[string]replay {
	example, evil, tld := w.zone("example.tld."), w.zone("evil.tld."), w.zone("tld.")
	signed := func(z *zone, owner string, typ uint16) (all []dns.RR) { // the RRset with its signature
		for _, rr := range append(z.sets[owner][typ], z.sets[owner][dns.TypeRRSIG]...) {
			if sig, ok := rr.(*dns.RRSIG); !ok || sig.TypeCovered == typ {
				all = append(all, rr)
			}
		}
		return all
	}
	as := func(owner string, rrs []dns.RR, change ...func(*dns.RRSIG)) (all []dns.RR) { // with another owner
		for _, rr := range rrs {
			rr = dns.Copy(rr)
			rr.Header().Name = owner
			if sig, ok := rr.(*dns.RRSIG); ok {
				for _, f := range change {
					f(sig)
				}
			}
			all = append(all, rr)
		}
		return all
	}
	by := func(z *zone, signer string, rrs ...dns.RR) []dns.RR { // signed by the key of z, in the name of signer
		sig := &dns.RRSIG{
			Hdr:       dns.RR_Header{Name: rrs[0].Header().Name, Rrtype: dns.TypeRRSIG, Class: dns.ClassINET, Ttl: 300},
			Algorithm: z.signer.key.Algorithm, SignerName: signer, KeyTag: z.signer.key.KeyTag(),
			Inception: uint32(z.signer.begin.Unix()), Expiration: uint32(z.signer.end.Unix()),
		}
		if err := sig.Sign(z.signer.priv, rrs); err != nil {
			panic(err)
		}
		return append(rrs, sig)
	}
	soa := func(z *zone) []dns.RR { return signed(z, z.name, dns.TypeSOA) }
	with := func(all ...[]dns.RR) (out []dns.RR) {
		for _, rrs := range all {
			out = append(out, rrs...)
		}
		return out
	}
	star := signed(example, "*.w.example.tld.", dns.TypeA)
	labels := func(n uint8) func(*dns.RRSIG) { return func(sig *dns.RRSIG) { sig.Labels = n } }
	const bad = " 300 A 203.0.113.66"
	nsec3 := keys.NewChain("example.tld.", keys.NSEC3, keys.NSEC3Params{}, 300, map[string][]uint16{"example.tld.": {dns.TypeNS, dns.TypeSOA}})
	var foreign []dns.RR
	for _, rr := range nsec3.ProveNoName("www.example.tld.") {
		foreign = append(foreign, by(evil, "evil.tld.", rr)...)
	}
	return map[string]replay{
		"a wildcard for an existing name":                      {"host.w.example.tld. A", 0, as("host.w.example.tld.", star), nil},
		"a wildcard for an existing name, with its NSEC":       {"host.w.example.tld. A", 0, as("host.w.example.tld.", star), example.coveringNSEC("host.w.example.tld.")},
		"a wildcard with the proof of another name":            {"host.w.example.tld. A", 0, as("host.w.example.tld.", star), example.coveringNSEC("a.w.example.tld.")},
		"a wildcard outside of its subtree":                    {"www.example.tld. A", 0, as("www.example.tld.", star), example.coveringNSEC("wwx.example.tld.")},
		"labels lowered to the zone":                           {"nx.example.tld. A", 0, as("nx.example.tld.", signed(example, "www.example.tld.", dns.TypeA), labels(2)), example.coveringNSEC("nx.example.tld.")},
		"labels lowered below the zone":                        {"nx.example.tld. A", 0, as("nx.example.tld.", signed(example, "www.example.tld.", dns.TypeA), labels(1)), example.coveringNSEC("nx.example.tld.")},
		"a wildcard of the parent, signed by a child":          {"x.evil.tld. A", 0, as("x.evil.tld.", by(evil, "evil.tld.", record("*.tld."+bad))), evil.coveringNSEC("x.evil.tld.")},
		"another zone as signer":                               {"www.example.tld. A", 0, by(evil, "evil.tld.", record("www.example.tld."+bad)), nil},
		"the parent as signer, with the key of another":        {"www.example.tld. A", 0, by(evil, "tld.", record("www.example.tld."+bad)), nil},
		"the zone as signer, with the key of another":          {"www.example.tld. A", 0, by(evil, "example.tld.", record("www.example.tld."+bad)), nil},
		"an alias under another name":                          {"www.example.tld. A", 0, as("www.example.tld.", signed(example, "alias.example.tld.", dns.TypeCNAME)), nil},
		"an NSEC that leads out of the zone":                   {"nx.evil.tld. A", dns.RcodeNameError, nil, with(soa(evil), by(evil, "evil.tld.", record("evil.tld. 300 NSEC zzz.tld. NS SOA RRSIG NSEC")))},
		"an NSEC of the parent's names":                        {"nx.evil.tld. A", dns.RcodeNameError, nil, with(soa(evil), by(evil, "evil.tld.", record("tld. 300 NSEC tld. NS SOA RRSIG NSEC")))},
		"the parent's NSEC at the cut":                         {"example.tld. TXT", 0, nil, with(soa(example), tld.coveringNSEC("example.tld."))},
		"the denial of another name":                           {"www.example.tld. A", dns.RcodeNameError, nil, with(soa(example), example.denials("nx.example.tld.", "*.example.tld."))},
		"the denial of another type":                           {"mail.example.tld. A", 0, nil, with(soa(example), example.coveringNSEC("mail.example.tld."))},
		"a denial without the wildcard's":                      {"x.w.example.tld. A", dns.RcodeNameError, nil, with(soa(example), example.coveringNSEC("x.w.example.tld."))},
		"NSEC3 records signed by another zone":                 {"www.example.tld. A", dns.RcodeNameError, nil, with(soa(example), foreign)},
		"no denial":                                            {"www.example.tld. A", dns.RcodeNameError, nil, soa(example)},
		"an unsigned denial":                                   {"www.example.tld. A", dns.RcodeNameError, nil, []dns.RR{record("example.tld. 300 NSEC example.tld. NS SOA RRSIG NSEC")}},
		"the empty denial of an insecure zone that is not one": {"www.example.tld. A", dns.RcodeSuccess, nil, nil},
	}
}

// replayTruth has the correct answers to all questions of replays, and others.
var replayTruth = map[string]string{
	"www.example.tld. A": "NOERROR www.example.tld. A 192.0.2.80", "mail.example.tld. A": "NOERROR mail.example.tld. A 192.0.2.86",
	"host.w.example.tld. A": "NOERROR host.w.example.tld. A 192.0.2.87", "x.w.example.tld. A": "NOERROR x.w.example.tld. A 192.0.2.81",
	"www.evil.tld. A": "NOERROR www.evil.tld. A 203.0.113.66", "nx.example.tld. A": "NXDOMAIN", "nx.tld. A": "NXDOMAIN",
	"nx.evil.tld. A": "NXDOMAIN", "x.evil.tld. A": "NXDOMAIN", "example.tld. TXT": "NOERROR",
}

// forEachReplay runs f for each attack, in a signed network of its own.
func forEachReplay(t *testing.T, f func(t *testing.T, w *testNetwork, a replay)) {
	var names []string
	bubble(t, replayed, func(t *testing.T, w *testNetwork) {
		w.sign()
		names = slices.Sorted(maps.Keys(replays(w)))
	})
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			bubble(t, replayed, func(t *testing.T, w *testNetwork) {
				w.sign()
				f(t, w, replays(w)[name])
			})
		})
	}
}

// send is the fault of a server that sends the response.
func (a replay) send(_ query, r *dns.Msg) *dns.Msg {
	r.Rcode, r.Answer, r.Ns = a.rcode, a.answer, a.authority
	return r
}

// assertBogus asserts that m is SERVFAIL because of missing or invalid signatures or proofs.
func assertBogus(t *testing.T, m *dns.Msg) {
	t.Helper()
	code, text := readExtendedError(m)
	assert.Equal(t, "SERVFAIL", formatResponse(m))
	assert.True(t, dns.ExtendedErrorCodeDNSBogus <= code && code <= dns.ExtendedErrorCodeNSECMissing, "EDE %d, %s", code, text)
}

// TestReplayedRecordsAreBogus has responses of records that are signed, for questions that they do not answer
// (CVE-2026-44690, CVE-2026-46582, CVE-2026-13321, CVE-2026-11721, CVE-2026-10723). None is accepted, and none changes
// the answers to other questions.
func TestReplayedRecordsAreBogus(t *testing.T) {
	forEachReplay(t, func(t *testing.T, w *testNetwork, a replay) {
		servers := "192.0.3.1 192.0.3.2"
		if strings.Contains(a.question, "evil") {
			servers = "192.0.3.3 192.0.3.4"
		}
		w.setFault(servers, onlyForQuestion(a.question, a.send))
		r := newValidatingResolver(w)
		require.Equal(t, "secure", w.security(r, "tld. SOA"))
		for round := range 2 {
			before := r.Stats().Verifications
			cost := w.queryCost(r, func() {
				if m := w.ask(r, a.question); round == 0 || formatResponse(m) != replayTruth[a.question] { // which follows from the proofs of other answers
					assertBogus(t, m)
				}
			})
			assert.LessOrEqual(t, cost, 32)
			assert.LessOrEqual(t, r.Stats().Verifications-before, int64(128))
			for question, want := range replayTruth {
				if question != a.question {
					assert.Equal(t, want, formatResponse(w.ask(r, question)), question)
					assert.Equal(t, "secure", w.security(r, question), question)
				}
			}
		}
		w.setFault(servers, nil)
		time.Sleep(6 * time.Minute)
		assert.Equal(t, replayTruth[a.question], formatResponse(w.ask(r, a.question)), "the zone recovers without help")
		assert.Equal(t, "secure", w.security(r, a.question))
	})
}

// replayUpstream is an upstream with all zones of a network. It sends the response of an attack to its question.
type replayUpstream struct {
	zones     []*zone
	attack    replay
	questions atomic.Int64 // received so far
}

func (u *replayUpstream) ExchangeContext(_ context.Context, m *dns.Msg, _ string) (*dns.Msg, time.Duration, error) {
	u.questions.Add(1)
	q := query{Msg: m, name: dns.CanonicalName(m.Question[0].Name), qtype: m.Question[0].Qtype}
	r := onlyForQuestion(u.attack.question, u.attack.send)(q, answer(u.zones, q))
	r.RecursionAvailable = true
	return r.Copy(), ms, nil
}

// TestValidatorRefusesReplayedRecords is TestReplayedRecordsAreBogus for the validator of a forwarder, which knows no
// zone cuts.
func TestValidatorRefusesReplayedRecords(t *testing.T) {
	forEachReplay(t, func(t *testing.T, w *testNetwork, a replay) {
		u := &replayUpstream{zones: w.zones(), attack: a}
		v := &dnssec.Validator{Exchanger: u, Trust: dnssec.Trust{Anchors: []dns.RR{w.zone(".").signer.ds()}}}
		defer v.Close()
		ask := func(question string) *dns.Msg {
			m, _, err := v.ExchangeContext(t.Context(), parseQuestion(question+" +ad"), "")
			require.NoError(t, err)
			return m
		}
		before, units := u.questions.Load(), v.Stats().Verifications
		m := ask(a.question)
		time.Sleep(15 * time.Second) // until no lookup is left
		assertBogus(t, m)
		assert.LessOrEqual(t, u.questions.Load()-before, int64(32))
		assert.LessOrEqual(t, v.Stats().Verifications-units, int64(128))
		for question, want := range replayTruth {
			if question != a.question {
				m := ask(question)
				assert.Equal(t, want, formatResponse(m), question)
				assert.True(t, m.AuthenticatedData, question)
			}
		}
	})
}

// TestCostlyNSEC3HashesReachLimit has NSEC3 parameters with which each label of a name costs 251 SHA-1 blocks
// (CVE-2023-50868).
func TestCostlyNSEC3HashesReachLimit(t *testing.T) {
	bubble(t, replayed, func(t *testing.T, w *testNetwork) {
		w.sign()
		w.zone("evil.tld.").proveBy(keys.NSEC3, keys.NSEC3Params{Iterations: 50, Salt: strings.Repeat("ab", 255)})
		for _, off := range []bool{false, true} {
			r := newValidatingResolver(w)
			r.NoMinimise = off
			assert.Equal(t, "secure", w.security(r, "nx.evil.tld. A"), "as many hashes as a name of few labels needs")
			assert.Empty(t, r.Stats().Limited)
			for i := range 3 {
				cost := w.queryCost(r, func() {
					assert.Contains(t, w.security(r, strings.Repeat("a.", 100)+string(rune('a'+i))+".evil.tld. A"), "bogus")
				})
				assert.LessOrEqual(t, cost, 32)
				assert.EqualValues(t, i+1, r.Stats().Limited["NSEC3 blocks"])
				assert.Equal(t, "secure", w.security(r, "www.example.tld. A"), "others are unharmed")
			}
		}
	})
}
