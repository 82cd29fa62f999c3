package recursor_test

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/recursor"
	keys "github.com/gohedge/hedge/internal/signer"
)

// many is the fault of a server with 32 invalid signatures for each RRset (KeyTrap, CVE-2023-50387).
func many(_ query, r *dns.Msg) *dns.Msg {
	for _, rrs := range [...]*[]dns.RR{&r.Answer, &r.Ns} {
		var all []dns.RR
		for _, rr := range *rrs {
			sig, ok := rr.(*dns.RRSIG)
			if !ok {
				all = append(all, rr)
				continue
			}
			for i := range 32 {
				wrong := dns.Copy(sig).(*dns.RRSIG)
				wrong.Expiration -= uint32(i + 1)
				all = append(all, wrong)
			}
		}
		*rrs = all
	}
	return r
}

func TestResolverLimitsCostlySignatures(t *testing.T) {
	bubble(t, signed, func(t *testing.T, w *testNetwork) {
		signZones(w)
		w.setFault("192.0.3.4", many)
		r := newValidatingResolver(w)
		require.Equal(t, "secure", w.security(r, "www.example.tld. A"))
		for _, q := range []string{"www.broken.tld. A", "no.broken.tld. A", "bad.example.tld. A"} {
			before := r.Stats().Verifications
			assert.Contains(t, w.security(r, q), "bogus 6", q)
			assert.LessOrEqual(t, r.Stats().Verifications-before, int64(128), q)
			assert.Equal(t, "secure", w.security(r, "mail.example.tld. A"), "others are unharmed")
			time.Sleep(time.Second)
		}
	})
}

// TestResolverLimitsCostlyKeysOfOneTag is KeyTrap with the most costly curve. Each of 16 keys has the key tag of
// each of 32 signatures, which sign the keys or other records.
func TestResolverLimitsCostlyKeysOfOneTag(t *testing.T) {
	costly := withTag("broken.tld.", dns.ECDSAP384SHA384, 4711, 16)
	for _, ofKeys := range []bool{false, true} {
		bubble(t, signed, func(t *testing.T, w *testNetwork) {
			signZones(w)
			w.setFault("192.0.3.4", nil)
			w.withLock(func() { trap(w, costly, ofKeys) })
			r := newValidatingResolver(w)
			require.Equal(t, "secure", w.security(r, "www.example.tld. A"))
			for i, q := range []string{"www.broken.tld. A", "no.broken.tld. A", "bad.example.tld. A"} {
				before := r.Stats().Verifications
				assert.Contains(t, w.security(r, q), "bogus", q)
				if i == 0 {
					assert.Greater(t, r.Stats().Verifications-before, int64(64), "the attack has no effect, so this proves nothing")
				}
				assert.LessOrEqual(t, r.Stats().Verifications-before, int64(128), q)
				assert.Equal(t, "secure", w.security(r, "mail.example.tld. A"), "others are unharmed")
				time.Sleep(time.Second)
			}
		})
	}
}

// trap gives broken.tld. several keys. It signs the zone with the first of them in canonical order, the only one with a
// DS record, which a validator finds at once. It adds 32 invalid signatures, of the keys (ofKeys) or of all other
// records.
func trap(w *testNetwork, all []*keys.Key, ofKeys bool) {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b *keys.Key) int { return bytes.Compare(packRecord(a.DNSKEY), packRecord(b.DNSKEY)) })
	z, p := w.zone("broken.tld."), w.zone("tld.")
	z.sets[z.name][dns.TypeDNSKEY] = nil
	for _, k := range all {
		z.put(k.DNSKEY)
	}
	z.sign()
	for _, sets := range z.sets {
		sets[dns.TypeRRSIG] = nil
		for typ, set := range sets {
			if typ == dns.TypeRRSIG {
				continue
			}
			f := keys.SignatureOptions{From: uint32(z.signer.begin.Unix()), To: uint32(z.signer.end.Unix())}
			if f.Forged = (typ == dns.TypeDNSKEY) == ofKeys; !f.Forged {
				sets[dns.TypeRRSIG] = append(sets[dns.TypeRRSIG], all[0].Sign(set, f))
				continue
			}
			for range 32 {
				f.To--
				sets[dns.TypeRRSIG] = append(sets[dns.TypeRRSIG], all[0].Sign(set, f))
			}
		}
	}
	ds := all[0].ToDS(dns.SHA256)
	ds.Hdr.Ttl = 3600
	p.sets[z.name][dns.TypeDS] = []dns.RR{ds}
	p.sign()
}

func packRecord(rr dns.RR) []byte {
	b := make([]byte, dns.Len(rr)+1)
	n, err := dns.PackRR(rr, b, 0, nil, false)
	if err != nil {
		panic(err)
	}
	return b[:n]
}

func TestVerificationLimitEndsQuestion(t *testing.T) {
	bubble(t, signed, func(t *testing.T, w *testNetwork) {
		signZones(w)
		w.setFault("192.0.3.4", many)
		r := newValidatingResolver(w, limits(recursor.Limits{Verifications: 2}))
		assert.Equal(t, "secure", w.security(r, "www.example.tld. A"), "no signature is invalid")
		assert.Equal(t, "bogus 6", w.security(r, "www.broken.tld. A"))
		assert.Equal(t, map[string]int64{"Verifications": 1}, r.Stats().Limited)
		assert.Equal(t, "secure", w.security(r, ". SOA"), "the limit of one question does not concern other questions")
	})
}

func TestResolverValidatesElevenAliases(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
tld. delegated 192.0.2.1
  a0 CNAME a1
  a1 CNAME a2
  a2 CNAME a3
  a3 CNAME a4
  a4 CNAME a5
  a5 CNAME a6
  a6 CNAME a7
  a7 CNAME a8
  a8 CNAME a9
  a9 CNAME a10
  a10 CNAME a11
  a11 A 192.0.2.80
  loop CNAME loop
`, func(t *testing.T, w *testNetwork) {
		w.sign()
		r := newValidatingResolver(w)
		assert.Equal(t, "secure", w.security(r, "a0.tld. A"))
		assert.Equal(t, "bogus 0", w.security(r, "loop.tld. A"), "SERVFAIL has another reason than signatures")
		assert.Empty(t, r.Stats().Bogus)
	})
}

// TestResolverValidatesServerAddressesForCallers has a server address that was looked up without validation. It is
// validated when a client asks for it.
func TestResolverValidatesServerAddressesForCallers(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
tld. delegated 192.0.2.1
  far NS ns.named.
named. delegated 192.0.2.2
  ns A 192.0.3.9
far.tld. served 192.0.3.9
  www A 192.0.2.80
`, func(t *testing.T, w *testNetwork) {
		w.sign()
		r := newValidatingResolver(w)
		assert.Equal(t, "secure", w.security(r, "www.far.tld. A"))
		n := w.countQueries("192.0.2.2")
		assert.Equal(t, "secure", w.security(r, "ns.named. A"))
		for _, a := range w.queriesSince(0)[n:] {
			assert.False(t, a.name == "ns.named." && a.qtype == dns.TypeA && a.at > time.Second, a)
		}
		w.setFault("192.0.2.2", forged)
		other := newValidatingResolver(w)
		assert.Equal(t, "secure", w.security(other, "www.far.tld. A"), "a wrong server cannot sign")
		assert.Contains(t, w.security(other, "ns.named. A"), "bogus")
		assert.Equal(t, "secure", w.security(other, "www.far.tld. A"))
	})
}

func TestResolverCachesAnswerNoLongerThanSignature(t *testing.T) {
	bubble(t, signed, func(t *testing.T, w *testNetwork) {
		signZones(w)
		w.withLock(func() {
			z := w.zone("example.tld.")
			z.signer.end = time.Now().Add(time.Minute)
			z.sign()
		})
		r := newValidatingResolver(w)
		m, _, err := r.ExchangeContext(t.Context(), parseQuestion("www.example.tld. A +do"), "")
		require.NoError(t, err)
		require.True(t, m.AuthenticatedData)
		for _, rr := range m.Answer {
			assert.LessOrEqual(t, rr.Header().Ttl, uint32(60), rr)
		}
		time.Sleep(2 * time.Hour) // longer than the tolerated clock skew
		assert.Equal(t, "bogus 7", w.security(r, "www.example.tld. A"))
	})
}

// TestResolverAnswersRootKeySentinels requires RFC 8509: SERVFAIL is one of two answers.
func TestResolverAnswersRootKeySentinels(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
tld. delegated 192.0.2.1
  * A 192.0.2.80
`, func(t *testing.T, w *testNetwork) {
		w.sign()
		tag := w.zone(".").signer.key.KeyTag()
		r := newValidatingResolver(w)
		for _, c := range []struct {
			label string
			want  int
		}{
			{sentinelOf("is", tag), dns.RcodeSuccess}, {sentinelOf("not", tag), dns.RcodeServerFailure},
			{sentinelOf("is", tag+1), dns.RcodeServerFailure}, {sentinelOf("not", tag+1), dns.RcodeSuccess},
			{"root-key-sentinel-is-ta-1", dns.RcodeSuccess}, {"root-key-sentinel-is-ta-99999", dns.RcodeSuccess},
		} {
			m, _, err := r.ExchangeContext(t.Context(), parseQuestion(c.label+".tld. A"), "")
			require.NoError(t, err)
			assert.Equal(t, c.want, m.Rcode, c.label)
			if code, _ := readExtendedError(m); c.want == dns.RcodeServerFailure {
				assert.EqualValues(t, dns.ExtendedErrorCodeDNSBogus, code)
			}
		}
		m, _, err := r.ExchangeContext(t.Context(), parseQuestion(sentinelOf("not", tag)+".tld. A +cd"), "")
		require.NoError(t, err)
		assert.Equal(t, dns.RcodeSuccess, m.Rcode)
		m, _, err = w.resolver().ExchangeContext(t.Context(), parseQuestion(sentinelOf("not", tag)+".tld. A"), "")
		require.NoError(t, err)
		assert.Equal(t, dns.RcodeSuccess, m.Rcode, "without validation there is no statement about keys")
	})
}

func sentinelOf(what string, tag uint16) string {
	digits := []byte("00000")
	for i := 4; i >= 0; i-- {
		digits[i] += byte(tag % 10)
		tag /= 10
	}
	return "root-key-sentinel-" + what + "-ta-" + string(digits)
}

// TestStubZonesAreInsecureWithoutAnchor has private zones in Resolver.Zones, whose names the root denies.
func TestStubZonesAreInsecureWithoutAnchor(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
corp. served 192.0.2.9
  www A 192.0.2.80
sub.corp. delegated 192.0.2.10
  www A 192.0.2.81
`, func(t *testing.T, w *testNetwork) {
		w.sign()
		w.withLock(func() { // the root knows nothing of it
			delete(w.zone(".").sets, "corp.")
			w.zone(".").sign()
		})
		private := func(r *recursor.Resolver) { r.Zones = zonesOf("corp.", "192.0.2.9:53") }
		r := newValidatingResolver(w, private)
		assert.Equal(t, "insecure", w.security(r, "www.corp. A"))
		assert.Equal(t, "insecure", w.security(r, "www.sub.corp. A"))
		r = newValidatingResolver(w, private, func(r *recursor.Resolver) {
			r.Trust.Anchors = append(slices.Clone(r.Trust.Anchors), w.zone("corp.").signer.ds())
		})
		assert.Equal(t, "secure", w.security(r, "www.corp. A"))
		assert.Equal(t, "secure", w.security(r, "www.sub.corp. A"))
	})
}

// TestClientCachesSecureAnswers requires that a Client caches AD with an answer, and passes it to callers that ask
// for it.
func TestClientCachesSecureAnswers(t *testing.T) {
	bubble(t, signed, func(t *testing.T, w *testNetwork) {
		signZones(w)
		r := newValidatingResolver(w)
		c := &dnshedge.Client{Exchanger: r, Cache: new(dnshedge.Cache)}
		defer c.Close()
		for _, q := range []string{"www.example.tld. A", "www.example.tld. A +ad", "www.example.tld. A"} {
			m, _, err := c.ExchangeContext(t.Context(), parseQuestion(q), "")
			require.NoError(t, err)
			assert.Equal(t, parseQuestion(q).AuthenticatedData, m.AuthenticatedData, q)
			assert.Len(t, m.Answer, 1)
		}
		assert.EqualValues(t, 1, r.Stats().Questions)
	})
}

func zonesOf(zone, server string) map[string][]netip.AddrPort {
	return map[string][]netip.AddrPort{zone: {netip.MustParseAddrPort(server)}}
}
