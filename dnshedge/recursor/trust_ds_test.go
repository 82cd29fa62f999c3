package recursor_test

import (
	"fmt"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	keys "github.com/gohedge/hedge/internal/signer"
)

// refers returns the fault of a server that answers a DS question for a zone with a referral to the zone.
func (w *testNetwork) refers(child string) func(query, *dns.Msg) *dns.Msg {
	return func(q query, r *dns.Msg) *dns.Msg {
		if q.name != child || q.qtype != dns.TypeDS {
			return r
		}
		m := q.Copy()
		m.Question[0].Name = "x." + child
		parent := w.parentOf(w.zone(child))
		r = answer([]*zone{parent}, query{m, "x." + child, dns.TypeA, q.tcp})
		r.Question = q.Question
		return r
	}
}

func TestResolverTakesDSFromReferral(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign("unsigned.tld.")
		w.setFault("192.0.2.1 192.0.2.2", w.refers("example.tld."))
		r := newValidatingResolver(w)
		m, _, err := r.ExchangeContext(t.Context(), parseQuestion("example.tld. DS +do"), "")
		require.NoError(t, err)
		require.NoError(t, checkSections(m))
		assert.True(t, m.AuthenticatedData)
		assert.Len(t, m.Answer, 2, "the record and its signature")
		assert.Equal(t, 1, w.countQueries("192.0.2.1")+w.countQueries("192.0.2.2")-keyQueries(w, "tld."), "one server suffices")
		w.setFault("192.0.2.1 192.0.2.2", w.refers("unsigned.tld."))
		assert.Equal(t, "secure", w.security(r, "unsigned.tld. DS"), "the proof that there is no DS record")
		w.setFault("192.0.2.1 192.0.2.2", func(q query, m *dns.Msg) *dns.Msg { return forged(q, w.refers("example.tld.")(q, m)) })
		assert.Equal(t, "bogus 6", w.security(newValidatingResolver(w), "example.tld. DS"))
	})
}

// keyQueries returns the number of DNSKEY queries for a zone.
func keyQueries(w *testNetwork, zone string) (n int) {
	for _, a := range w.queriesSince(0) {
		if a.name == zone && a.qtype == dns.TypeDNSKEY {
			n++
		}
	}
	return n
}

// TestSignedAliasHasNoDS has an alias, which is proven by its signature to be no zone. A server that answers without
// signatures is wrong.
func TestSignedAliasHasNoDS(t *testing.T) {
	for _, name := range []string{"alias.example.tld.", "x.wild.example.tld."} {
		bubble(t, pairs, func(t *testing.T, w *testNetwork) {
			w.zone("example.tld.").put(record("alias.example.tld. CNAME www.example.tld."))
			w.zone("example.tld.").put(record("*.wild.example.tld. CNAME www.example.tld."))
			w.sign("unsigned.tld.")
			w.setFault("192.0.3.1 192.0.3.2", onlyForType(dns.TypeA, withoutRecords(dns.TypeRRSIG, dns.TypeNSEC)))
			r := newValidatingResolver(w)
			assert.Equal(t, "bogus 10", w.security(r, name+" A"), "there are no signatures, and no zone cut explains that")
			asked := 0
			for _, a := range w.queriesSince(0) {
				if a.name == name && a.qtype == dns.TypeDS {
					asked++
				}
			}
			assert.Equal(t, 1, asked, "no server is avoided because of the alias")
			w.setFault("192.0.3.1 192.0.3.2", nil)
			assert.Equal(t, "secure", w.security(r, name+" DS"))
		})
	}
}

func TestAnswerForANYIsLimitedToValidatedTypes(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		const name = "many.example.tld."
		for i := range 40 {
			w.zone("example.tld.").put(&dns.RFC3597{Hdr: dns.RR_Header{Name: name, Rrtype: uint16(4000 + i), Class: dns.ClassINET, Ttl: 3600}, Rdata: "01"})
		}
		w.sign("unsigned.tld.")
		w.setFault("192.0.3.1 192.0.3.2", onlyForQuestion(name+" ANY", func(q query, r *dns.Msg) *dns.Msg {
			r.Ns = nil
			for _, set := range w.zone("example.tld.").sets[name] {
				r.Answer = append(r.Answer, set...)
			}
			return r
		}))
		m, _, err := newValidatingResolver(w).ExchangeContext(t.Context(), parseQuestion(name+" ANY +do"), "")
		require.NoError(t, err)
		require.True(t, m.AuthenticatedData, m)
		assert.Len(t, m.Answer, 24+24, "one signature for each RRset")
	})
}

// TestResolverLimitsDSRecords requires that so few DS records are read, in canonical order, that they cost little.
// Of a few records with one key tag, any may match.
func TestResolverLimitsDSRecords(t *testing.T) {
	for name, c := range map[string]struct {
		before, behind int // invalid DS records before and behind the valid one, in canonical order
		sameTag        bool
		want           string
	}{
		"collision, right first": {0, 3, true, "secure"},
		"collision, right last":  {3, 0, true, "secure"},
		"too many collisions":    {15, 0, true, "bogus"},
		"of other keys":          {15, 0, false, "secure"},
		"200, right first":       {0, 199, false, "secure"},
		"200, right last":        {199, 0, false, "bogus"},
		"200 collisions":         {0, 199, true, "secure"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, pairs, func(t *testing.T, w *testNetwork) {
				w.sign("unsigned.tld.")
				w.withLock(func() {
					p := w.zone("tld.")
					right := p.sets["example.tld."][dns.TypeDS][0].(*dns.DS)
					wrong := func(i, way int) {
						d := dns.Copy(right).(*dns.DS)
						if c.sameTag {
							d.Digest = fmt.Sprintf("%04X", uint16(way*(i+1))) + d.Digest[4:]
						} else {
							d.KeyTag += uint16(way * (i + 1))
						}
						p.put(d)
					}
					up := 1 // digests count up from 0 or down from the end, and key tags from the valid one
					if !c.sameTag {
						up = -1
					}
					for i := range c.before {
						wrong(i, up)
					}
					for i := range c.behind {
						wrong(i, -up)
					}
					p.sign()
				})
				r := newValidatingResolver(w)
				assert.Contains(t, w.security(r, "www.example.tld. A"), c.want)
				assert.LessOrEqual(t, r.Stats().Verifications, int64(128))
				assert.Equal(t, "insecure", w.security(r, "www.unsigned.tld. A"), "other zones are not affected")
			})
		})
	}
}

// TestResolverValidatesKeysWithEqualTags has two keys with one key tag. Either may have signed.
func TestResolverValidatesKeysWithEqualTags(t *testing.T) {
	bubble(t, pairs, func(t *testing.T, w *testNetwork) {
		w.sign("unsigned.tld.")
		z := w.zone("example.tld.")
		others := withTag(z.name, dns.ED25519, z.signer.key.KeyTag(), 3)
		w.withLock(func() {
			for _, k := range others {
				z.sets[z.name][dns.TypeDNSKEY] = append([]dns.RR{k.DNSKEY}, z.sets[z.name][dns.TypeDNSKEY]...)
			}
			z.sign()
		})
		r := newValidatingResolver(w)
		assert.Equal(t, "secure", w.security(r, "www.example.tld. A"))
		assert.Equal(t, "secure", w.security(r, "no.example.tld. A"))
	})
}

// withTag returns keys of a zone that have one key tag. The unassigned flags (RFC 4034 §2.1.1) compensate for the
// difference of the public keys.
func withTag(zone string, algorithm uint8, tag uint16, n int) (all []*keys.Key) {
	for seed := 0; len(all) < n; seed++ {
		k := keys.NewKey(zone, 0, algorithm, fmt.Sprint(seed))
		without := k.KeyTag()
		for carry := range uint16(3) { // the flags are added to the key tag, with the carry
			if k.Flags = tag - without - carry; k.Flags&(dns.ZONE|dns.REVOKE) == dns.ZONE && k.KeyTag() == tag {
				all = append(all, k)
				break
			}
		}
	}
	return all
}
