package validate

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/miekg/dns"
)

// MaxSignedRRsets is the maximum number of signed RRsets in a response. ANY and long alias chains have most.
const MaxSignedRRsets = 24

// An RRset has the records of one name, class and type, and their signatures. NewRRset and GroupRRsets make it; afterwards
// neither it nor its records change. It is safe for concurrent use.
//
// Data that package dns cannot read, or would not write as it was read, must be a *dns.RFC3597 of its type, because its
// bytes were signed. wire.ParseMsg makes it so.
type RRset struct {
	Name        string // as received
	Type, Class uint16
	TTL         uint32 // seconds, the lowest of the records
	Records     []dns.RR
	Sigs        []*dns.RRSIG

	once      sync.Once
	canonical canonical
}

// canonical is the canonical form of an RRset (RFC 4034 §6).
type canonical struct {
	owner name
	rdata [][]byte // sorted and distinct
	sigs  []signature
	ok    bool // false: there is no canonical form, and no signature can match
}

// NewRRset returns an RRset of at least one record and the signatures that cover it.
func NewRRset(records []dns.RR, sigs ...*dns.RRSIG) *RRset {
	h := records[0].Header()
	s := &RRset{Name: h.Name, Type: h.Rrtype, Class: h.Class, TTL: maxTTL, Records: records, Sigs: sigs}
	for _, rr := range records {
		s.TTL = min(s.TTL, ValidTTL(rr.Header().Ttl))
	}
	return s
}

// GroupRRsets groups the records of each section into RRsets, in the order of the response. Signatures without records,
// and OPT, are left out. The error means that the response has more than MaxSignedRRsets signed RRsets.
func GroupRRsets(sections ...[]dns.RR) ([][]*RRset, error) {
	type key struct {
		owner      name
		typ, class uint16
	}
	all := make([][]*RRset, len(sections))
	signed := 0
	for i, rrs := range sections {
		sets := make(map[key]*RRset, len(rrs))
		var last nameParser
		for _, rr := range rrs {
			h := rr.Header()
			owner, ok := last.parseRepeated(h.Name)
			if _, sig := rr.(*dns.RRSIG); sig || !ok || h.Rrtype == dns.TypeOPT || h.Rrtype == dns.TypeRRSIG {
				continue
			}
			k := key{owner, h.Rrtype, h.Class}
			if s := sets[k]; s != nil {
				s.Records = append(s.Records, rr)
				s.TTL = min(s.TTL, ValidTTL(h.Ttl))
				continue
			}
			sets[k] = NewRRset([]dns.RR{rr})
			all[i] = append(all[i], sets[k])
		}
		for _, rr := range rrs {
			sig, ok := rr.(*dns.RRSIG)
			if !ok {
				continue
			}
			owner, _ := last.parseRepeated(sig.Hdr.Name)
			s := sets[key{owner, sig.TypeCovered, sig.Hdr.Class}]
			if s == nil {
				continue
			}
			if len(s.Sigs) == 0 {
				signed++
			}
			s.Sigs = append(s.Sigs, sig)
		}
	}
	if signed > MaxSignedRRsets {
		return nil, &Reason{EDE: dns.ExtendedErrorCodeDNSBogus, Text: "a response has too many RRsets", Limit: "RRsets"}
	}
	return all, nil
}

// nameParser parses names and remembers the last one, because most records repeat the name before.
type nameParser struct {
	text string
	name name
	ok   bool
}

func (l *nameParser) parseRepeated(s string) (name, bool) {
	if s != l.text {
		l.text = s
		l.name, l.ok = parseName(s)
	}
	return l.name, l.ok
}

// SignerZones returns the distinct signer names of the signatures that the RRset's name is in. They are not verified. A
// signer below the zone that was asked is a zone cut without a referral. No zone signs its own DS.
func (s *RRset) SignerZones() []string {
	if len(s.Sigs) == 0 { // unsigned data needs no canonical form
		return nil
	}
	c := s.canonicalForm()
	var zones []string
	for i := range c.sigs {
		if g := &c.sigs[i]; c.owner.isWithin(g.signer) && (s.Type != dns.TypeDS || c.owner != g.signer) {
			if z := g.signer.String(); !slices.Contains(zones, z) {
				zones = append(zones, z)
			}
		}
	}
	return zones
}

// canonicalForm returns the canonical form, which the first call makes.
func (s *RRset) canonicalForm() *canonical {
	s.once.Do(func() { s.canonical.canonicalize(s) })
	return &s.canonical
}

// canonicalize sets the canonical form of s. It packs all records as one message, because dns.PackRR writes to the record.
func (c *canonical) canonicalize(s *RRset) {
	var ok bool
	if c.owner, ok = parseName(s.Name); !ok {
		return
	}
	m := dns.Msg{Answer: s.Records, Ns: make([]dns.RR, len(s.Sigs))}
	for i, sig := range s.Sigs {
		m.Ns[i] = sig
	}
	b, err := m.Pack()
	if err != nil {
		return
	}
	c.rdata = make([][]byte, 0, len(s.Records))
	c.sigs = make([]signature, 0, len(s.Sigs))
	for off, i := headerLen, 0; off < len(b); i++ {
		r, end, ok := parseRecord(b, off)
		if !ok || !lowercaseRdataNames(r.typ, r.data) {
			return
		}
		off = end
		fits := string(r.owner) == string(c.owner) && r.class == s.Class
		switch {
		case i >= len(s.Records):
			if fits {
				g := parseSignature(r.data, r.ttl)
				g.index = i - len(s.Records)
				c.sigs = append(c.sigs, g)
			}
		case !fits || r.typ != s.Type:
			return
		default:
			c.rdata = append(c.rdata, r.data)
		}
	}
	slices.SortFunc(c.rdata, bytes.Compare)
	c.rdata = slices.CompactFunc(c.rdata, bytes.Equal)
	c.ok = len(c.rdata) > 0
}

const headerLen = 12 // headerLen is the length of a message header in bytes.

// A wireRecord is a record of an uncompressed message.
type wireRecord struct {
	owner      []byte // in lower case
	typ, class uint16
	ttl        uint32
	data       []byte
}

func parseRecord(b []byte, off int) (r wireRecord, end int, ok bool) {
	n, ok := scanName(b[off:])
	if !ok || off+n+10 > len(b) {
		return r, 0, false
	}
	lowercase(b[off : off+n])
	r.owner = b[off : off+n]
	off += n
	r.typ, r.class = binary.BigEndian.Uint16(b[off:]), binary.BigEndian.Uint16(b[off+2:])
	r.ttl = binary.BigEndian.Uint32(b[off+4:])
	end = off + 10 + int(binary.BigEndian.Uint16(b[off+8:]))
	if end > len(b) {
		return r, 0, false
	}
	r.data = b[off+10 : end : end]
	return r, end, true
}
