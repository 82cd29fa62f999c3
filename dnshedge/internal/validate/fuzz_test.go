package validate_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// A truth is a zone that is signed, and what is in it.
type truth struct {
	keys    *validate.Keys
	ds      []dns.RR
	records []dns.RR                     // with signatures, DNSKEY and what denies
	types   map[string][]uint16          // of the names that have records
	data    map[string]map[uint16]string // canonical
}

// names that are asked for: those of the zone, and others beside and below them.
var names = []string{
	"example.", "a.example.", "b.example.", "c.example.", "d.example.", "w.example.", "*.w.example.", "x.y.example.", "y.example.",
	"m.example.", "x.a.example.", "x.b.example.", "x.c.example.", "x.d.example.", "q.w.example.", "r.q.w.example.", "*.example.", "z.y.example.", "zz.example.", "other.", ".",
}

var qtypes = []uint16{dns.TypeA, dns.TypeDS, dns.TypeMX, dns.TypeNS, dns.TypeCNAME, dns.TypeANY, dns.TypeSOA, dns.TypeTXT, dns.TypeNSEC}

// newTruth signs a zone, with NSEC if params is "", otherwise with NSEC3.
func newTruth(t testing.TB, seed byte, params string) *truth {
	t.Helper()
	s := seeded("example.", ksk, seed)
	z := &truth{ds: []dns.RR{s.ds(t, dns.SHA256)}, types: map[string][]uint16{}, data: map[string]map[uint16]string{}}
	z.keys = trust(t, s)
	plain := records(t, "example. 300 IN SOA a.example. b.example. 1 2 3 4 300", "example. 300 IN MX 1 a.example.", "a.example. 300 IN A 192.0.2.1",
		"a.example. 300 IN A 192.0.2.2", "c.example. 300 IN DS 1 8 2 "+strings.Repeat("ab", 32), "d.example. 300 IN DNAME e.", "*.w.example. 300 IN MX 1 a.example.",
		"x.y.example. 300 IN A 192.0.2.3")
	plain = append(plain, s.key)
	for _, rr := range append(plain, records(t, "example. 300 IN NS ns.other.", "b.example. 300 IN NS ns.other.", "c.example. 300 IN NS ns.other.")...) {
		h := rr.Header()
		if !slices.Contains(z.types[h.Name], h.Rrtype) {
			z.types[h.Name] = append(z.types[h.Name], h.Rrtype)
		}
	}
	all := map[string]string{"w.example.": "", "y.example.": ""}
	var owners []string
	for name, types := range z.types {
		var words []string
		for _, typ := range types {
			words = append(words, dns.TypeToString[typ])
		}
		all[name] = strings.Join(words, " ") + " RRSIG"
		owners = append(owners, name)
	}
	slices.SortFunc(owners, validate.Compare)
	if params == "" {
		for i, name := range owners {
			plain = append(plain, records(t, name+" 300 IN NSEC "+owners[(i+1)%len(owners)]+" "+all[name]+" NSEC")...)
		}
	} else {
		plain = append(plain, records(t, nsec3Zone{params, all}.lines(t, "example.")...)...)
	}
	sets, err := validate.GroupRRsets(plain)
	require.NoError(t, err)
	for _, set := range sets[0] {
		z.records = append(append(z.records, set.Records...), s.sign(t, set.Records))
		if z.data[set.Name] == nil {
			z.data[set.Name] = map[uint16]string{}
		}
		z.data[set.Name][set.Type] = form(set)
	}
	return z
}

func form(s *validate.RRset) string {
	_, data, _ := s.Canonical()
	return string(bytes.Join(data, []byte{'|'}))
}

// wildcard returns the wildcard that stands for a name, or "". There is none for names that are there.
func (z *truth) wildcard(name string) string {
	for up := name; up != "."; {
		i, end := dns.NextLabel(up, 0)
		if end {
			return ""
		}
		up = up[i:]
		if z.exists(up) {
			if _, ok := z.types["*."+up]; ok {
				return "*." + up
			}
			return ""
		}
	}
	return ""
}

// exists reports whether a name or one below it has records.
func (z *truth) exists(name string) bool {
	for n := range z.types {
		if dns.IsSubDomain(name, n) {
			return true
		}
	}
	return false
}

// below reports whether a name is below a delegation or a DNAME, of which the zone knows nothing.
func below(name string) bool {
	return slices.ContainsFunc([]string{"b.example.", "c.example.", "d.example."}, func(cut string) bool {
		return name != cut && dns.IsSubDomain(cut, name)
	})
}

// holds asserts that RRsets and denials are what the zone has signed.
func (z *truth) holds(t *testing.T, v validate.Verification, s *validate.RRset) {
	name := strings.ToLower(s.Name)
	source := name
	if v.Encloser >= 0 {
		labels := dns.SplitDomainName(name)
		source = "*." + dns.Fqdn(strings.Join(labels[len(labels)-v.Encloser:], "."))
	}
	want, ok := z.data[source][s.Type]
	assert.True(t, ok && want == form(s), "%s %s is not what was signed", s.Name, dns.Type(s.Type))
	assert.LessOrEqual(t, v.TTL, uint32(3600))
}

func (z *truth) denied(t *testing.T, d validate.Denial, name string, qtype uint16) {
	types, there := z.types[name]
	star := z.wildcard(name)
	has := slices.Contains(types, qtype) || qtype == dns.TypeANY && there
	assert.Equal(t, d.OptOut, d.Status == validate.Insecure)
	switch d.Kind {
	case validate.NameError:
		assert.True(t, !z.exists(name) && star == "" && !below(name), "%s does not exist?", name)
	case validate.NoData:
		assert.False(t, below(name), name)
		if !z.exists(name) && d.OptOut { // insecure: who leaves the wildcard out is believed, as RFC 5155 has it for what opt-out spans
			return
		}
		if !z.exists(name) && star != "" {
			has = slices.Contains(z.types[star], qtype) || qtype == dns.TypeANY
		} else {
			assert.True(t, z.exists(name), name)
		}
		assert.False(t, has && qtype != dns.TypeNSEC, "%s has no %s?", name, dns.Type(qtype))
	case validate.NoDS:
		assert.True(t, qtype == dns.TypeDS && (name == "b.example." || d.OptOut) && !has, "%s has no DS?", name)
	}
}

// mutate changes records as ops say, three bytes each, and returns the response.
func mutate(rrs []dns.RR, ops []byte) []byte {
	m := &dns.Msg{MsgHdr: dns.MsgHdr{Response: true}, Compress: true}
	for _, rr := range rrs {
		m.Answer = append(m.Answer, dns.Copy(rr))
	}
	var flips []byte
	for ; len(ops) >= 3 && len(m.Answer) > 1; ops = ops[3:] {
		i, arg := int(ops[1])%len(m.Answer), int(ops[2])
		switch h := m.Answer[i].Header(); ops[0] % 8 {
		case 0: // left out
			m.Answer = slices.Delete(m.Answer, i, i+1)
		case 1: // said of another name
			for _, rr := range m.Answer {
				if x := rr.Header(); rr != m.Answer[i] && x.Name == h.Name {
					x.Name = names[arg%len(names)]
				}
			}
			h.Name = names[arg%len(names)]
		case 2: // a copy of another name
			c := dns.Copy(m.Answer[i])
			c.Header().Name = names[arg%len(names)]
			m.Answer = append(m.Answer, c)
		case 3: // TTL
			h.Ttl = uint32(arg) << 12
		case 4, 5: // fields of a signature
			if g, ok := m.Answer[i].(*dns.RRSIG); ok {
				switch arg % 7 {
				case 0:
					g.Labels = uint8(arg / 7 % 6)
				case 1:
					g.TypeCovered = qtypes[arg/7%len(qtypes)]
				case 2:
					g.OrigTtl++
				case 3:
					g.SignerName = names[arg/7%len(names)]
				case 4:
					g.Expiration += 86400
				case 5:
					g.KeyTag ^= uint16(arg / 7)
				case 6:
					g.Algorithm = uint8(arg / 7)
				}
			}
		default: // a byte
			flips = append(flips, ops[:3]...)
		}
	}
	b, err := m.Pack()
	if err != nil {
		return nil
	}
	for ; len(flips) >= 3; flips = flips[3:] {
		b[(int(flips[0])/8<<8|int(flips[1]))%len(b)] ^= flips[2]
	}
	return b
}

// FuzzMutations changes what a signed zone says. Nothing becomes secure that it did not sign, and work stays in its limits.
func FuzzMutations(f *testing.F) {
	zones := []*truth{newTruth(f, 1, ""), newTruth(f, 2, "1 0 0 -"), newTruth(f, 3, "1 0 2 abcd"), newTruth(f, 4, "1 1 0 -")}
	for z := range zones {
		f.Add(uint8(z), uint8(9), []byte{})
		f.Add(uint8(z), uint8(14), []byte{1, 5, 14, 0, 3, 0})
		f.Add(uint8(z), uint8(2), []byte{4, 7, 14, 6, 100, 1})
		f.Add(uint8(z), uint8(12), []byte{2, 12, 14, 2, 13, 14})
	}
	f.Fuzz(func(t *testing.T, which, asked uint8, ops []byte) {
		if len(ops) > 300 {
			return
		}
		z := zones[int(which)%len(zones)]
		m, err := wire.ParseMsg(mutate(z.records, ops))
		if err != nil {
			return
		}
		sections, err := validate.GroupRRsets(m.Answer)
		if err != nil {
			return
		}
		w := new(validate.Validation)
		for _, s := range sections[0] {
			if v, err := w.Verify(s, z.keys, now); err == nil {
				assert.Equal(t, validate.Secure, v.Status)
				z.holds(t, v, s)
			}
			if s.Type == dns.TypeDNSKEY {
				if k, _, err := w.VerifyDNSKEY(validate.UnverifiedDS(validate.NewRRset(z.ds)), s, now); err == nil {
					assert.Equal(t, z.data["example."][dns.TypeDNSKEY], form(s))
					assert.False(t, k.IsTrusted())
				}
			}
		}
		name := names[int(asked)%len(names)]
		for _, qtype := range qtypes {
			if d, err := w.VerifyDenial(name, qtype, sections[0], z.keys, now); err == nil {
				z.denied(t, d, name, qtype)
			}
		}
		for encloser := range 4 {
			if d, err := w.VerifyNoCloserMatch(name, encloser, sections[0], z.keys, now); err == nil {
				labels := dns.SplitDomainName(name)
				closer := dns.Fqdn(strings.Join(labels[len(labels)-encloser-1:], "."))
				assert.False(t, z.exists(closer), "%s is closer than %d labels", name, encloser) // a hash does not tell of a cut above
				assert.Equal(t, validate.NoCloserMatch, d.Kind)
			}
		}
		spent, failures, blocks := w.SpentWork()
		assert.True(t, spent <= 128 && failures <= 16 && blocks <= 4096, "%d %d %d", spent, failures, blocks)
	})
}

// TestVerifyDenialForAllNamesOfZone holds that the oracle of FuzzMutations is not empty: without a mutation all is as it should be.
func TestVerifyDenialForAllNamesOfZone(t *testing.T) {
	for i, params := range []string{"", "1 0 0 -", "1 0 2 abcd", "1 1 0 -"} {
		z := newTruth(t, byte(i+1), params)
		m, err := wire.ParseMsg(mutate(z.records, nil))
		require.NoError(t, err)
		sections, err := validate.GroupRRsets(m.Answer)
		require.NoError(t, err)
		w := new(validate.Validation)
		for _, s := range sections[0] {
			v, err := w.Verify(s, z.keys, now)
			require.NoError(t, err)
			z.holds(t, v, s)
		}
		for _, name := range names {
			for _, qtype := range qtypes {
				d, err := new(validate.Validation).VerifyDenial(name, qtype, sections[0], z.keys, now)
				z.denied(t, d, name, qtype)
				types := z.types[name]
				if star := z.wildcard(name); !z.exists(name) && star != "" {
					types = z.types[star]
				}
				there := slices.Contains(types, qtype) || qtype == dns.TypeANY && len(types) > 0 || qtype == dns.TypeNSEC && params == "" && len(types) > 0
				cut := (name == "b.example." || name == "c.example.") && qtype != dns.TypeDS
				provable := dns.IsSubDomain("example.", name) && !below(name) && !there && !cut && !(name == "example." && qtype == dns.TypeDS)
				assert.Equal(t, provable, err == nil, "%q: %s %s: %v %v", params, name, dns.Type(qtype), d.Kind, err)
			}
		}
	}
}
