package resolvers

import (
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/internal/signer"
)

// flaw is what is odd about a signed zone, and how often that is drawn.
type flaw struct {
	name   string
	often  int
	change func(*signedZone, *rand.Rand)
}

// form is a flaw of all signatures but that of the keys, or of that one alone.
func form(name string, f signer.SignatureOptions) []flaw {
	return []flaw{
		{name, 2, func(z *signedZone, _ *rand.Rand) { z.form = f }},
		{name + " of the keys", 1, func(z *signedZone, _ *rand.Rand) { z.keyForm = f }},
	}
}

// says is a flaw of responses.
func says(name string, say func(q query, r *dns.Msg)) flaw {
	return flaw{name, 2, func(z *signedZone, _ *rand.Rand) { z.say = say }}
}

// points is a flaw of DS records.
func points(name string, delve func([]*dns.DS, *signedZone) []*dns.DS) flaw {
	return flaw{name, 2, func(z *signedZone, _ *rand.Rand) { z.delve = delve }}
}

// rekeys is a flaw of keys.
func rekeys(name string, rekey func(*signedZone)) flaw {
	return flaw{name, 2, func(z *signedZone, _ *rand.Rand) { z.rekey = rekey }}
}

// flaws are drawn for the zones that are compared.
var flaws = slices.Concat(
	[]flaw{
		{"nothing", 30, func(*signedZone, *rand.Rand) {}},
		{"algorithm", 12, func(z *signedZone, r *rand.Rand) {
			z.algorithm = []uint8{dns.RSASHA1, dns.RSASHA1NSEC3SHA1, dns.RSASHA256, dns.RSASHA512, dns.ECDSAP384SHA384, dns.ED25519}[r.IntN(6)]
		}},
		{"unknown algorithm", 4, func(z *signedZone, r *rand.Rand) { z.algorithm = []uint8{17, 123, 252}[r.IntN(3)] }},
		{"private algorithm", 1, func(z *signedZone, r *rand.Rand) { z.algorithm = dns.PRIVATEDNS }},
		{"iterations", 12, func(z *signedZone, r *rand.Rand) {
			z.denial = []signer.Denial{signer.NSEC3, signer.NSEC3OptOut}[r.IntN(2)]
			z.hashing = signer.NSEC3Params{Iterations: []uint16{1, 10, 50, 51, 100, 150}[r.IntN(6)], Salt: []string{"", "aabb", "00112233445566778899"}[r.IntN(3)]}
		}},
		{"many iterations", 3, func(z *signedZone, r *rand.Rand) {
			z.denial, z.hashing.Iterations = signer.NSEC3, []uint16{151, 500, 501, 2500}[r.IntN(4)]
		}},
		{"no keys", 6, func(z *signedZone, _ *rand.Rand) { z.unsigned = true }},
	},
	form("expired", signer.ExpiredSignature()),
	form("not yet valid", signer.SignatureOptions{From: 2_000_000_000, To: 2_100_000_000}),
	form("from the end to the beginning", signer.SignatureOptions{From: 1_950_000_000, To: 1_000_000_000}),
	form("one label less", signer.SignatureOptions{Labels: -1}),
	form("one label more", signer.SignatureOptions{Labels: 1}),
	form("forged", signer.SignatureOptions{Forged: true}),
	form("signer is the root", signer.SignatureOptions{Signer: "."}),
	form("signer is a stranger", signer.SignatureOptions{Signer: "stranger."}),
	[]flaw{
		{"signer is a name below", 2, func(z *signedZone, _ *rand.Rand) { z.form.Signer = "www." + z.name }},
		{"signer is the zone above", 2, func(z *signedZone, _ *rand.Rand) { z.form.Signer = parent(z.name) }},
		says("no signatures", func(_ query, r *dns.Msg) { drop(r, dns.TypeRRSIG) }),
		says("no signatures in answers", func(_ query, r *dns.Msg) { r.Answer = without(r.Answer, dns.TypeRRSIG) }),
		says("no signatures of denials", func(_ query, r *dns.Msg) { r.Ns = without(r.Ns, dns.TypeRRSIG) }),
		says("no denials", func(_ query, r *dns.Msg) {
			r.Ns = slices.DeleteFunc(r.Ns, func(rr dns.RR) bool { return denies(rr) || denies(signs(rr)) })
		}),
		says("the first denial is missing", func(_ query, r *dns.Msg) { dropDenial(r, 0) }),
		says("the second denial is missing", func(_ query, r *dns.Msg) { dropDenial(r, 1) }),
		says("the third denial is missing", func(_ query, r *dns.Msg) { dropDenial(r, 2) }),
		says("no keys are answered", func(q query, r *dns.Msg) {
			if q.qtype == dns.TypeDNSKEY {
				r.Answer = nil
			}
		}),
		says("addresses are forged", func(_ query, r *dns.Msg) { forge(r.Answer) }),
		says("aliases are forged", func(_ query, r *dns.Msg) {
			for i, rr := range r.Answer {
				if c, ok := rr.(*dns.CNAME); ok {
					c = dns.Copy(c).(*dns.CNAME)
					c.Target, r.Answer[i] = "www.good.plain.", c
				}
			}
		}),
		says("a name that exists is denied", func(q query, r *dns.Msg) {
			if strings.HasPrefix(q.name, "www.") && len(r.Answer) > 0 {
				r.Rcode, r.Answer, r.Ns = dns.RcodeNameError, nil, []dns.RR{soa(parent(q.name))}
			}
		}),
		says("TTLs are raised", func(_ query, r *dns.Msg) { eachTTL(r, 86400) }),
		says("TTLs are lowered", func(_ query, r *dns.Msg) { eachTTL(r, 1) }),
		rekeys("keys are not for zones", func(z *signedZone) { z.ksk.Flags &^= dns.ZONE }),
		rekeys("key is revoked", func(z *signedZone) { z.ksk.Flags |= dns.REVOKE }),
		rekeys("protocol of keys is 2", func(z *signedZone) { z.ksk.Protocol = 2 }),
		rekeys("the keys are signed by another", func(z *signedZone) {
			other := signer.NewKey(z.name, signer.KSK, z.algorithm, "2")
			z.keys, z.ksk, z.delve = append(z.keys, other.DNSKEY), other, dsOf(z.ksk)
		}),
		rekeys("more keys", func(z *signedZone) {
			for _, seed := range []string{"2", "3", "4"} {
				z.keys = append(z.keys, signer.NewKey(z.name, signer.ZSK, dns.ED25519, seed).DNSKEY)
			}
		}),
		points("DS is of another key", func(_ []*dns.DS, z *signedZone) []*dns.DS { return strange(z) }),
		points("DS of another key too", func(ds []*dns.DS, z *signedZone) []*dns.DS { return append(strange(z), ds...) }),
		points("no DS", func([]*dns.DS, *signedZone) []*dns.DS { return nil }),
		points("DS with SHA-1", func(_ []*dns.DS, z *signedZone) []*dns.DS { return []*dns.DS{z.ksk.ToDS(dns.SHA1)} }),
		points("DS with SHA-384", func(_ []*dns.DS, z *signedZone) []*dns.DS { return []*dns.DS{z.ksk.ToDS(dns.SHA384)} }),
		points("DS with SHA-1, and a wrong one with SHA-256", func(_ []*dns.DS, z *signedZone) []*dns.DS { return append(strange(z), z.ksk.ToDS(dns.SHA1)) }),
		points("DS with SHA-384, and a wrong one with SHA-256", func(_ []*dns.DS, z *signedZone) []*dns.DS {
			return append(strange(z), z.ksk.ToDS(dns.SHA384))
		}),
		points("DS with an unknown digest", func(ds []*dns.DS, _ *signedZone) []*dns.DS { return odd(ds, func(d *dns.DS) { d.DigestType = 200 }) }),
		points("DS with an unknown digest too", func(ds []*dns.DS, _ *signedZone) []*dns.DS {
			return append(odd(ds, func(d *dns.DS) { d.DigestType = 200 }), ds...)
		}),
		points("DS with an unknown algorithm", func(ds []*dns.DS, _ *signedZone) []*dns.DS { return odd(ds, func(d *dns.DS) { d.Algorithm = 123 }) }),
		points("DS with an unknown algorithm too", func(ds []*dns.DS, _ *signedZone) []*dns.DS {
			return append(odd(ds, func(d *dns.DS) { d.Algorithm = 123 }), ds...)
		}),
		points("DS with another known algorithm", func(ds []*dns.DS, _ *signedZone) []*dns.DS {
			return odd(ds, func(d *dns.DS) { d.Algorithm = dns.ED25519 })
		}),
		points("DS with another tag", func(ds []*dns.DS, _ *signedZone) []*dns.DS { return odd(ds, func(d *dns.DS) { d.KeyTag++ }) }),
		{"DS and no keys", 2, func(z *signedZone, _ *rand.Rand) {
			z.unsigned, z.delve = true, func(_ []*dns.DS, z *signedZone) []*dns.DS { return strange(z) }
		}},
	},
)

// strange returns the DS record of a key that the zone does not have.
func strange(z *signedZone) []*dns.DS {
	return []*dns.DS{signer.NewKey(z.name, signer.KSK, dns.ECDSAP256SHA256, "of nobody").ToDS(dns.SHA256)}
}

// odd returns DS records that are changed.
func odd(ds []*dns.DS, change func(*dns.DS)) (all []*dns.DS) {
	for _, d := range ds {
		d = dns.Copy(d).(*dns.DS)
		change(d)
		all = append(all, d)
	}
	return all
}

// dsOf returns what has the DS record of a key in place of others.
func dsOf(k *signer.Key) func([]*dns.DS, *signedZone) []*dns.DS {
	return func([]*dns.DS, *signedZone) []*dns.DS { return []*dns.DS{k.ToDS(dns.SHA256)} }
}

// signs returns a record of the type that a signature is of.
func signs(rr dns.RR) dns.RR {
	if sig, ok := rr.(*dns.RRSIG); ok {
		return &dns.RFC3597{Hdr: dns.RR_Header{Name: sig.Hdr.Name, Rrtype: sig.TypeCovered}}
	}
	return rr
}

func denies(rr dns.RR) bool {
	return rr.Header().Rrtype == dns.TypeNSEC || rr.Header().Rrtype == dns.TypeNSEC3
}

// dropDenial leaves out the i-th record that denies something, and its signature.
func dropDenial(r *dns.Msg, i int) {
	for _, rr := range r.Ns {
		if !denies(rr) {
			continue
		}
		if i--; i < 0 {
			owner := rr.Header().Name
			r.Ns = slices.DeleteFunc(r.Ns, func(rr dns.RR) bool { return denies(signs(rr)) && rr.Header().Name == owner })
			return
		}
	}
}

func without(all []dns.RR, t uint16) []dns.RR {
	return slices.DeleteFunc(all, func(rr dns.RR) bool { return rr.Header().Rrtype == t })
}

func drop(r *dns.Msg, t uint16) { r.Answer, r.Ns = without(r.Answer, t), without(r.Ns, t) }

// forge changes addresses.
func forge(all []dns.RR) {
	for i, rr := range all {
		if a, ok := rr.(*dns.A); ok {
			a = dns.Copy(a).(*dns.A)
			a.A, all[i] = []byte{192, 0, 2, 255}, a
		}
	}
}

func eachTTL(r *dns.Msg, ttl uint32) {
	for _, all := range [][]dns.RR{r.Answer, r.Ns} {
		for i, rr := range all {
			all[i] = dns.Copy(rr)
			all[i].Header().Ttl = ttl
		}
	}
}
