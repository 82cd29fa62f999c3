package reclab

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/internal/signer"
)

// signing says what of a world is signed. The zero value signs nothing. Otherwise the root and the zones below it are
// signed, and a share of the others.
type signing struct {
	share float64 // of the zones further down, from 0 to 1
	stale float64 // share of the servers, of those that are no zone's first, whose signatures have expired
	bogus float64 // share of the sites of which no signature is right, each with one of flaws
	weak  float64 // share of the sites whose DS record is of an algorithm or a digest that need not be known
	crowd crowd
}

// crowd is what many questions are about.
type crowd int

const (
	nobody crowd = iota // each name is asked for once
	random              // names that do not exist, in crowdZones zones
	trap                // names in crowdZones zones that take long to check, and are bogus, and others
)

const (
	crowdZones = 20
	together   = 0.05 // share of the sites of which a part is a zone of its own, on the same servers
	rsaShare   = 0.3  // of the signed zones below those below the root: RSA, and two keys
)

// trapped says how many questions of how many are about traps.
var trapped = struct{ are, of int }{2, 5}

// flaw is what is wrong with a zone that is signed.
type flaw int

const (
	sound        flaw = iota
	expired           // all signatures have expired
	otherKey          // the DS record is of a key that the zone does not have
	bare              // there are no signatures
	otherSigner       // signatures name the zone above
	forged            // addresses and aliases are not those that were signed
	trapping          // keys and signatures are many, of one tag, and none fits
	oldAlgorithm      // RSA with SHA-1, which some take as unsigned
	oldDigest         // the DS record has a digest that nobody knows
)

// flaws are those of bogus sites.
var flaws = []flaw{expired, otherKey, bare, otherSigner, forged}

// signed is how a zone is signed.
type signed struct {
	flaw   flaw
	rsa    bool
	denial signer.Denial
	make   func() material
}

// material is what signing takes. It is made when it is needed.
type material struct {
	ksk, zsk *signer.Key
	records  []dns.RR // DNSKEY
	ds       []dns.RR
	chain    *signer.Chain
}

// sign signs the zones of the world.
func (b *builder) sign() {
	rng := rand.New(rand.NewPCG(b.seed, 5))
	var sites []*zone // those with nothing below
	for _, name := range b.asked {
		z := b.zoneOf(name)
		if rng.Float64() < together && z.hosts[name].alias == "" {
			child := b.zone(z, name, z.servers)
			child.hosts[name], child.refusing = z.hosts[name], z.refusing
			delete(z.hosts, name)
			continue
		}
		sites = append(sites, z)
	}
	for _, name := range slices.Sorted(maps.Keys(b.zones)) {
		z := b.zones[name]
		top, s := dns.CountLabel(name) <= 1, &signed{denial: signer.Denial(rng.IntN(3)), rsa: rng.Float64() < rsaShare}
		if top {
			s.rsa, s.denial = false, signer.NSEC3
		}
		switch name {
		case ".":
			s.denial = signer.NSEC
		case "com.", "net.":
			s.denial = signer.NSEC3OptOut
		}
		if rng.Float64() < b.plan.share || top {
			b.signWith(z, s)
		}
	}
	for _, z := range sites {
		switch x := rng.Float64(); {
		case x < b.bogus:
			b.signWith(z, &signed{flaw: flaws[rng.IntN(len(flaws))], denial: signer.NSEC})
		case x < b.bogus+b.weak:
			b.signWith(z, &signed{flaw: []flaw{oldAlgorithm, oldDigest}[rng.IntN(2)], denial: signer.NSEC, rsa: true})
		}
	}
	b.pickCrowded(sites)
	b.age(rng)
	// What takes long is made now, and not when the first query comes.
	signer.PrecomputeRSAKeys()
	for _, z := range b.zones {
		if dns.CountLabel(z.name) <= 1 {
			z.signed.make()
		}
	}
}

// signWith has a zone signed.
func (b *builder) signWith(z *zone, s *signed) {
	z.signed = s
	s.make = sync.OnceValue(func() material { return z.material(fmt.Sprint(b.seed)) })
}

// pickCrowded picks the zones that many questions are about.
func (b *builder) pickCrowded(sites []*zone) {
	for _, z := range sites {
		if b.crowd == nobody || len(b.crowded) == crowdZones {
			return
		}
		if z.signed == nil || z.signed.flaw != sound || slices.ContainsFunc(b.crowded, func(o *zone) bool { return o == z }) {
			continue
		}
		b.crowded = append(b.crowded, z)
		if b.crowd == trap {
			b.signWith(z, &signed{flaw: trapping, denial: signer.NSEC})
		}
	}
}

// age makes servers stale, and sees to it that each signed zone has one that is right.
func (b *builder) age(rng *rand.Rand) {
	first := make(map[*server]bool)
	for _, z := range b.zones {
		first[z.servers[0]] = true
	}
	for _, a := range slices.SortedFunc(maps.Keys(b.servers), netip.Addr.Compare) {
		s := b.servers[a]
		s.stale = rng.Float64() < b.stale && !first[s] && !b.top[s]
	}
	for _, name := range slices.Sorted(maps.Keys(b.zones)) {
		z := b.zones[name]
		if b.dead || slices.ContainsFunc(z.servers, func(s *server) bool { return s.fault == healthy && !s.stale && s != z.refusing }) {
			continue
		}
		one := z.servers[slices.IndexFunc(z.servers, func(s *server) bool { return s.useful() && s != z.refusing })]
		one.fault, one.stale = healthy, false
	}
}

// material makes what signing the zone takes.
func (z *zone) material(seed string) (m material) {
	algorithm, f := uint8(dns.ECDSAP256SHA256), z.signed.flaw
	if z.signed.rsa {
		algorithm = dns.RSASHA256
	}
	if f == oldAlgorithm {
		algorithm = dns.RSASHA1
	}
	m.ksk = signer.NewKey(z.name, signer.KSK, algorithm, seed)
	m.zsk = m.ksk
	m.records = []dns.RR{m.ksk.DNSKEY}
	if z.signed.rsa {
		m.zsk = signer.NewKey(z.name, signer.ZSK, algorithm, seed)
		m.records = append(m.records, m.zsk.DNSKEY)
	}
	if f == trapping {
		m.records = append(m.records, alike(z.name)...)
	}
	of := m.ksk
	if f == otherKey {
		of = signer.NewKey(z.name, signer.KSK, algorithm, seed+" of nobody")
	}
	ds := of.ToDS(dns.SHA256)
	ds.Hdr.Ttl = delegationTTL
	if f == oldDigest {
		ds.DigestType = dns.GOST94
	}
	m.ds = []dns.RR{ds}
	m.chain = signer.NewChain(z.name, z.signed.denial, signer.NSEC3Params{}, negativeTTL, z.types())
	return m
}

// types returns what the zone has, by name.
func (z *zone) types() map[string][]uint16 {
	all := map[string][]uint16{z.name: {dns.TypeNS, dns.TypeSOA}}
	for name, h := range z.hosts {
		if z.cut(name) {
			continue
		}
		if h.alias != "" {
			all[name] = []uint16{dns.TypeCNAME}
			continue
		}
		all[name] = append(all[name], dns.TypeA)
		if len(h.aaaa) > 0 {
			all[name] = append(all[name], dns.TypeAAAA)
		}
	}
	for name, child := range z.children {
		all[name] = []uint16{dns.TypeNS}
		if child.signed != nil {
			all[name] = append(all[name], dns.TypeDS)
		}
	}
	return all
}

// cut reports whether a name is another zone's.
func (z *zone) cut(name string) bool {
	for ; name != z.name; name = up(name) {
		if z.children[name] != nil {
			return true
		}
	}
	return false
}

// keys returns the DNSKEY or DS records of a name.
func (w *world) keys(z *zone, name string, qtype uint16) []dns.RR {
	if z.signed == nil {
		return nil
	}
	if name == z.name && qtype == dns.TypeDNSKEY {
		return z.signed.make().records
	}
	if child := z.children[name]; child != nil && child.signed != nil && qtype == dns.TypeDS {
		return child.signed.make().ds
	}
	if z.signed.flaw == trapping && qtype == dns.TypeA && z.hosts[name] == nil && !z.above[name] {
		return []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: netip.MustParseAddr("192.0.2.1").AsSlice()}}
	}
	return nil
}

// prove adds signatures and proofs to a response about a name for those who want them, and does to the zone's data what its
// flaw is.
func (w *world) prove(m *dns.Msg, s *server, z *zone, name string) {
	if z.signed == nil {
		return
	}
	if o := m.IsEdns0(); o != nil && o.Do() && z.signed.flaw != bare {
		made := z.signed.make()
		switch {
		case !m.Authoritative:
			proof := made.chain.ProveNoData
			if child := z.children[m.Ns[0].Header().Name]; child.signed != nil {
				proof = func(string) []dns.RR { return child.signed.make().ds }
			}
			m.Ns = append(m.Ns, w.signAll(s, z, proof(m.Ns[0].Header().Name))...)
		case len(m.Answer) > 0:
			m.Answer = w.signAll(s, z, m.Answer)
		case m.Rcode == dns.RcodeNameError:
			m.Ns = w.signAll(s, z, append(m.Ns, made.chain.ProveNoName(name)...))
		default:
			m.Ns = w.signAll(s, z, append(m.Ns, made.chain.ProveNoData(name)...))
		}
	}
	if z.signed.flaw == forged {
		forge(m.Answer)
	}
}

// forge changes addresses and aliases.
func forge(all []dns.RR) {
	for _, rr := range all {
		switch rr := rr.(type) {
		case *dns.A:
			rr.A = netip.MustParseAddr("192.0.2.255").AsSlice()
		case *dns.AAAA:
			rr.AAAA = netip.MustParseAddr("2001:db8::bad").AsSlice()
		case *dns.CNAME:
			rr.Target = "forged." + up(rr.Target)
		}
	}
}

// signAll returns records with the signatures of their sets.
func (w *world) signAll(s *server, z *zone, all []dns.RR) (out []dns.RR) {
	for len(all) > 0 {
		h := all[0].Header()
		n := 1
		for n < len(all) && all[n].Header().Rrtype == h.Rrtype && all[n].Header().Name == h.Name {
			n++
		}
		out = append(append(out, all[:n]...), w.sign(s, z, all[:n])...)
		all = all[n:]
	}
	return out
}

// signature says of what one is.
type signature struct {
	zone, owner string
	rrtype      uint16
	stale       bool
}

// sign returns the signature that a server has of a set, or several in a trap.
func (w *world) sign(s *server, z *zone, set []dns.RR) (out []dns.RR) {
	h := set[0].Header()
	key := signature{z.name, strings.ToLower(h.Name), h.Rrtype, s.stale}
	made, ok := w.signatures.Load(key)
	if !ok {
		made, _ = w.signatures.LoadOrStore(key, z.sign(set, s.stale))
	}
	for _, sig := range made.([]*dns.RRSIG) {
		sig := *sig
		sig.Hdr.Name = h.Name // in the letters of the question
		out = append(out, &sig)
	}
	return out
}

func (z *zone) sign(set []dns.RR, stale bool) (out []*dns.RRSIG) {
	made, form := z.signed.make(), signer.SignatureOptions{}
	if stale || z.signed.flaw == expired {
		form = signer.ExpiredSignature()
	}
	if z.signed.flaw == otherSigner {
		form.Signer = up(z.name)
	}
	small := make([]dns.RR, len(set))
	for i, rr := range set {
		small[i] = dns.Copy(rr)
		small[i].Header().Name = strings.ToLower(rr.Header().Name)
	}
	key := made.zsk
	if set[0].Header().Rrtype == dns.TypeDNSKEY {
		key = made.ksk
	} else if z.signed.flaw == trapping {
		return manifold(key.Sign(small, form), made.records)
	}
	return []*dns.RRSIG{key.Sign(small, form)}
}

// status is what a validator finds.
type status int

const (
	insecure status = iota // some zone on the way is not signed
	secure
	bogus
	unclear // as it knows an old algorithm or not
)

// status returns what is found of a name and of what it is an alias of. Where addresses and aliases are forged, it is still right that
// there are none.
func (w *world) status(q question) status {
	z := w.zoneOf(q.name)
	s := w.zoneStatus(z)
	h := z.hosts[q.name]
	if h == nil || h.alias == "" {
		if has, _ := w.addresses(q); len(has) == 0 && z.signed != nil && z.signed.flaw == forged {
			s = w.zoneStatus(w.zoneOf(up(z.name)))
		}
		return s
	}
	if s == bogus {
		return s
	}
	switch t := w.status(question{name: h.alias, qtype: q.qtype}); {
	case t == bogus:
		return bogus
	case s == insecure || t == insecure:
		return insecure
	case s == unclear || t == unclear:
		return unclear
	}
	return secure
}

// zoneStatus returns what is found of a zone's data.
func (w *world) zoneStatus(z *zone) status {
	s := secure
	if z.name != "." {
		s = w.zoneStatus(w.zoneOf(up(z.name)))
	}
	switch {
	case s == insecure || s == bogus:
		return s
	case z.signed == nil || z.signed.flaw == oldDigest:
		return insecure
	case z.signed.flaw == oldAlgorithm:
		return unclear
	case z.signed.flaw != sound:
		return bogus
	}
	return s
}

// anchor returns the DS record of the root's key in the format of a zone file; empty: it is not signed.
func (w *world) anchor() string {
	root := w.zones["."]
	if root.signed == nil {
		return ""
	}
	return root.signed.make().ds[0].String()
}
