package validate_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// A published zone is one of an RFC's appendix: records, whose signatures nobody here has made.
type published struct {
	work *validate.Validation
	keys *validate.Keys
	now  time.Time
	sets []*validate.RRset
}

func publish(t *testing.T, file string, at time.Time) *published {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", file))
	require.NoError(t, err)
	defer f.Close()
	var rrs []dns.RR
	z := dns.NewZoneParser(f, "", file)
	for rr, ok := z.Next(); ok; rr, ok = z.Next() {
		rrs = append(rrs, rr)
	}
	require.NoError(t, z.Err())
	p := &published{work: &validate.Validation{Policy: validate.Policy{AllowSHA1: true}}, now: at}
	for len(rrs) > 0 { // in parts, for no response has so many RRsets
		n := min(len(rrs), 20)
		for n < len(rrs) && rrs[n].Header().Name == rrs[n-1].Header().Name {
			n++
		}
		sets, err := validate.GroupRRsets(rrs[:n])
		require.NoError(t, err)
		p.sets = append(p.sets, sets[0]...)
		rrs = rrs[n:]
	}
	keys := p.set(t, "example.", dns.TypeDNSKEY)
	var sep dns.RR
	for _, rr := range keys.Records {
		if rr.(*dns.DNSKEY).Flags&dns.SEP != 0 {
			sep = rr
		}
	}
	d, err := validate.TrustAnchors(sep)
	require.NoError(t, err)
	k, status, err := p.work.VerifyDNSKEY(d, keys, at)
	require.NoError(t, err)
	require.Equal(t, validate.Secure, status)
	p.keys = k
	return p
}

func (p *published) set(t *testing.T, owner string, typ uint16) *validate.RRset {
	t.Helper()
	for _, s := range p.sets {
		if s.Name == owner && s.Type == typ {
			return s
		}
	}
	require.Fail(t, "no RRset", "%s %s", owner, dns.Type(typ))
	return nil
}

// denial returns what some of the records prove.
func (p *published) denial(t *testing.T, qname string, qtype uint16, owners ...string) (validate.Denial, error) {
	t.Helper()
	var sets []*validate.RRset
	for _, o := range owners {
		typ := dns.TypeNSEC
		if len(o) > 32 {
			typ = dns.TypeNSEC3
		}
		sets = append(sets, p.set(t, o, typ))
	}
	return p.work.VerifyDenial(qname, qtype, sets, p.keys, p.now)
}

// TestRFC4035Examples plays appendix B of RFC 4035.
func TestRFC4035Examples(t *testing.T) {
	p := publish(t, "rfc4035.zone", time.Date(2004, 5, 1, 12, 0, 0, 0, time.UTC))
	assert.Len(t, p.sets, 19)
	for _, s := range p.sets {
		p.work = &validate.Validation{Policy: p.work.Policy}
		v, err := p.work.Verify(s, p.keys, p.now)
		assert.NoError(t, err)
		assert.Equal(t, validate.Secure, v.Status)
		encloser := -1
		if s.Name == "a.z.w.example." { // B.6
			encloser = 2
		}
		assert.Equal(t, encloser, v.Encloser, "%s %d", s.Name, s.Type)
		assert.EqualValues(t, 3600, v.TTL)
		assert.Equal(t, time.Date(2004, 5, 9, 18, 36, 19, 0, time.UTC), v.Expires)
	}
	p.work = &validate.Validation{Policy: p.work.Policy}
	for _, c := range []struct {
		section, qname string
		qtype          uint16
		owners         []string
		kind           validate.DenialKind
	}{
		{"B.2", "ml.example.", dns.TypeA, []string{"b.example.", "example."}, validate.NameError},
		{"B.2, no wildcard", "ml.example.", dns.TypeA, []string{"b.example."}, validate.Unproven},
		{"B.3", "ns1.example.", dns.TypeMX, []string{"ns1.example."}, validate.NoData},
		{"B.3, a type that is there", "ns1.example.", dns.TypeA, []string{"ns1.example."}, validate.Unproven},
		{"B.5", "b.example.", dns.TypeDS, []string{"b.example."}, validate.NoDS},
		{"B.5, no DS", "b.example.", dns.TypeMX, []string{"b.example."}, validate.Unproven},
		{"B.7", "a.z.w.example.", dns.TypeAAAA, []string{"x.y.w.example.", "*.w.example."}, validate.NoData},
		{"B.7, no wildcard", "a.z.w.example.", dns.TypeAAAA, []string{"x.y.w.example."}, validate.Unproven},
		{"B.8", "example.", dns.TypeDS, []string{"example."}, validate.Unproven},
		{"below a delegation", "mc.b.example.", dns.TypeMX, []string{"b.example.", "example."}, validate.Unproven},
	} {
		d, err := p.denial(t, c.qname, c.qtype, c.owners...)
		assert.Equal(t, c.kind, d.Kind, c.section)
		assert.Equal(t, c.kind == validate.Unproven, err != nil, c.section)
		if err == nil {
			assert.Equal(t, validate.Secure, d.Status, c.section)
		}
	}
	d, err := p.work.VerifyNoCloserMatch("a.z.w.example.", 2, []*validate.RRset{p.set(t, "x.y.w.example.", dns.TypeNSEC)}, p.keys, p.now)
	assert.NoError(t, err)
	assert.Equal(t, validate.NoCloserMatch, d.Kind)

	delegation, err := p.work.VerifyDS(p.set(t, "a.example.", dns.TypeDS), p.keys, p.now) // B.4
	require.NoError(t, err)
	assert.True(t, delegation.IsTrusted())
	assert.Nil(t, delegation.UnsupportedReason(p.work.Policy))
	assert.EqualValues(t, dns.ExtendedErrorCodeUnsupportedDNSKEYAlgorithm, delegation.UnsupportedReason(validate.Policy{}).EDE)
}

// TestRFC5155Examples plays appendix B of RFC 5155, whose keys have 512 bits.
func TestRFC5155Examples(t *testing.T) {
	p := publish(t, "rfc5155.zone", time.Date(2008, 1, 10, 0, 0, 0, 0, time.UTC))
	for _, s := range p.sets {
		_, err := (&validate.Validation{Policy: p.work.Policy}).Verify(s, p.keys, p.now)
		assert.NoError(t, err)
	}
	const (
		apex    = "0p9mhaveqvm6t7vbl5lop2u3t2rp3tom.example."
		ns1     = "2t7b4g4vsa5smi47k61mv5bv1a22bojr.example."
		a       = "35mthgpgcu1qg68fab165klnsnk3dpvl.example."
		xw      = "b4um86eghhds6nea196smvmlo4ors995.example."
		yw      = "ji6neoaepv8b5o6k4ev33abha8ht9fgc.example."
		w       = "k8udemvp1j2f7eg6jebps17vp3n8i58h.example."
		ns2     = "q04jkcevqvmu85r014c7dkba38o0ji5r.example."
		starOfW = "r53bq7cc2uvmubfu5ocmm6pers9tk9en.example."
	)
	for _, c := range []struct {
		section, qname string
		qtype          uint16
		owners         []string
		kind           validate.DenialKind
	}{
		{"B.1", "a.c.x.w.example.", dns.TypeA, []string{apex, xw, a}, validate.NameError},
		{"B.1, no closest encloser", "a.c.x.w.example.", dns.TypeA, []string{apex, a}, validate.Unproven},
		{"B.1, no next closer name", "a.c.x.w.example.", dns.TypeA, []string{xw, a}, validate.Unproven},
		{"B.2", "ns1.example.", dns.TypeMX, []string{ns1}, validate.NoData},
		{"B.2.1", "y.w.example.", dns.TypeA, []string{yw}, validate.NoData},
		{"B.3", "c.example.", dns.TypeDS, []string{apex, a}, validate.NoDS},
		{"B.3, no closest encloser", "c.example.", dns.TypeDS, []string{a}, validate.Unproven},
		{"B.5", "a.z.w.example.", dns.TypeAAAA, []string{w, ns2, starOfW}, validate.NoData},
		{"B.5, no closest encloser", "a.z.w.example.", dns.TypeAAAA, []string{ns2, starOfW}, validate.Unproven},
		{"B.5, no next closer name", "a.z.w.example.", dns.TypeAAAA, []string{w, starOfW}, validate.Unproven},
		{"B.6", "example.", dns.TypeDS, []string{apex}, validate.Unproven},
	} {
		d, err := p.denial(t, c.qname, c.qtype, c.owners...)
		assert.Equal(t, c.kind, d.Kind, c.section)
		assert.Equal(t, c.kind == validate.Unproven, err != nil, c.section)
	}
	v, err := p.work.Verify(p.set(t, "a.z.w.example.", dns.TypeMX), p.keys, p.now) // B.4
	require.NoError(t, err)
	assert.Equal(t, 2, v.Encloser)
	d, err := p.work.VerifyNoCloserMatch("a.z.w.example.", v.Encloser, []*validate.RRset{p.set(t, ns2, dns.TypeNSEC3)}, p.keys, p.now)
	require.NoError(t, err)
	assert.Equal(t, validate.NoCloserMatch, d.Kind)
	assert.True(t, d.OptOut)
	assert.Equal(t, validate.Insecure, d.Status)
	_, err = p.work.VerifyNoCloserMatch("a.z.w.example.", v.Encloser, []*validate.RRset{p.set(t, w, dns.TypeNSEC3)}, p.keys, p.now)
	ede(t, dns.ExtendedErrorCodeNSECMissing, err)
}
