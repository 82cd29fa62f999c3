package validate_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// sameTag returns keys of a zone that all have the tag of the first one: words of their public keys change places.
func sameTag(t testing.TB, first *dns.DNSKEY, n int) []*dns.DNSKEY {
	t.Helper()
	keys := []*dns.DNSKEY{first}
	b := rdata(t, first)
	for i := 1; len(keys) < n; i++ {
		c := append([]byte(nil), b...)
		x, y := 4+2*(i%14), 6+2*(i/14%14)
		if x == y || [2]byte(c[x:x+2]) == [2]byte(c[y:y+2]) {
			continue
		}
		vx, vy := binary.BigEndian.Uint16(c[x:]), binary.BigEndian.Uint16(c[y:])
		binary.BigEndian.PutUint16(c[x:], vy)
		binary.BigEndian.PutUint16(c[y:], vx)
		rr, _, err := dns.UnpackRRWithHeader(dns.RR_Header{Name: first.Hdr.Name, Rrtype: dns.TypeDNSKEY, Class: 1, Ttl: 3600, Rdlength: uint16(len(c))}, c, 0)
		require.NoError(t, err)
		k := rr.(*dns.DNSKEY)
		require.Equal(t, first.KeyTag(), k.KeyTag())
		keys = append(keys, k)
	}
	return keys
}

// TestValidationLimitsKeyTrap has 32 keys of one tag and 32 signatures (CVE-2023-50387).
func TestValidationLimitsKeyTrap(t *testing.T) {
	s := seeded("example.", ksk, 1)
	var rrs []dns.RR
	for _, k := range sameTag(t, s.key, 32) {
		rrs = append(rrs, k)
	}
	var sigs []*dns.RRSIG
	for i := range 32 {
		sigs = append(sigs, s.sign(t, []dns.RR{s.key}, func(g *dns.RRSIG) { g.OrigTtl += uint32(i) }))
	}
	w := new(validate.Validation)
	_, status, err := w.VerifyDNSKEY(validate.UnverifiedDS(validate.NewRRset([]dns.RR{s.ds(t, 2)})), validate.NewRRset(rrs, sigs...), now)
	assert.Equal(t, validate.Bogus, status)
	assert.Error(t, err)
	spent, failures, _ := w.SpentWork()
	assert.LessOrEqual(t, spent, 8)
	assert.LessOrEqual(t, failures, 8)

	// The keys are right, and data has 32 signatures that are not.
	d, err := validate.TrustAnchors(s.key)
	require.NoError(t, err)
	k, status, err := new(validate.Validation).VerifyDNSKEY(d, set(t, rrs, s), now)
	require.NoError(t, err)
	require.Equal(t, validate.Secure, status)
	for i := range 11 { // aliases of a chain
		data := records(t, fmt.Sprintf("a%d.example. 300 IN CNAME b.example.", i))
		var sigs []*dns.RRSIG
		for j := range 32 {
			g := s.sign(t, data, func(g *dns.RRSIG) { g.OrigTtl += uint32(j) })
			g.OrigTtl++
			sigs = append(sigs, g)
		}
		bogus := validate.NewRRset(data, sigs...)
		_, err := w.Verify(bogus, k, now)
		require.Error(t, err)
		before, _, _ := w.SpentWork()
		_, again := w.Verify(bogus, k, now)
		after, _, _ := w.SpentWork()
		assert.Equal(t, err, again)
		assert.Equal(t, before, after)
	}
	spent, failures, _ = w.SpentWork()
	assert.Equal(t, 16, spent)
	assert.Equal(t, 16, failures)
	_, err = w.Verify(set(t, records(t, "c.example. 300 IN A 192.0.2.1"), s), k, now)
	assert.Equal(t, "failed verifications", reason(t, err).Limit)
	ede(t, dns.ExtendedErrorCodeDNSBogus, err)
}

// TestValidationLimitsSignaturesOfRRset has more of them wrong than are tried. The question goes on.
func TestValidationLimitsSignaturesOfRRset(t *testing.T) {
	s := seeded("example.", ksk, 1)
	k := trust(t, s)
	rrs := records(t, "a.example. 300 IN A 192.0.2.1")
	var sigs []*dns.RRSIG
	for i := range 12 {
		g := s.sign(t, rrs, func(g *dns.RRSIG) { g.OrigTtl += uint32(i) })
		g.OrigTtl += 100
		sigs = append(sigs, g)
	}
	w := new(validate.Validation)
	_, err := w.Verify(validate.NewRRset(rrs, sigs...), k, now)
	assert.Empty(t, reason(t, err).Limit)
	spent, failures, _ := w.SpentWork()
	assert.Equal(t, []int{8, 8}, []int{spent, failures})
	_, err = w.Verify(set(t, rrs, s), k, now)
	assert.NoError(t, err)
}

// TestValidationWeighsAlgorithms has data that is right, and more of it than a question needs.
func TestValidationWeighsAlgorithms(t *testing.T) {
	for _, c := range []struct {
		algorithm    uint8
		bits, weight int
	}{{dns.RSASHA256, 2048, 1}, {dns.RSASHA256, 3072, 5}, {dns.ECDSAP256SHA256, 256, 1}, {dns.ECDSAP384SHA384, 384, 10}, {dns.ED25519, 256, 1}} {
		s := newSigner(t, "example.", c.algorithm, c.bits, ksk)
		k := trust(t, s)
		w := &validate.Validation{Policy: validate.Policy{Verifications: 30}}
		n := 0
		for ; ; n++ {
			_, err := w.Verify(set(t, records(t, fmt.Sprintf("a%d.example. 300 IN A 192.0.2.1", n)), s), k, now)
			if err != nil {
				assert.Equal(t, "Verifications", reason(t, err).Limit)
				break
			}
		}
		assert.Equal(t, 8*30/c.weight, n)
		spent, failures, _ := w.SpentWork()
		assert.Equal(t, []int{8 * 30, 0}, []int{spent, failures})
	}
	s := seeded("example.", ksk, 1)
	k := trust(t, s)
	w := new(validate.Validation)
	for i := range 8 * 128 {
		_, err := w.Verify(set(t, records(t, fmt.Sprintf("a%d.example. 300 IN A 192.0.2.1", i)), s), k, now)
		require.NoError(t, err)
	}
	_, err := w.Verify(set(t, records(t, "b.example. 300 IN A 192.0.2.1"), s), k, now)
	assert.Equal(t, "Verifications", reason(t, err).Limit)
}

// TestRepeatedVerificationCostsOne has the same RRset come in several responses, which servers of a P-384 zone send with each referral: it is not
// verified again. Another one, another signature and another zone's key are.
func TestRepeatedVerificationCostsOne(t *testing.T) {
	s := newSigner(t, "example.", dns.ECDSAP384SHA384, 384, ksk)
	k := trust(t, s)
	rrs := records(t, "a.example. 300 IN A 192.0.2.1")
	right := s.sign(t, rrs)
	wrong := *right
	wrong.OrigTtl++
	other := *right
	other.Hdr.Name = "b.example."
	w := new(validate.Validation)
	total := 0
	for _, c := range []struct {
		name string
		rrs  []dns.RR
		sig  *dns.RRSIG
		keys *validate.Keys
		cost int
		ok   bool
	}{
		{"first", rrs, right, k, 10, true},
		{"again", rrs, right, k, 1, true},
		{"with less time", records(t, "a.example. 200 IN A 192.0.2.1"), right, k, 1, true},
		{"other data", records(t, "a.example. 300 IN A 192.0.2.2"), right, k, 10, false},
		{"other owner", records(t, "b.example. 300 IN A 192.0.2.1"), &other, k, 10, false},
		{"wrong", rrs, &wrong, k, 10, false},
		{"wrong again", rrs, &wrong, k, 1, false},
		{"another signature", rrs, s.sign(t, rrs, func(g *dns.RRSIG) { g.Expiration++ }), k, 10, true},
		{"the same keys, read anew", rrs, right, trust(t, s), 1, true},
	} {
		before, failures, _ := w.SpentWork()
		_, err := w.Verify(validate.NewRRset(c.rrs, c.sig), c.keys, now)
		assert.Equal(t, c.ok, err == nil, "%s: %v", c.name, err)
		spent, failed, _ := w.SpentWork()
		assert.Equal(t, c.cost, spent-before, c.name)
		fails := 0
		if !c.ok && c.cost > 1 { // a signature that is known to be wrong fails once
			fails = 1
		}
		assert.Equal(t, fails, failed-failures, c.name)
		total += c.cost
	}
	spent, _, _ := w.SpentWork()
	assert.Equal(t, total, spent)
	_, err := new(validate.Validation).Verify(validate.NewRRset(rrs, right), k, now)
	require.NoError(t, err)

	w = &validate.Validation{Policy: validate.Policy{Verifications: 15}} // what is known is bounded as well
	for i := range 17 {
		_, err := w.Verify(validate.NewRRset(rrs, right), k, now)
		assert.Equal(t, i < 16, err == nil, i)
	}
}

// TestValidationWeighsLongRRsets has an RRset of 46 kB with compressed names: 1.4 MB are hashed for each of its signatures.
func TestValidationWeighsLongRRsets(t *testing.T) {
	s := seeded("example.", ksk, 1)
	k := trust(t, s)
	long := strings.Repeat(strings.Repeat("a", 61)+".", 3) + "b.example."
	var rrs []dns.RR
	for i := range 2800 {
		rrs = append(rrs, &dns.MX{Hdr: dns.RR_Header{Name: long, Rrtype: dns.TypeMX, Class: dns.ClassINET, Ttl: 300}, Preference: uint16(i), Mx: long})
	}
	right := s.sign(t, rrs)
	w := new(validate.Validation)
	_, err := w.Verify(validate.NewRRset(rrs, right), k, now)
	require.NoError(t, err)
	spent, _, _ := w.SpentWork()
	perSet := 1 + 2800*2*len(long)/(32<<10)
	assert.InDelta(t, perSet, spent, 2)
	sigs := make([]*dns.RRSIG, 16)
	for i := range sigs {
		g := *right
		g.OrigTtl += uint32(i) + 1
		sigs[i] = &g
	}
	w = new(validate.Validation)
	_, err = w.Verify(validate.NewRRset(rrs, sigs...), k, now)
	assert.Equal(t, "Verifications", reason(t, err).Limit)
	spent, failures, _ := w.SpentWork()
	assert.LessOrEqual(t, spent, 128)
	assert.Equal(t, 128/perSet, failures)

	w = new(validate.Validation) // a thousand addresses
	rrs = nil
	for i := range 1000 {
		rrs = append(rrs, records(t, fmt.Sprintf("a.example. 300 IN A 192.0.%d.%d", i/200, i%200))...)
	}
	_, err = w.Verify(set(t, rrs, s), k, now)
	require.NoError(t, err)
	spent, _, _ = w.SpentWork()
	assert.Equal(t, 1, spent)
}

// TestValidationWeighsLargeExponents has RSA keys that take three times as long as those with the usual exponent.
func TestValidationWeighsLargeExponents(t *testing.T) {
	for bits, weight := range map[int]int{2048: 2, 4096: 10} {
		s := seeded("example.", ksk, 1)
		rsa := &dns.DNSKEY{Hdr: s.key.Hdr, Flags: zsk, Protocol: 3, Algorithm: dns.RSASHA256,
			PublicKey: base64.StdEncoding.EncodeToString(append([]byte("\x04\x7f\xff\xff\xff"), bytes.Repeat([]byte{0xff}, bits/8)...))}
		d, err := validate.TrustAnchors(s.key)
		require.NoError(t, err)
		k, _, err := new(validate.Validation).VerifyDNSKEY(d, set(t, []dns.RR{s.key, rsa}, s), now)
		require.NoError(t, err)
		rrs := records(t, "a.example. 300 IN A 192.0.2.1")
		g := s.sign(t, rrs, func(g *dns.RRSIG) { g.Algorithm, g.KeyTag = dns.RSASHA256, rsa.KeyTag() })
		w := new(validate.Validation)
		_, err = w.Verify(validate.NewRRset(rrs, g), k, now)
		assert.Error(t, err)
		spent, failures, _ := w.SpentWork()
		assert.Equal(t, []int{weight, 1}, []int{spent, failures})
	}
}

// TestKeysWithLongExponentsAreNotUsed has RSA keys whose verification would take up to 35 ms.
func TestKeysWithLongExponentsAreNotUsed(t *testing.T) {
	for _, c := range []struct{ bits, exponentBytes, failures int }{{4096, 512, 0}, {4096, 9, 0}, {2056, 9, 0}, {4096, 8, 1}, {2048, 256, 1}} {
		s := seeded("example.", ksk, 1)
		rsa := &dns.DNSKEY{Hdr: s.key.Hdr, Flags: zsk, Protocol: 3, Algorithm: dns.RSASHA256, PublicKey: base64.StdEncoding.EncodeToString(
			append([]byte{0, byte(c.exponentBytes >> 8), byte(c.exponentBytes)}, bytes.Repeat([]byte{0xff}, c.exponentBytes+c.bits/8)...))}
		d, err := validate.TrustAnchors(s.key)
		require.NoError(t, err)
		k, _, err := new(validate.Validation).VerifyDNSKEY(d, set(t, []dns.RR{s.key, rsa}, s), now)
		require.NoError(t, err)
		rrs := records(t, "a.example. 300 IN A 192.0.2.1")
		w := new(validate.Validation)
		_, err = w.Verify(validate.NewRRset(rrs, s.sign(t, rrs, func(g *dns.RRSIG) { g.Algorithm, g.KeyTag = dns.RSASHA256, rsa.KeyTag() })), k, now)
		assert.Error(t, err)
		spent, failures, _ := w.SpentWork()
		assert.Equal(t, c.failures, failures, c)
		assert.LessOrEqual(t, spent, 104, c)
	}
}

// TestVerifyTriesKeysOfOneTag has a zone with two keys of one tag. One of them signs 30 RRsets, which the other does not make bogus.
func TestVerifyTriesKeysOfOneTag(t *testing.T) {
	s := seeded("example.", ksk, 1)
	for _, other := range sameTag(t, s.key, 12)[1:] { // some come before the key, some after it
		d, err := validate.TrustAnchors(s.key)
		require.NoError(t, err)
		k, _, err := new(validate.Validation).VerifyDNSKEY(d, set(t, []dns.RR{s.key, other}, s), now)
		require.NoError(t, err)
		w := new(validate.Validation)
		for i := range 30 {
			_, err := w.Verify(set(t, records(t, fmt.Sprintf("a%d.example. 300 IN A 192.0.2.1", i)), s), k, now)
			require.NoError(t, err)
		}
		_, failures, _ := w.SpentWork()
		assert.LessOrEqual(t, failures, 1)
	}
}

// TestKeyWithTwoDigestsIsTriedOnce has a DNSKEY RRset whose fourth signature is the right one.
func TestKeyWithTwoDigestsIsTriedOnce(t *testing.T) {
	s := seeded("example.", ksk, 1)
	right := s.sign(t, []dns.RR{s.key})
	var sigs []*dns.RRSIG
	for i := range 3 {
		g := *right
		g.OrigTtl += uint32(i) + 1
		sigs = append(sigs, &g)
	}
	d, err := validate.TrustAnchors(s.ds(t, dns.SHA256), s.ds(t, dns.SHA384), s.key)
	require.NoError(t, err)
	w := new(validate.Validation)
	_, status, err := w.VerifyDNSKEY(d, validate.NewRRset([]dns.RR{s.key}, append(sigs, right)...), now)
	require.NoError(t, err)
	assert.Equal(t, validate.Secure, status)
	spent, failures, _ := w.SpentWork()
	assert.Equal(t, []int{4, 3}, []int{spent, failures})
}

func TestVerifyDNSKEYLimitsKeys(t *testing.T) {
	s := seeded("example.", ksk, 1)
	d, err := validate.TrustAnchors(s.key)
	require.NoError(t, err)
	read := 0
	var signers []*signer
	rrs := []dns.RR{s.key}
	for i := range 40 {
		signers = append(signers, seeded("example.", zsk, byte(100+i)))
		rrs = append(rrs, signers[i].key)
	}
	k, _, err := new(validate.Validation).VerifyDNSKEY(d, set(t, rrs, s), now)
	if err != nil {
		ede(t, dns.ExtendedErrorCodeDNSKEYMissing, err)
		return
	}
	for _, z := range signers {
		if _, err := verify(set(t, records(t, "a.example. 300 IN A 192.0.2.1"), z), k, now); err == nil {
			read++
		}
	}
	assert.LessOrEqual(t, read, 32)
}

// TestVerifyDNSKEYLimitsDigestMismatches has keys with the tag of a DS record whose digest is not theirs.
func TestVerifyDNSKEYLimitsDigestMismatches(t *testing.T) {
	s := seeded("example.", ksk, 1)
	keys := sameTag(t, s.key, 20)
	var rrs, ds []dns.RR
	for i, k := range keys {
		rrs = append(rrs, k)
		d := s.ds(t, 2)
		d.Digest = fmt.Sprintf("%02x", i) + strings.Repeat("00", 31)
		ds = append(ds, d)
	}
	_, status, err := judge(t, set(t, rrs, s), ds...)
	assert.Equal(t, validate.Bogus, status)
	assert.Contains(t, reason(t, err).Text, "too many")
}

func TestGroupRRsetsLimitsSignedRRsets(t *testing.T) {
	s := seeded("example.", ksk, 1)
	var answer, authority []dns.RR
	for i := range validate.MaxSignedRRsets {
		rrs := records(t, fmt.Sprintf("a%d.example. 300 IN A 192.0.2.1", i))
		answer = append(answer, rrs[0], s.sign(t, rrs))
		authority = append(authority, records(t, fmt.Sprintf("b%d.example. 300 IN NS c.", i))...)
	}
	sets, err := validate.GroupRRsets(answer, authority)
	require.NoError(t, err)
	assert.Len(t, sets[0], validate.MaxSignedRRsets)
	assert.Len(t, sets[1], validate.MaxSignedRRsets)
	rrs := records(t, "c.example. 300 IN A 192.0.2.1")
	_, err = validate.GroupRRsets(answer, append(authority, rrs[0], s.sign(t, rrs)))
	assert.Contains(t, reason(t, err).Text, "too many RRsets")
	assert.Empty(t, reason(t, err).Limit, "it is a fault of the response, and another server may have a better one")
}

// TestUnsignedRecordsCostNothing has 2,500 NSEC records without signatures beside one that denies.
func TestUnsignedRecordsCostNothing(t *testing.T) {
	s := seeded("example.", ksk, 1)
	k := trust(t, s)
	var rrs []dns.RR
	for i := range 2500 {
		rrs = append(rrs, records(t, fmt.Sprintf("n%d.example. 300 IN NSEC a.example. A", i))...)
	}
	sets, err := validate.GroupRRsets(rrs)
	require.NoError(t, err)
	right := nsecs(t, s, "a.example. b.example. MX")[0]
	_, err = new(validate.Validation).VerifyDenial("a.example.", dns.TypeA, []*validate.RRset{right}, k, now)
	require.NoError(t, err)
	w := new(validate.Validation)
	n := testing.AllocsPerRun(1, func() {
		_, err = w.VerifyDenial("a.example.", dns.TypeA, append(sets[0], right), k, now)
		assert.NoError(t, err)
		_, err = w.VerifyDenial("b.example.", dns.TypeA, sets[0], k, now)
		ede(t, dns.ExtendedErrorCodeRRSIGsMissing, err)
		_, err = w.Verify(sets[0][0], k, now)
		ede(t, dns.ExtendedErrorCodeRRSIGsMissing, err)
	})
	assert.Less(t, n, 200.0)
}

func TestVerifyDenialLimitsNSEC3Iterations(t *testing.T) {
	s := seeded("example.", ksk, 1)
	k := trust(t, s)
	zone := func(iterations int) []*validate.RRset {
		return nsec3Zone{fmt.Sprintf("1 0 %d -", iterations), map[string]string{"example.": "NS SOA"}}.sign(t, s)
	}
	for _, c := range []struct {
		iterations, limit int
		status            validate.Status
	}{
		{50, 0, validate.Secure}, {51, 0, validate.Insecure}, {500, 0, validate.Insecure}, {501, 0, validate.Bogus}, {65535, 0, validate.Bogus},
		{123, 150, validate.Secure}, {151, 150, validate.Insecure}, {600, 700, validate.Secure}, {701, 700, validate.Bogus},
	} {
		w := &validate.Validation{Policy: validate.Policy{NSEC3Iterations: c.limit}}
		d, err := w.VerifyDenial("m.example.", dns.TypeA, zone(c.iterations), k, now)
		_, _, blocks := w.SpentWork()
		switch c.status {
		case validate.Bogus:
			ede(t, dns.ExtendedErrorCodeUnsupportedNSEC3IterValue, err)
		case validate.Insecure:
			require.NoError(t, err)
			assert.Equal(t, validate.Unproven, d.Kind)
			assert.EqualValues(t, dns.ExtendedErrorCodeUnsupportedNSEC3IterValue, d.Insecure.EDE)
		default:
			require.NoError(t, err)
			assert.Nil(t, d.Insecure)
			assert.Equal(t, 3*(c.iterations+1), blocks) // the name, the apex, the wildcard
		}
		assert.Equal(t, c.status == validate.Secure, blocks > 0)
		if err == nil {
			assert.Equal(t, c.status, d.Status)
		}
	}
	for _, set := range zone(51) { // not signed: no evidence of anything
		set.Sigs = nil
		_, err := new(validate.Validation).VerifyDenial("m.example.", dns.TypeA, []*validate.RRset{set}, k, now)
		ede(t, dns.ExtendedErrorCodeRRSIGsMissing, err)
	}
}

// TestValidationLimitsNSEC3Hashes has names and salts that take long to hash (CVE-2023-50868).
func TestValidationLimitsNSEC3Hashes(t *testing.T) {
	s := seeded("arpa.", ksk, 1)
	k := trust(t, s)
	address := strings.Repeat("0.", 32) + "ip6.arpa."
	zone := func(iterations, salt int) []*validate.RRset {
		return nsec3Zone{fmt.Sprintf("1 0 %d %s", iterations, strings.Repeat("ab", salt)), map[string]string{"arpa.": "NS SOA"}}.sign(t, s)
	}
	w := new(validate.Validation)
	d, err := w.VerifyDenial(address, dns.TypePTR, zone(50, 8), k, now)
	require.NoError(t, err)
	assert.Equal(t, validate.NameError, d.Kind)
	_, _, blocks := w.SpentWork()
	assert.GreaterOrEqual(t, blocks, 35*51) // 34 names and a wildcard
	assert.LessOrEqual(t, blocks, 36*51)
	again, err := w.VerifyDenial(address, dns.TypePTR, zone(50, 8), k, now)
	require.NoError(t, err)
	assert.Equal(t, d, again)
	_, _, after := w.SpentWork()
	assert.Equal(t, blocks, after)

	w = new(validate.Validation)
	_, err = w.VerifyDenial(address, dns.TypePTR, zone(50, 255), k, now)
	assert.Equal(t, "NSEC3 blocks", reason(t, err).Limit, err)
	_, _, blocks = w.SpentWork()
	assert.LessOrEqual(t, blocks, 4096)
}

// TestPolicyDefaults holds what AllowSHA1 and FakeLegacy change.
func TestPolicyDefaults(t *testing.T) {
	sha1 := newSigner(t, "example.", dns.RSASHA1, 1024, ksk)
	rrs := records(t, "a.example. 300 IN A 192.0.2.1")
	for _, c := range []struct {
		policy validate.Policy
		status validate.Status
	}{{validate.Policy{}, validate.Insecure}, {validate.Policy{AllowSHA1: true}, validate.Secure}, {validate.Policy{FakeLegacy: true}, validate.Secure}} {
		for _, digest := range []uint8{dns.SHA1, dns.SHA256} {
			w := &validate.Validation{Policy: c.policy}
			d, err := validate.TrustAnchors(sha1.ds(t, digest))
			require.NoError(t, err)
			k, status, _ := w.VerifyDNSKEY(d, dnskeys(t, sha1), now)
			require.Equal(t, c.status, status)
			if k == nil {
				continue
			}
			_, err = w.Verify(set(t, rrs, sha1), k, now)
			assert.NoError(t, err)
			wrong := set(t, records(t, "a.example. 300 IN A 192.0.2.2"), sha1)
			_, err = w.Verify(validate.NewRRset(rrs, wrong.Sigs...), k, now)
			assert.Equal(t, c.policy.FakeLegacy, err == nil)
		}
	}
}

// TestFakeLegacyAcceptsOldAlgorithms has keys and signatures of algorithms that no library here verifies, with every other check.
func TestFakeLegacyAcceptsOldAlgorithms(t *testing.T) {
	w := &validate.Validation{Policy: validate.Policy{FakeLegacy: true}}
	rrs := records(t, "a.example. 300 IN A 192.0.2.1")
	for _, algorithm := range []uint8{dns.RSAMD5, dns.DSA, dns.RSASHA1, dns.DSANSEC3SHA1, dns.RSASHA1NSEC3SHA1} {
		s := seeded("example.", ksk, 1)
		s.key.Algorithm = algorithm
		ds := s.ds(t, dns.SHA256)
		ds.DigestType, ds.Digest = dns.SHA1, strings.Repeat("00", 20)
		d, err := validate.TrustAnchors(ds)
		require.NoError(t, err)
		k, status, err := w.VerifyDNSKEY(d, dnskeys(t, s), now)
		require.NoError(t, err, algorithm)
		require.Equal(t, validate.Secure, status)
		_, err = w.Verify(set(t, rrs, s), k, now)
		assert.NoError(t, err)
		_, err = w.Verify(validate.NewRRset(rrs, s.sign(t, rrs, func(g *dns.RRSIG) { g.Labels = 9 })), k, now)
		assert.Error(t, err)
		_, err = w.Verify(validate.NewRRset(rrs, s.sign(t, rrs, func(g *dns.RRSIG) { g.KeyTag++ })), k, now)
		assert.Error(t, err)
		_, err = w.Verify(set(t, rrs, s), k, now.Add(365*day))
		assert.Error(t, err)
		_, status, _ = new(validate.Validation).VerifyDNSKEY(d, dnskeys(t, s), now)
		assert.Equal(t, validate.Insecure, status)
	}
}

// TestOnlyTestsSetFakeLegacy holds that no program can fake: no file but tests sets FakeLegacy.
func TestOnlyTestsSetFakeLegacy(t *testing.T) {
	err := filepath.WalkDir("../../..", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "internal/validate/") {
			return err
		}
		src, err := os.ReadFile(path)
		assert.NotContains(t, string(src), "FakeLegacy", path)
		return err
	})
	require.NoError(t, err)
	for _, file := range []string{"policy.go", "algorithm.go", "ds_set.go"} { // it is read here, and set nowhere
		src, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.NotRegexp(t, `FakeLegacy(:| =[^=])`, string(src))
	}
}
