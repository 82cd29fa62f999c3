package resolvers

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/internal/signer"
)

// signedZone is a zone that is signed when it is asked, and what is wrong with that.
type signedZone struct {
	*zone
	above *signedZone // nil: it is the root

	unsigned  bool // it has no keys
	algorithm uint8
	split     bool // a key signs the keys, and another one the rest
	denial    signer.Denial
	hashing   signer.NSEC3Params
	form      signer.SignatureOptions // of signatures
	keyForm   signer.SignatureOptions // of the signature of the keys

	// What a flaw changes. Nil changes nothing.
	rekey func(z *signedZone)                         // the keys, once they are made, before they are signed
	delve func(ds []*dns.DS, z *signedZone) []*dns.DS // the DS records
	say   func(q query, r *dns.Msg)                   // responses; an empty one is not sent

	below map[string]*signedZone

	once     sync.Once
	ksk, zsk *signer.Key
	keys     []dns.RR
	chain    *signer.Chain

	mu   sync.Mutex // guards sigs
	sigs map[string]*dns.RRSIG
}

// addSigned adds a zone to a lab, below another one if that is not nil. Its lines are as those of lab.add.
func (l *lab) addSigned(above, z *signedZone, records ...string) *signedZone {
	z.above, z.below, z.sigs = above, make(map[string]*signedZone), make(map[string]*dns.RRSIG)
	if above == nil {
		l.root.twist, z.zone = z.respond, l.root
		return z
	}
	z.twist = z.respond
	l.add(above.zone, z.zone, records...)
	above.below[z.name] = z
	return z
}

// prepare makes keys and proofs.
func (z *signedZone) prepare() {
	z.once.Do(func() {
		types := make(map[string][]uint16)
		for name, all := range z.records {
			if z.cutAt(name) != nil {
				continue
			}
			for _, rr := range all {
				if t := rr.Header().Rrtype; !slices.Contains(types[name], t) {
					types[name] = append(types[name], t)
				}
			}
		}
		for name, child := range z.below {
			if types[name] = []uint16{dns.TypeNS}; len(child.ds()) > 0 {
				types[name] = append(types[name], dns.TypeDS)
			}
		}
		z.chain = signer.NewChain(z.name, z.denial, z.hashing, 60, types)
	})
}

// makeKeys makes the keys, which the zone above needs as well.
func (z *signedZone) makeKeys() {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.ksk != nil || z.unsigned {
		return
	}
	z.ksk = signer.NewKey(z.name, signer.KSK, z.algorithm, "1")
	z.zsk, z.keys = z.ksk, []dns.RR{z.ksk.DNSKEY}
	if z.split {
		z.zsk = signer.NewKey(z.name, signer.ZSK, z.algorithm, "1")
		z.keys = append(z.keys, z.zsk.DNSKEY)
	}
	if z.rekey != nil {
		z.rekey(z)
	}
}

// ds returns the DS records that the zone above has.
func (z *signedZone) ds() (all []dns.RR) {
	z.makeKeys()
	var ds []*dns.DS
	if z.ksk != nil {
		ds = append(ds, z.ksk.ToDS(dns.SHA256))
	}
	if z.delve != nil {
		ds = z.delve(ds, z)
	}
	for _, d := range ds {
		d.Hdr.Ttl = 300
		all = append(all, d)
	}
	return all
}

// cutAt returns the zone that is delegated at a name or above it; nil: the name is this zone's.
func (z *signedZone) cutAt(name string) *signedZone {
	for ; name != z.name && name != "."; name = parent(name) {
		if child := z.below[name]; child != nil {
			return child
		}
	}
	return nil
}

// parent returns the name without its first label.
func parent(name string) string {
	i, end := dns.NextLabel(name, 0)
	if end {
		return "."
	}
	return name[i:]
}

// respond answers as a server of the zone, which may also be one of the zone above.
func (z *signedZone) respond(q query, _ *dns.Msg) *dns.Msg {
	if q.qtype == dns.TypeDS && q.name == z.name && z.above != nil && slices.Equal(z.addrs, z.above.addrs) {
		return z.above.respond(q, nil)
	}
	z.makeKeys()
	z.prepare()
	r := new(dns.Msg).SetReply(q.Msg)
	r.Compress = true
	opt := q.IsEdns0()
	if opt != nil {
		r.SetEdns0(4096, opt.Do())
	}
	z.fill(q, r, opt != nil && opt.Do() && !z.unsigned)
	if z.say != nil {
		z.say(q, r)
	}
	if !r.Response {
		return nil // the server is silent
	}
	if size := dns.MinMsgSize; !q.tcp {
		if opt != nil {
			size = max(size, int(opt.UDPSize()))
		}
		r.Truncate(size)
	}
	return r
}

// fill puts records into a response, with signatures and proofs if they are wanted.
func (z *signedZone) fill(q query, r *dns.Msg, do bool) {
	if child := z.cutAt(q.name); child != nil && !(q.name == child.name && q.qtype == dns.TypeDS) {
		child.refer(r)
		if ds := child.ds(); do && len(ds) > 0 {
			r.Ns = append(r.Ns, z.sign(ds)...)
		} else if do {
			r.Ns = append(r.Ns, z.signAll(z.chain.ProveNoData(child.name))...)
		}
		return
	}
	r.Authoritative = true
	add := func(set []dns.RR) {
		if r.Answer = append(r.Answer, set...); do {
			r.Answer = append(r.Answer, z.sign(set)[len(set):]...)
		}
	}
	deny := func(all ...[]dns.RR) {
		if do {
			r.Ns = append(r.Ns, z.signAll(slices.Concat(all...))...)
		}
	}
	negative := func(proof func(string) []dns.RR) {
		if r.Ns = append(r.Ns, soa(z.name)); do {
			r.Ns = z.signAll(append(r.Ns, proof(q.name)...))
		}
	}
	for name := parent(q.name); dns.IsSubDomain(z.name, name) && name != z.name; name = parent(name) {
		if set := z.set(name, dns.TypeDNAME); set != nil {
			add(set)
			target := strings.TrimSuffix(q.name, name) + set[0].(*dns.DNAME).Target
			r.Answer = append(r.Answer, &dns.CNAME{Hdr: dns.RR_Header{Name: q.name, Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: 300}, Target: target})
			return
		}
	}
	owner, wild := q.name, false
	if !z.has(owner) {
		above := parent(owner)
		for !z.has(above) {
			above = parent(above)
		}
		if owner, wild = "*."+strings.TrimPrefix(above, "."), true; !z.has(owner) {
			r.Rcode = dns.RcodeNameError
			negative(z.chain.ProveNoName)
			return
		}
	}
	set := z.set(owner, q.qtype)
	if set == nil {
		set = z.set(owner, dns.TypeCNAME)
	}
	switch {
	case set == nil && wild:
		negative(z.chain.ProveNoWildcardData)
	case set == nil:
		negative(z.chain.ProveNoData)
	case wild:
		add(set)
		for i, rr := range r.Answer {
			r.Answer[i] = dns.Copy(rr)
			r.Answer[i].Header().Name = q.name
		}
		deny(z.chain.ProveNoCloserName(q.name))
	default:
		add(set)
	}
}

// has reports whether there is something at a name or below it.
func (z *signedZone) has(name string) bool {
	return name == z.name || z.below[name] != nil || z.exists(name)
}

// set returns the records of a name and type.
func (z *signedZone) set(name string, t uint16) (set []dns.RR) {
	if name == z.name && t == dns.TypeDNSKEY {
		return z.keys
	}
	if child := z.below[name]; child != nil && t == dns.TypeDS {
		return child.ds()
	}
	for _, rr := range z.records[name] {
		if rr.Header().Rrtype == t {
			set = append(set, rr)
		}
	}
	return set
}

// signAll returns records with the signatures of their sets.
func (z *signedZone) signAll(all []dns.RR) (out []dns.RR) {
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].Header().Rrtype == all[0].Header().Rrtype && all[n].Header().Name == all[0].Header().Name {
			n++
		}
		out = append(out, z.sign(all[:n])...)
		all = all[n:]
	}
	return out
}

// sign returns a set with its signature.
func (z *signedZone) sign(set []dns.RR) []dns.RR {
	h := set[0].Header()
	of := fmt.Sprint(h.Name, h.Rrtype)
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.sigs[of] == nil {
		key, form := z.zsk, z.form
		if h.Rrtype == dns.TypeDNSKEY {
			key, form = z.ksk, z.keyForm
		}
		z.sigs[of] = key.Sign(set, form)
	}
	return append(slices.Clone(set), dns.Copy(z.sigs[of]))
}
