package validate_test

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// verify verifies with a Work of its own.
func verify(s *validate.RRset, k *validate.Keys, at time.Time) (validate.Verification, error) {
	return new(validate.Validation).Verify(s, k, at)
}

func TestVerifyAllAlgorithms(t *testing.T) {
	for _, c := range []struct {
		algorithm uint8
		bits      int
	}{
		{dns.RSASHA256, 1024}, {dns.RSASHA256, 2048}, {dns.RSASHA256, 4096}, {dns.RSASHA512, 1024},
		{dns.ECDSAP256SHA256, 256}, {dns.ECDSAP384SHA384, 384}, {dns.ED25519, 256},
	} {
		t.Run(fmt.Sprintf("%s-%d", dns.AlgorithmToString[c.algorithm], c.bits), func(t *testing.T) {
			s := newSigner(t, "example.", c.algorithm, c.bits, ksk)
			k := trust(t, s)
			rrs := records(t, "b.example. 300 IN MX 10 a.example.", "b.example. 300 IN MX 1 c.example.", "b.example. 300 IN MX 1 c.example.")
			v, err := verify(set(t, rrs, s), k, now)
			require.NoError(t, err)
			assert.Equal(t, validate.Verification{Status: validate.Secure, TTL: 300, Expires: now.Add(10 * day), Encloser: -1}, v)

			// What package dns signs is right too, and one that is changed is not.
			theirs := s.sign(t, rrs)
			require.NoError(t, theirs.Sign(s.private, rrs[:2]))
			_, err = verify(validate.NewRRset(rrs, theirs), k, now)
			assert.NoError(t, err)
			_, err = verify(validate.NewRRset(rrs[:1], theirs), k, now)
			ede(t, dns.ExtendedErrorCodeDNSBogus, err)
			upper := records(t, "B.Example. 300 IN MX 10 a.EXAMPLE.", "b.example. 300 IN MX 1 C.example.")
			_, err = verify(validate.NewRRset(upper, theirs), k, now)
			assert.NoError(t, err)
		})
	}
}

// TestVerifySkipsMismatchedSignatures makes signatures whose cryptography is right, and which RFC 4035 §5.3.1 does not allow.
func TestVerifySkipsMismatchedSignatures(t *testing.T) {
	s := seeded("example.com.", ksk, 1)
	k := trust(t, s)
	for _, c := range []struct {
		name   string
		record string
		change func(*dns.RRSIG)
	}{
		{"labels 0", "a.b.example.com. 300 IN A 192.0.2.1", func(g *dns.RRSIG) { g.Labels = 0 }},
		{"labels below the signer's", "a.b.example.com. 300 IN A 192.0.2.1", func(g *dns.RRSIG) { g.Labels = 1 }},
		{"labels above the owner's", "a.example.com. 300 IN A 192.0.2.1", func(g *dns.RRSIG) { g.Labels = 4 }},
		{"labels count the asterisk", "*.example.com. 300 IN A 192.0.2.1", func(g *dns.RRSIG) { g.Labels = 3 }},
		{"another zone that ends so", "evilexample.com. 300 IN A 192.0.2.1", nil},
		{"a sibling", "a.example.org. 300 IN A 192.0.2.1", nil},
		{"the zone above", "com. 300 IN A 192.0.2.1", nil},
		{"signer is a sibling", "a.example.com. 300 IN A 192.0.2.1", func(g *dns.RRSIG) { g.SignerName = "example.org." }},
		{"signer is the parent", "a.example.com. 300 IN A 192.0.2.1", func(g *dns.RRSIG) { g.SignerName = "com." }},
		{"signer is a child", "a.example.com. 300 IN A 192.0.2.1", func(g *dns.RRSIG) { g.SignerName = "a.example.com." }},
		{"signer is the root", "a.example.com. 300 IN A 192.0.2.1", func(g *dns.RRSIG) { g.SignerName = "." }},
		{"signer ends so", "a.example.com. 300 IN A 192.0.2.1", func(g *dns.RRSIG) { g.SignerName = "evilexample.com." }},
		{"another type", "a.example.com. 300 IN A 192.0.2.1", func(g *dns.RRSIG) { g.TypeCovered = dns.TypeTXT }},
		{"another class", "a.example.com. 300 CH A 192.0.2.1", nil},
		{"another owner", "a.example.com. 300 IN A 192.0.2.1", func(g *dns.RRSIG) { g.Hdr.Name = "b.example.com." }},
		{"DS of the zone itself", "example.com. 300 IN DS 1 8 2 " + strings.Repeat("00", 32), nil},
		{"algorithm that is unknown", "a.example.com. 300 IN A 192.0.2.1", func(g *dns.RRSIG) { g.Algorithm = 253 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			rrs := records(t, c.record)
			change := c.change
			if change == nil {
				change = func(*dns.RRSIG) {}
			}
			w := new(validate.Validation)
			_, err := w.Verify(validate.NewRRset(rrs, s.sign(t, rrs, change)), k, now)
			assert.Error(t, err)
			spent, _, _ := w.SpentWork()
			assert.Zero(t, spent)
		})
	}
}

// TestVerifyNeedsZoneAsSigner holds that keys verify nothing of a zone below or above theirs, even if it has the same key.
func TestVerifyNeedsZoneAsSigner(t *testing.T) {
	parent, child := seeded("com.", ksk, 1), seeded("example.com.", ksk, 1)
	rrs := records(t, "www.example.com. 300 IN A 192.0.2.1")
	for _, c := range []struct {
		signer *signer
		keys   *validate.Keys
		right  bool
	}{{child, trust(t, child), true}, {parent, trust(t, parent), true}, {child, trust(t, parent), false}, {parent, trust(t, child), false}} {
		s := set(t, rrs, c.signer)
		_, err := verify(s, c.keys, now)
		assert.Equal(t, c.right, err == nil)
		assert.Equal(t, []string{c.signer.key.Hdr.Name}, s.SignerNames())
	}
}

// TestZoneNameMayBeginWithAsterisk holds that its own records are signed with a label less (RFC 4034 §3.1.3), and stand for no other name.
func TestZoneNameMayBeginWithAsterisk(t *testing.T) {
	parent, s := seeded("example.", ksk, 1), seeded("*.example.", ksk, 2)
	d, err := new(validate.Validation).VerifyDS(set(t, []dns.RR{s.ds(t, dns.SHA256)}, parent), trust(t, parent), now)
	require.NoError(t, err)
	k, status, err := new(validate.Validation).VerifyDNSKEY(d, dnskeys(t, s), now)
	require.NoError(t, err)
	assert.Equal(t, validate.Secure, status)
	for _, name := range []string{"*.example.", "a.*.example."} {
		v, err := verify(set(t, records(t, name+" 300 IN A 192.0.2.1"), s), k, now)
		require.NoError(t, err, name)
		assert.Equal(t, -1, v.Encloser)
	}
	g := s.sign(t, records(t, "*.example. 300 IN A 192.0.2.1"))
	for _, name := range []string{"a.*.example.", "a.example."} {
		c := *g
		c.Hdr.Name = name
		_, err = verify(validate.NewRRset(records(t, name+" 300 IN A 192.0.2.1"), &c), k, now)
		assert.Error(t, err, name)
	}
}

func TestVerifyWildcardExpansion(t *testing.T) {
	s, r := seeded("example.", ksk, 1), seeded(".", ksk, 2)
	k, rk := trust(t, s), trust(t, r)
	star := records(t, "*.example. 300 IN A 192.0.2.1")
	sig := s.sign(t, star)
	as := func(name string) *validate.RRset {
		rr, g := records(t, name+" 300 IN A 192.0.2.1"), *sig
		g.Hdr.Name = name
		return validate.NewRRset(rr, &g)
	}
	for name, encloser := range map[string]int{"*.example.": -1, "a.example.": 1, "a.b.example.": 1, "*.b.example.": 1} {
		v, err := verify(as(name), k, now)
		assert.NoError(t, err, name)
		assert.Equal(t, encloser, v.Encloser, name)
	}
	_, err := verify(as("example."), k, now)
	assert.Error(t, err)

	// The root's, which package dns cannot make.
	rootStar := records(t, "*. 300 IN A 192.0.2.1")
	g := r.sign(t, rootStar)
	v, err := verify(validate.NewRRset(rootStar, g), rk, now)
	require.NoError(t, err)
	assert.Equal(t, -1, v.Encloser)
	expanded := *g
	expanded.Hdr.Name = "foo."
	v, err = verify(validate.NewRRset(records(t, "foo. 300 IN A 192.0.2.1"), &expanded), rk, now)
	require.NoError(t, err)
	assert.Equal(t, 0, v.Encloser)

	ds := records(t, "*.example. 300 IN DS 1 8 2 "+strings.Repeat("00", 32))
	g = s.sign(t, ds)
	g.Hdr.Name = "a.example."
	_, err = new(validate.Validation).VerifyDS(validate.NewRRset(records(t, "a.example. 300 IN DS 1 8 2 "+strings.Repeat("00", 32)), g), k, now)
	ede(t, dns.ExtendedErrorCodeDNSBogus, err)
}

func TestVerifyChecksValidityPeriod(t *testing.T) {
	s := seeded("example.", ksk, 1)
	rrs := records(t, "a.example. 300 IN A 192.0.2.1")
	at := func(from, until, now time.Time) (validate.Verification, error) {
		// The keys are valid at any time that is tried.
		d, err := validate.TrustAnchors(s.key)
		require.NoError(t, err)
		always := func(g *dns.RRSIG) {
			g.Inception, g.Expiration = uint32(now.Add(-time.Hour).Unix()), uint32(now.Add(time.Hour).Unix())
		}
		keys, _, err := new(validate.Validation).VerifyDNSKEY(d, validate.NewRRset([]dns.RR{s.key}, s.sign(t, []dns.RR{s.key}, always)), now)
		require.NoError(t, err)
		g := s.sign(t, rrs, func(g *dns.RRSIG) { g.Inception, g.Expiration = uint32(from.Unix()), uint32(until.Unix()) })
		return verify(validate.NewRRset(rrs, g), keys, now)
	}
	var right uint16 = 1000
	for _, c := range []struct {
		name        string
		from, until time.Time
		now         time.Time
		code        uint16
		ttl         uint32
	}{
		{"right", now.Add(-day), now.Add(day), now, right, 300},
		{"ends in 200 s", now.Add(-day), now.Add(200 * time.Second), now, right, 200},
		{"ends in 1 s", now.Add(-day), now.Add(time.Second), now, right, 1},
		{"ended an hour ago, within the skew", now.Add(-day), now.Add(-time.Hour), now, right, 1},
		{"ended before the skew of a day", now.Add(-day), now.Add(-150 * time.Minute), now, dns.ExtendedErrorCodeSignatureExpired, 0},
		{"ended a day ago, after a year", now.Add(-366 * day), now.Add(-day), now, right, 1},
		{"ended longer ago, after a year", now.Add(-366 * day), now.Add(-day - time.Second), now, dns.ExtendedErrorCodeSignatureExpired, 0},
		{"begins in an hour, for 10 minutes", now.Add(time.Hour), now.Add(70 * time.Minute), now, right, 300},
		{"begins later, for 10 minutes", now.Add(time.Hour + time.Second), now.Add(70 * time.Minute), now, dns.ExtendedErrorCodeSignatureNotYetValid, 0},
		{"begins in two days", now.Add(2 * day), now.Add(90 * day), now, dns.ExtendedErrorCodeSignatureNotYetValid, 0},
		{"ends before it begins", now.Add(day), now.Add(-day), now, dns.ExtendedErrorCodeSignatureExpiredBeforeValid, 0},
		{"2038", time.Date(2038, 1, 19, 3, 0, 0, 0, time.UTC), time.Date(2038, 1, 20, 0, 0, 0, 0, time.UTC), time.Date(2038, 1, 19, 3, 14, 8, 0, time.UTC), right, 300},
		{"2106", time.Date(2106, 2, 7, 0, 0, 0, 0, time.UTC), time.Date(2106, 2, 8, 0, 0, 0, 0, time.UTC), time.Date(2106, 2, 7, 6, 28, 0, 0, time.UTC), right, 300},
		{"the clock says 1970", now.Add(-day), now.Add(day), time.Unix(7200, 0), dns.ExtendedErrorCodeSignatureNotYetValid, 0},
		{"the clock says 2000", now.Add(-day), now.Add(day), time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), dns.ExtendedErrorCodeSignatureNotYetValid, 0},
		{"the clock says 2085", now.Add(-day), now.Add(day), time.Date(2085, 1, 1, 0, 0, 0, 0, time.UTC), dns.ExtendedErrorCodeSignatureExpired, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, err := at(c.from, c.until, c.now)
			if c.code == right {
				require.NoError(t, err)
				assert.Equal(t, c.ttl, v.TTL)
				if end := c.now.Add(time.Second); c.until.Before(end) { // it is good for a second, as its TTL is
					c.until = end
				}
				assert.True(t, c.until.Equal(v.Expires), v.Expires)
				return
			}
			ede(t, c.code, err)
			r := reason(t, err)
			assert.True(t, r.From.Equal(c.from) || r.Until.Equal(c.until), "%s %s", r.From, r.Until)
			assert.Contains(t, r.Text, c.now.UTC().Format(time.RFC3339))
		})
	}
}

func TestVerifiedTTLIsLowest(t *testing.T) {
	s := seeded("example.", ksk, 1)
	k := trust(t, s)
	for _, c := range []struct{ own, sig, original, want uint32 }{
		{300, 300, 300, 300}, {86400, 86400, 300, 300}, {86400, 200, 300, 200}, {100, 200, 300, 100}, {0, 300, 300, 0},
	} {
		rrs := records(t, "a.example. 300 IN A 192.0.2.1", "a.example. 300 IN A 192.0.2.2")
		g := s.sign(t, rrs, func(g *dns.RRSIG) { g.Hdr.Ttl, g.OrigTtl = c.sig, c.original })
		rrs[0].Header().Ttl, rrs[1].Header().Ttl = c.own, c.own+7
		v, err := verify(validate.NewRRset(rrs, g), k, now)
		require.NoError(t, err)
		assert.Equal(t, c.want, v.TTL)
	}
	rrs := records(t, "a.example. 300 IN A 192.0.2.1")
	g := s.sign(t, rrs)
	g.OrigTtl = 301
	_, err := verify(validate.NewRRset(rrs, g), k, now)
	ede(t, dns.ExtendedErrorCodeDNSBogus, err)
}

// TestVerifyRejectsMalformedSignatures has signatures that are none.
func TestVerifyRejectsMalformedSignatures(t *testing.T) {
	for _, algorithm := range []uint8{dns.RSASHA256, dns.ECDSAP256SHA256, dns.ECDSAP384SHA384, dns.ED25519} {
		bits := map[uint8]int{dns.RSASHA256: 1024, dns.ECDSAP384SHA384: 384}[algorithm]
		s := newSigner(t, "example.", algorithm, max(bits, 256), ksk)
		k := trust(t, s)
		rrs := records(t, "a.example. 300 IN A 192.0.2.1")
		right, err := base64.StdEncoding.DecodeString(s.sign(t, rrs).Signature)
		require.NoError(t, err)
		half := len(right) / 2
		for name, sig := range map[string][]byte{
			"empty": {}, "one byte": {0}, "odd": right[:len(right)-1], "longer": append(right[:len(right):len(right)], 0), "zeros": make([]byte, len(right)),
			"r is 0": append(make([]byte, half), right[half:]...), "s is 0": append(right[:half:half], make([]byte, half)...),
			"long": make([]byte, 4096),
		} {
			g := s.sign(t, rrs)
			g.Signature = base64.StdEncoding.EncodeToString(sig)
			_, err := verify(validate.NewRRset(rrs, g), k, now)
			assert.Error(t, err, name)
			ede(t, dns.ExtendedErrorCodeDNSBogus, err)
		}
	}
}

// TestVerifyReportsFurthestStage has several signatures, none of which is right.
func TestVerifyReportsFurthestStage(t *testing.T) {
	s, stranger := seeded("example.", ksk, 1), seeded("example.", zsk, 2)
	k := trust(t, s)
	rrs := records(t, "a.example. 300 IN A 192.0.2.1")
	unfit := s.sign(t, rrs, func(g *dns.RRSIG) { g.Labels = 7 })
	late := s.sign(t, rrs, func(g *dns.RRSIG) {
		g.Inception, g.Expiration = uint32(now.Add(-9*day).Unix()), uint32(now.Add(-3*day).Unix())
	})
	keyless := stranger.sign(t, rrs)
	wrong := s.sign(t, records(t, "a.example. 300 IN A 192.0.2.66"))
	right := s.sign(t, rrs)
	for _, c := range []struct {
		code uint16
		sigs []*dns.RRSIG
	}{
		{dns.ExtendedErrorCodeRRSIGsMissing, nil},
		{dns.ExtendedErrorCodeDNSBogus, []*dns.RRSIG{unfit}},
		{dns.ExtendedErrorCodeSignatureExpired, []*dns.RRSIG{late, unfit}},
		{dns.ExtendedErrorCodeSignatureExpired, []*dns.RRSIG{unfit, late}},
		{dns.ExtendedErrorCodeDNSKEYMissing, []*dns.RRSIG{keyless, late, unfit}},
		{dns.ExtendedErrorCodeDNSBogus, []*dns.RRSIG{wrong, keyless, late, unfit}},
	} {
		_, err := verify(validate.NewRRset(rrs, c.sigs...), k, now)
		ede(t, c.code, err)
		r := reason(t, err)
		assert.Equal(t, []any{"example.", "a.example.", dns.TypeA}, []any{r.Zone, r.Name, r.Type})
		assert.Equal(t, c.code == dns.ExtendedErrorCodeSignatureExpired, !r.Until.IsZero())

		_, err = verify(validate.NewRRset(rrs, append(c.sigs, right)...), k, now)
		assert.NoError(t, err, "one right signature is enough")
	}
}
