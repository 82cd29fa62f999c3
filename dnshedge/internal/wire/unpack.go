package wire

import (
	"encoding/binary"

	"github.com/miekg/dns"
)

// unpack reads a message. Records whose data package dns cannot read, or has no
// place for, become records of an unknown type (RFC 3597): they are for the caller
// to judge. Types whose data may hold compressed names cannot be passed on without
// being understood, and addresses of a wrong length are no addresses; those are
// errors.
func unpack(b []byte) (*dns.Msg, error) {
	m := new(dns.Msg)
	if err := m.Unpack(b); err == nil && recordsHaveData(b) == nil {
		return m, nil
	}
	if err := walk(b, func(record) {}); err != nil {
		return nil, err
	}
	var head [HeaderLen]byte
	copy(head[:4], b)
	*m = dns.Msg{}
	if err := m.Unpack(head[:]); err != nil {
		return nil, err
	}
	off := HeaderLen
	first, _, err := dns.UnpackDomainName(b, off) // for the records that refer to it
	if err != nil {
		return nil, err
	}
	for range binary.BigEndian.Uint16(b[4:]) {
		name, end, err := dns.UnpackDomainName(b, off)
		if err != nil {
			return nil, err
		}
		if end+4 > len(b) {
			return nil, errRecord
		}
		m.Question = append(m.Question, dns.Question{Name: name, Qtype: binary.BigEndian.Uint16(b[end:]), Qclass: binary.BigEndian.Uint16(b[end+2:])})
		off = end + 4
	}
	for i, section := range [...]*[]dns.RR{&m.Answer, &m.Ns, &m.Extra} {
		for range binary.BigEndian.Uint16(b[6+2*i:]) {
			if _, _, err := dns.UnpackDomainName(b, off); err != nil {
				return nil, err
			}
			var rr dns.RR
			rr, off = unpackRecord(b, off, first)
			if t := rr.Header().Rrtype; opaque(rr) && mustParse[t] {
				return nil, errRecord
			}
			*section = append(*section, rr)
			if opt, ok := rr.(*dns.OPT); ok {
				m.Rcode |= opt.ExtendedRcode()
			}
		}
	}
	return m, nil
}

func opaque(rr dns.RR) bool {
	_, ok := rr.(*dns.RFC3597)
	return ok
}

// mustParse has the types that are not passed on unread: A, AAAA and OPT, and those
// in whose data names may be compressed (RFC 1035 §3.3, RFC 3597 §4).
var mustParse = map[uint16]bool{
	dns.TypeA: true, dns.TypeAAAA: true, dns.TypeOPT: true,
	dns.TypeNS: true, dns.TypeMD: true, dns.TypeMF: true, dns.TypeCNAME: true, dns.TypeSOA: true, dns.TypeMB: true,
	dns.TypeMG: true, dns.TypeMR: true, dns.TypePTR: true, dns.TypeMINFO: true, dns.TypeMX: true,
	dns.TypeRP: true, dns.TypeAFSDB: true, dns.TypeRT: true, dns.TypeSIG: true, dns.TypePX: true, dns.TypeNXT: true,
	dns.TypeNAPTR: true, dns.TypeSRV: true, dns.TypeDNAME: true, dns.TypeRRSIG: true,
}
