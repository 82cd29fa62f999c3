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

// A recData is what the zones of a recWorld have. It is made for a play, when the addresses of servers are known.
type recData struct {
	w    *recWorld
	sets map[*recZone]map[string]map[uint16][]dns.RR
	keys map[*recZone]*recKeys

	mu   sync.Mutex // guards sigs
	sigs map[recSig]*dns.RRSIG
}

// A recKeys is what signing a zone takes.
type recKeys struct {
	ksk, zsk []*signer.Key // they may be the same
	dnskeys  []dns.RR
	ds       []dns.RR
	nobody   *signer.Key // which no DS record is of
	chain    *signer.Chain
}

// A recSig tells signatures apart.
type recSig struct {
	zone  *recZone
	owner string
	typ   uint16
	form  string
	key   int
	until int64 // when it ends, in seconds since 1970; 0: when the form says
}

func newRecData(w *recWorld, addr func(*recServer) netip.Addr) *recData {
	d := &recData{w: w, sets: make(map[*recZone]map[string]map[uint16][]dns.RR), keys: make(map[*recZone]*recKeys), sigs: make(map[recSig]*dns.RRSIG)}
	for _, z := range w.zones {
		d.sets[z] = make(map[string]map[uint16][]dns.RR)
	}
	for _, z := range w.zones {
		d.fill(z, addr)
	}
	for _, z := range w.zones {
		if z.sign != "no" {
			d.makeKeys(z)
		}
	}
	for _, z := range w.zones {
		if k := d.keys[z]; k != nil {
			k.chain = signer.NewChain(z.name, z.how(), z.hashing(), 300, d.types(z))
		}
	}
	return d
}

// in returns a name in a zone.
func (z *recZone) in(name string) string { return name + "." + strings.TrimPrefix(z.name, ".") }

// holds reports whether a name is at or below a zone's.
func (z *recZone) holds(name string) bool { return dns.IsSubDomain(z.name, name) }

// nsNames are the names of a zone's servers.
func (w *recWorld) nsNames(z *recZone) (names []string) {
	if z.ns == "parent" {
		return w.nsNames(z.parent)
	}
	for i := range z.servers {
		if w.outside(z) {
			names = append(names, w.zones[recHosts].in(fmt.Sprintf("ns%d-z%d", i, z.number)))
		} else {
			names = append(names, z.in(fmt.Sprintf("ns%d", i)))
		}
	}
	return names
}

// fill gives a zone its records: those of its servers, and, but for the root, those that are asked for.
func (d *recData) fill(z *recZone, addr func(*recServer) netip.Addr) {
	w := d.w
	soa := map[string]int{"": 300, "short": 60, "long": 3600}[z.soa]
	d.put(z, "%s %d SOA ns0.%s admin.%s 1 3600 600 86400 300", z.name, soa, strings.TrimPrefix(z.name, "."), strings.TrimPrefix(z.name, "."))
	for i, name := range w.nsNames(z) {
		d.put(z, "%s 3600 NS %s", z.name, name)
		if z.parent != nil {
			d.put(z.parent, "%s 3600 NS %s", z.name, name)
		}
		switch {
		case z.ns == "parent":
		case w.outside(z):
			d.put(w.zones[recHosts], "%s 3600 A %s", name, addr(z.servers[i]))
		default:
			d.put(z, "%s 3600 A %s", name, addr(z.servers[i]))
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
		fmt.Sprintf("*.wild 300 A 192.0.2.%d", n+20), "alias 300 CNAME " + z.in("www"), "far 300 CNAME " + next.in("www"), "chain 300 CNAME " + next.in("far"),
		"*.walias 300 CNAME " + next.in("www"), "dn 300 DNAME " + next.name, fmt.Sprintf("x.ent 300 A 192.0.2.%d", n+40),
		"loop 300 CNAME " + z.in("loop2"), "loop2 300 CNAME " + z.in("loop"),
		"down 300 CNAME " + below.in("www"), "*.wdown 300 CNAME " + below.in("www"), "ddn 300 DNAME " + below.name, "up 300 CNAME " + z.parent.in("www"),
	} {
		name, rest, _ := strings.Cut(r, " ")
		d.put(z, "%s %s", z.in(name), rest)
	}
	if z.many {
		for i := range 70 {
			d.put(z, "%s 300 A 192.0.2.%d", z.in(fmt.Sprintf("n%02d", i)), n)
		}
	}
}

func (d *recData) put(z *recZone, format string, args ...any) {
	rr, err := dns.NewRR(fmt.Sprintf(format, args...))
	if err != nil {
		panic(err)
	}
	d.add(z, rr)
}

func (d *recData) add(z *recZone, rrs ...dns.RR) {
	for _, rr := range rrs {
		h := rr.Header()
		if d.sets[z][h.Name] == nil {
			d.sets[z][h.Name] = make(map[uint16][]dns.RR)
		}
		d.sets[z][h.Name][h.Rrtype] = append(d.sets[z][h.Name][h.Rrtype], rr)
	}
}

func (z *recZone) how() signer.Denial {
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

func (z *recZone) hashing() signer.NSEC3Params {
	switch z.denial {
	case "salt":
		return signer.NSEC3Params{Iterations: 5, Salt: "beef"}
	case "iterations": // more than a Resolver takes
		return signer.NSEC3Params{Iterations: 51}
	}
	return signer.NSEC3Params{}
}

// types are those of a zone's names, without those that come by signing.
func (d *recData) types(z *recZone) map[string][]uint16 {
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
		d.add(z, k.dnskeys...)
	}
	if z.parent != nil && z.sign == "" {
		d.add(z.parent, k.ds...)
	}
	d.keys[z] = k
}

// recFound is what a zone has of a name.
type recFound struct {
	rrs   []dns.RR
	owner string // of the set in the zone; "": there is none
	wild  bool   // that is made of a wildcard, or would be
	none  bool   // the name does not exist
	next  string // the name that it is an alias of
}

// find looks a name up in a zone that has it, or would have it.
func (d *recData) find(z *recZone, name string, typ uint16) (f recFound) {
	sets := d.sets[z]
	for above := up(name); name != z.name && z.holds(above); above = up(above) {
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
	if node == nil && !d.above(z, name) {
		encloser := up(name)
		for sets[encloser] == nil && !d.above(z, encloser) {
			encloser = up(encloser)
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

// above reports whether there are names below one in a zone.
func (d *recData) above(z *recZone, name string) bool {
	for n := range d.sets[z] {
		if n != name && dns.IsSubDomain(name, n) {
			return true
		}
	}
	return false
}

// up returns the name without its first label.
func up(name string) string {
	i, end := dns.NextLabel(name, 0)
	if end {
		return "."
	}
	return name[i:]
}

// proof returns what denies a name or its type, unsigned.
func (d *recData) proof(z *recZone, name string, f recFound) []dns.RR {
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

// form is how a zone, or a server of it, signs what has a type; "none": not at all.
func (z *recZone) form(typ uint16, fault string) string {
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

// signAll returns records with the signatures of their sets. Those of the set of a wildcard's have the owner that is given.
func (d *recData) signAll(z *recZone, fault string, rrs []dns.RR, owner string) (out []dns.RR) {
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
		form := z.form(h.Rrtype, fault)
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
			as := recSig{zone: z, owner: h.Name, typ: h.Rrtype, form: form, key: i}
			if z.life > 0 && form == "" {
				as.until = z.expiry(time.Now()).Unix()
			}
			out = append(out, d.sign(as, key, set, owner))
		}
		if h.Rrtype%2 != 0 {
			out = append(out, added...)
		}
	}
	return out
}

// expiry returns when the signatures end that a zone makes at a time, if they end.
func (z *recZone) expiry(now time.Time) time.Time { return now.Truncate(z.life / 2).Add(z.life) }

// raisedTTL is the TTL of records of servers that raise them.
const raisedTTL = 604800

// signExtra returns the signature with a high original TTL that a server adds to a set, or nothing. No validator may take it for right.
func (d *recData) signExtra(z *recZone, fault string, key *signer.Key, set []dns.RR, owner string) []dns.RR {
	if !strings.HasPrefix(fault, "adds") {
		return nil
	}
	if fault == "addsStranger" {
		key = d.keys[z].nobody
	}
	h := set[0].Header()
	sig := d.sign(recSig{zone: z, owner: h.Name, typ: h.Rrtype, form: fault}, key, set, owner).(*dns.RRSIG)
	switch fault {
	case "addsTag":
		sig.KeyTag++
	case "addsAlgorithm":
		sig.Algorithm = 200
	}
	return []dns.RR{sig}
}

// sign returns the signature of a set.
func (d *recData) sign(as recSig, key *signer.Key, set []dns.RR, owner string) dns.RR {
	d.mu.Lock()
	defer d.mu.Unlock()
	made := d.sigs[as]
	if made == nil {
		form := map[string]signer.SignatureOptions{
			"expired": signer.ExpiredSignature(), "future": {From: 1800000000, To: 1900000000}, "forged": {Forged: true}, "otherSigner": {Signer: up(as.zone.name)},
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
				tamper(rr, 66)
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

// tamper changes a record, in a way of its own.
func tamper(rr dns.RR, way byte) {
	switch rr := rr.(type) {
	case *dns.A:
		rr.A = []byte{203, 0, 113, way}
	case *dns.AAAA:
		rr.AAAA[14] = way
	case *dns.TXT:
		rr.Txt = []string{fmt.Sprint("forged", way)}
	}
}
