package validate_test

import (
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
	sign "github.com/gohedge/hedge/internal/signer"
)

// checkKept requires that the records prove as much when they are kept, but for opt-out.
func (p proof) checkKept(t *testing.T, k *validate.Keys) {
	t.Helper()
	d := keeping(t, seeded(k.Zone(), ksk, 1), p.sets...)
	known, ok := d.Synthesize(new(validate.Validation), p.qname, p.qtype, now)
	assert.Equal(t, p.kind != validate.Unproven && !optOut(p.sets), ok, p.name)
	if ok {
		assert.Equal(t, p.kind, known.Kind, p.name)
		assert.EqualValues(t, 300, known.TTL, p.name)
		assert.Empty(t, known.Answer)
		all, err := validate.GroupRRsets(known.Authority)
		require.NoError(t, err)
		again, err := new(validate.Validation).VerifyDenial(p.qname, p.qtype, all[0], k, now)
		assert.NoError(t, err, p.name)
		assert.Equal(t, p.kind, again.Kind, p.name)
	}
}

const most = 1 << 20 // bytes

// soaOf returns the SOA RRset of a signer's zone, with a TTL and a MINIMUM of 300 s.
func soaOf(t testing.TB, s *signer) *validate.RRset {
	zone := s.key.Hdr.Name
	return set(t, records(t, zone+" 300 IN SOA ns. admin. 1 2 3 4 300"), s)
}

// keeping returns what is kept of RRsets and an SOA record.
func keeping(t testing.TB, s *signer, sets ...*validate.RRset) *validate.AggressiveCache {
	d := validate.NewAggressiveCache(s.key.Hdr.Name, most)
	k := trust(t, s)
	for _, set := range append([]*validate.RRset{soaOf(t, s)}, sets...) {
		d.Add(new(validate.Validation), set, k, now)
	}
	return d
}

// asked returns what is known of a question: the kind, the number of seconds, or nothing.
func asked(d *validate.AggressiveCache, qname string, qtype uint16, at time.Time) string {
	known, ok := d.Synthesize(new(validate.Validation), qname, qtype, at)
	if !ok {
		return ""
	}
	return fmt.Sprint(known.Kind, " ", known.TTL)
}

func TestAggressiveCacheExpiresWithNeededRecords(t *testing.T) {
	s := seeded("example.", ksk, 1)
	chain := []string{"example. b.example. NS SOA", "b.example. example. A"}
	d := keeping(t, s, nsecs(t, s, chain...)...)
	assert.Equal(t, "no name 300", asked(d, "x.example.", dns.TypeA, now))
	assert.Equal(t, "no name 1", asked(d, "x.example.", dns.TypeA, now.Add(299*time.Second)))
	assert.Equal(t, "", asked(d, "x.example.", dns.TypeA, now.Add(300*time.Second)))
	assert.Equal(t, "", asked(d, "x.example.", dns.TypeA, now.Add(-time.Second)), "the clock went back")

	t.Run("no longer than the SOA record says, which is less", func(t *testing.T) { // RFC 9077
		d := validate.NewAggressiveCache("example.", most)
		k := trust(t, s)
		lines := []string{"example. 86400 IN NSEC example. NS SOA RRSIG NSEC", "example. 3600 IN SOA ns. admin. 1 2 3 4 60"}
		for _, set := range signed(t, s, lines...) {
			d.Add(new(validate.Validation), set, k, now)
		}
		assert.Equal(t, "no name 60", asked(d, "x.example.", dns.TypeA, now))
		assert.Equal(t, "no name 1", asked(d, "x.example.", dns.TypeA, now.Add(59*time.Second)))
		assert.Equal(t, "", asked(d, "x.example.", dns.TypeA, now.Add(60*time.Second)))
	})
	t.Run("no longer than three hours", func(t *testing.T) { // RFC 8198 §5.4
		d := validate.NewAggressiveCache("example.", most)
		k := trust(t, s)
		for _, set := range signed(t, s, "example. 86400 IN NSEC example. NS SOA RRSIG NSEC", "example. 86400 IN SOA ns. admin. 1 2 3 4 86400") {
			d.Add(new(validate.Validation), set, k, now)
		}
		assert.Equal(t, "no name 10800", asked(d, "x.example.", dns.TypeA, now))
	})
	t.Run("no longer than a signature", func(t *testing.T) {
		rrs := records(t, "example. 300 IN NSEC example. NS SOA RRSIG NSEC")
		sig := s.sign(t, rrs, func(g *dns.RRSIG) { g.Expiration = uint32(now.Add(7 * time.Second).Unix()) })
		d := keeping(t, s, validate.NewRRset(rrs, sig))
		assert.Equal(t, "no name 7", asked(d, "x.example.", dns.TypeA, now))
		assert.Equal(t, "", asked(d, "x.example.", dns.TypeA, now.Add(7*time.Second)))
	})
	t.Run("not without an SOA record", func(t *testing.T) {
		d := validate.NewAggressiveCache("example.", most)
		k := trust(t, s)
		for _, set := range signed(t, s, "example. 300 IN NSEC example. NS SOA RRSIG NSEC") {
			d.Add(new(validate.Validation), set, k, now)
		}
		assert.Equal(t, "", asked(d, "x.example.", dns.TypeA, now))
		assert.False(t, d.HasCurrentSOA(now))
	})
}

func TestAggressiveCacheRejectsUselessRecords(t *testing.T) {
	s := seeded("example.", ksk, 1)
	apex := []string{"example. 300 IN NSEC example. NS SOA RRSIG NSEC"}
	optOut := nsec3Zone{params: "1 1 0 -", names: map[string]string{"example.": "NS SOA"}}
	many := nsec3Zone{params: "1 0 51 -", names: map[string]string{"example.": "NS SOA"}}
	sha2 := nsec3Zone{params: "2 0 0 -", names: map[string]string{"example.": "NS SOA"}}
	wrong := records(t, apex...)
	forged := s.sign(t, wrong)
	forged.Signature = seeded("example.", ksk, 2).sign(t, wrong).Signature
	wild := records(t, "*.example. 300 IN NSEC example. A RRSIG NSEC")
	sig := s.sign(t, wild)
	for _, h := range []dns.RR{wild[0], sig} {
		h.Header().Name = "a.example."
	}
	for name, sets := range map[string][]*validate.RRset{
		"not signed":             {validate.NewRRset(records(t, apex...))},
		"signed wrongly":         {validate.NewRRset(wrong, forged)},
		"of another zone":        nsecs(t, seeded("a.example.", ksk, 1), "a.example. a.example. NS SOA"),
		"signed by a parent":     nsecs(t, seeded(".", ksk, 1), "example. example2. NS"),
		"made of a wildcard":     {validate.NewRRset(wild, sig)},
		"opt-out":                optOut.sign(t, s),
		"too many iterations":    many.sign(t, s),
		"another hash":           sha2.sign(t, s),
		"leads out of the zone":  nsecs(t, s, "example. other. NS SOA"),
		"a delegation, and lies": nsecs(t, s, "a.example. c.example. NS"),
	} {
		d := keeping(t, s, sets...)
		for _, q := range []string{"x.example.", "b.a.example.", "a.example."} {
			assert.Equal(t, "", asked(d, q, dns.TypeA, now), "%s: %s", name, q)
		}
	}
	unknown := validate.NewAggressiveCache("example.", most)
	untrusted := validate.UnverifiedDS(set(t, []dns.RR{s.ds(t, dns.SHA256)}))
	k, status, err := new(validate.Validation).VerifyDNSKEY(untrusted, dnskeys(t, s), now)
	require.NoError(t, err)
	require.Equal(t, validate.Unchecked, status)
	for _, set := range append(nsecs(t, s, "example. example. NS SOA"), soaOf(t, s)) {
		unknown.Add(new(validate.Validation), set, k, now)
	}
	assert.Equal(t, "", asked(unknown, "x.example.", dns.TypeA, now), "nobody trusts the keys")
}

func TestAggressiveCacheReplacesOlderRecords(t *testing.T) {
	s := seeded("example.", ksk, 1)
	d := keeping(t, s, nsecs(t, s, "example. example. NS SOA")...)
	require.Equal(t, "no name 300", asked(d, "b.example.", dns.TypeA, now))
	add := func(sets ...*validate.RRset) {
		for _, set := range sets {
			d.Add(new(validate.Validation), set, trust(t, s), now)
		}
	}
	add(nsecs(t, s, "b.example. example. A")...)
	assert.Equal(t, "no data 300", asked(d, "b.example.", dns.TypeTXT, now))
	assert.Equal(t, "", asked(d, "b.example.", dns.TypeA, now))
	before := d.MemoryBytes()
	add(nsecs(t, s, "b.example. c.example. A TXT")...)
	assert.Equal(t, "", asked(d, "b.example.", dns.TypeTXT, now))
	assert.InDelta(t, before, d.MemoryBytes(), 20, "one replaces the other")
	add(nsecs(t, s, "example. example. NS SOA")...)
	assert.Equal(t, "no name 300", asked(d, "b.example.", dns.TypeTXT, now), "it is gone again")

	one := nsec3Zone{params: "1 0 0 -", names: map[string]string{"example.": "NS SOA", "a.example.": "A"}}
	two := nsec3Zone{params: "1 0 1 aa", names: map[string]string{"example.": "NS SOA", "b.example.": "A"}}
	d = keeping(t, s, one.sign(t, s)...)
	require.Equal(t, "no name 300", asked(d, "b.example.", dns.TypeA, now))
	for _, set := range two.sign(t, s) {
		d.Add(new(validate.Validation), set, trust(t, s), now.Add(59*time.Second))
	}
	assert.Equal(t, "no name 300", asked(d, "b.example.", dns.TypeA, now), "the servers of the zone may disagree")
	later := now.Add(time.Minute)
	d.Add(new(validate.Validation), two.sign(t, s)[0], trust(t, s), later)
	assert.Equal(t, "", asked(d, "b.example.", dns.TypeA, later), "one record of each proves nothing")
	for _, set := range two.sign(t, s) {
		d.Add(new(validate.Validation), set, trust(t, s), later)
	}
	assert.Equal(t, "no name 240", asked(d, "a.example.", dns.TypeA, later), "as long as the SOA record")
}

// Each answer of a zone has one of two sets of parameters, as while a salt is replaced on one server after the other.
func TestAggressiveCacheKeepsOneNSEC3ParameterSet(t *testing.T) {
	s := seeded("example.", ksk, 1)
	sets := [2][]*validate.RRset{}
	for i, params := range []string{"1 0 0 -", "1 0 1 aa"} {
		sets[i] = nsec3Zone{params: params, names: map[string]string{"example.": "NS SOA", "a.example.": "A"}}.sign(t, s)
	}
	d := keeping(t, s)
	known := 0
	const rounds = 240
	for i := range rounds {
		at := now.Add(time.Duration(i) * time.Second)
		for _, set := range sets[i%2] {
			d.Add(new(validate.Validation), set, trust(t, s), at)
		}
		if _, ok := d.Synthesize(new(validate.Validation), "b.example.", dns.TypeA, at); ok {
			known++
		}
	}
	assert.Equal(t, rounds, known)
}

func TestAggressiveCacheExpandsWildcards(t *testing.T) {
	s := seeded("example.", ksk, 1)
	made := func(name, wild, data string) *validate.RRset {
		rrs := records(t, wild+" 200 IN "+data)
		sig := s.sign(t, rrs)
		rrs[0].Header().Name, sig.Hdr.Name = name, name
		return validate.NewRRset(rrs, sig)
	}
	chains := map[string][]*validate.RRset{
		"NSEC": nsecs(t, s, "example. *.example. NS SOA", "*.example. b.example. A", "b.example. *.w.example. A", "*.w.example. example. CNAME"),
		"NSEC3": nsec3Zone{params: "1 0 0 -", names: map[string]string{
			"example.": "NS SOA", "*.example.": "A", "b.example.": "A", "w.example.": "", "*.w.example.": "CNAME",
		}}.sign(t, s),
	}
	for name, chain := range chains {
		d := keeping(t, s, append(chain, made("a.example.", "*.example.", "A 192.0.2.1"), made("a.w.example.", "*.w.example.", "CNAME b.example."))...)
		for q, want := range map[string]string{
			"c.example. A":         "c.example. A 200",
			"c.d.example. A":       "c.d.example. A 200",
			"C\\100.Example. A":    "cd.example. A 200",
			"c.w.example. A":       "c.w.example. CNAME 200",
			"c.w.example. CNAME":   "c.w.example. CNAME 200",
			"c.d.w.example. MX":    "c.d.w.example. CNAME 200",
			"c.example. TXT":       "no data 300",
			"b.example. A":         "",
			"c.b.example. A":       "no name 300",
			"w.example. A":         "no data 300",
			"example. A":           "no data 300",
			"c.example. ANY":       "",
			"c.w.example. NSEC":    "",
			"c.example. DS":        "no data 300",
			"c.example. RRSIG":     "",
			"*.example. A":         "",
			"c.other. A":           "",
			"not a name. really. ": "",
		} {
			qname, typ, _ := strings.Cut(q, " ")
			known, ok := d.Synthesize(new(validate.Validation), qname, dns.StringToType[typ], now)
			got := ""
			if ok && known.Kind == validate.Unproven {
				h := known.Answer[0].Header()
				got = fmt.Sprint(h.Name, " ", dns.TypeToString[h.Rrtype], " ", known.TTL)
				all, err := validate.GroupRRsets(known.Answer, known.Authority)
				require.NoError(t, err)
				w := new(validate.Validation)
				v, err := w.Verify(all[0][0], trust(t, s), now)
				require.NoError(t, err, "%s: %s", name, q)
				_, err = w.VerifyNoCloserMatch(h.Name, v.Encloser, all[1], trust(t, s), now)
				assert.NoError(t, err, "%s: %s", name, q)
			} else if ok {
				got = fmt.Sprint(known.Kind, " ", known.TTL)
			}
			assert.Equal(t, want, got, "%s: %s", name, q)
		}
		assert.Equal(t, "", asked(d, "c.example.", dns.TypeA, now.Add(200*time.Second)), "the wildcard's records are over")
	}
}

// A question pays for the proof of its answer first.
func TestAggressiveCacheNeedsHashBudget(t *testing.T) {
	s := seeded("example.", ksk, 1)
	z := nsec3Zone{params: "1 0 50 -", names: map[string]string{"example.": "NS SOA", "b.example.": "A"}}
	sets := z.sign(t, s)
	d, w := keeping(t, s, sets...), new(validate.Validation)
	n := 0
	for ; ; n++ {
		if _, ok := d.Synthesize(w, fmt.Sprintf("x%d.example.", n), dns.TypeA, now); !ok {
			break
		}
	}
	_, _, blocks := w.SpentWork()
	assert.InDelta(t, 20, n, 2, "51 blocks for each name, and for the apex and its wildcard, of 1024")
	assert.LessOrEqual(t, blocks, 1024)
	_, err := w.VerifyDenial("y.example.", dns.TypeA, sets, trust(t, s), now)
	assert.NoError(t, err, "there is enough for the proof")
}

func TestAggressiveCacheIsBounded(t *testing.T) {
	s := seeded("example.", ksk, 1)
	k := trust(t, s)
	d := validate.NewAggressiveCache("example.", 64<<10)
	w := &validate.Validation{Policy: validate.Policy{Verifications: 1 << 20}}
	for i := range 500 {
		d.Add(w, nsecs(t, s, fmt.Sprintf("n%d.example. n%d.a.example. A", i, i))[0], k, now)
		d.Add(w, nsec3Zone{params: "1 0 0 -", names: map[string]string{fmt.Sprintf("n%d.example.", i): "A"}}.sign(t, s)[0], k, now)
		rrs := records(t, fmt.Sprintf("*.w%d.example. 200 IN A 192.0.2.1", i))
		sig := s.sign(t, rrs)
		sig.Hdr.Name = fmt.Sprintf("a.w%d.example.", i)
		rrs[0].Header().Name = sig.Hdr.Name
		d.Add(w, validate.NewRRset(rrs, sig), k, now)
		require.LessOrEqual(t, d.MemoryBytes(), int64(64<<10))
	}
	assert.Greater(t, d.MemoryBytes(), int64(32<<10))

	tiny := validate.NewAggressiveCache("example.", 100)
	for _, set := range append(nsecs(t, s, "example. example. NS SOA"), soaOf(t, s)) {
		tiny.Add(w, set, k, now)
	}
	assert.Zero(t, tiny.MemoryBytes())
}

// What is known of a random zone, by some of its records, is what all of them prove.
func TestAggressiveCacheAnswersLikeZone(t *testing.T) {
	answered := 0
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := seeded("example.", ksk, 1)
		k := trust(t, s)
		sets := randomZone(t, r, s)
		all, d := sets, validate.NewAggressiveCache("example.", most)
		w := &validate.Validation{Policy: validate.Policy{Verifications: 1 << 20}}
		d.Add(w, soaOf(t, s), k, now)
		for len(sets) > 0 {
			i := r.IntN(len(sets))
			d.Add(w, sets[i], k, now)
			sets = slices.Delete(slices.Clone(sets), i, i+1)
			for _, q := range []string{
				"example.", "a.example.", "b.example.", "B.example.", "x.a.example.", "x.x.a.example.", "a.b.example.", "c.a.b.example.", "x.b.example.", "bb.example.", "a\\000.example.",
				"\\000.example.", "\\000.a.example.", "z\\.z.example.", "z.z.example.", "\\255.example.", "*.example.", "*.c.example.", "x.c.example.", "d.x.c.example.", "d.*.c.example.", "x.*.c.example.",
			} {
				typ := []uint16{dns.TypeA, dns.TypeTXT, dns.TypeDS, dns.TypeCNAME, dns.TypeANY, dns.TypeNS}[r.IntN(6)]
				known, ok := d.Synthesize(new(validate.Validation), q, typ, now)
				den, err := w.VerifyDenial(q, typ, all, k, now)
				if ok {
					answered++
					assert.NoError(t, err, "seed %d: %s %d", seed, q, typ)
					assert.Equal(t, den.Kind, known.Kind, "seed %d: %s %d", seed, q, typ)
					assert.False(t, den.OptOut)
				} else if len(sets) == 0 && err == nil {
					assert.True(t, den.OptOut || den.Kind == validate.NoDS || optOut(all), "seed %d: %s %d is not known", seed, q, typ)
				}
			}
		}
	}
	assert.Greater(t, answered, 1000)
}

// optOut reports whether there are NSEC3 records with that flag, and no NSEC records.
func optOut(sets []*validate.RRset) bool {
	nsec := slices.ContainsFunc(sets, func(s *validate.RRset) bool { return s.Type == dns.TypeNSEC })
	return !nsec && slices.ContainsFunc(sets, func(s *validate.RRset) bool {
		n, ok := s.Records[0].(*dns.NSEC3)
		return ok && n.Flags == 1
	})
}

// randomZone returns the chain of a random zone, signed.
func randomZone(t testing.TB, r *rand.Rand, s *signer) (sets []*validate.RRset) {
	types := map[string][]uint16{"example.": {dns.TypeSOA, dns.TypeNS}}
	names := []string{"example."}
	for _, l := range []string{"a", "b", "c", "*", "a.b", "c.a.b", "\\000", "z\\.z", "*.c", "d.*.c"} {
		if r.IntN(2) == 0 {
			names = append(names, l+".example.")
			types[l+".example."] = [][]uint16{{dns.TypeA}, {dns.TypeTXT, dns.TypeA}, {dns.TypeCNAME}, {dns.TypeDNAME}, {dns.TypeNS}, {dns.TypeNS, dns.TypeDS}}[r.IntN(6)]
		}
	}
	for _, name := range names { // those in between have a record if it is NSEC3
		for n := name; n != "example."; n = n[strings.Index(n, ".")+1:] {
			if !slices.Contains(names, n) && !strings.HasPrefix(n, "z") {
				names = append(names, n)
			}
		}
	}
	how := []sign.Denial{sign.NSEC, sign.NSEC3, sign.NSEC3OptOut}[r.IntN(3)]
	chain := sign.NewChain("example.", how, sign.NSEC3Params{Iterations: uint16(r.IntN(2)), Salt: "aa"}, 300, types)
	seen := make(map[string]bool)
	for _, name := range names {
		for _, rr := range chain.ProveNoData(name) {
			if !seen[rr.String()] {
				seen[rr.String()] = true
				sets = append(sets, set(t, []dns.RR{rr}, s))
			}
		}
	}
	return sets
}
