package recursor_test

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
)

const zonesWithTTLs = `
. served 198.41.0.4
example. delegated 192.0.2.1
  www A 192.0.2.80
  *.w A 192.0.2.81
  alias CNAME www
  d DNAME e
  x.e A 192.0.2.82
ns.example. delegated 192.0.2.2
`

// raised is the fault of a server or an attacker on the path that raises all TTLs to a week and spells owner names
// in upper case. It adds RRSIG records with another key tag, an unknown algorithm, an invalid signature, and another
// zone.
func raised(_ query, r *dns.Msg) *dns.Msg {
	const week = 7 * 86400
	for _, rrs := range [...]*[]dns.RR{&r.Answer, &r.Ns} {
		var all []dns.RR
		for _, rr := range *rrs {
			rr = dns.Copy(rr)
			rr.Header().Ttl, rr.Header().Name = week, strings.ToUpper(rr.Header().Name)
			sig, ok := rr.(*dns.RRSIG)
			if ok {
				for _, change := range []func(*dns.RRSIG){
					func(s *dns.RRSIG) { s.KeyTag++ }, func(s *dns.RRSIG) { s.Algorithm = 253 }, func(s *dns.RRSIG) {}, func(s *dns.RRSIG) { s.SignerName = "other." },
				} {
					more := dns.Copy(sig).(*dns.RRSIG)
					more.OrigTtl, more.Expiration, more.Signature = week, sig.Expiration+week, base64.StdEncoding.EncodeToString(make([]byte, 64))
					change(more)
					all = append(all, more)
				}
			}
			all = append(all, rr)
		}
		*rrs = all
	}
	return r
}

// TestSecureRecordsHaveOnlySignedFields requires RFC 4035 §5.3.3: a secure answer is cached no longer than its
// verified RRSIG record allows.
func TestSecureRecordsHaveOnlySignedFields(t *testing.T) {
	for question, most := range map[string]uint32{
		"www.example. A": 3600, "alias.example. A": 3600, "x.w.example. A": 3600, "x.d.example. A": 3600, "x.d.example. CNAME": 3600, "no.example. A": 300,
		"www.example. TXT": 300, "example. DS": 3600, "example. DNSKEY": 3600, "example. SOA": 3600, "www.example. NSEC": 3600, "ns.example. DS": 3600,
	} {
		t.Run(question, func(t *testing.T) {
			bubble(t, zonesWithTTLs, func(t *testing.T, w *testNetwork) {
				w.sign()
				w.setFault("198.41.0.4 192.0.2.1", raised)
				r := newValidatingResolver(w)
				for range 2 {
					m, _, err := r.ExchangeContext(t.Context(), parseQuestion(question+" +do"), "")
					require.NoError(t, err)
					require.True(t, m.AuthenticatedData, m)
					for _, rr := range append(m.Answer, m.Ns...) {
						h := rr.Header()
						assert.LessOrEqual(t, h.Ttl, most, rr)
						assert.Equal(t, strings.ToLower(h.Name), h.Name)
						if sig, ok := rr.(*dns.RRSIG); ok {
							assert.NotEqual(t, "other.", sig.SignerName)
						}
					}
				}
			})
		})
	}
}

// TestExpiredSignatureIsNotSecure has signatures that end in half an hour. No cached answer is secure after that
// time and the tolerated clock skew.
func TestExpiredSignatureIsNotSecure(t *testing.T) {
	bubble(t, zonesWithTTLs, func(t *testing.T, w *testNetwork) {
		w.sign()
		w.withLock(func() {
			z := w.zone("example.")
			z.signer.end = time.Now().Add(30 * time.Minute)
			z.sign()
		})
		w.setFault("192.0.2.1", raised)
		c := &dnshedge.Client{Exchanger: newValidatingResolver(w), Cache: &dnshedge.Cache{MaxTTL: 7 * 24 * time.Hour}}
		defer c.Close()
		questions := []string{"www.example. A", "alias.example. A", "x.w.example. A", "x.d.example. A", "no.example. A", "www.example. TXT"}
		secure := func(question string) bool {
			m, _, err := c.ExchangeContext(t.Context(), parseQuestion(question+" +do"), "")
			require.NoError(t, err)
			return m.AuthenticatedData
		}
		for _, q := range questions {
			assert.True(t, secure(q), q)
		}
		time.Sleep(2 * time.Hour)
		for _, q := range questions {
			assert.False(t, secure(q), q)
		}
	})
}

// TestCachedRecordHasRemainingTTL has a server address that was looked up without validation. A client that asks for
// it later gets it with the remaining lifetime of its signature.
func TestCachedRecordHasRemainingTTL(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
net. delegated 192.0.2.1
  ns A 192.0.2.9
example. served 192.0.2.9
  www A 192.0.2.80
`, func(t *testing.T, w *testNetwork) {
		w.withLock(func() { w.zone(".").put(record("example. NS ns.net.")) })
		w.sign()
		w.setFault("192.0.2.1", raised)
		r := newValidatingResolver(w)
		require.Equal(t, "secure", w.security(r, "www.example. A"))
		for _, after := range []time.Duration{40 * time.Minute, 40 * time.Minute, 20 * time.Hour} {
			time.Sleep(after)
			queries := w.countQueries("192.0.2.1")
			m, _, err := r.ExchangeContext(t.Context(), parseQuestion("ns.net. A +do"), "")
			require.NoError(t, err)
			require.True(t, m.AuthenticatedData)
			for _, rr := range m.Answer {
				if w.countQueries("192.0.2.1") == queries { // it is of the cache
					assert.LessOrEqual(t, rr.Header().Ttl, uint32(20*60), rr)
				}
				assert.LessOrEqual(t, rr.Header().Ttl, uint32(3600), rr)
			}
		}
	})
}

// TestForgedRootSignaturesChangeNoStats requires that only valid signatures by the root's keys count as observations
// of the clock and of anchors.
func TestForgedRootSignaturesChangeNoStats(t *testing.T) {
	bubble(t, zonesWithTTLs, func(t *testing.T, w *testNetwork) {
		w.sign()
		w.setFault("198.41.0.4", stale)
		r := newValidatingResolver(w)
		assert.Equal(t, "bogus 7", w.security(r, "www.example. A"))
		assert.Zero(t, r.Stats().ClockOff)
		time.Sleep(time.Hour)
		w.setFault("198.41.0.4", func(q query, m *dns.Msg) *dns.Msg {
			for i, rr := range m.Answer {
				if sig, ok := rr.(*dns.RRSIG); ok && sig.TypeCovered == dns.TypeDNSKEY {
					forged := dns.Copy(sig).(*dns.RRSIG)
					forged.Signature = base64.StdEncoding.EncodeToString(make([]byte, 64))
					m.Answer = append(m.Answer[:i:i], append([]dns.RR{forged}, m.Answer[i:]...)...)
					break
				}
			}
			return m
		})
		assert.Equal(t, "secure", w.security(r, "www.example. A"))
		s := r.Stats()
		require.Len(t, s.Anchors, 1)
		assert.True(t, s.Anchors[0].Signs)
		assert.Zero(t, s.ClockOff)
	})
}
