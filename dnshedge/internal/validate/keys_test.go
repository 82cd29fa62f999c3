package validate_test

import (
	"encoding/base64"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/validate"
)

// judge judges keys by DS records that nobody has verified.
func judge(t *testing.T, keys *validate.RRset, ds ...dns.RR) (*validate.Keys, validate.Status, error) {
	t.Helper()
	return new(validate.Validation).VerifyDNSKEY(validate.UnverifiedDS(validate.NewRRset(ds)), keys, now)
}

func TestKeysAreUncheckedUntilDSIsVerified(t *testing.T) {
	parent, child, other := seeded("example.", ksk, 1), seeded("a.example.", ksk, 2), seeded("a.example.", ksk, 3)
	ds := set(t, []dns.RR{child.ds(t, dns.SHA256)}, parent)
	w := new(validate.Validation)
	d := validate.UnverifiedDS(ds)
	assert.False(t, d.IsTrusted())
	k, status, err := w.VerifyDNSKEY(d, dnskeys(t, child), now)
	require.NoError(t, err)
	assert.Equal(t, validate.Unchecked, status)
	assert.False(t, k.IsTrusted())
	data := set(t, records(t, "www.a.example. 300 IN A 192.0.2.1"), child)
	v, err := w.Verify(data, k, now)
	require.NoError(t, err)
	assert.Equal(t, validate.Unchecked, v.Status)

	verified, err := w.VerifyDS(ds, trust(t, parent), now)
	require.NoError(t, err)
	assert.Equal(t, "a.example.", verified.Zone())
	k2, ok := k.WithTrustedDS(verified)
	require.True(t, ok)
	v, err = w.Verify(data, k2, now)
	require.NoError(t, err)
	assert.Equal(t, validate.Secure, v.Status)
	assert.False(t, k.IsTrusted(), "keys do not change")

	// DS records that are not the ones.
	_, ok = k.WithTrustedDS(d)
	assert.False(t, ok)
	foreign, err := w.VerifyDS(set(t, []dns.RR{other.ds(t, dns.SHA256)}, parent), trust(t, parent), now)
	require.NoError(t, err)
	_, ok = k.WithTrustedDS(foreign)
	assert.False(t, ok)
	_, err = w.VerifyDS(validate.NewRRset(ds.Records), trust(t, parent), now)
	ede(t, dns.ExtendedErrorCodeRRSIGsMissing, err)
	_, err = w.VerifyDS(set(t, []dns.RR{child.ds(t, dns.SHA256)}, child), trust(t, parent), now)
	assert.Error(t, err)

	// VerifyDNSKEY that were judged by the weak half of a set do not stand on all of it.
	weak, status, err := w.VerifyDNSKEY(validate.UnverifiedDS(validate.NewRRset([]dns.RR{child.ds(t, dns.SHA1)})), dnskeys(t, child), now)
	require.NoError(t, err)
	assert.Equal(t, validate.Unchecked, status)
	both, err := w.VerifyDS(set(t, []dns.RR{child.ds(t, dns.SHA1), other.ds(t, dns.SHA256)}, parent), trust(t, parent), now)
	require.NoError(t, err)
	_, ok = weak.WithTrustedDS(both)
	assert.False(t, ok)
}

func TestPolicyRequireAllAlgorithms(t *testing.T) {
	first, second := seeded("example.", ksk, 1), newSigner(t, "example.", dns.ECDSAP256SHA256, 256, ksk)
	a := records(t, "www.example. 300 IN A 192.0.2.1")
	ds := []dns.RR{first.ds(t, dns.SHA256), second.ds(t, dns.SHA256)}
	anchors, err := validate.TrustAnchors(ds...)
	require.NoError(t, err)
	all := dnskeys(t, first, second)
	signedByFirst := validate.NewRRset(all.Records, first.sign(t, all.Records))
	signedByBoth := validate.NewRRset(all.Records, first.sign(t, all.Records), second.sign(t, all.Records, func(g *dns.RRSIG) { g.Expiration -= 3600 }))
	strict := &validate.Validation{Policy: validate.Policy{RequireAllAlgorithms: true}}

	_, status, err := new(validate.Validation).VerifyDNSKEY(anchors, signedByFirst, now)
	require.NoError(t, err)
	assert.Equal(t, validate.Secure, status, "one signature suffices without the setting")
	_, status, err = strict.VerifyDNSKEY(anchors, signedByFirst, now)
	assert.Equal(t, validate.Bogus, status)
	ede(t, dns.ExtendedErrorCodeDNSKEYMissing, err)

	k, status, err := strict.VerifyDNSKEY(anchors, signedByBoth, now)
	require.NoError(t, err)
	assert.Equal(t, validate.Secure, status)
	assert.Equal(t, now.Add(10*day-time.Hour), k.Expires(), "of the signature that expires first")
	_, err = strict.Verify(validate.NewRRset(a, first.sign(t, a)), k, now)
	assert.Error(t, err, "records are signed by one algorithm")
	v, err := strict.Verify(validate.NewRRset(a, first.sign(t, a), second.sign(t, a)), k, now)
	require.NoError(t, err)
	assert.Equal(t, validate.Secure, v.Status)

	// A forged referral has fewer algorithms than the DS records.
	fewer, _, err := strict.VerifyDNSKEY(validate.UnverifiedDS(validate.NewRRset(ds[:1])), signedByFirst, now)
	require.NoError(t, err)
	_, ok := fewer.WithTrustedDS(anchors)
	assert.False(t, ok)
	same, _, err := strict.VerifyDNSKEY(validate.UnverifiedDS(validate.NewRRset(ds)), signedByBoth, now)
	require.NoError(t, err)
	_, ok = same.WithTrustedDS(anchors)
	assert.True(t, ok)
}

func TestVerifyDSRecords(t *testing.T) {
	s, other := seeded("example.", ksk, 1), seeded("example.", zsk, 2)
	both := dnskeys(t, s, other)
	change := func(d *dns.DS, f func(*dns.DS)) *dns.DS { f(d); return d }
	unknown := change(s.ds(t, dns.SHA256), func(d *dns.DS) { d.DigestType = 3 })
	algorithm := change(s.ds(t, dns.SHA256), func(d *dns.DS) { d.Algorithm = dns.RSASHA1 })
	wrong := change(s.ds(t, dns.SHA256), func(d *dns.DS) { d.Digest = strings.Repeat("00", 32) })
	many := []dns.RR{s.ds(t, dns.SHA256)}
	for i := range 199 {
		many = append(many, change(s.ds(t, dns.SHA256), func(d *dns.DS) { d.KeyTag = uint16(i) }))
	}
	for _, c := range []struct {
		name   string
		ds     []dns.RR
		status validate.Status
		code   uint16
	}{
		{"SHA-256", []dns.RR{s.ds(t, dns.SHA256)}, validate.Unchecked, 0},
		{"SHA-384", []dns.RR{s.ds(t, dns.SHA384)}, validate.Unchecked, 0},
		{"SHA-1 alone", []dns.RR{s.ds(t, dns.SHA1)}, validate.Unchecked, 0},
		{"SHA-1 beside a wrong SHA-256", []dns.RR{s.ds(t, dns.SHA1), wrong}, validate.Bogus, dns.ExtendedErrorCodeDNSKEYMissing},
		{"SHA-1 beside an algorithm that is not supported", []dns.RR{s.ds(t, dns.SHA1), algorithm}, validate.Unchecked, 0},
		{"digest unknown", []dns.RR{unknown}, validate.Insecure, dns.ExtendedErrorCodeUnsupportedDSDigestType},
		{"algorithm unknown", []dns.RR{algorithm}, validate.Insecure, dns.ExtendedErrorCodeUnsupportedDNSKEYAlgorithm},
		{"mixed with known ones", []dns.RR{unknown, algorithm, s.ds(t, dns.SHA256)}, validate.Unchecked, 0},
		{"mixed with a wrong one", []dns.RR{unknown, algorithm, wrong}, validate.Bogus, dns.ExtendedErrorCodeDNSKEYMissing},
		{"of the key that does not sign", []dns.RR{other.ds(t, dns.SHA256)}, validate.Bogus, dns.ExtendedErrorCodeDNSKEYMissing},
		{"of both", []dns.RR{other.ds(t, dns.SHA256), s.ds(t, dns.SHA256)}, validate.Unchecked, 0},
		{"empty digest", []dns.RR{change(s.ds(t, dns.SHA256), func(d *dns.DS) { d.Digest = "" })}, validate.Bogus, dns.ExtendedErrorCodeDNSKEYMissing},
	} {
		t.Run(c.name, func(t *testing.T) {
			k, status, err := judge(t, both, c.ds...)
			assert.Equal(t, c.status, status)
			assert.Equal(t, c.status == validate.Unchecked, k != nil)
			if c.code != 0 {
				ede(t, c.code, err)
			}
		})
	}
	_, status, _ := judge(t, both, many...)
	assert.Contains(t, []validate.Status{validate.Unchecked, validate.Bogus}, status)
	_, status, _ = judge(t, both, many[1:]...)
	assert.Equal(t, validate.Bogus, status)
	_, status, _ = judge(t, set(t, []dns.RR{other.key, s.key}, other), other.ds(t, dns.SHA256))
	assert.Equal(t, validate.Unchecked, status, "a DS may name any key of a zone")
}

// TestVerifyDNSKEYIgnoresUnusableKeys has keys that DS records fit.
func TestVerifyDNSKEYIgnoresUnusableKeys(t *testing.T) {
	rsa := func(e *big.Int, bits uint) string {
		m := new(big.Int).Lsh(big.NewInt(1), bits-1)
		m.SetBit(m, 0, 1)
		return base64.StdEncoding.EncodeToString(append(append([]byte{byte(len(e.Bytes()))}, e.Bytes()...), m.Bytes()...))
	}
	for _, c := range []struct {
		name   string
		change func(*dns.DNSKEY)
		status validate.Status
		code   uint16
	}{
		{"revoked", func(k *dns.DNSKEY) { k.Flags |= dns.REVOKE }, validate.Bogus, dns.ExtendedErrorCodeDNSBogus},
		{"not of a zone", func(k *dns.DNSKEY) { k.Flags &^= dns.ZONE }, validate.Bogus, dns.ExtendedErrorCodeNoZoneKeyBitSet},
		{"protocol 0", func(k *dns.DNSKEY) { k.Protocol = 0 }, validate.Bogus, dns.ExtendedErrorCodeDNSBogus},
		{"algorithm 253", func(k *dns.DNSKEY) { k.Algorithm = 253 }, validate.Insecure, dns.ExtendedErrorCodeUnsupportedDNSKEYAlgorithm},
		{"empty", func(k *dns.DNSKEY) { k.PublicKey = "" }, validate.Bogus, dns.ExtendedErrorCodeDNSBogus},
		{"no point", func(k *dns.DNSKEY) {
			k.Algorithm, k.PublicKey = dns.ECDSAP256SHA256, base64.StdEncoding.EncodeToString(make([]byte, 64))
		}, validate.Bogus, dns.ExtendedErrorCodeDNSBogus},
		{"no point of P-384", func(k *dns.DNSKEY) {
			k.Algorithm, k.PublicKey = dns.ECDSAP384SHA384, base64.StdEncoding.EncodeToString([]byte(strings.Repeat("a", 96)))
		}, validate.Bogus, dns.ExtendedErrorCodeDNSBogus},
		{"exponent 1", func(k *dns.DNSKEY) { k.Algorithm, k.PublicKey = dns.RSASHA256, rsa(big.NewInt(1), 2048) }, validate.Bogus, dns.ExtendedErrorCodeDNSBogus},
		{"504 bits", func(k *dns.DNSKEY) { k.Algorithm, k.PublicKey = dns.RSASHA256, rsa(big.NewInt(65537), 504) }, validate.Insecure, dns.ExtendedErrorCodeUnsupportedDNSKEYAlgorithm},
		{"8,192 bits", func(k *dns.DNSKEY) { k.Algorithm, k.PublicKey = dns.RSASHA256, rsa(big.NewInt(65537), 8192) }, validate.Insecure, dns.ExtendedErrorCodeUnsupportedDNSKEYAlgorithm},
		{"no modulus", func(k *dns.DNSKEY) { k.Algorithm, k.PublicKey = dns.RSASHA256, "AwEAAQ==" }, validate.Bogus, dns.ExtendedErrorCodeDNSBogus},
		{"long exponent's length is short", func(k *dns.DNSKEY) { k.Algorithm, k.PublicKey = dns.RSASHA512, "AAE=" }, validate.Bogus, dns.ExtendedErrorCodeDNSBogus},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := seeded("example.", ksk, 1)
			c.change(s.key)
			k, status, err := judge(t, dnskeys(t, s, seeded("example.", zsk, 2)), s.ds(t, dns.SHA256))
			assert.Nil(t, k)
			assert.Equal(t, c.status, status)
			ede(t, c.code, err)

			// Beside a right one it does no harm, and verifies nothing.
			right := seeded("example.", ksk, 3)
			keys := set(t, []dns.RR{s.key, right.key}, s, right)
			k, status, err = judge(t, keys, s.ds(t, dns.SHA256), right.ds(t, dns.SHA256))
			require.NoError(t, err)
			assert.Equal(t, validate.Unchecked, status)
			rrs := records(t, "a.example. 300 IN A 192.0.2.1")
			_, err = verify(set(t, rrs, s), k, now)
			assert.Error(t, err)
			_, err = verify(set(t, rrs, right), k, now)
			assert.NoError(t, err)
		})
	}
}

// TestVerifyDNSKEYRejectsSetSignedByOtherKey is RUSTSEC-2025-0006: a digest that fits is not enough.
func TestVerifyDNSKEYRejectsSetSignedByOtherKey(t *testing.T) {
	s, forger := seeded("example.", ksk, 1), seeded("example.", ksk, 2)
	_, status, err := judge(t, set(t, []dns.RR{s.key, forger.key}, forger), s.ds(t, dns.SHA256))
	assert.Equal(t, validate.Bogus, status)
	ede(t, dns.ExtendedErrorCodeDNSKEYMissing, err)
	_, status, _ = judge(t, validate.NewRRset([]dns.RR{s.key}), s.ds(t, dns.SHA256))
	assert.Equal(t, validate.Bogus, status)
	for _, zone := range []string{"b.example.", ".", "xexample."} {
		elsewhere := seeded(zone, ksk, 1)
		_, status, _ = judge(t, dnskeys(t, elsewhere), s.ds(t, dns.SHA256))
		assert.Equal(t, validate.Bogus, status)
	}
	_, status, _ = judge(t, set(t, records(t, "example. 300 IN A 192.0.2.1"), s), s.ds(t, dns.SHA256))
	assert.Equal(t, validate.Bogus, status)
}

// TestVerifyDNSKEYDuringRollover has keys come and go. Data is secure at each step.
func TestVerifyDNSKEYDuringRollover(t *testing.T) {
	old, next := newSigner(t, "example.", dns.RSASHA256, 1024, ksk), newSigner(t, "example.", dns.ECDSAP256SHA256, 256, ksk)
	oldData, nextData := newSigner(t, "example.", dns.RSASHA256, 1024, zsk), newSigner(t, "example.", dns.ECDSAP256SHA256, 256, zsk)
	revoked := newSigner(t, "example.", dns.RSASHA256, 1024, ksk)
	*revoked.key, revoked.private = *old.key, old.private
	revoked.key.Flags |= dns.REVOKE
	rrs := records(t, "a.example. 300 IN A 192.0.2.1")
	keys := func(signers []*signer, all ...*signer) *validate.RRset {
		var rrs []dns.RR
		for _, s := range all {
			rrs = append(rrs, s.key)
		}
		return set(t, rrs, signers...)
	}
	for _, c := range []struct {
		name string
		ds   []dns.RR
		keys *validate.RRset
		data []*signer
	}{
		{"before", []dns.RR{old.ds(t, 2)}, keys([]*signer{old}, old, oldData), []*signer{oldData}},
		{"pre-published", []dns.RR{old.ds(t, 2)}, keys([]*signer{old}, old, oldData, nextData), []*signer{oldData}},
		{"double signature", []dns.RR{old.ds(t, 2)}, keys([]*signer{old, next}, old, next, oldData, nextData), []*signer{nextData, oldData}},
		{"double DS", []dns.RR{next.ds(t, 2), old.ds(t, 2)}, keys([]*signer{old}, old, oldData), []*signer{oldData}},
		{"algorithm: DS before the keys", []dns.RR{next.ds(t, 2)}, keys([]*signer{old, next}, old, next, oldData, nextData), []*signer{oldData}},
		{"revoked", []dns.RR{next.ds(t, 2)}, keys([]*signer{revoked, next}, revoked, next, nextData), []*signer{nextData}},
		{"after", []dns.RR{next.ds(t, 2)}, keys([]*signer{next}, next, nextData), []*signer{nextData}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, err := validate.TrustAnchors(c.ds...)
			require.NoError(t, err)
			k, status, err := new(validate.Validation).VerifyDNSKEY(d, c.keys, now)
			require.NoError(t, err)
			require.Equal(t, validate.Secure, status)
			_, err = verify(set(t, rrs, c.data...), k, now)
			assert.NoError(t, err)
		})
	}
	_, status, err := judge(t, keys([]*signer{revoked}, revoked, oldData), revoked.ds(t, 2))
	assert.Equal(t, validate.Bogus, status)
	assert.Error(t, err)
}

// TestRootTrustAnchorsAreIANAKeys computes the digests of the root's keys.
func TestRootTrustAnchorsAreIANAKeys(t *testing.T) {
	for tag, key := range map[uint16]string{
		20326: "AwEAAaz/tAm8yTn4Mfeh5eyI96WSVexTBAvkMgJzkKTOiW1vkIbzxeF3+/4RgWOq7HrxRixHlFlExOLAJr5emLvN7SWXgnLh4+B5xQlNVz8Og8kvArMtNROxVQuCaSnIDdD5LKyWbRd2n9WGe2R8PzgCmr3EgVLrjyBxWezF0jLHwVN8efS3rCj/EWgvIWgb9tarpVUDK/b58Da+sqqls3eNbuv7pr+eoZG+SrDK6nWeL3c6H5Apxz7LjVc1uTIdsIXxuOLYA4/ilBmSVIzuDWfdRUfhHdY6+cn8HFRm+2hM8AnXGXws9555KrUB5qihylGa8subX2Nn6UwNR1AkUTV74bU=",
		38696: "AwEAAa96jeuknZlaeSrvyAJj6ZHv28hhOKkx3rLGXVaC6rXTsDc449/cidltpkyGwCJNnOAlFNKF2jBosZBU5eeHspaQWOmOElZsjICMQMC3aeHbGiShvZsx4wMYSjH8e7Vrhbu6irwCzVBApESjbUdpWWmEnhathWu1jo+siFUiRAAxm9qyJNg/wOZqqzL/dL/q8PkcRU5oUKEpUge71M3ej2/7CPqpdVwuMoTvoB+ZOT4YeGyxMvHmbrxlFzGOHOijtzN+u1TQNatX2XBuzZNQ1K+s2CXkPIZo7s6JgZyvaBevYtxPvYLw4z9mR7K2vaF18UYH9Z9GNUUeayffKC73PYc=",
	} {
		k := &dns.DNSKEY{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeDNSKEY, Class: dns.ClassINET}, Flags: 257, Protocol: 3, Algorithm: 8, PublicKey: key}
		assert.Equal(t, tag, k.KeyTag())
		// The key fits, and the signature is somebody else's: EDE 6, not 9.
		forger := newSigner(t, ".", dns.RSASHA256, 2048, ksk)
		g := forger.sign(t, []dns.RR{k}, func(g *dns.RRSIG) { g.KeyTag = tag })
		_, status, err := new(validate.Validation).VerifyDNSKEY(validate.RootTrustAnchors(), validate.NewRRset([]dns.RR{k}, g), now)
		assert.Equal(t, validate.Bogus, status)
		ede(t, dns.ExtendedErrorCodeDNSBogus, err)
	}
	assert.True(t, validate.RootTrustAnchors().IsTrusted())
	assert.Equal(t, ".", validate.RootTrustAnchors().Zone())
	assert.True(t, validate.RootTrustAnchors().Expires().IsZero())
	_, status, err := new(validate.Validation).VerifyDNSKEY(validate.RootTrustAnchors(), dnskeys(t, seeded(".", ksk, 1)), now)
	assert.Equal(t, validate.Bogus, status)
	ede(t, dns.ExtendedErrorCodeDNSKEYMissing, err)
}

func TestTrustAnchorsRejectInvalidRecords(t *testing.T) {
	s, other := seeded("example.", ksk, 1), seeded("b.example.", ksk, 2)
	for _, rrs := range [][]dns.RR{{}, {s.ds(t, 2), other.ds(t, 2)}, records(t, "example. 1 IN A 192.0.2.1"), {s.ds(t, 2), seeded("example.", dns.SEP, 3).key},
		records(t, "example. 1 CH DS 1 8 2 00")} {
		_, err := validate.TrustAnchors(rrs...)
		assert.Error(t, err)
	}
	d, err := validate.TrustAnchors(s.key, seeded("EXAMPLE.", ksk, 2).ds(t, dns.SHA384))
	require.NoError(t, err)
	_, status, err := new(validate.Validation).VerifyDNSKEY(d, dnskeys(t, s), now)
	require.NoError(t, err)
	assert.Equal(t, validate.Secure, status)
}

func TestKeysExpireWithSignatures(t *testing.T) {
	parent, child := seeded("example.", ksk, 1), seeded("a.example.", ksk, 2)
	until := func(at time.Time) func(*dns.RRSIG) { return func(g *dns.RRSIG) { g.Expiration = uint32(at.Unix()) } }
	ds := []dns.RR{child.ds(t, 2)}
	w := new(validate.Validation)
	d, err := w.VerifyDS(validate.NewRRset(ds, parent.sign(t, ds, until(now.Add(day)))), trust(t, parent), now)
	require.NoError(t, err)
	assert.True(t, d.Expires().Equal(now.Add(day)))
	k, _, err := w.VerifyDNSKEY(d, validate.NewRRset([]dns.RR{child.key}, child.sign(t, []dns.RR{child.key}, until(now.Add(2*day)))), now)
	require.NoError(t, err)
	assert.True(t, k.Expires().Equal(now.Add(day)))
	k, _, err = w.VerifyDNSKEY(d, validate.NewRRset([]dns.RR{child.key}, child.sign(t, []dns.RR{child.key}, until(now.Add(time.Minute)))), now)
	require.NoError(t, err)
	assert.True(t, k.Expires().Equal(now.Add(time.Minute)))
	assert.EqualValues(t, 60, k.TTL())
	k, _, err = w.VerifyDNSKEY(d, validate.NewRRset([]dns.RR{child.key}, child.sign(t, []dns.RR{child.key}, until(now.Add(-time.Minute)))), now)
	require.NoError(t, err)
	assert.True(t, k.Expires().Equal(now.Add(time.Second)), "keys that are taken within the skew can be used")
}
