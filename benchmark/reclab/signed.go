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

// A signingPlan determines which zones of a simulated internet are signed, and the flaws of their signatures. With the
// zero value no zone is signed. Otherwise the root, the top-level domains, and a share of the other zones are signed.
type signingPlan struct {
	share        float64 // of the zones that are two or more levels below the root, from 0 to 1
	stale        float64 // share of the servers with expired signatures, of the servers that are not the first of a zone
	bogus        float64 // share of the sites without a right signature, each with one of bogusFlaws
	weak         float64 // share of the sites whose DS record has an algorithm or a digest that validators may not support
	queryPattern queryPattern
}

// A queryPattern determines which names the questions of a scenario are about.
type queryPattern int

const (
	uniqueNames queryPattern = iota // each name is asked for once
	randomNames                     // names that do not exist, in the target zones
	keyTraps                        // bogus names in target zones that take long to validate, among other names
)

const (
	targetZoneCount = 20
	splitSiteShare  = 0.05 // share of the sites of which a part is a zone of its own, on the same servers
	rsaZoneShare    = 0.3  // of the signed zones that are two or more levels below the root: RSA, and two keys
)

// keyTrapPattern determines the questions about key traps: the first trapped questions of each period.
var keyTrapPattern = struct{ trapped, period int }{2, 5}

// A flaw is a defect in the signatures or keys of a zone.
type flaw int

const (
	noFlaw        flaw = iota
	expired            // all signatures have expired
	otherKey           // the DS record is of a key that the zone does not have
	unsigned           // there are no signatures
	otherSigner        // signatures name the zone above as their signer
	forged             // addresses and aliases differ from the signed ones
	keyTrapped         // there are many keys and signatures with the same tag, and no signature is right (CVE-2023-50387)
	oldAlgorithm       // RSA with SHA-1, which some validators treat as unsigned
	unknownDigest      // the digest type of the DS record is unknown to validators
)

var bogusFlaws = []flaw{expired, otherKey, unsigned, otherSigner, forged}

// A zoneSigningConfig determines how one zone is signed: its keys, its proofs of non-existence, and a flaw if it has one.
type zoneSigningConfig struct {
	flaw   flaw
	rsa    bool
	denial signer.Denial
	keys   func() keyMaterial // made at the first call
}

// keyMaterial has the DNSSEC keys of a zone, and its DNSKEY and DS records.
type keyMaterial struct {
	ksk, zsk *signer.Key
	records  []dns.RR // DNSKEY
	ds       []dns.RR
	chain    *signer.Chain
}

// signZones signs zones according to the plan. Some zones get a flaw, and some servers get expired signatures.
func (b *internetBuilder) signZones() {
	rng := rand.New(rand.NewPCG(b.seed, 5))
	var sites []*zone // without zones below them
	for _, name := range b.siteNames {
		z := b.findZone(name)
		if rng.Float64() < splitSiteShare && z.hosts[name].alias == "" {
			child := b.addZone(z, name, z.servers)
			child.hosts[name], child.refusing = z.hosts[name], z.refusing
			delete(z.hosts, name)
			continue
		}
		sites = append(sites, z)
	}
	for _, name := range slices.Sorted(maps.Keys(b.zones)) {
		z := b.zones[name]
		top, s := dns.CountLabel(name) <= 1, &zoneSigningConfig{denial: signer.Denial(rng.IntN(3)), rsa: rng.Float64() < rsaZoneShare}
		if top {
			s.rsa, s.denial = false, signer.NSEC3
		}
		switch name {
		case ".":
			s.denial = signer.NSEC
		case "com.", "net.":
			s.denial = signer.NSEC3OptOut
		}
		if rng.Float64() < b.internetPlan.share || top {
			b.signZone(z, s)
		}
	}
	for _, z := range sites {
		switch x := rng.Float64(); {
		case x < b.bogus:
			b.signZone(z, &zoneSigningConfig{flaw: bogusFlaws[rng.IntN(len(bogusFlaws))], denial: signer.NSEC})
		case x < b.bogus+b.weak:
			b.signZone(z, &zoneSigningConfig{flaw: []flaw{oldAlgorithm, unknownDigest}[rng.IntN(2)], denial: signer.NSEC, rsa: true})
		}
	}
	b.pickTargetZones(sites)
	b.markExpiredSignatures(rng)
	// Slow computations are done before the first query.
	signer.PrecomputeRSAKeys()
	for _, z := range b.zones {
		if dns.CountLabel(z.name) <= 1 {
			z.signed.keys()
		}
	}
}

// signZone marks zone z as signed, as s determines. The keys are generated when they are first needed.
func (b *internetBuilder) signZone(z *zone, s *zoneSigningConfig) {
	z.signed = s
	s.keys = sync.OnceValue(func() keyMaterial { return z.newKeyMaterial(fmt.Sprint(b.seed)) })
}

// pickTargetZones sets targetZones, the zones about which some scenarios ask many questions, to signed zones of sites. In
// the scenario keytrap, they get many keys with equal tags and wrong signatures, which take long to validate.
func (b *internetBuilder) pickTargetZones(sites []*zone) {
	for _, z := range sites {
		if b.queryPattern == uniqueNames || len(b.targetZones) == targetZoneCount {
			return
		}
		if z.signed == nil || z.signed.flaw != noFlaw || slices.ContainsFunc(b.targetZones, func(o *zone) bool { return o == z }) {
			continue
		}
		b.targetZones = append(b.targetZones, z)
		if b.queryPattern == keyTraps {
			b.signZone(z, &zoneSigningConfig{flaw: keyTrapped, denial: signer.NSEC})
		}
	}
}

// markExpiredSignatures draws the servers whose signatures have expired. Each zone keeps a server without faults whose
// signatures are valid.
func (b *internetBuilder) markExpiredSignatures(rng *rand.Rand) {
	first := make(map[*server]bool)
	for _, z := range b.zones {
		first[z.servers[0]] = true
	}
	for _, a := range slices.SortedFunc(maps.Keys(b.servers), netip.Addr.Compare) {
		s := b.servers[a]
		s.stale = rng.Float64() < b.stale && !first[s] && !b.topServers[s]
	}
	for _, name := range slices.Sorted(maps.Keys(b.zones)) {
		z := b.zones[name]
		if b.dead || slices.ContainsFunc(z.servers, func(s *server) bool { return s.fault == healthy && !s.stale && s != z.refusing }) {
			continue
		}
		repaired := z.servers[slices.IndexFunc(z.servers, func(s *server) bool { return s.canAnswer() && s != z.refusing })]
		repaired.fault, repaired.stale = healthy, false
	}
}

// newKeyMaterial generates the DNSSEC keys of the zone and their records. The same zone and seed always give the same keys.
func (z *zone) newKeyMaterial(seed string) (m keyMaterial) {
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
	if f == keyTrapped {
		m.records = append(m.records, newKeyTrapKeys(z.name)...)
	}
	dsKey := m.ksk
	if f == otherKey {
		dsKey = signer.NewKey(z.name, signer.KSK, algorithm, seed+" of nobody")
	}
	ds := dsKey.ToDS(dns.SHA256)
	ds.Hdr.Ttl = delegationTTL
	if f == unknownDigest {
		ds.DigestType = dns.GOST94
	}
	m.ds = []dns.RR{ds}
	m.chain = signer.NewChain(z.name, z.signed.denial, signer.NSEC3Params{}, negativeTTL, z.recordTypes())
	return m
}

// recordTypes returns the types of the records at each name of the zone, for proofs of non-existence.
func (z *zone) recordTypes() map[string][]uint16 {
	all := map[string][]uint16{z.name: {dns.TypeNS, dns.TypeSOA}}
	for name, h := range z.hosts {
		if z.isDelegated(name) {
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

// isDelegated reports whether a name below the zone belongs to a delegated zone.
func (z *zone) isDelegated(name string) bool {
	for ; name != z.name; name = parentName(name) {
		if z.children[name] != nil {
			return true
		}
	}
	return false
}

// generatedRecords returns records that no host of zone z has: DNSKEY records of a signed zone, DS records of signed
// child zones, and with the flaw keyTrapped addresses of missing names, because the trap needs signed answers.
func (n *internet) generatedRecords(z *zone, name string, qtype uint16) []dns.RR {
	if z.signed == nil {
		return nil
	}
	if name == z.name && qtype == dns.TypeDNSKEY {
		return z.signed.keys().records
	}
	if child := z.children[name]; child != nil && child.signed != nil && qtype == dns.TypeDS {
		return child.signed.keys().ds
	}
	if z.signed.flaw == keyTrapped && qtype == dns.TypeA && z.hosts[name] == nil && !z.emptyNonTerminals[name] {
		return []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: netip.MustParseAddr("192.0.2.1").AsSlice()}}
	}
	return nil
}

// addDNSSECRecords adds signatures and proofs of non-existence to m, the response of server s about a name in zone z, if the
// query has the DO bit. If the zone has a flaw, the records are wrong in the way of that flaw.
func (n *internet) addDNSSECRecords(m *dns.Msg, s *server, z *zone, name string) {
	if z.signed == nil {
		return
	}
	if o := m.IsEdns0(); o != nil && o.Do() && z.signed.flaw != unsigned {
		chain := z.signed.keys().chain
		switch {
		case !m.Authoritative:
			proof := chain.ProveNoData
			if child := z.children[m.Ns[0].Header().Name]; child.signed != nil {
				proof = func(string) []dns.RR { return child.signed.keys().ds }
			}
			m.Ns = append(m.Ns, n.addSignatures(s, z, proof(m.Ns[0].Header().Name))...)
		case len(m.Answer) > 0:
			m.Answer = n.addSignatures(s, z, m.Answer)
		case m.Rcode == dns.RcodeNameError:
			m.Ns = n.addSignatures(s, z, append(m.Ns, chain.ProveNoName(name)...))
		default:
			m.Ns = n.addSignatures(s, z, append(m.Ns, chain.ProveNoData(name)...))
		}
	}
	if z.signed.flaw == forged {
		forgeRecords(m.Answer)
	}
}

// forgeRecords changes addresses and aliases, so that their signatures do not match.
func forgeRecords(all []dns.RR) {
	for _, rr := range all {
		switch rr := rr.(type) {
		case *dns.A:
			rr.A = netip.MustParseAddr("192.0.2.255").AsSlice()
		case *dns.AAAA:
			rr.AAAA = netip.MustParseAddr("2001:db8::bad").AsSlice()
		case *dns.CNAME:
			rr.Target = "forged." + parentName(rr.Target)
		}
	}
}

// addSignatures returns the records all of zone z, each record set followed by its signatures from server s.
func (n *internet) addSignatures(s *server, z *zone, all []dns.RR) (out []dns.RR) {
	for len(all) > 0 {
		h := all[0].Header()
		end := 1
		for end < len(all) && all[end].Header().Rrtype == h.Rrtype && all[end].Header().Name == h.Name {
			end++
		}
		out = append(append(out, all[:end]...), n.rrsetSignatures(s, z, all[:end])...)
		all = all[end:]
	}
	return out
}

// A signatureCacheKey identifies the valid or expired signatures of a record set in the cache of signatures.
type signatureCacheKey struct {
	zone, owner string
	rrtype      uint16
	stale       bool
}

// rrsetSignatures returns the signatures of server s for a record set: one valid, unless s is stale or zone z has a flaw.
func (n *internet) rrsetSignatures(s *server, z *zone, set []dns.RR) (out []dns.RR) {
	h := set[0].Header()
	key := signatureCacheKey{z.name, strings.ToLower(h.Name), h.Rrtype, s.stale}
	made, ok := n.signatures.Load(key)
	if !ok {
		made, _ = n.signatures.LoadOrStore(key, z.signRRset(set, s.stale))
	}
	for _, sig := range made.([]*dns.RRSIG) {
		sig := *sig
		sig.Hdr.Name = h.Name // with the case of the question
		out = append(out, &sig)
	}
	return out
}

// signRRset returns the signatures of a record set of the zone. If hasExpired is set, they have expired.
func (z *zone) signRRset(set []dns.RR, hasExpired bool) []*dns.RRSIG {
	keys, options := z.signed.keys(), signer.SignatureOptions{}
	if hasExpired || z.signed.flaw == expired {
		options = signer.ExpiredSignature()
	}
	if z.signed.flaw == otherSigner {
		options.Signer = parentName(z.name)
	}
	lower := make([]dns.RR, len(set))
	for i, rr := range set {
		lower[i] = dns.Copy(rr)
		lower[i].Header().Name = strings.ToLower(rr.Header().Name)
	}
	key := keys.zsk
	if set[0].Header().Rrtype == dns.TypeDNSKEY {
		key = keys.ksk
	} else if z.signed.flaw == keyTrapped {
		return newKeyTrapSignatures(key.Sign(lower, options), keys.records)
	}
	return []*dns.RRSIG{key.Sign(lower, options)}
}

// A securityStatus is the correct result of the DNSSEC validation of a name (RFC 4035 §4.3).
type securityStatus int

const (
	insecure securityStatus = iota // a zone between the root and the name is not signed
	secure
	bogus
	undetermined // depends on the validator's support of an old algorithm
)

// securityStatusOf returns the correct result of DNSSEC validation for question q. If the answer is an alias, the
// result also depends on the target of the alias.
func (n *internet) securityStatusOf(q question) securityStatus {
	z := n.findZone(q.name)
	s := n.zoneSecurityStatus(z)
	h := z.hosts[q.name]
	if h == nil || h.alias == "" {
		if addresses, _ := n.correctAddresses(q); len(addresses) == 0 && z.signed != nil && z.signed.flaw == forged {
			s = n.zoneSecurityStatus(n.findZone(parentName(z.name)))
		}
		return s
	}
	if s == bogus {
		return s
	}
	switch target := n.securityStatusOf(question{name: h.alias, qtype: q.qtype}); {
	case target == bogus:
		return bogus
	case s == insecure || target == insecure:
		return insecure
	case s == undetermined || target == undetermined:
		return undetermined
	}
	return secure
}

// zoneSecurityStatus returns the correct result of DNSSEC validation for records of zone z.
func (n *internet) zoneSecurityStatus(z *zone) securityStatus {
	s := secure
	if z.name != "." {
		s = n.zoneSecurityStatus(n.findZone(parentName(z.name)))
	}
	switch {
	case s == insecure || s == bogus:
		return s
	case z.signed == nil || z.signed.flaw == unknownDigest:
		return insecure
	case z.signed.flaw == oldAlgorithm:
		return undetermined
	case z.signed.flaw != noFlaw:
		return bogus
	}
	return s
}

// trustAnchor returns the DS record of the root's key, or "" if the root is not signed.
func (n *internet) trustAnchor() string {
	root := n.zones["."]
	if root.signed == nil {
		return ""
	}
	return root.signed.keys().ds[0].String()
}
