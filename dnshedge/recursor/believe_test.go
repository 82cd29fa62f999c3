package recursor_test

import (
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
)

// RFC 2181 §5.2: the TTL is the RRset's, and an answer to ANY has several.
func TestEachRRsetOfAnAnswerHasItsOwnTTL(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *world) {
		const sig = "8 2 3600 20300101000000 20200101000000 1 example. AAAA"
		w.fault("192.0.2.1 192.0.2.2", when("www.example. ANY", says(
			"www.example. 3600 A 192.0.2.80; www.example. 30 TXT x; www.example. 20 TXT y; www.example. 1800 A 192.0.2.81;"+
				"www.example. 900 RRSIG A "+sig+"; www.example. 15 RRSIG TXT "+sig)))
		ttls := map[string]uint32{}
		for _, rr := range w.ask(w.resolver(), "www.example. ANY").Answer {
			k := dns.TypeToString[rr.Header().Rrtype]
			if sig, ok := rr.(*dns.RRSIG); ok {
				k += " " + dns.TypeToString[sig.TypeCovered]
			}
			if ttl, ok := ttls[k]; ok {
				assert.Equal(t, ttl, rr.Header().Ttl, k)
			}
			ttls[k] = rr.Header().Ttl
		}
		assert.Equal(t, map[string]uint32{"A": 1800, "TXT": 20, "RRSIG A": 900, "RRSIG TXT": 15}, ttls)
	})
}

// RFC 1034 §3.6.2: other records beside an alias do not count, but for those of DNSSEC (RFC 4034 §3).
func TestRecordsBesideAnAliasAreNoAnswer(t *testing.T) {
	bubble(t, small, func(t *testing.T, w *world) {
		w.fault("192.0.2.1 192.0.2.2", when("both.example.", says(
			"both.example. A 192.0.2.99; both.example. MX 10 elsewhere.; both.example. CNAME www.example.; both.example. NSEC c.example. A")))
		r := w.resolver()
		for question, want := range map[string]string{
			"both.example. A":     "NOERROR both.example. CNAME www.example., www.example. A 192.0.2.80",
			"both.example. MX":    "NOERROR both.example. CNAME www.example.",
			"both.example. AAAA":  "NOERROR both.example. CNAME www.example., www.example. AAAA 2001:db8::80",
			"both.example. CNAME": "NOERROR both.example. CNAME www.example.",
			"both.example. NSEC":  "NOERROR both.example. NSEC c.example. A",
		} {
			assert.Equal(t, want, told(w.ask(r, question)), question)
		}
	})
}
