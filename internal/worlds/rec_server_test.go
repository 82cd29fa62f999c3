package worlds_test

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/internal/dnstest"
)

// A recReceivedQuery is a query that a server has received.
type recReceivedQuery struct {
	at     time.Duration
	server int
	net    string
	name   string
	typ    uint16
	do     bool
	fault  string // that strikes
}

// respond is the handler of a server.
func (p *recPlay) respond(s *recServer, q dnstest.Query) dnstest.Reply {
	now := p.since()
	ask := q.Question[0]
	seen := recReceivedQuery{at: now, server: s.number, net: q.Net, name: strings.ToLower(ask.Name), typ: ask.Qtype, do: q.IsEdns0() != nil && q.IsEdns0().Do()}
	if f := s.fault; f != nil && f.isActiveDuring(now, now) && (f.on == "" || f.on == dns.TypeToString[ask.Qtype]) {
		seen.fault = f.kind
	}
	p.mu.Lock()
	n := 0
	for _, o := range p.seen {
		if o.server == s.number && o.name == seen.name && o.typ == seen.typ {
			n++
		}
	}
	p.seen = append(p.seen, seen)
	p.mu.Unlock()
	if q.RecursionDesired || q.AuthenticatedData || len(q.Question) != 1 || ask.Qclass != dns.ClassINET {
		p.note("5 query", "server %d is asked %v", s.number, q.Msg)
	}
	r := dnstest.Reply{Msg: p.newResponse(s, q, seen)}
	seen.applyFault(&r, q, n)
	if r.Msg == nil {
		return r
	}
	r.Msg.Compress = true
	size := dns.MinMsgSize
	if opt := q.IsEdns0(); opt != nil {
		size = int(opt.UDPSize())
	}
	if q.Net == "udp" && r.Msg.Len() > size {
		r.Msg = newTruncatedReply(q)
	}
	return r
}

// newTruncatedReply returns a truncated response.
func newTruncatedReply(q dnstest.Query) *dns.Msg {
	m := dnstest.Answer(q)
	m.Truncated, m.Authoritative, m.RecursionAvailable = true, true, false
	return m
}

// applyFault applies a fault that does not depend on zones to a reply. n is the number of earlier queries for the question.
func (o *recReceivedQuery) applyFault(r *dnstest.Reply, q dnstest.Query, n int) {
	rcode := func(code int) { r.Msg = dnstest.Rcode(q, code); r.Msg.RecursionAvailable = false }
	switch o.fault {
	case "silent":
		*r = dnstest.Reply{}
	case "drops1":
		if n == 0 && q.Net == "udp" {
			*r = dnstest.Reply{}
		}
	case "late1s":
		r.Delay = time.Second + 110*time.Microsecond
	case "late3s":
		r.Delay = 3*time.Second + 110*time.Microsecond
	case "cut", "cutDead":
		if q.Net == "udp" {
			r.Msg = newTruncatedReply(q)
		} else if o.fault == "cutDead" {
			*r = dnstest.Reply{Close: true}
		}
	case "wrongID":
		r.Msg.Id++
	case "refused":
		rcode(dns.RcodeRefused)
	case "servfail":
		rcode(dns.RcodeServerFailure)
	case "noEDNS":
		if q.IsEdns0() != nil {
			rcode(dns.RcodeFormatError)
			r.Msg.Extra = nil
		}
	case "lame":
		rcode(dns.RcodeSuccess)
		ns, _ := dns.NewRR(". 3600 NS ns0.")
		r.Msg.Ns = []dns.RR{ns}
	case "raises", "raisesSets", "addsTag", "addsAlgorithm", "addsForged", "addsEnded", "addsStranger":
		for _, rr := range slices.Concat(r.Msg.Answer, r.Msg.Ns, r.Msg.Extra) {
			if h := rr.Header(); h.Rrtype != dns.TypeOPT && (o.fault != "raisesSets" || h.Rrtype != dns.TypeRRSIG) {
				h.Ttl = raisedTTL
			}
		}
	case "forges", "forgesBare":
		for _, rr := range r.Msg.Answer {
			changeRecord(rr, 99)
		}
		if o.fault == "forgesBare" {
			r.Msg.Answer, r.Msg.Ns = withoutSigs(r.Msg.Answer), withoutSigs(r.Msg.Ns)
		}
	case "nx", "nodata":
		code := map[string]int{"nx": dns.RcodeNameError, "nodata": dns.RcodeSuccess}[o.fault]
		soa := dnstest.Negative(q, code, 300, 300).Ns[0]
		soa.Header().Name = parentName(o.name)
		rcode(code)
		r.Msg.Authoritative, r.Msg.Ns = true, []dns.RR{soa}
	}
}

func withoutSigs(rrs []dns.RR) []dns.RR {
	return slices.DeleteFunc(slices.Clone(rrs), func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeRRSIG })
}

// newResponse returns the response of a server by its zones.
func (p *recPlay) newResponse(s *recServer, q dnstest.Query, o recReceivedQuery) *dns.Msg {
	m := dnstest.Answer(q)
	m.RecursionAvailable = false
	var z *recZone
	for _, c := range p.w.zones {
		if slices.Contains(c.servers, s) && c.contains(o.name) && (z == nil || o.typ != dns.TypeDS || c.name != o.name) {
			z = c // a zone below may follow
		}
	}
	if z == nil {
		m.Rcode = dns.RcodeRefused
		return m
	}
	t := recResponse{p: p, m: m, z: z, fault: o.fault, do: o.do && o.fault != "strips"}
	if i := slices.IndexFunc(z.children, func(c *recZone) bool { return c.contains(o.name) && (o.typ != dns.TypeDS || c.name != o.name) }); i >= 0 {
		t.addReferral(z.children[i])
		return m
	}
	t.addAnswer(o.name, o.typ)
	for _, rr := range m.Answer { // as a server does that keeps the letters of the question
		if strings.EqualFold(rr.Header().Name, q.Question[0].Name) {
			rr.Header().Name = q.Question[0].Name
		}
	}
	return m
}

// A recResponse is a response under construction.
type recResponse struct {
	p     *recPlay
	m     *dns.Msg
	z     *recZone
	fault string
	do    bool
}

// withSignatures returns records with signatures if the query has the DO bit.
func (t *recResponse) withSignatures(rrs []dns.RR, owner string) []dns.RR {
	var copies []dns.RR
	for _, rr := range rrs {
		copies = append(copies, dns.Copy(rr))
	}
	if !t.do {
		return copies
	}
	return t.p.data.signRecords(t.z, t.fault, copies, owner)
}

// denialOf returns the proof that a name or its type does not exist.
func (t *recResponse) denialOf(name string, f recLookupResult) []dns.RR {
	if !t.do || t.z.flaw == "bare" {
		return nil
	}
	denial := t.p.data.denialOf(t.z, name, f)
	if t.fault != "silent" && t.z.signatureForm(dns.TypeNSEC, t.fault) == "" {
		t.p.recordDenial(t.z, denial)
	}
	return t.withSignatures(denial, "")
}

// A recDenialRecord identifies an NSEC or NSEC3 record by its zone and owner name.
type recDenialRecord struct {
	zone  *recZone
	owner string
}

// recordDenial records that a server or an upstream sends the records of a denial, with valid signatures.
func (p *recPlay) recordDenial(z *recZone, denial []dns.RR) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, rr := range denial {
		k := recDenialRecord{z, rr.Header().Name}
		if _, ok := p.denials[k]; !ok {
			p.denials[k] = p.since()
		}
	}
}

// hasSentDSDenial reports whether all records of the proof that a zone has no DS records were sent by a time. Servers
// send them with other denials, too.
func (p *recPlay) hasSentDSDenial(z *recZone, by time.Duration) bool {
	denial := p.data.denialOf(z.parent, z.name, recLookupResult{})
	return len(denial) > 0 && !slices.ContainsFunc(denial, func(rr dns.RR) bool {
		at, ok := p.denials[recDenialRecord{z.parent, rr.Header().Name}]
		return !ok || at > by
	})
}

// addReferral adds the referral to a zone below.
func (t *recResponse) addReferral(c *recZone) {
	sets := t.p.data.sets[t.z][c.name]
	for _, rr := range sets[dns.TypeNS] {
		t.m.Ns = append(t.m.Ns, dns.Copy(rr))
	}
	switch ds := sets[dns.TypeDS]; {
	case !t.do:
	case len(ds) > 0:
		t.m.Ns = append(t.m.Ns, t.withSignatures(ds, "")...)
	case c.flaw != "noDSProof":
		t.m.Ns = append(t.m.Ns, t.denialOf(c.name, recLookupResult{})...)
	}
	t.addGlue(c)
}

// addGlue adds the addresses of a zone's servers that the answering zone may have.
func (t *recResponse) addGlue(c *recZone) {
	for i, name := range t.p.w.nsNames(c) {
		if !t.p.w.hasForeignServers(c) && (c.ns != "parent" || dns.IsSubDomain(t.z.name, name)) {
			t.m.Extra = append(t.m.Extra, &dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 3600}, A: t.p.addressOf(c.servers[i]).AsSlice()})
		}
	}
}

// addRecords adds the records of a name in the zone, with proofs.
func (t *recResponse) addRecords(name string, typ uint16) recLookupResult {
	d := t.p.data
	f := d.findName(t.z, name, typ)
	switch {
	case t.fault == "oldKeys" && typ == dns.TypeDNSKEY && d.keys[t.z] != nil:
		f.rrs = []dns.RR{d.keys[t.z].nobody.DNSKEY}
	case t.fault == "strips" && (typ == dns.TypeDNSKEY || typ == dns.TypeDS):
		f.rrs = nil
	}
	t.m.Answer = append(t.m.Answer, t.withSignatures(f.rrs, f.owner)...)
	if f.none {
		t.m.Rcode = dns.RcodeNameError
	}
	missing := slices.ContainsFunc(t.z.children, func(c *recZone) bool { return c.name == name && c.flaw == "noDSProof" })
	switch {
	case len(f.rrs) == 0:
		t.m.Ns = append(t.m.Ns, t.withSignatures(d.sets[t.z][t.z.name][dns.TypeSOA], "")...)
		if !missing {
			t.m.Ns = append(t.m.Ns, t.denialOf(name, f)...)
		}
	case f.wild:
		t.m.Ns = append(t.m.Ns, t.denialOf(name, f)...)
	}
	return f
}

// addAnswer adds the answer of the zone about a name.
func (t *recResponse) addAnswer(name string, typ uint16) {
	d := t.p.data
	t.m.Authoritative = true
	f := t.addRecords(name, typ)
	if typ == dns.TypeNS && name == t.z.name {
		t.addGlue(t.z)
	}
	if next := d.findName(t.z, f.next, typ); f.next != "" && t.z.contains(f.next) && f.next != name && next.next == "" && len(next.rrs) > 0 {
		if !slices.ContainsFunc(t.z.children, func(c *recZone) bool { return c.contains(f.next) }) {
			t.m.Answer = append(t.m.Answer, t.withSignatures(next.rrs, next.owner)...)
		}
	}
}

// addressOf returns the address of a server.
func (p *recPlay) addressOf(s *recServer) netip.Addr { return p.net.Host(serverName(s.number)).Addr() }
