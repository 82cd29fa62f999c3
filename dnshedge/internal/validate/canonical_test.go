package validate_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// TestCanonicalOrder is RFC 4034 §6.1.
func TestCanonicalOrder(t *testing.T) {
	names := []string{".", "example.", "a.example.", "yljkjljk.a.example.", "Z.a.example.", "zABC.a.EXAMPLE.", "z.example.", `\001.z.example.`, "*.z.example.", `\200.z.example.`, "examplf."}
	for i, a := range names {
		for j, b := range names {
			c := validate.Compare(a, b)
			assert.Equal(t, []bool{i < j, i == j, i > j}, []bool{c < 0, c == 0, c > 0}, "%s %s", a, b)
		}
	}
	shuffled := slices.Clone(names)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	slices.SortFunc(shuffled, validate.Compare)
	assert.Equal(t, names, shuffled)
}

func TestCanonicalForm(t *testing.T) {
	for _, c := range []struct {
		name    string
		records []string
		data    []string // hexadecimal
	}{
		{"order, each once", []string{"A.Example. 3 IN A 192.0.2.200", "a.example. 5 IN A 192.0.2.3", "a.EXAMPLE. 1 IN A 192.0.2.3"}, []string{"c0000203", "c00002c8"}},
		{"the shorter first", []string{"a.example. 1 IN TXT ab b", "a.example. 1 IN TXT ab"}, []string{"026162", "0261620162"}},
		{"MX", []string{"a.example. 1 IN MX 1 B.C."}, []string{"00010162016300"}},
		{"SRV", []string{"a.example. 1 IN SRV 1 2 3 B.C."}, []string{"0001000200030162016300"}},
		{"SOA", []string{"a.example. 1 IN SOA A. B. 1 2 3 4 5"}, []string{"01610001620000000001" + "00000002000000030000000400000005"}},
		{"NAPTR: strings keep their case", []string{`a.example. 1 IN NAPTR 1 2 "U" "S" "R" D.`}, []string{"00010002" + "015501530152" + "016400"}},
		{"NSEC keeps its case", []string{"a.example. 1 IN NSEC B. A"}, []string{"014200" + "000140"}},
		{"HINFO keeps its case", []string{"a.example. 1 IN HINFO A B"}, []string{"01410142"}},
		{"SVCB keeps its case", []string{"a.example. 1 IN SVCB 1 B."}, []string{"0001014200"}},
		{"unknown type", []string{`a.example. 1 IN TYPE65534 \# 3 414243`}, []string{"414243"}},
		{"A6", []string{`a.example. 1 IN TYPE38 \# 4 80014200`}, []string{"80016200"}},
		{"A6 with an address", []string{`a.example. 1 IN TYPE38 \# 5 7942014200`}, []string{"7942016200"}},
		{"A6 without a name", []string{`a.example. 1 IN TYPE38 \# 17 0041414141414141414141414141414141`}, []string{"0041414141414141414141414141414141"}},
	} {
		owner, data, ok := validate.NewRRset(records(t, c.records...)).Canonical()
		require.True(t, ok, c.name)
		assert.Equal(t, "\x01a\x07example\x00", owner)
		var got []string
		for _, b := range data {
			got = append(got, hex.EncodeToString(b))
		}
		assert.Equal(t, c.data, got, c.name)
	}
}

// TestRRsetWithoutCanonicalForm cannot be signed, and are bogus, not a panic.
func TestRRsetWithoutCanonicalForm(t *testing.T) {
	for _, rrs := range [][]dns.RR{
		{&dns.RFC3597{Hdr: dns.RR_Header{Name: "a.example.", Rrtype: dns.TypeNS, Class: 1}, Rdata: "03"}},
		{&dns.RFC3597{Hdr: dns.RR_Header{Name: "a.example.", Rrtype: dns.TypeMX, Class: 1}, Rdata: "01"}},
		{&dns.RFC3597{Hdr: dns.RR_Header{Name: "a.example.", Rrtype: dns.TypeNAPTR, Class: 1}, Rdata: "0001000205"}},
		{&dns.RFC3597{Hdr: dns.RR_Header{Name: "a.example.", Rrtype: dns.TypeNS, Class: 1}, Rdata: "c00c"}},
		{&dns.NS{Hdr: dns.RR_Header{Name: "a.example.", Rrtype: dns.TypeNS, Class: 1}, Ns: strings.Repeat("a", 64) + "."}},
		{&dns.NS{Hdr: dns.RR_Header{Name: strings.Repeat("abcdefg.", 40), Rrtype: dns.TypeNS, Class: 1}, Ns: "a."}},
		append(records(t, "a.example. 1 IN A 192.0.2.1"), records(t, "b.example. 1 IN A 192.0.2.1")...),
		append(records(t, "a.example. 1 IN A 192.0.2.1"), records(t, "a.example. 1 CH A 192.0.2.1")...),
		append(records(t, "a.example. 1 IN A 192.0.2.1"), records(t, "a.example. 1 IN NS b.")...),
	} {
		_, _, ok := validate.NewRRset(rrs).Canonical()
		assert.False(t, ok, "%v", rrs)
	}
}

func TestGroupRRsetsBySection(t *testing.T) {
	s := seeded("example.", ksk, 1)
	a := records(t, "a.example. 300 IN A 192.0.2.1", "A.Example. 200 IN A 192.0.2.2")
	sig := s.sign(t, a)
	lone := s.sign(t, records(t, "b.example. 300 IN A 192.0.2.1"))
	opt := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
	sets, err := validate.GroupRRsets([]dns.RR{sig, a[0], lone, records(t, "a.example. 300 IN TXT x")[0], opt, a[1]}, records(t, "a.example. 300 IN A 192.0.2.9"))
	require.NoError(t, err)
	require.Len(t, sets, 2)
	require.Len(t, sets[0], 2)
	require.Len(t, sets[1], 1)
	got := sets[0][0]
	assert.Equal(t, []any{"a.example.", dns.TypeA, uint16(dns.ClassINET), uint32(200), a, []*dns.RRSIG{sig}},
		[]any{got.Name, got.Type, got.Class, got.TTL, got.Records, got.Sigs})
	assert.Equal(t, dns.TypeTXT, sets[0][1].Type)
	assert.Empty(t, sets[1][0].Sigs)
	_, err = verify(got, trust(t, s), now)
	assert.NoError(t, err, "TTLs that differ are no matter: the original one is signed")
}

// message returns a response with one record whose data is as it is.
func message(owner []byte, typ uint16, data []byte) []byte {
	b := make([]byte, 12, 64)
	b[2], b[7] = 0x80, 1
	b = append(b, owner...)
	b = binary.BigEndian.AppendUint16(b, typ)
	b = append(b, 0, 1, 0, 0, 1, 0x2c)
	b = binary.BigEndian.AppendUint16(b, uint16(len(data)))
	return append(b, data...)
}

// TestVerifyUsesReceivedBytes holds that data which package dns would not write as it was read is verified as it came.
func TestVerifyUsesReceivedBytes(t *testing.T) {
	s := seeded("example.", ksk, 1)
	k := trust(t, s)
	owner := []byte("\x01a\x07example\x00")
	for name, c := range map[string]struct {
		typ  uint16
		data string
	}{
		"NSEC":                            {dns.TypeNSEC, "\x01b\x07example\x00\x00\x01\x40"},
		"NSEC with a byte too many":       {dns.TypeNSEC, "\x01b\x07example\x00\x00\x02\x40\x00"},
		"NSEC with 32 bytes":              {dns.TypeNSEC, "\x01b\x07example\x00\x00\x20\x40" + strings.Repeat("\x00", 31)},
		"NSEC with an empty block":        {dns.TypeNSEC, "\x01b\x07example\x00\x00\x01\x40\x01\x01\x00"},
		"NSEC3 with a byte too many":      {dns.TypeNSEC3, "\x01\x00\x00\x00\x00\x14" + strings.Repeat("x", 20) + "\x00\x02\x40\x00"},
		"CSYNC with a byte too many":      {dns.TypeCSYNC, "\x00\x00\x00\x01\x00\x00\x00\x02\x40\x00"},
		"APL that package dns refuses":    {dns.TypeAPL, "\x00\x01\x18\x04\x0a\x00\x00\x00"},
		"APL with bits behind its prefix": {dns.TypeAPL, "\x00\x01\x01\x02\x01\x01"},
		"CAA with a backslash":            {dns.TypeCAA, "\x00\x05issuea\\b"},
		"ISDN without a subaddress":       {dns.TypeISDN, "\x03123"},
		"TXT":                             {dns.TypeTXT, "\x03a\\\xff\x00"},
	} {
		g := s.sign(t, []dns.RR{&dns.RFC3597{Hdr: dns.RR_Header{Name: "a.example.", Rrtype: c.typ, Class: 1, Ttl: 300}, Rdata: hex.EncodeToString([]byte(c.data))}})
		m, err := wire.ParseMsg(message(owner, c.typ, []byte(c.data)))
		require.NoError(t, err, name)
		require.Len(t, m.Answer, 1, name)
		set := validate.NewRRset(m.Answer, g)
		_, err = verify(set, k, now)
		assert.NoError(t, err, name)
		if c.typ == dns.TypeNSEC {
			d, err := new(validate.Validation).VerifyDenial("a.example.", dns.TypeMX, []*validate.RRset{set}, k, now)
			assert.NoError(t, err, name)
			assert.Equal(t, validate.NoData, d.Kind, name)
		}
	}
}

// FuzzCanonical has package dns sign a record that came from the wire. What it signs is right if it writes the data as it was read.
func FuzzCanonical(f *testing.F) {
	for typ, data := range map[uint16]string{
		dns.TypeA: "\xc0\x00\x02\x01", dns.TypeMX: "\x00\x01\x01B\x00", dns.TypeSOA: "\x01A\x00\x01B\x00" + strings.Repeat("\x00", 20),
		dns.TypeTXT: "\x01a\x02\\\xff", dns.TypeNAPTR: "\x00\x01\x00\x02\x01U\x00\x00\x01D\x00", dns.TypeNSEC: "\x01B\x00\x00\x01\x40",
		dns.TypeSRV: "\x00\x01\x00\x02\x00\x03\x01B\x00", dns.TypeSVCB: "\x00\x01\x01B\x00", dns.TypeHTTPS: "\x00\x01\x00\x00\x01\x00\x03\x02h2",
		dns.TypeDS: "\x00\x01\x08\x02abcd", dns.TypeDNSKEY: "\x01\x00\x03\x0dabc", dns.TypeRP: "\x01A\x00\x01B\x00", dns.TypeLOC: strings.Repeat("\x00", 16),
		dns.TypeHIP: "\x01\x02\x00\x01\x09\x07", dns.TypeIPSECKEY: "\x0a\x00\x02\x01\x02\x03", dns.TypeCAA: "\x00\x05issuea", dns.TypeKX: "\x00\x01\x01B\x00", 38: "\x79\x42\x01B\x00",
	} {
		f.Add(typ, []byte(data))
	}
	s := seeded("example.", ksk, 1)
	k := trust(f, s)
	f.Fuzz(func(t *testing.T, typ uint16, data []byte) {
		if len(data) > 2000 || typ == dns.TypeRRSIG || typ == dns.TypeOPT || typ == dns.TypeNXT {
			return
		}
		m, err := wire.ParseMsg(message([]byte("\x01A\x07exaMple\x00"), typ, data))
		if err != nil || len(m.Answer) != 1 {
			return
		}
		owner, forms, ok := validate.NewRRset(m.Answer).Canonical()
		_, raw := m.Answer[0].(*dns.RFC3597)
		if !ok {
			assert.True(t, raw || typ == dns.TypeKX, "only data that package dns cannot read may have no form, and KX without a name")
			return
		}
		assert.Equal(t, "\x01a\x07example\x00", owner)
		same := len(forms) == 1 && len(forms[0]) == len(data) && bytes.EqualFold(ascii(forms[0]), ascii(data))
		early := len(forms) == 1 && len(forms[0]) > len(data) // package dns takes data that ends early for whole: nobody signs such
		assert.True(t, same || early || compressed(typ, data), "%s: %x became %x", dns.Type(typ), data, forms)

		theirs := &dns.RRSIG{Hdr: dns.RR_Header{Name: "a.example.", Rrtype: dns.TypeRRSIG, Class: 1, Ttl: 300}, Algorithm: dns.ED25519, KeyTag: s.key.KeyTag(),
			SignerName: "example.", Inception: uint32(now.Unix() - 3600), Expiration: uint32(now.Unix() + 3600)}
		if raw || theirs.Sign(s.private, m.Answer) != nil {
			return
		}
		_, err = verify(validate.NewRRset(m.Answer, theirs), k, now)
		assert.NoError(t, err)
	})
}

// ascii returns bytes with those above 127 as others that have no case.
func ascii(b []byte) []byte {
	c := slices.Clone(b)
	for i := range c {
		if c[i] > 127 {
			c[i] = '!'
		}
	}
	return c
}

// compressed reports whether data of a type that package dns knows may have pointers, and so be longer in canonical form.
func compressed(typ uint16, data []byte) bool {
	_, ok := dns.TypeToRR[typ]
	pointer := slices.ContainsFunc(data, func(c byte) bool { return c >= 0xc0 })
	return ok && pointer && typ != dns.TypeNSEC3 && typ != dns.TypeTXT
}
