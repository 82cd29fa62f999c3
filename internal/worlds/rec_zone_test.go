package worlds_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/internal/signer"
)

// A recData has the records of all zones. It belongs to one play, because the records contain the addresses of the
// play's servers.
type recData struct {
	w    *recScenario
	sets map[*recZone]map[string]map[uint16][]dns.RR
	keys map[*recZone]*recKeys

	mu   sync.Mutex // guards sigs
	sigs map[recSignatureKey]*dns.RRSIG
}

// A recKeys has the DNSSEC keys of a zone.
type recKeys struct {
	ksk, zsk []*signer.Key // they may be the same
	dnskeys  []dns.RR
	ds       []dns.RR
	nobody   *signer.Key // which no DS record is of
	chain    *signer.Chain
}

// A recSignatureKey identifies a signature in the cache of signatures.
type recSignatureKey struct {
	zone  *recZone
	owner string
	typ   uint16
	form  string
	key   int
	until int64 // when it ends, in seconds since 1970; 0: when the form says
}

func newRecData(w *recScenario, addr func(*recServer) netip.Addr) *recData {
	d := &recData{w: w, sets: make(map[*recZone]map[string]map[uint16][]dns.RR), keys: make(map[*recZone]*recKeys), sigs: make(map[recSignatureKey]*dns.RRSIG)}
	for _, z := range w.zones {
		d.sets[z] = make(map[string]map[uint16][]dns.RR)
	}
	for _, z := range w.zones {
		d.addZoneRecords(z, addr)
	}
	for _, z := range w.zones {
		if z.sign != "no" {
			d.makeKeys(z)
		}
	}
	for _, z := range w.zones {
		if k := d.keys[z]; k != nil {
			k.chain = signer.NewChain(z.name, z.denialKind(), z.nsec3Params(), 300, d.typesOf(z))
		}
	}
	return d
}

// nameIn returns a name in a zone.
func (z *recZone) nameIn(name string) string { return name + "." + strings.TrimPrefix(z.name, ".") }

// contains reports whether a name is at or below the name of a zone.
func (z *recZone) contains(name string) bool { return dns.IsSubDomain(z.name, name) }

// nsNames returns the names of a zone's servers.
func (w *recScenario) nsNames(z *recZone) (names []string) {
	if z.ns == "parent" {
		return w.nsNames(z.parent)
	}
	for i := range z.servers {
		if w.hasForeignServers(z) {
			names = append(names, w.zones[recHosts].nameIn(fmt.Sprintf("ns%d-z%d", i, z.number)))
		} else {
			names = append(names, z.nameIn(fmt.Sprintf("ns%d", i)))
		}
	}
	return names
}

// addZoneRecords adds the records of a zone: those of its servers, and those of questions unless it is the root.
func (d *recData) addZoneRecords(z *recZone, addr func(*recServer) netip.Addr) {
	w := d.w
	soa := map[string]int{"": 300, "short": 60, "long": 3600}[z.soa]
	d.addParsed(z, "%s %d SOA ns0.%s admin.%s 1 3600 600 86400 300", z.name, soa, strings.TrimPrefix(z.name, "."), strings.TrimPrefix(z.name, "."))
	for i, name := range w.nsNames(z) {
		d.addParsed(z, "%s 3600 NS %s", z.name, name)
		if z.parent != nil {
			d.addParsed(z.parent, "%s 3600 NS %s", z.name, name)
		}
		switch {
		case z.ns == "parent":
		case w.hasForeignServers(z):
			d.addParsed(w.zones[recHosts], "%s 3600 A %s", name, addr(z.servers[i]))
		default:
			d.addParsed(z, "%s 3600 A %s", name, addr(z.servers[i]))
		}
	}
	if z.parent == nil {
		return
	}
	next, below := w.zones[z.number%(len(w.zones)-1)+1], z
	if len(z.children) > 0 {
		below = z.children[0]
	}
	n := z.number
	for _, r := range []string{
		fmt.Sprintf("www 300 A 192.0.2.%d", n), fmt.Sprintf("www 300 A 192.0.2.%d", n+100), fmt.Sprintf("www 300 AAAA 2001:db8::%d", n),
		fmt.Sprintf("www 300 TXT zone%d", n), fmt.Sprintf("short 5 A 192.0.2.%d", n), fmt.Sprintf("text 300 TXT text%d", n),
		fmt.Sprintf("*.wild 300 A 192.0.2.%d", n+20), "alias 300 CNAME " + z.nameIn("www"), "far 300 CNAME " + next.nameIn("www"), "chain 300 CNAME " + next.nameIn("far"),
		"*.walias 300 CNAME " + next.nameIn("www"), "dn 300 DNAME " + next.name, fmt.Sprintf("x.ent 300 A 192.0.2.%d", n+40),
		"loop 300 CNAME " + z.nameIn("loop2"), "loop2 300 CNAME " + z.nameIn("loop"),
		"down 300 CNAME " + below.nameIn("www"), "*.wdown 300 CNAME " + below.nameIn("www"), "ddn 300 DNAME " + below.name, "up 300 CNAME " + z.parent.nameIn("www"),
	} {
		name, rest, _ := strings.Cut(r, " ")
		d.addParsed(z, "%s %s", z.nameIn(name), rest)
	}
	if z.many {
		for i := range 70 {
			d.addParsed(z, "%s 300 A 192.0.2.%d", z.nameIn(fmt.Sprintf("n%02d", i)), n)
		}
	}
}

func (d *recData) addParsed(z *recZone, format string, args ...any) {
	rr, err := dns.NewRR(fmt.Sprintf(format, args...))
	if err != nil {
		panic(err)
	}
	d.addRecords(z, rr)
}

func (d *recData) addRecords(z *recZone, rrs ...dns.RR) {
	for _, rr := range rrs {
		h := rr.Header()
		if d.sets[z][h.Name] == nil {
			d.sets[z][h.Name] = make(map[uint16][]dns.RR)
		}
		d.sets[z][h.Name][h.Rrtype] = append(d.sets[z][h.Name][h.Rrtype], rr)
	}
}

func (z *recZone) denialKind() signer.Denial {
	switch z.denial {
	case "nsec3", "salt", "iterations":
		return signer.NSEC3
	case "optout":
		return signer.NSEC3OptOut
	case "minimal":
		return signer.MinimalNSEC
	}
	return signer.NSEC
}

func (z *recZone) nsec3Params() signer.NSEC3Params {
	switch z.denial {
	case "salt":
		return signer.NSEC3Params{Iterations: 5, Salt: "beef"}
	case "iterations": // more than a Resolver takes
		return signer.NSEC3Params{Iterations: 51}
	}
	return signer.NSEC3Params{}
}

// typesOf returns the types of records by name, without the types of signing.
func (d *recData) typesOf(z *recZone) map[string][]uint16 {
	all := make(map[string][]uint16)
	for name, sets := range d.sets[z] {
		all[name] = slices.DeleteFunc(slices.Sorted(maps.Keys(sets)), func(t uint16) bool { return t == dns.TypeDNSKEY })
	}
	return all
}

func (d *recData) makeKeys(z *recZone) {
	k := new(recKeys)
	algorithm := map[string]uint8{"ed25519": dns.ED25519, "p384": dns.ECDSAP384SHA384, "rsa": dns.RSASHA256, "sha1": dns.RSASHA1, "unknown": 200}[z.keys]
	if algorithm == 0 {
		algorithm = dns.ECDSAP256SHA256
	}
	if strings.HasPrefix(z.keys, "rsa") {
		algorithm = dns.RSASHA256
	}
	make := func(flags uint16, seed string) *signer.Key { return signer.NewKey(z.name, flags, algorithm, seed) }
	k.ksk = append(k.ksk, make(signer.KSK, "ksk"))
	k.zsk, k.nobody = k.ksk, signer.NewKey(z.name, signer.KSK, dns.ECDSAP256SHA256, "nobody") // there are few RSA keys
	switch z.keys {
	case "rsa512":
		k.zsk = []*signer.Key{signer.NewRSAKey(z.name, signer.ZSK, signer.RSA512)}
	case "rsa1000":
		k.ksk = []*signer.Key{signer.NewRSAKey(z.name, signer.KSK, signer.RSA1000)}
		k.zsk = k.ksk
	case "rsa4096":
		k.ksk = []*signer.Key{signer.NewRSAKey(z.name, signer.KSK, signer.RSA4096)}
		k.zsk = []*signer.Key{make(signer.ZSK, "zsk")}
	case "rsaExponent":
		k.zsk = []*signer.Key{signer.NewRSAKey(z.name, signer.ZSK, signer.RSAExponent)}
	case "split", "rsa":
		k.zsk = []*signer.Key{make(signer.ZSK, "zsk")}
	case "two":
		k.ksk = append(k.ksk, make(signer.KSK, "two"))
		k.zsk = k.ksk
	}
	for _, key := range k.ksk {
		k.dnskeys = append(k.dnskeys, key.DNSKEY)
		k.ds = append(k.ds, key.ToDS(dns.SHA256))
	}
	if k.zsk[0] != k.ksk[0] {
		k.dnskeys = append(k.dnskeys, k.zsk[0].DNSKEY)
	}
	switch {
	case z.keys == "digest":
		k.ds[0].(*dns.DS).DigestType = dns.GOST94
	case z.keys == "standby" && z.flaw != "wrongDS":
		k.ds = append(k.ds, make(signer.KSK, "standby").ToDS(dns.SHA256))
	case z.flaw == "wrongDS":
		k.ds = []dns.RR{signer.NewKey(z.name, signer.KSK, dns.ECDSAP256SHA256, "other").ToDS(dns.SHA256)}
	}
	for _, ds := range k.ds {
		ds.Header().Ttl = 3600
	}
	if z.flaw != "noDNSKEY" {
		d.addRecords(z, k.dnskeys...)
	}
	if z.parent != nil && z.sign == "" {
		d.addRecords(z.parent, k.ds...)
	}
	d.keys[z] = k
}

// A recLookupResult has the records of a name in a zone, or says that the name does not exist.
type recLookupResult struct {
	rrs   []dns.RR
	owner string // of the set in the zone; "": there is none
	wild  bool   // that is made of a wildcard, or would be
	none  bool   // the name does not exist
	next  string // the name that it is an alias of
}

// findName looks up a name in the zone that contains it.
func (d *recData) findName(z *recZone, name string, typ uint16) (f recLookupResult) {
	sets := d.sets[z]
	for above := parentName(name); name != z.name && z.contains(above); above = parentName(above) {
		if dname := sets[above][dns.TypeDNAME]; dname != nil {
			f.owner = above
			target := strings.TrimSuffix(name, above) + dname[0].(*dns.DNAME).Target
			f.rrs = []dns.RR{dname[0], &dns.CNAME{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: dname[0].Header().Ttl}, Target: target}}
			if typ != dns.TypeCNAME {
				f.next = target
			}
			return f
		}
		if above == "." {
			break
		}
	}
	node := sets[name]
	f.owner = name
	if node == nil && !d.isNonTerminal(z, name) {
		encloser := parentName(name)
		for sets[encloser] == nil && !d.isNonTerminal(z, encloser) {
			encloser = parentName(encloser)
		}
		f.owner = "*." + strings.TrimPrefix(encloser, ".")
		node = sets[f.owner]
		f.wild, f.none = node != nil, node == nil
	}
	rrs := node[typ]
	if cname := node[dns.TypeCNAME]; cname != nil && typ != dns.TypeCNAME {
		rrs, f.next = cname, cname[0].(*dns.CNAME).Target
	}
	for _, rr := range rrs {
		rr = dns.Copy(rr)
		rr.Header().Name = name
		f.rrs = append(f.rrs, rr)
	}
	return f
}

// isNonTerminal reports whether a zone has names below a name.
func (d *recData) isNonTerminal(z *recZone, name string) bool {
	for n := range d.sets[z] {
		if n != name && dns.IsSubDomain(name, n) {
			return true
		}
	}
	return false
}

// parentName returns the name without its first label.
func parentName(name string) string {
	i, end := dns.NextLabel(name, 0)
	if end {
		return "."
	}
	return name[i:]
}

// denialOf returns the proof that a name or its type does not exist, without signatures.
func (d *recData) denialOf(z *recZone, name string, f recLookupResult) []dns.RR {
	k := d.keys[z]
	switch {
	case k == nil || z.flaw == "noProof":
		return nil
	case f.none:
		return k.chain.ProveNoName(name)
	case f.wild && len(f.rrs) > 0:
		return k.chain.ProveNoCloserName(name)
	case f.wild:
		return k.chain.ProveNoWildcardData(name)
	}
	return k.chain.ProveNoData(name)
}

// signatureForm returns the form of the signatures of a type by a zone or a server of it. "none" means no signature.
func (z *recZone) signatureForm(typ uint16, fault string) string {
	switch fault {
	case "expired":
		return "expired"
	case "forgedSigs":
		return "forged"
	case "oldKeys":
		return "nobody"
	case "noSigs":
		return "none"
	}
	data := typ == dns.TypeA || typ == dns.TypeAAAA || typ == dns.TypeTXT || typ == dns.TypeCNAME || typ == dns.TypeDNAME
	switch f := z.flaw; {
	case f == "expired" || f == "future" || f == "otherSigner":
		return f
	case f == "expiredData" && typ != dns.TypeDNSKEY:
		return "expired"
	case f == "wrongKey" && typ != dns.TypeDNSKEY:
		return "nobody"
	case f == "forged" && typ != dns.TypeDNSKEY:
		return "forged"
	case f == "bare" || f == "noSig" && data:
		return "none"
	}
	return ""
}

// signRecords returns records with the signatures of their sets. The signatures of a wildcard have the given owner.
func (d *recData) signRecords(z *recZone, fault string, rrs []dns.RR, owner string) (out []dns.RR) {
	k := d.keys[z]
	if k == nil {
		return rrs
	}
	for len(rrs) > 0 {
		h := rrs[0].Header()
		n := 1
		for n < len(rrs) && rrs[n].Header().Rrtype == h.Rrtype && rrs[n].Header().Name == h.Name {
			n++
		}
		set := rrs[:n]
		rrs = rrs[n:]
		out = append(out, set...)
		form := z.signatureForm(h.Rrtype, fault)
		if form == "none" || len(out) > n && h.Rrtype == dns.TypeCNAME && out[0].Header().Rrtype == dns.TypeDNAME { // it is made of the DNAME record
			continue
		}
		keys := k.zsk
		if h.Rrtype == dns.TypeDNSKEY {
			keys = k.ksk
		}
		if form == "nobody" {
			keys = []*signer.Key{k.nobody}
		}
		added := d.signExtra(z, fault, keys[0], set, owner)
		if h.Rrtype%2 == 0 {
			out = append(out, added...)
		}
		for i, key := range keys {
			as := recSignatureKey{zone: z, owner: h.Name, typ: h.Rrtype, form: form, key: i}
			if z.life > 0 && form == "" {
				as.until = z.expirationOf(time.Now()).Unix()
			}
			out = append(out, d.signSet(as, key, set, owner))
		}
		if h.Rrtype%2 != 0 {
			out = append(out, added...)
		}
	}
	return out
}

// expirationOf returns the expiration of the signatures that a zone makes at a time.
func (z *recZone) expirationOf(now time.Time) time.Time { return now.Truncate(z.life / 2).Add(z.life) }

// raisedTTL is the TTL of records of servers that raise TTLs.
const raisedTTL = 604800

// signExtra returns the signature with a high original TTL that a server adds to a record set, or nil. No validator may
// accept it.
func (d *recData) signExtra(z *recZone, fault string, key *signer.Key, set []dns.RR, owner string) []dns.RR {
	if !strings.HasPrefix(fault, "adds") {
		return nil
	}
	if fault == "addsStranger" {
		key = d.keys[z].nobody
	}
	h := set[0].Header()
	sig := d.signSet(recSignatureKey{zone: z, owner: h.Name, typ: h.Rrtype, form: fault}, key, set, owner).(*dns.RRSIG)
	switch fault {
	case "addsTag":
		sig.KeyTag++
	case "addsAlgorithm":
		sig.Algorithm = 200
	}
	return []dns.RR{sig}
}

// signSet returns the signature of a record set.
func (d *recData) signSet(as recSignatureKey, key *signer.Key, set []dns.RR, owner string) dns.RR {
	d.mu.Lock()
	defer d.mu.Unlock()
	made := d.sigs[as]
	if made == nil {
		form := map[string]signer.SignatureOptions{
			"expired": signer.ExpiredSignature(), "future": {From: 1800000000, To: 1900000000}, "forged": {Forged: true}, "otherSigner": {Signer: parentName(as.zone.name)},
			"addsForged": {Forged: true}, "addsEnded": signer.ExpiredSignature(),
		}[as.form]
		if as.until > 0 {
			form.From, form.To = uint32(as.until-int64((as.zone.life+time.Hour)/time.Second)), uint32(as.until)
		}
		var right []dns.RR
		for _, rr := range set {
			rr = dns.Copy(rr)
			if strings.HasPrefix(owner, "*.") {
				rr.Header().Name = owner
			}
			if as.zone.flaw == "tampered" {
				changeRecord(rr, 66)
			}
			if strings.HasPrefix(as.form, "adds") {
				rr.Header().Ttl = raisedTTL
			}
			right = append(right, rr)
		}
		made = key.Sign(right, form)
		if as.zone.sigTTL > 0 {
			made.Hdr.Ttl = as.zone.sigTTL
		}
		d.sigs[as] = made
	}
	sig := *made
	sig.Hdr.Name = set[0].Header().Name
	return &sig
}

// changeRecord changes a record in one of several ways.
func changeRecord(rr dns.RR, way byte) {
	switch rr := rr.(type) {
	case *dns.A:
		rr.A = []byte{203, 0, 113, way}
	case *dns.AAAA:
		rr.AAAA[14] = way
	case *dns.TXT:
		rr.Txt = []string{fmt.Sprint("forged", way)}
	}
}
