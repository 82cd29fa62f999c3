package validate_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// signed returns each record as an RRset that is signed.
func signed(t testing.TB, s *signer, lines ...string) (sets []*validate.RRset) {
	t.Helper()
	for _, rr := range records(t, lines...) {
		sets = append(sets, set(t, []dns.RR{rr}, s))
	}
	return sets
}

// nsecs returns NSEC records: "owner next types".
func nsecs(t testing.TB, s *signer, lines ...string) []*validate.RRset {
	t.Helper()
	for i, line := range lines {
		owner, rest, _ := strings.Cut(line, " ")
		lines[i] = owner + " 300 IN NSEC " + rest + " RRSIG NSEC"
	}
	return signed(t, s, lines...)
}

// A proof is a question and what records prove of it.
type proof struct {
	name, qname string
	qtype       uint16
	sets        []*validate.RRset
	kind        validate.DenialKind
	optOut      bool
}

func (p proof) check(t *testing.T, k *validate.Keys) {
	t.Helper()
	w := new(validate.Validation)
	d, err := w.VerifyDenial(p.qname, p.qtype, p.sets, k, now)
	assert.Equal(t, p.kind, d.Kind, "%s: %v", p.name, err)
	assert.Equal(t, p.kind == validate.Unproven, err != nil, p.name)
	assert.Equal(t, p.optOut, d.OptOut, p.name)
	p.checkKept(t, k)
	switch {
	case p.kind == validate.Unproven:
		ede(t, dns.ExtendedErrorCodeNSECMissing, err)
		assert.Equal(t, validate.Denial{}, d)
	case p.optOut:
		assert.Equal(t, validate.Insecure, d.Status, p.name)
	default:
		assert.Equal(t, validate.Secure, d.Status, p.name)
		assert.EqualValues(t, 300, d.TTL)
		assert.True(t, d.Expires.Equal(now.Add(10*day)))
	}
}

func TestVerifyDenialByNSEC(t *testing.T) {
	s := seeded("example.", ksk, 1)
	k := trust(t, s)
	a, ds, any := dns.TypeA, dns.TypeDS, dns.TypeANY
	const apex = "example. a.example. NS SOA DNSKEY"
	for _, p := range []proof{
		{"name and wildcard between", "m.example.", a, nsecs(t, s, "l.example. n.example. A", apex), validate.NameError, false},
		{"one record for both", "m.example.", a, nsecs(t, s, "example. z.example. NS SOA"), validate.NameError, false},
		{"last record", "z.example.", a, nsecs(t, s, "x.example. example. A", apex), validate.NameError, false},
		{"the only record", "z.example.", a, nsecs(t, s, "example. example. NS SOA"), validate.NameError, false},
		{"no wildcard denied", "m.example.", a, nsecs(t, s, "l.example. n.example. A"), validate.Unproven, false},
		{"wildcard of a closer encloser", "m.b.example.", a, nsecs(t, s, "l.b.example. n.b.example. A", apex), validate.Unproven, false},
		{"wildcard of the closest encloser", "m.b.example.", a, nsecs(t, s, "l.b.example. n.b.example. A", "b.example. a.b.example. A"), validate.NameError, false},
		{"wildcard is there", "m.example.", a, nsecs(t, s, "l.example. n.example. A", "*.example. a.example. A"), validate.Unproven, false},
		{"wildcard has no such type", "m.example.", a, nsecs(t, s, "l.example. n.example. A", "*.example. a.example. MX"), validate.NoData, false},
		{"wildcard has an alias", "m.example.", a, nsecs(t, s, "l.example. n.example. A", "*.example. a.example. CNAME"), validate.Unproven, false},
		{"wildcard is an empty non-terminal", "m.example.", a, nsecs(t, s, "l.example. n.example. A", "example. x.*.example. NS SOA"), validate.NoData, false},
		{"next name is out of the zone", "m.example.", a, nsecs(t, s, "l.example. n.example2. A", apex), validate.Unproven, false},
		{"in front of the owner", "k.example.", a, nsecs(t, s, "l.example. n.example. A", apex), validate.Unproven, false},
		{"the next name", "n.example.", a, nsecs(t, s, "l.example. n.example. A", apex), validate.Unproven, false},
		{"upper case", "M.EXAMPLE.", a, nsecs(t, s, "l.example. n.example. A", apex), validate.NameError, false},
		{"no such type", "m.example.", a, nsecs(t, s, "m.example. n.example. MX"), validate.NoData, false},
		{"no such type, of an alias", "m.example.", a, nsecs(t, s, "m.example. n.example. CNAME"), validate.Unproven, false},
		{"a type above 255", "m.example.", dns.TypeCAA, nsecs(t, s, "m.example. n.example. A CAA"), validate.Unproven, false},
		{"another type above 255", "m.example.", dns.TypeURI, nsecs(t, s, "m.example. n.example. A CAA"), validate.NoData, false},
		{"empty non-terminal", "m.example.", a, nsecs(t, s, "l.example. x.m.example. A"), validate.NoData, false},
		{"NXNAME", "m.example.", a, nsecs(t, s, `m.example. \000.m.example. NXNAME`), validate.NoData, false},
		{"NXNAME, ANY", "m.example.", any, nsecs(t, s, `m.example. \000.m.example. NXNAME`), validate.NoData, false},
		{"ANY of a name that is there", "m.example.", any, nsecs(t, s, "m.example. n.example. A"), validate.Unproven, false},
		{"minimal range", "m.example.", a, nsecs(t, s, `l~.example. m\000.example. A`, `!~.example. +.example. A`), validate.NameError, false},

		{"no DS", "m.example.", ds, nsecs(t, s, "m.example. n.example. NS"), validate.NoDS, false},
		{"no delegation", "m.example.", ds, nsecs(t, s, "m.example. n.example. A"), validate.NoData, false},
		{"no name to delegate", "m.example.", ds, nsecs(t, s, "l.example. n.example. A", apex), validate.NameError, false},
		{"an empty non-terminal is no delegation", "m.example.", ds, nsecs(t, s, "l.example. x.m.example. A"), validate.NoData, false},
		{"DS is there", "m.example.", ds, nsecs(t, s, "m.example. n.example. NS DS"), validate.Unproven, false},
		{"of the child's apex", "m.example.", ds, nsecs(t, s, "m.example. n.example. NS SOA"), validate.Unproven, false},
		{"of the parent side, for the name", "m.example.", a, nsecs(t, s, "m.example. n.example. NS"), validate.Unproven, false},
		{"of the parent side, for names below", "x.m.example.", a, nsecs(t, s, "m.example. n.example. NS", apex), validate.Unproven, false},
		{"of the parent side, DS for names below", "x.m.example.", ds, nsecs(t, s, "m.example. n.example. NS", "m.example. n.example. NS"), validate.Unproven, false},
		{"DNAME, for names below", "x.m.example.", a, nsecs(t, s, "m.example. n.example. DNAME"), validate.Unproven, false},
		{"DNAME, for the name", "m.example.", a, nsecs(t, s, "m.example. n.example. DNAME"), validate.NoData, false},
		{"DNAME at the apex, for names below", "x.example.", a, nsecs(t, s, "example. example. NS SOA DNAME"), validate.Unproven, false},
		{"delegation at the wildcard", "m.example.", a, nsecs(t, s, "l.example. n.example. A", "*.example. a.example. NS"), validate.Unproven, false},
		{"nothing at all", "m.example.", a, nil, validate.Unproven, false},
		{"other records", "m.example.", a, signed(t, s, "example. 300 IN SOA a. b. 1 2 3 4 5"), validate.Unproven, false},
	} {
		p.check(t, k)
	}
}

// TestVerifyDenialIgnoresInvalidEvidence has records that would prove something if they were of the zone, verified and not made of a wildcard.
func TestVerifyDenialIgnoresInvalidEvidence(t *testing.T) {
	s, other := seeded("example.", ksk, 1), seeded("m.example.", ksk, 2)
	k := trust(t, s)
	w := new(validate.Validation)
	for name, sets := range map[string][]*validate.RRset{
		"another zone's": nsecs(t, other, "m.example. n.example. MX"),
		"not signed":     {validate.NewRRset(records(t, "m.example. 300 IN NSEC n.example. MX"))},
	} {
		_, err := w.VerifyDenial("m.example.", dns.TypeA, sets, k, now)
		assert.Error(t, err, name)
	}

	star := records(t, "*.example. 300 IN NSEC n.example. MX")
	g := s.sign(t, star)
	g.Hdr.Name = "m.example."
	expanded := validate.NewRRset(records(t, "m.example. 300 IN NSEC n.example. MX"), g)
	v, err := w.Verify(expanded, k, now)
	require.NoError(t, err)
	assert.Equal(t, 1, v.Encloser)
	_, err = w.VerifyDenial("m.example.", dns.TypeA, []*validate.RRset{expanded}, k, now)
	ede(t, dns.ExtendedErrorCodeNSECMissing, err)

	for _, name := range []string{"example.org.", ".", "xexample."} {
		_, err = w.VerifyDenial(name, dns.TypeA, nsecs(t, s, "example. example. NS SOA"), k, now)
		ede(t, dns.ExtendedErrorCodeDNSBogus, err)
	}
	_, err = w.VerifyDenial("example.", dns.TypeDS, nsecs(t, s, "example. example. MX"), k, now)
	ede(t, dns.ExtendedErrorCodeDNSBogus, err)
	r := seeded(".", ksk, 3)
	d, err := w.VerifyDenial(".", dns.TypeDS, nsecs(t, r, ". . NS SOA"), trust(t, r), now)
	require.NoError(t, err)
	assert.Equal(t, validate.NoData, d.Kind)

	late := records(t, "m.example. 300 IN NSEC n.example. MX")
	g = s.sign(t, late, func(g *dns.RRSIG) {
		g.Inception, g.Expiration = uint32(now.Add(-9*day).Unix()), uint32(now.Add(-3*day).Unix())
	})
	_, err = w.VerifyDenial("m.example.", dns.TypeA, []*validate.RRset{validate.NewRRset(late, g)}, k, now)
	ede(t, dns.ExtendedErrorCodeSignatureExpired, err)
}

func TestVerifyNoCloserMatch(t *testing.T) {
	s := seeded("example.", ksk, 1)
	k := trust(t, s)
	chain := nsec3Zone{params: "1 0 0 -", names: map[string]string{"example.": "NS SOA", "*.example.": "A", "b.example.": "A", "a.b.example.": "A"}}
	optOut := chain
	optOut.params = "1 1 0 -"
	for _, c := range []struct {
		name     string
		qname    string
		encloser int
		sets     []*validate.RRset
		right    bool
	}{
		{"the name is denied", "m.example.", 1, nsecs(t, s, "l.example. n.example. A"), true},
		{"the name is denied, deep", "x.y.m.example.", 1, nsecs(t, s, "l.example. n.example. A"), true},
		{"a closer name is there", "x.m.example.", 1, nsecs(t, s, "m.example. n.example. A"), false},
		{"a closer name is next", "x.m.example.", 1, nsecs(t, s, "l.example. y.m.example. A"), false},
		{"the name is an empty non-terminal", "m.example.", 1, nsecs(t, s, "l.example. x.m.example. A"), false},
		{"the name is there", "m.example.", 1, nsecs(t, s, "m.example. n.example. A"), false},
		{"nothing denies it", "m.example.", 1, nil, false},
		{"another zone denies it", "m.example.", 1, nsecs(t, seeded("m.example.", ksk, 2), "m.example. m.example. A"), false},
		{"a delegation says nothing of it", "x.m.example.", 1, nsecs(t, s, "m.example. n.example. NS"), false},
		{"not of a wildcard", "m.example.", 2, nsecs(t, s, "l.example. n.example. A"), false},
		{"not in the zone", "m.example.", 0, nsecs(t, s, "l.example. n.example. A"), false},
		{"NSEC3", "m.example.", 1, chain.sign(t, s), true},
		{"NSEC3, deep", "x.y.m.example.", 1, chain.sign(t, s), true},
		{"NSEC3, a closer name is there", "x.b.example.", 1, chain.sign(t, s), false},
		{"NSEC3 with opt-out", "m.example.", 1, optOut.sign(t, s), true},
	} {
		d, err := new(validate.Validation).VerifyNoCloserMatch(c.qname, c.encloser, c.sets, k, now)
		assert.Equal(t, c.right, err == nil, "%s: %v", c.name, err)
		if c.right {
			assert.Equal(t, validate.NoCloserMatch, d.Kind)
			assert.Equal(t, strings.Contains(c.name, "opt-out"), d.OptOut)
			assert.Equal(t, d.OptOut, d.Status == validate.Insecure)
		}
	}
}

// An nsec3Zone is names and their types.
type nsec3Zone struct {
	params string // hash, flags, iterations, salt
	names  map[string]string
}

// sign returns the chain of a zone.
func (z nsec3Zone) sign(t testing.TB, s *signer) []*validate.RRset {
	t.Helper()
	return signed(t, s, z.lines(t, s.key.Hdr.Name)...)
}

func (z nsec3Zone) lines(t testing.TB, zone string) (lines []string) {
	t.Helper()
	var algorithm, flags, iterations int
	var salt string
	_, err := fmt.Sscan(z.params, &algorithm, &flags, &iterations, &salt)
	require.NoError(t, err)
	types := make(map[string]string)
	var hashes []string
	for name, has := range z.names {
		h := strings.ToLower(dns.HashName(name, dns.SHA1, uint16(iterations), strings.TrimPrefix(salt, "-")))
		types[h] = has
		hashes = append(hashes, h)
	}
	slices.Sort(hashes)
	for i, h := range hashes {
		lines = append(lines, fmt.Sprintf("%s.%s 300 IN NSEC3 %s %s %s", h, strings.TrimPrefix(zone, "."), z.params, hashes[(i+1)%len(hashes)], types[h]))
	}
	return lines
}

func TestVerifyDenialByNSEC3(t *testing.T) {
	s := seeded("example.", ksk, 1)
	k := trust(t, s)
	a, ds, any := dns.TypeA, dns.TypeDS, dns.TypeANY
	names := func(pairs ...string) map[string]string {
		m := map[string]string{"example.": "NS SOA DNSKEY NSEC3PARAM RRSIG"}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		return m
	}
	zone := func(pairs ...string) []*validate.RRset { return nsec3Zone{"1 0 1 ab", names(pairs...)}.sign(t, s) }
	opt := func(pairs ...string) []*validate.RRset { return nsec3Zone{"1 1 0 -", names(pairs...)}.sign(t, s) }
	for _, p := range []proof{
		{"no name", "m.example.", a, zone(), validate.NameError, false},
		{"no name, deep", "a.b.c.m.example.", a, zone("m.example.", "A"), validate.NameError, false},
		{"wildcard is there", "m.example.", a, zone("*.example.", "A"), validate.Unproven, false},
		{"wildcard has no such type", "m.example.", a, zone("*.example.", "MX"), validate.NoData, false},
		{"wildcard is an empty non-terminal", "m.example.", a, zone("*.example.", ""), validate.NoData, false},
		{"wildcard is a delegation", "m.example.", a, zone("*.example.", "NS"), validate.Unproven, false},
		{"no such type", "m.example.", a, zone("m.example.", "MX"), validate.NoData, false},
		{"the type is there", "m.example.", a, zone("m.example.", "A"), validate.Unproven, false},
		{"an alias is there", "m.example.", a, zone("m.example.", "CNAME"), validate.Unproven, false},
		{"empty non-terminal", "m.example.", a, zone("m.example.", ""), validate.NoData, false},
		{"empty non-terminal, ANY", "m.example.", any, zone("m.example.", ""), validate.NoData, false},
		{"at the apex", "example.", a, zone(), validate.NoData, false},
		{"no DS", "m.example.", ds, zone("m.example.", "NS"), validate.NoDS, false},
		{"no delegation", "m.example.", ds, zone("m.example.", "A"), validate.NoData, false},
		{"no name to delegate", "m.example.", ds, zone(), validate.NameError, false},
		{"DS is there", "m.example.", ds, zone("m.example.", "NS DS"), validate.Unproven, false},
		{"of the child's apex", "m.example.", ds, zone("m.example.", "NS SOA"), validate.Unproven, false},
		{"of the parent side, for the name", "m.example.", a, zone("m.example.", "NS"), validate.Unproven, false},
		{"of the parent side, for names below", "x.m.example.", a, zone("m.example.", "NS"), validate.Unproven, false},
		{"DNAME, for names below", "x.m.example.", a, zone("m.example.", "DNAME"), validate.Unproven, false},
		{"opt-out: DS", "m.example.", ds, opt(), validate.NoDS, true},
		{"opt-out: DS of a name below a delegation", "x.m.example.", ds, opt("m.example.", "NS DS"), validate.Unproven, false},
		{"opt-out: no name", "m.example.", a, opt(), validate.NameError, true},
		{"opt-out: no data", "m.example.", a, opt("m.example.", "MX"), validate.NoData, false},
		{"opt-out: no data of a wildcard", "m.example.", a, opt("*.example.", "MX"), validate.NoData, true},
		{"two labels below the apex", "m.example.", a, signed(t, s, nsec3Zone{"1 0 0 -", names()}.lines(t, "b.example.")...), validate.Unproven, false},
		{"flags 2", "m.example.", a, nsec3Zone{"1 2 0 -", names()}.sign(t, s), validate.Unproven, false},
		{"hash 2", "m.example.", a, nsec3Zone{"2 0 0 -", names()}.sign(t, s), validate.Unproven, false},
		{"NSEC beside NSEC3", "m.example.", a, append(nsecs(t, s, "example. z.example. NS SOA"), opt()...), validate.NameError, false},
	} {
		p.check(t, k)
	}

	mixed := append(nsec3Zone{"1 0 0 -", names()}.sign(t, s), nsec3Zone{"1 0 1 -", names()}.sign(t, s)...)
	_, err := new(validate.Validation).VerifyDenial("m.example.", dns.TypeA, mixed, k, now)
	ede(t, dns.ExtendedErrorCodeDNSBogus, err)
}

// TestVerifyDenialNeedsAllNSEC3Records takes each record away that a proof has, and adds what a zone that is larger has.
func TestVerifyDenialNeedsAllNSEC3Records(t *testing.T) {
	s := seeded("example.", ksk, 1)
	k := trust(t, s)
	z := nsec3Zone{"1 0 0 -", map[string]string{"example.": "NS SOA"}}
	for i := range 40 {
		z.names[fmt.Sprintf("n%d.example.", i)] = "A"
	}
	all := z.sign(t, s)
	d, err := new(validate.Validation).VerifyDenial("x.m.example.", dns.TypeA, all[:validate.MaxSignedRRsets], k, now)
	if err == nil {
		assert.Equal(t, validate.NameError, d.Kind)
	}
	w := &validate.Validation{}
	d, err = w.VerifyDenial("x.m.example.", dns.TypeA, all, k, now)
	require.NoError(t, err)
	require.Equal(t, validate.NameError, d.Kind)
	needed := 0
	for i := range all {
		less := slices.Delete(slices.Clone(all), i, i+1)
		if _, err := new(validate.Validation).VerifyDenial("x.m.example.", dns.TypeA, less, k, now); err != nil {
			needed++
		}
	}
	assert.Contains(t, []int{2, 3}, needed) // one record may cover both the next closer name and the wildcard
}

func TestDenialIsUncheckedUntilKeysAreTrusted(t *testing.T) {
	s := seeded("example.", ksk, 1)
	k, _, err := judge(t, dnskeys(t, s), s.ds(t, dns.SHA256))
	require.NoError(t, err)
	for _, sets := range [][]*validate.RRset{
		nsecs(t, s, "m.example. n.example. NS"),
		nsec3Zone{"1 1 0 -", map[string]string{"example.": "NS SOA"}}.sign(t, s),
		nsec3Zone{"1 0 51 -", map[string]string{"example.": "NS SOA"}}.sign(t, s),
	} {
		d, err := new(validate.Validation).VerifyDenial("m.example.", dns.TypeDS, sets, k, now)
		require.NoError(t, err)
		assert.Equal(t, validate.Unchecked, d.Status)
	}
}
