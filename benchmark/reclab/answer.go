package reclab

import (
	"slices"
	"strings"

	"github.com/miekg/dns"
)

const ednsSize = 1232 // bytes of the largest response over UDP

// answerQuery returns the response of server s to a query, both in wire format, or nil if the server does not respond.
// A UDP response that is too large is truncated.
func (n *internet) answerQuery(s *server, query []byte, tcp bool) []byte {
	q := new(dns.Msg)
	if s == nil || s.fault == dead || q.Unpack(query) != nil || q.Response {
		return nil
	}
	m := n.newResponse(s, q)
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

// newResponse returns the response of server s, which is not dead, to the query q.
func (n *internet) newResponse(s *server, q *dns.Msg) *dns.Msg {
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
	z := n.findServedZone(s, name, asked.Qtype)
	switch {
	case s.fault == failing:
		m.Rcode = dns.RcodeServerFailure
		return m
	case z == nil || z.refusing == s || asked.Qclass != dns.ClassINET:
		m.Rcode = dns.RcodeRefused
		return m
	}
	for cut := name; cut != z.name; cut = parentName(cut) {
		if child := z.children[cut]; child != nil && (cut != name || asked.Qtype != dns.TypeDS) {
			n.addReferral(m, z, child)
			n.addDNSSECRecords(m, s, z, name)
			return m
		}
	}
	n.addAnswer(m, z, name, asked)
	n.addDNSSECRecords(m, s, z, name)
	return m
}

// addAnswer adds the authoritative answer to the question asked, about a name of zone z, to m.
func (n *internet) addAnswer(m *dns.Msg, z *zone, name string, asked dns.Question) {
	m.Authoritative = true
	header := func(rrtype uint16, ttl uint32) dns.RR_Header {
		return dns.RR_Header{Name: asked.Name, Rrtype: rrtype, Class: dns.ClassINET, Ttl: ttl}
	}
	h := z.hosts[name]
	keys := n.generatedRecords(z, name, asked.Qtype)
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
		m.Answer, m.Extra = delegationRecords(z), append(n.glueRecords(z, z), m.Extra...)
	case name == z.name && asked.Qtype == dns.TypeSOA:
		m.Answer = []dns.RR{soaRecord(z)}
	case h == nil && name != z.name && !z.emptyNonTerminals[name] && z.children[name] == nil:
		m.Rcode = dns.RcodeNameError
	}
	if len(m.Answer) == 0 {
		m.Ns = []dns.RR{soaRecord(z)}
	}
}

// findServedZone returns the zone from which server s answers a query: the closest of its zones at or above the name. A DS
// record is in the zone above the name, if s serves that. It returns nil if s has no zone for the query.
func (n *internet) findServedZone(s *server, name string, qtype uint16) *zone {
	if qtype == dns.TypeDS && name != "." {
		if z := n.findServedZone(s, parentName(name), 0); z != nil {
			return z
		}
	}
	for {
		if z := n.zones[name]; z != nil && slices.Contains(z.servers, s) {
			return z
		}
		if name == "." {
			return nil
		}
		name = parentName(name)
	}
}

// addReferral adds a referral from one zone to a zone below it to the response m: names and addresses of the latter's servers.
func (n *internet) addReferral(m *dns.Msg, from, to *zone) {
	m.Ns = delegationRecords(to)
	m.Extra = append(n.glueRecords(from, to), m.Extra...)
}

func delegationRecords(to *zone) (all []dns.RR) {
	for _, s := range to.servers {
		all = append(all, &dns.NS{Hdr: dns.RR_Header{Name: to.name, Rrtype: dns.TypeNS, Class: dns.ClassINET, Ttl: delegationTTL}, Ns: s.name})
	}
	return all
}

// glueRecords returns the addresses of servers that a referral from zone from to zone to contains: those with names in
// from. Referrals from com and net contain the addresses of servers with names in either.
func (n *internet) glueRecords(from, to *zone) (all []dns.RR) {
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

func soaRecord(z *zone) *dns.SOA {
	return &dns.SOA{
		Hdr: dns.RR_Header{Name: z.name, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: negativeTTL},
		Ns:  z.servers[0].name, Mbox: "hostmaster." + strings.TrimPrefix(z.name, "."), Serial: 1, Refresh: 7200, Retry: 3600, Expire: 86400, Minttl: negativeTTL,
	}
}
