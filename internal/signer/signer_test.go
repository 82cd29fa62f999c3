package signer_test

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

	"github.com/gohedge/hedge/internal/signer"
)

func set(t *testing.T, lines ...string) (all []dns.RR) {
	t.Helper()
	for _, line := range lines {
		rr, err := dns.NewRR(line)
		require.NoError(t, err)
		all = append(all, rr)
	}
	return all
}

// TestSignMakesValidSignatures verifies signatures of all algorithms that package dns knows with that package.
func TestSignMakesValidSignatures(t *testing.T) {
	for _, algorithm := range []uint8{dns.RSASHA1, dns.RSASHA256, dns.RSASHA512, dns.ECDSAP256SHA256, dns.ECDSAP384SHA384, dns.ED25519} {
		k := signer.NewKey("example.", signer.ZSK, algorithm, "1")
		for _, lines := range [][]string{
			{"www.example. 60 A 192.0.2.9", "www.example. 60 A 192.0.2.10", "www.example. 60 A 192.0.2.9"},
			{"example. 60 SOA ns1.example. admin.example. 1 3600 600 86400 60"},
			{"example. 60 MX 20 b.example.", "example. 60 MX 5 long.name.example."},
			{"b.example. 60 NSEC \\000.b.example. A RRSIG NSEC TYPE65534"},
			{`*.example. 60 TXT "a" "b"`},
		} {
			all := set(t, lines...)
			sig := k.Sign(all, signer.SignatureOptions{})
			assert.NoError(t, sig.Verify(k.DNSKEY, all), "%d: %v", algorithm, lines)
			assert.True(t, sig.ValidityPeriod(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)))
			assert.True(t, sig.ValidityPeriod(time.Date(2032, 1, 1, 0, 0, 0, 0, time.UTC)))
			forged := k.Sign(all, signer.SignatureOptions{Forged: true})
			assert.Error(t, forged.Verify(k.DNSKEY, all), "%d: %v", algorithm, lines)
			all[0].Header().Rrtype = 0
			assert.Error(t, sig.Verify(k.DNSKEY, all))
		}
	}
}

func TestKeysAndSignaturesAreRepeatable(t *testing.T) {
	a := set(t, "www.example. 60 A 192.0.2.9")
	make := func(zone, seed string, algorithm uint8) string {
		k := signer.NewKey(zone, signer.KSK, algorithm, seed)
		return k.String() + k.Sign(a, signer.SignatureOptions{}).String()
	}
	for _, algorithm := range []uint8{dns.RSASHA256, dns.ECDSAP256SHA256, dns.ED25519} {
		one := make("example.", "1", algorithm)
		assert.Equal(t, one, make("example.", "1", algorithm))
		if algorithm != dns.RSASHA256 { // of which there are few
			assert.NotEqual(t, one, make("example.", "2", algorithm))
			assert.NotEqual(t, one, make("example.org.", "1", algorithm))
		}
	}
}

func TestSignatureOptions(t *testing.T) {
	k := signer.NewKey("example.", signer.ZSK, dns.ECDSAP256SHA256, "1")
	a := set(t, "*.w.example. 60 A 192.0.2.9")
	sig := k.Sign(a, signer.SignatureOptions{})
	assert.Equal(t, uint8(2), sig.Labels)
	a[0].Header().Name, sig.Hdr.Name = "x.y.w.example.", "x.y.w.example."
	assert.NoError(t, sig.Verify(k.DNSKEY, a), "made of the wildcard")

	a = set(t, "www.example. 60 A 192.0.2.9")
	assert.Equal(t, uint8(1), k.Sign(a, signer.SignatureOptions{Labels: -1}).Labels)
	assert.Equal(t, "other.", k.Sign(a, signer.SignatureOptions{Signer: "other."}).SignerName)
	expired := k.Sign(a, signer.ExpiredSignature())
	assert.NoError(t, expired.Verify(k.DNSKEY, a))
	assert.False(t, expired.ValidityPeriod(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)))
	assert.Equal(t, uint32(7), k.Sign(a, signer.SignatureOptions{From: 7, To: 9}).Inception)
}

func TestCompareUsesCanonicalOrder(t *testing.T) {
	all := []string{ // RFC 4034, section 6.1, in lower case
		"example.", "a.example.", "yljkjljk.a.example.", "z.a.example.", "zabc.a.example.", "z.example.", `\001.z.example.`, "*.z.example.", `\200.z.example.`,
	}
	mixed := slices.Clone(all)
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
	slices.SortFunc(mixed, signer.Compare)
	assert.Equal(t, all, mixed)
}

// proofs are records that prove nonexistence.
type proofs []dns.RR

// covers reports whether a record proves that a name does not exist. Package dns only compares hashes, and covers also compares names.
func (p proofs) covers(name string) bool {
	return slices.ContainsFunc(p, func(rr dns.RR) bool {
		switch rr := rr.(type) {
		case *dns.NSEC:
			after := signer.Compare(rr.Hdr.Name, name) < 0
			if signer.Compare(rr.NextDomain, rr.Hdr.Name) <= 0 { // the last
				return after
			}
			return after && signer.Compare(name, rr.NextDomain) < 0
		case *dns.NSEC3:
			return rr.Cover(name)
		}
		return false
	})
}

// types returns the types of the record of a name.
func (p proofs) types(name string) []uint16 {
	for _, rr := range p {
		switch rr := rr.(type) {
		case *dns.NSEC:
			if rr.Hdr.Name == name {
				return rr.TypeBitMap
			}
		case *dns.NSEC3:
			if rr.Match(name) {
				return append([]uint16{0}, rr.TypeBitMap...)
			}
		}
	}
	return nil
}

func zone() map[string][]uint16 {
	return map[string][]uint16{
		"example.": {dns.TypeNS, dns.TypeSOA}, "a.example.": {dns.TypeA}, "www.eu.example.": {dns.TypeA, dns.TypeAAAA}, "*.w.example.": {dns.TypeTXT},
		"signed.example.": {dns.TypeNS, dns.TypeDS}, "open.example.": {dns.TypeNS},
	}
}

var denials = []signer.Denial{signer.NSEC, signer.MinimalNSEC, signer.NSEC3, signer.NSEC3OptOut}

func TestChainProvesNonexistence(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, how := range denials {
		for _, h := range []signer.NSEC3Params{{}, {Iterations: 5, Salt: "aabbccdd"}} {
			c := signer.NewChain("example.", how, h, 60, zone())
			for i := range 300 {
				name := fmt.Sprintf("%c%d.", 'a'+rng.IntN(26), i)
				above := []string{"example.", "a.example.", "eu.example.", "www.eu.example."}[rng.IntN(4)]
				next := name + above
				name = strings.Repeat("x.", rng.IntN(3)) + next
				p := proofs(c.ProveNoName(name))
				assert.True(t, p.covers(next), "%v: %s in %v", how, next, p)
				assert.True(t, p.covers("*."+above), "%v: the wildcard at %s in %v", how, above, p)
				if how == signer.NSEC || how == signer.MinimalNSEC {
					assert.True(t, p.covers(name), "%v: %s in %v", how, name, p)
				} else {
					assert.NotNil(t, p.types(above), "%v: %s in %v", how, above, p)
				}
				assert.True(t, proofs(c.ProveNoCloserName(next)).covers(next))
			}
		}
	}
}

func TestChainListsTypesOfName(t *testing.T) {
	for _, how := range denials {
		c := signer.NewChain("example.", how, signer.NSEC3Params{}, 60, zone())
		of := func(name string) []uint16 {
			return slices.DeleteFunc(proofs(c.ProveNoData(name)).types(name), func(u uint16) bool { return u == 0 || u == dns.TypeRRSIG || u == dns.TypeNSEC })
		}
		assert.Equal(t, []uint16{dns.TypeA}, of("a.example."), how)
		assert.Equal(t, []uint16{dns.TypeA, dns.TypeAAAA}, of("www.eu.example."), how)
		assert.Equal(t, []uint16{dns.TypeNS, dns.TypeSOA, dns.TypeDNSKEY}, of("example."), how)
		assert.Equal(t, []uint16{dns.TypeNS, dns.TypeDS}, of("signed.example."), how)
		open := proofs(c.ProveNoData("open.example."))
		if how == signer.NSEC3OptOut {
			assert.True(t, open.covers("open.example."))
			assert.NotNil(t, open.types("example."))
			assert.Equal(t, uint8(1), open[0].(*dns.NSEC3).Flags)
		} else {
			assert.Equal(t, []uint16{dns.TypeNS}, of("open.example."), how)
		}
		empty := proofs(c.ProveNoData("eu.example."))
		if how == signer.NSEC { // a span from the name before to one below it (RFC 4035, section 5.4)
			assert.True(t, dns.IsSubDomain("eu.example.", empty[0].(*dns.NSEC).NextDomain))
		} else {
			assert.Empty(t, of("eu.example."), how)
			assert.NotNil(t, empty.types("eu.example."))
		}
		wild := proofs(c.ProveNoWildcardData("b.w.example."))
		assert.True(t, wild.covers("b.w.example."), how)
		assert.Contains(t, wild.types("*.w.example."), dns.TypeTXT, how)
	}
	assert.Equal(t, 6, signer.NewChain("example.", signer.NSEC, signer.NSEC3Params{}, 60, zone()).Len(), "without empty non-terminals")
	assert.Equal(t, 8, signer.NewChain("example.", signer.NSEC3, signer.NSEC3Params{}, 60, zone()).Len())
	assert.Equal(t, 7, signer.NewChain("example.", signer.NSEC3OptOut, signer.NSEC3Params{}, 60, zone()).Len())
}

func BenchmarkSign(b *testing.B) {
	for _, algorithm := range []uint8{dns.RSASHA256, dns.ECDSAP256SHA256} {
		b.Run(dns.AlgorithmToString[algorithm], func(b *testing.B) {
			k := signer.NewKey("example.", signer.ZSK, algorithm, "1")
			rr, err := dns.NewRR("www.example. 60 A 192.0.2.9")
			require.NoError(b, err)
			for b.Loop() {
				k.Sign([]dns.RR{rr}, signer.SignatureOptions{})
			}
		})
	}
}
