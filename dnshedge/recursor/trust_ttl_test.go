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

const ttlWorld = `
. served 198.41.0.4
example. delegated 192.0.2.1
  www A 192.0.2.80
  *.w A 192.0.2.81
  alias CNAME www
  d DNAME e
  x.e A 192.0.2.82
ns.example. delegated 192.0.2.2
`

// raised is the fault of a server, or of somebody on the way, that raises all TTLs to a week, spells owners in upper case, and puts RRSIG records beside the
// right ones: with another tag, an unknown algorithm, a wrong signature, and one of another zone.
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

// RFC 4035 section 5.3.3: of a secure answer nothing is kept for longer than the RRSIG record says that was verified.
func TestSecureRecordsHaveOnlySignedFields(t *testing.T) {
	for question, most := range map[string]uint32{
		"www.example. A": 3600, "alias.example. A": 3600, "x.w.example. A": 3600, "x.d.example. A": 3600, "x.d.example. CNAME": 3600, "no.example. A": 300,
		"www.example. TXT": 300, "example. DS": 3600, "example. DNSKEY": 3600, "example. SOA": 3600, "www.example. NSEC": 3600, "ns.example. DS": 3600,
	} {
		t.Run(question, func(t *testing.T) {
			bubble(t, ttlWorld, func(t *testing.T, w *world) {
				w.sign()
				w.fault("198.41.0.4 192.0.2.1", raised)
				r := validator(w)
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

// The signatures end in half an hour. Whatever is kept by whomever, nothing is secure when that and what is tolerated of clocks are over.
func TestExpiredSignatureIsNotSecure(t *testing.T) {
	bubble(t, ttlWorld, func(t *testing.T, w *world) {
		w.sign()
		w.do(func() {
			z := w.zone("example.")
			z.signer.end = time.Now().Add(30 * time.Minute)
			z.sign()
		})
		w.fault("192.0.2.1", raised)
		c := &dnshedge.Client{Exchanger: validator(w), Cache: &dnshedge.Cache{MaxTTL: 7 * 24 * time.Hour}}
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

// The address of a server was looked up to ask it, which is not validated. A caller who asks for it later gets it for no longer than its signature says from then on.
func TestCachedRecordHasRemainingTTL(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
net. delegated 192.0.2.1
  ns A 192.0.2.9
example. served 192.0.2.9
  www A 192.0.2.80
`, func(t *testing.T, w *world) {
		w.do(func() { w.zone(".").put(record("example. NS ns.net.")) })
		w.sign()
		w.fault("192.0.2.1", raised)
		r := validator(w)
		require.Equal(t, "secure", w.security(r, "www.example. A"))
		for _, after := range []time.Duration{40 * time.Minute, 40 * time.Minute, 20 * time.Hour} {
			time.Sleep(after)
			queries := w.sent("192.0.2.1")
			m, _, err := r.ExchangeContext(t.Context(), parseQuestion("ns.net. A +do"), "")
			require.NoError(t, err)
			require.True(t, m.AuthenticatedData)
			for _, rr := range m.Answer {
				if w.sent("192.0.2.1") == queries { // it is of the cache
					assert.LessOrEqual(t, rr.Header().Ttl, uint32(20*60), rr)
				}
				assert.LessOrEqual(t, rr.Header().Ttl, uint32(3600), rr)
			}
		}
	})
}

// What the root's keys tell of the clock and of anchors is what a right signature says.
func TestForgedRootSignaturesChangeNoStats(t *testing.T) {
	bubble(t, ttlWorld, func(t *testing.T, w *world) {
		w.sign()
		w.fault("198.41.0.4", stale)
		r := validator(w)
		assert.Equal(t, "bogus 7", w.security(r, "www.example. A"))
		assert.Zero(t, r.Stats().ClockOff)
		time.Sleep(time.Hour)
		w.fault("198.41.0.4", func(q query, m *dns.Msg) *dns.Msg {
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
