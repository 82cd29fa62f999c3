package dnssec_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/internal/signer"
)

// resigned has signatures of some types changed.
func resigned(change func(*dns.RRSIG), types ...uint16) twist {
	return func(_, r *dns.Msg) *dns.Msg {
		for _, rrs := range []*[]dns.RR{&r.Answer, &r.Ns} {
			*rrs = slices.Clone(*rrs)
			for i, rr := range *rrs {
				if sig, ok := rr.(*dns.RRSIG); ok && (len(types) == 0 || slices.Contains(types, sig.TypeCovered)) {
					sig = dns.Copy(sig).(*dns.RRSIG)
					change(sig)
					(*rrs)[i] = sig
				}
			}
		}
		return r
	}
}

// about has a twist for a question only.
func about(name string, qtype uint16, f twist) twist {
	return func(q, r *dns.Msg) *dns.Msg {
		if q.Question[0].Name == name && q.Question[0].Qtype == qtype {
			return f(q, r)
		}
		return r
	}
}

// nothing is an answer without records, or with that name's SOA record of the zone alone.
func nothing(_, r *dns.Msg) *dns.Msg {
	r.Answer, r.Ns = nil, nil
	return r
}

// faults are what an upstream may do, and a question that it spoils.
func faults(t *testing.T) map[string]struct {
	question, want, wrong string
	twist                 twist
} {
	forge := func(sig *dns.RRSIG) { sig.Signature = "AAAA" + sig.Signature[4:] }
	expire := func(sig *dns.RRSIG) { sig.Inception, sig.Expiration = 883612800, 915148800 }
	stranger := signer.NewKey("example.", signer.KSK, dns.ED25519, "another")
	type fault = struct {
		question, want, wrong string
		twist                 twist
	}
	return map[string]fault{
		"forged":             {"www.example. A", "secure", "bogus 6", resigned(forge, dns.TypeA)},
		"expired":            {"www.example. A", "secure", "bogus 7", resigned(expire, dns.TypeA)},
		"forged data":        {"www.example. A", "secure", "bogus 6", about("www.example.", dns.TypeA, func(_, r *dns.Msg) *dns.Msg { r.Answer[0] = record(t, "www.example. 300 IN A 192.0.2.66"); return r })},
		"no signatures":      {"www.example. A", "secure", "bogus 10", without(dns.TypeRRSIG)},
		"no signature of it": {"www.example. A", "secure", "bogus 10", func(_, r *dns.Msg) *dns.Msg { return resignedAway(r, dns.TypeA) }},
		"no DNSSEC at all":   {"www.example. A", "secure", "bogus 9", stripped},
		"no keys":            {"www.example. A", "secure", "bogus 9", about("example.", dns.TypeDNSKEY, nothing)},
		"no DS":              {"www.example. A", "secure", "bogus 12", about("example.", dns.TypeDS, nothing)},
		"another key": {"www.example. A", "secure", "bogus 9", about("example.", dns.TypeDNSKEY, func(_, r *dns.Msg) *dns.Msg {
			r.Answer = []dns.RR{stranger.DNSKEY, stranger.Sign([]dns.RR{stranger.DNSKEY}, signer.SignatureOptions{})}
			return r
		})},
		"forged keys":                 {"www.example. A", "secure", "bogus 6", resigned(forge, dns.TypeDNSKEY)},
		"forged DS":                   {"www.example. A", "secure", "bogus 6", resigned(forge, dns.TypeDS)},
		"the name denied":             {"www.example. A", "secure", "bogus 10", about("www.example.", dns.TypeA, func(q, r *dns.Msg) *dns.Msg { r.Rcode = dns.RcodeNameError; return nothing(q, r) })},
		"another name denied":         {"www.example. A", "secure", "bogus 6", about("www.example.", dns.TypeA, denial(t, "no.example."))},
		"nothing denied":              {"www.other. A", "secure NXDOMAIN", "bogus 12", without(dns.TypeNSEC3)},
		"no NSEC":                     {"no.example. A", "secure NXDOMAIN", "bogus 12", without(dns.TypeNSEC)},
		"NXDOMAIN for NODATA, forged": {"www.example. AAAA", "secure", "bogus 6", resigned(forge, dns.TypeNSEC)},
		"wildcard without a proof":    {"x.w.example. TXT", "secure", "bogus 6", without(dns.TypeNSEC)},
		"wildcard, NSEC3":             {"x.w.other. TXT", "secure", "bogus 6", without(dns.TypeNSEC3)},
		"an alias made up": {"www.example. A", "secure", "bogus 10", about("www.example.", dns.TypeA, func(_, r *dns.Msg) *dns.Msg {
			r.Answer = append([]dns.RR{record(t, "www.example. 300 IN CNAME www.plain.")}, r.Answer...)
			return r
		})},
		"a DNAME record made up":   {"x.e.other. A", "secure", "bogus 10", about("x.e.other.", dns.TypeA, func(_, r *dns.Msg) *dns.Msg { r.Answer = []dns.RR{record(t, "e.other. 300 IN DNAME plain.")}; return r })},
		"insecure without a proof": {"www.plain. A", "insecure", "bogus 10", about("plain.", dns.TypeDS, nothing)},
	}
}

// resignedAway leaves out signatures of a type.
func resignedAway(r *dns.Msg, typ uint16) *dns.Msg {
	r.Answer = slices.DeleteFunc(slices.Clone(r.Answer), func(rr dns.RR) bool { sig, ok := rr.(*dns.RRSIG); return ok && sig.TypeCovered == typ })
	return r
}

// denial is a denial of another name than the one that was asked for.
func denial(t *testing.T, name string) twist {
	w := newWorld(t, estate)
	return func(_, r *dns.Msg) *dns.Msg {
		other := w.resolve(name, dns.TypeA)
		r.Rcode, r.Answer, r.Ns = other.Rcode, nil, other.Ns
		return r
	}
}

func TestValidatorFailsWhenOnlyUpstreamIsBogus(t *testing.T) {
	for name, f := range faults(t) {
		t.Run(name, func(t *testing.T) {
			bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
				u.set(f.twist)
				assert.Equal(t, f.wrong, security(t, v, f.question), "%v", u.asked())
				assert.LessOrEqual(t, len(u.asked()), 64)
				u.set()
				time.Sleep(10 * time.Minute)
				assert.Equal(t, f.want, security(t, v, f.question), "when it is right again")
			})
		})
	}
}

func TestValidatorAsksNextUpstreamAfterBogus(t *testing.T) {
	for name, f := range faults(t) {
		t.Run(name, func(t *testing.T) {
			bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
				u.order = []string{"192.0.2.1:53", "192.0.2.2:53"}
				u.set(f.twist)
				assert.Equal(t, f.want, security(t, v, f.question), "%v", u.asked())
				assert.Equal(t, f.want, security(t, v, f.question), "%v", u.asked())
				assert.Positive(t, v.Stats().PassedOver)
				assert.Empty(t, v.Stats().Bogus)
				synctest.Wait()
			})
		})
	}
}

// After a question or two, who knows nothing of DNSSEC is not asked any more, and costs nobody a round trip.
func TestValidatorAvoidsUpstreamWithoutDNSSEC(t *testing.T) {
	bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
		u.order = []string{"192.0.2.1:53", "192.0.2.2:53"}
		u.set(stripped)
		assert.Equal(t, "secure", security(t, v, "www.example. A"))
		time.Sleep(time.Second)
		u.asked()
		start := time.Now()
		assert.Equal(t, "secure", security(t, v, "a.b.c.example. A"))
		assert.Equal(t, rtt, time.Since(start))
		assert.Equal(t, []string{"a.b.c.example. A @192.0.2.2:53"}, u.asked())
		u.set()
		time.Sleep(10 * time.Minute)
		assert.Equal(t, "secure", security(t, v, "a.b.c.example. A"))
		assert.Equal(t, "a.b.c.example. A", u.asked()[0], "it may have learned")
	})
}

func TestValidatorNamesUpstreamWithoutDNSSEC(t *testing.T) {
	text := func(v *dnssec.Validator) string {
		r, err := ask(v, "www.example. A")
		require.NoError(t, err)
		require.Equal(t, dns.RcodeServerFailure, r.Rcode)
		return r.IsEdns0().Option[0].(*dns.EDNS0_EDE).ExtraText
	}
	bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
		u.set(stripped)
		assert.Contains(t, text(v), "; an upstream without DNSSEC")
	})
	bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
		u.order = []string{"192.0.2.1:53", "tls://192.0.2.2:853#dns.example"}
		u.set(stripped, stripped)
		assert.Contains(t, text(v), "; an upstream without DNSSEC: 192.0.2.1:53, tls://192.0.2.2:853#dns.example")
		require.Len(t, v.Stats().LastBogus, 1)
		assert.Contains(t, v.Stats().LastBogus[0].Text, "without DNSSEC: 192.0.2.1:53")
	})
}

func TestValidatorIgnoresADOfUpstream(t *testing.T) {
	bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
		u.set(func(_, r *dns.Msg) *dns.Msg { r.AuthenticatedData = true; return r })
		for question, want := range map[string]string{"www.plain. A": "insecure", "www.example. RRSIG": "insecure", "www.expired. A": "bogus 7", "www.example. A": "secure"} {
			assert.Equal(t, want, security(t, v, question))
		}
		m := new(dns.Msg).SetQuestion("www.expired.", dns.TypeA)
		m.CheckingDisabled = true
		m.SetEdns0(1232, true)
		r, _, err := v.ExchangeContext(context.Background(), m, "")
		require.NoError(t, err)
		assert.Len(t, r.Answer, 2)
		assert.False(t, r.AuthenticatedData)
		assert.True(t, r.CheckingDisabled)
		assert.Equal(t, "bogus 7", security(t, v, "www.expired. A"), "what CD lets pass is for who asks")
	})
}

// With the zone's old key in caches and its new one in the zone, an answer is secure all the time.
func TestValidatorRefreshesOutdatedKeys(t *testing.T) {
	for _, rolls := range []string{"at once", "before the zone above knows"} {
		t.Run(rolls, func(t *testing.T) {
			bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
				assert.Equal(t, "secure", security(t, v, "www.example. A"))
				time.Sleep(10 * time.Second)
				z := u.world.zones["example."]
				old := z.key
				z.key = signer.NewKey(z.name, signer.KSK, dns.ED25519, "2")
				z.put(z.key.DNSKEY)
				if rolls == "at once" {
					z.sets[z.name][dns.TypeDNSKEY] = []dns.RR{z.key.DNSKEY}
				} else {
					z.rolled = old
				}
				u.world.sign()
				if z.rolled != nil {
					u.set(about("example.", dns.TypeDNSKEY, func(_, r *dns.Msg) *dns.Msg {
						r.Answer = append(r.Answer, old.Sign(z.sets[z.name][dns.TypeDNSKEY], signer.SignatureOptions{}))
						return r
					}))
				}
				assert.Equal(t, "secure", security(t, v, "www.example. A"), "%v", u.asked())
				start := time.Now()
				assert.Equal(t, "secure", security(t, v, "www.example. A"))
				assert.Equal(t, rtt, time.Since(start))
			})
		})
	}
}

func TestValidatorPassesOnUpstreamFailures(t *testing.T) {
	bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
		u.set(func(_, r *dns.Msg) *dns.Msg { r.Rcode, r.Answer = dns.RcodeRefused, nil; return r })
		r, err := ask(v, "www.example. A")
		require.NoError(t, err)
		assert.Equal(t, dns.RcodeRefused, r.Rcode)
		u.set(func(_, _ *dns.Msg) *dns.Msg { return nil })
		_, err = ask(v, "www.example. A")
		assert.EqualError(t, err, "upstream is down")
		assert.Empty(t, v.Stats().Bogus)
		u.set()
		time.Sleep(time.Minute)
		assert.Equal(t, "secure", security(t, v, "www.example. A"))
	})
}

func TestValidatorLimits(t *testing.T) {
	text := estate + "loops.\n a CNAME b.loops.\n b CNAME a.loops.\n"
	for i := range 14 {
		text += fmt.Sprintf(" c%d CNAME c%d.loops.\n", i, i+1)
	}
	text += " c14 A 192.0.2.1\n"
	bubble(t, text, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
		assert.Equal(t, "bogus 0", security(t, v, "a.loops. A"))
		assert.Equal(t, "bogus 0", security(t, v, "c0.loops. A"))
		assert.Equal(t, "secure", security(t, v, "c4.loops. A"))
		assert.Equal(t, map[string]int64{"Aliases": 2}, v.Stats().Limited)
	})
}

// A set with as many keys and signatures as fit it, all of one tag (KeyTrap, CVE-2023-50387), costs no more than other bogus answers may.
func TestValidatorLimitsKeyTrap(t *testing.T) {
	bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
		u.set(func(_, r *dns.Msg) *dns.Msg {
			for _, rr := range slices.Clone(r.Answer) {
				if sig, ok := rr.(*dns.RRSIG); ok {
					for i := range 32 {
						wrong := dns.Copy(sig).(*dns.RRSIG)
						wrong.Signature = fmt.Sprintf("%02dAA%s", i, wrong.Signature[4:])
						r.Answer = append([]dns.RR{wrong}, r.Answer...)
					}
				}
			}
			return r
		})
		assert.Equal(t, "bogus 6", security(t, v, "www.example. A"))
		assert.LessOrEqual(t, v.Stats().Verifications, int64(128))
		assert.GreaterOrEqual(t, v.Stats().Verifications, int64(8), "the attack has no effect, so this proves nothing")
		u.set()
		time.Sleep(10 * time.Minute)
		assert.Equal(t, "secure", security(t, v, "www.example. A"))
	})
}

// Who is not signed may have signatures of anybody: they are nobody's business.
func TestValidatorIgnoresSignaturesOfInsecureZone(t *testing.T) {
	for _, key := range []*signer.Key{signer.NewKey(".", signer.KSK, dns.ED25519, "1"), signer.NewKey("example.", signer.KSK, dns.ED25519, "1"), signer.NewKey("plain.", signer.KSK, dns.ED25519, "1")} {
		bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
			u.set(func(q, r *dns.Msg) *dns.Msg {
				if name := q.Question[0].Name; name != "plain." && dns.IsSubDomain("plain.", name) && len(r.Answer) > 0 {
					r.Answer = append(r.Answer, key.Sign(r.Answer[:1], signer.SignatureOptions{Forged: true}))
				}
				return r
			})
			for range 2 {
				for _, question := range []string{"www.plain. A", "www.sub.plain. A", "www.signed.plain. A"} {
					assert.Equal(t, "insecure", security(t, v, question), "signed by %s: %s", key.Hdr.Name, question)
				}
			}
		})
	}
}

// A response that was cut off says nothing: it is no answer that there are no records.
func TestValidatorRejectsTruncatedResponse(t *testing.T) {
	bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
		u.set(func(_, r *dns.Msg) *dns.Msg { r.Truncated, r.Answer, r.Ns = true, nil, nil; return r })
		for _, question := range []string{"www.example. A", "www.plain. A"} {
			r, err := ask(v, question)
			require.NoError(t, err)
			assert.Equal(t, dns.RcodeServerFailure, r.Rcode, "%s: %v", question, r)
		}
	})
}

// Of three upstreams one knows nothing of DNSSEC, one is down, and one is right.
func TestValidatorAnswersDespiteDeadUpstream(t *testing.T) {
	bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
		u.order = []string{"192.0.2.1:53", "192.0.2.2:53", "192.0.2.3:53"}
		u.silent = "192.0.2.2:53"
		u.set(stripped)
		for i := range 4 {
			start := time.Now()
			assert.Equal(t, "secure", security(t, v, "www.example. A"), "%d: after %v: %v", i, time.Since(start), u.asked())
			time.Sleep(10 * time.Second)
		}
	})
}

// A network that answers all questions alike until somebody has signed in.
func TestValidatorRecoversAfterCaptivePortal(t *testing.T) {
	for _, portal := range []time.Duration{time.Minute, 320 * time.Second} {
		bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
			u.set(func(q, r *dns.Msg) *dns.Msg {
				r.Rcode, r.Ns, r.Answer = dns.RcodeSuccess, nil, []dns.RR{record(t, q.Question[0].Name+" 0 IN A 192.0.2.99")}
				return r
			})
			for begin := time.Now(); time.Since(begin) < portal; time.Sleep(time.Second) {
				security(t, v, "www.example. A")
			}
			u.set()
			begin := time.Now()
			for security(t, v, "www.example. A") != "secure" {
				time.Sleep(time.Second)
			}
			assert.LessOrEqual(t, time.Since(begin), time.Minute)
		})
	}
}

// Several resolvers may be behind the address of an only upstream, of which one passes no signatures on.
func TestValidatorRetriesOnlyUpstreamWithoutSignatures(t *testing.T) {
	for name, qtype := range map[string]uint16{"www.example.": dns.TypeA, "example.": dns.TypeDS, ".": dns.TypeDNSKEY} {
		bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
			n := 0
			u.set(about(name, qtype, func(q, r *dns.Msg) *dns.Msg {
				if n++; n == 1 {
					return stripped(q, r)
				}
				return r
			}))
			assert.Equal(t, "secure", security(t, v, "www.example. A"), "%s: %v", name, u.asked())
		})
	}
}

// That nobody else is left to ask is not why the keys are bogus.
func TestValidatorReportsReasonOfBogusKeys(t *testing.T) {
	for want, change := range map[string]func(*dns.RRSIG){
		"bogus 6": func(sig *dns.RRSIG) { sig.Signature = "AAAA" + sig.Signature[4:] },
		"bogus 7": func(sig *dns.RRSIG) { sig.Inception, sig.Expiration = 883612800, 915148800 },
	} {
		bubble(t, estate, func(t *testing.T, u *upstreams, v *dnssec.Validator) {
			u.set(about("example.", dns.TypeDNSKEY, resigned(change)))
			assert.Equal(t, want, security(t, v, "www.example. A"), "%v", u.asked())
		})
	}
}
