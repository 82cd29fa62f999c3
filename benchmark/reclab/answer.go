package reclab

import (
	"slices"
	"strings"

	"github.com/miekg/dns"
)

const ednsSize = 1232 // that servers offer, and send at most

// answer returns what a server answers over UDP, cut if it does not fit, or over TCP. Nil: nothing.
func (w *world) answer(s *server, query []byte, tcp bool) []byte {
	q := new(dns.Msg)
	if s == nil || s.fault == dead || q.Unpack(query) != nil || q.Response {
		return nil
	}
	m := w.respond(s, q)
	size := dns.MinMsgSize
	if o := q.IsEdns0(); o != nil && m.IsEdns0() != nil {
		size = min(max(int(o.UDPSize()), size), ednsSize)
	}
	if !tcp {
		m.Truncate(size)
	}
	b, err := m.Pack()
	if err != nil {
		return nil
	}
	return b
}

func (w *world) respond(s *server, q *dns.Msg) *dns.Msg {
	m := new(dns.Msg)
	m.SetReply(q)
	m.Compress = true
	edns := q.IsEdns0()
	if len(q.Question) != 1 || edns != nil && s.fault == noEDNS {
		m.Rcode = dns.RcodeFormatError
		return m
	}
	if edns != nil {
		m.SetEdns0(ednsSize, edns.Do())
	}
	asked := q.Question[0]
	name := strings.ToLower(asked.Name)
	z := w.served(s, name, asked.Qtype)
	switch {
	case s.fault == failing:
		m.Rcode = dns.RcodeServerFailure
		return m
	case z == nil || z.refusing == s || asked.Qclass != dns.ClassINET:
		m.Rcode = dns.RcodeRefused
		return m
	}
	for cut := name; cut != z.name; cut = up(cut) {
		if child := z.children[cut]; child != nil && (cut != name || asked.Qtype != dns.TypeDS) {
			w.refer(m, z, child)
			w.prove(m, s, z, name)
			return m
		}
	}
	w.tell(m, z, name, asked)
	w.prove(m, s, z, name)
	return m
}

// tell answers a question about a name of a zone.
func (w *world) tell(m *dns.Msg, z *zone, name string, asked dns.Question) {
	m.Authoritative = true
	header := func(rrtype uint16, ttl uint32) dns.RR_Header {
		return dns.RR_Header{Name: asked.Name, Rrtype: rrtype, Class: dns.ClassINET, Ttl: ttl}
	}
	h := z.hosts[name]
	keys := w.keys(z, name, asked.Qtype)
	switch {
	case len(keys) > 0:
		m.Answer = keys
	case h != nil && h.alias != "":
		m.Answer = []dns.RR{&dns.CNAME{Hdr: header(dns.TypeCNAME, h.ttl), Target: h.alias}}
	case h != nil && asked.Qtype == dns.TypeA:
		for _, a := range h.a {
			m.Answer = append(m.Answer, &dns.A{Hdr: header(dns.TypeA, h.ttl), A: a.AsSlice()})
		}
	case h != nil && asked.Qtype == dns.TypeAAAA:
		for _, a := range h.aaaa {
			m.Answer = append(m.Answer, &dns.AAAA{Hdr: header(dns.TypeAAAA, h.ttl), AAAA: a.AsSlice()})
		}
	case name == z.name && asked.Qtype == dns.TypeNS:
		m.Answer, m.Extra = delegation(z), append(w.glue(z, z), m.Extra...)
	case name == z.name && asked.Qtype == dns.TypeSOA:
		m.Answer = []dns.RR{soa(z)}
	case h == nil && name != z.name && !z.above[name] && z.children[name] == nil:
		m.Rcode = dns.RcodeNameError
	}
	if len(m.Answer) == 0 {
		m.Ns = []dns.RR{soa(z)}
	}
}

// served returns the zone of a server that is closest to a name; a DS record's is that above. Nil: it has none.
func (w *world) served(s *server, name string, qtype uint16) *zone {
	if qtype == dns.TypeDS && name != "." {
		if z := w.served(s, up(name), 0); z != nil {
			return z
		}
	}
	for {
		if z := w.zones[name]; z != nil && slices.Contains(z.servers, s) {
			return z
		}
		if name == "." {
			return nil
		}
		name = up(name)
	}
}

func (w *world) refer(m *dns.Msg, from, to *zone) {
	m.Ns = delegation(to)
	m.Extra = append(w.glue(from, to), m.Extra...)
}

func delegation(to *zone) (all []dns.RR) {
	for _, s := range to.servers {
		all = append(all, &dns.NS{Hdr: dns.RR_Header{Name: to.name, Rrtype: dns.TypeNS, Class: dns.ClassINET, Ttl: delegationTTL}, Ns: s.name})
	}
	return all
}

// glue returns the addresses of a zone's servers that the servers of another one know: of names
// below that one, and those of com and net know each other's.
func (w *world) glue(from, to *zone) (all []dns.RR) {
	registry := from.name == "com." || from.name == "net."
	for _, s := range to.servers {
		if !dns.IsSubDomain(from.name, s.name) && !(registry && (dns.IsSubDomain("com.", s.name) || dns.IsSubDomain("net.", s.name))) {
			continue
		}
		header := dns.RR_Header{Name: s.name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: delegationTTL}
		all = append(all, &dns.A{Hdr: header, A: s.addr.AsSlice()})
	}
	return all
}

func soa(z *zone) *dns.SOA {
	return &dns.SOA{
		Hdr: dns.RR_Header{Name: z.name, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: negativeTTL},
		Ns:  z.servers[0].name, Mbox: "hostmaster." + strings.TrimPrefix(z.name, "."), Serial: 1, Refresh: 7200, Retry: 3600, Expire: 86400, Minttl: negativeTTL,
	}
}
