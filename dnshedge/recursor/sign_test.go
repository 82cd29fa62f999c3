package recursor_test

import (
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// signer has the key of a zone, which signs all records.
type signer struct {
	zone  string
	key   *dns.DNSKEY
	priv  crypto.Signer
	begin time.Time
	end   time.Time
	chain []string // names with an NSEC record, in canonical order
	other *prover  // makes proofs of denials in place of chain
}

// newSigner makes the key of a zone. The same salt gives the same key. Its signatures are valid from an hour ago for
// 30 days.
func newSigner(zone, salt string) *signer {
	seed := sha256.Sum256([]byte(zone + salt))
	priv := ed25519.NewKeyFromSeed(seed[:])
	key := &dns.DNSKEY{
		Hdr:   dns.RR_Header{Name: zone, Rrtype: dns.TypeDNSKEY, Class: dns.ClassINET, Ttl: 3600},
		Flags: 257, Protocol: 3, Algorithm: dns.ED25519, PublicKey: base64.StdEncoding.EncodeToString(priv.Public().(ed25519.PublicKey)),
	}
	return &signer{zone: zone, key: key, priv: priv, begin: time.Now().Add(-time.Hour), end: time.Now().Add(30 * 24 * time.Hour)}
}

// newP384Signer makes the key of a zone with the most costly curve.
func newP384Signer(zone string) *signer {
	s := newSigner(zone, "")
	s.key.Algorithm = dns.ECDSAP384SHA384
	priv, err := s.key.Generate(384)
	if err != nil {
		panic(err)
	}
	s.priv = priv.(crypto.Signer)
	return s
}

func (s *signer) ds() *dns.DS {
	ds := s.key.ToDS(dns.SHA256)
	ds.Hdr.Ttl = 3600
	return ds
}

// sign returns the signature of an RRset.
func (s *signer) sign(set []dns.RR) *dns.RRSIG {
	h := set[0].Header()
	sig := &dns.RRSIG{
		Hdr:        dns.RR_Header{Name: h.Name, Rrtype: dns.TypeRRSIG, Class: dns.ClassINET, Ttl: h.Ttl},
		Algorithm:  s.key.Algorithm,
		SignerName: s.zone, KeyTag: s.key.KeyTag(), Inception: uint32(s.begin.Unix()), Expiration: uint32(s.end.Unix()),
	}
	if err := sig.Sign(s.priv, set); err != nil {
		panic(err)
	}
	return sig
}

// sign signs all zones, with NSEC records, and adds DS records to the parents in the network. Zones in insecure get
// no DS records.
func (w *testNetwork) sign(insecure ...string) {
	w.signWith(func(zone string) *signer { return newSigner(zone, "") }, insecure...)
}

// signWith is sign with other keys: newSigner returns the signer of a zone.
func (w *testNetwork) signWith(newSigner func(zone string) *signer, insecure ...string) {
	w.withLock(func() {
		for _, z := range w.zones() {
			z.signer = newSigner(z.name)
			z.put(z.signer.key)
			if p := w.parentOf(z); p != nil && !slices.Contains(insecure, z.name) {
				p.put(z.signer.ds())
			}
		}
		for _, z := range w.zones() {
			if !slices.Contains(insecure, z.name) {
				z.sign()
			}
		}
	})
}

// zones returns all served zones, longest names first.
func (w *testNetwork) zones() (all []*zone) {
	for _, s := range w.servers {
		for _, z := range s.zones {
			if !slices.Contains(all, z) {
				all = append(all, z)
			}
		}
	}
	slices.SortFunc(all, func(a, b *zone) int {
		if n := dns.CountLabel(b.name) - dns.CountLabel(a.name); n != 0 {
			return n
		}
		return strings.Compare(a.name, b.name)
	})
	return all
}

// zone returns the zone with a name.
func (w *testNetwork) zone(name string) *zone {
	i := slices.IndexFunc(w.zones(), func(z *zone) bool { return z.name == name })
	return w.zones()[i]
}

// parentOf returns the zone that delegates z, or nil.
func (w *testNetwork) parentOf(z *zone) (parent *zone) {
	for _, p := range w.zones() {
		if p != z && p.holds(z.name) && (parent == nil || len(p.name) > len(parent.name)) {
			parent = p
		}
	}
	return parent
}

// sign signs the current records and makes NSEC records, in place of earlier ones.
func (z *zone) sign() {
	s := z.signer
	s.chain = nil
	for name, sets := range z.sets {
		delete(sets, dns.TypeRRSIG)
		delete(sets, dns.TypeNSEC)
		if cut := z.cut(name); len(sets) > 0 && (cut == "" || cut == name) && z.holds(name) {
			s.chain = append(s.chain, name)
		}
	}
	slices.SortFunc(s.chain, canonicalOrder)
	for i, name := range s.chain {
		sets := z.sets[name]
		nsec := &dns.NSEC{
			Hdr:        dns.RR_Header{Name: name, Rrtype: dns.TypeNSEC, Class: dns.ClassINET, Ttl: 300},
			NextDomain: s.chain[(i+1)%len(s.chain)], TypeBitMap: []uint16{dns.TypeRRSIG, dns.TypeNSEC},
		}
		for t := range sets {
			if z.cut(name) == "" || t == dns.TypeNS || t == dns.TypeDS {
				nsec.TypeBitMap = append(nsec.TypeBitMap, t)
			}
		}
		slices.Sort(nsec.TypeBitMap)
		sets[dns.TypeNSEC] = []dns.RR{nsec}
		for t, set := range sets {
			if t != dns.TypeRRSIG && (z.cut(name) == "" || t == dns.TypeDS || t == dns.TypeNSEC) {
				sets[dns.TypeRRSIG] = append(sets[dns.TypeRRSIG], s.sign(set))
			}
		}
	}
}

// cut returns the zone cut at or above a name, or "".
func (z *zone) cut(name string) (cut string) {
	for n := name; n != z.name && z.holds(n) && n != "."; n = parentOf(n) {
		if len(z.sets[n][dns.TypeNS]) > 0 {
			cut = n
		}
	}
	return cut
}

// canonicalOrder compares names in canonical order (RFC 4034 §6.1), for names of letters, digits, hyphens and
// asterisks.
func canonicalOrder(a, b string) int {
	x, y := dns.SplitDomainName(a), dns.SplitDomainName(b)
	slices.Reverse(x)
	slices.Reverse(y)
	return slices.Compare(x, y)
}

// coveringNSEC returns the NSEC record that matches or covers a name, with its signature. It returns nothing if the
// zone is unsigned.
func (z *zone) coveringNSEC(name string) []dns.RR {
	if z.signer == nil || len(z.signer.chain) == 0 {
		return nil
	}
	if p := z.signer.other; p != nil {
		return p.prove(z, name)
	}
	chain := z.signer.chain
	i, found := slices.BinarySearchFunc(chain, name, canonicalOrder)
	if !found {
		i = (i - 1 + len(chain)) % len(chain)
	}
	all := slices.Clone(z.sets[chain[i]][dns.TypeNSEC])
	for _, rr := range z.sets[chain[i]][dns.TypeRRSIG] {
		if rr.(*dns.RRSIG).TypeCovered == dns.TypeNSEC {
			all = append(all, rr)
		}
	}
	return all
}

// denials returns the NSEC records that match or cover names, each record once.
func (z *zone) denials(names ...string) (all []dns.RR) {
	if z.signer != nil && z.signer.other != nil && len(names) == 2 {
		return z.signer.other.sign(z, z.signer.other.ProveNoName(names[0]))
	}
	for _, name := range names {
		for _, rr := range z.coveringNSEC(name) {
			if !slices.Contains(all, rr) {
				all = append(all, rr)
			}
		}
	}
	return all
}

// closest returns the closest existing name at or above a name.
func (z *zone) closest(name string) string {
	for z.sets[name] == nil {
		name = parentOf(name)
	}
	return name
}

// Faults of servers of signed zones.

// withoutRecords returns a fault: records of some types, and their signatures, are missing.
func withoutRecords(types ...uint16) func(query, *dns.Msg) *dns.Msg {
	return func(_ query, r *dns.Msg) *dns.Msg {
		for _, rrs := range [...]*[]dns.RR{&r.Answer, &r.Ns} {
			*rrs = slices.DeleteFunc(slices.Clone(*rrs), func(rr dns.RR) bool {
				t := rr.Header().Rrtype
				if sig, ok := rr.(*dns.RRSIG); ok && slices.Contains(types, sig.TypeCovered) {
					return true
				}
				return slices.Contains(types, t)
			})
		}
		return r
	}
}

// allStripped is the fault of a server without DNSSEC support.
var allStripped = withoutRecords(dns.TypeRRSIG, dns.TypeNSEC, dns.TypeNSEC3, dns.TypeDS, dns.TypeDNSKEY)

// stale is the fault of a server whose signatures have expired, in the year 1999.
func stale(q query, r *dns.Msg) *dns.Msg {
	return signaturesThat(func(sig *dns.RRSIG) {
		sig.Inception, sig.Expiration = 915148800, 917827200
	})(q, r)
}

// forged is the fault of a server whose signatures are all invalid.
func forged(q query, r *dns.Msg) *dns.Msg {
	return signaturesThat(func(sig *dns.RRSIG) {
		sig.Signature = base64.StdEncoding.EncodeToString(make([]byte, 64))
	})(q, r)
}

// signaturesThat returns a fault: change is applied to each signature.
func signaturesThat(change func(*dns.RRSIG)) func(query, *dns.Msg) *dns.Msg {
	return func(_ query, r *dns.Msg) *dns.Msg {
		for _, rrs := range [...]*[]dns.RR{&r.Answer, &r.Ns} {
			*rrs = slices.Clone(*rrs)
			for i, rr := range *rrs {
				if sig, ok := rr.(*dns.RRSIG); ok {
					sig = dns.Copy(sig).(*dns.RRSIG)
					change(sig)
					(*rrs)[i] = sig
				}
			}
		}
		return r
	}
}
