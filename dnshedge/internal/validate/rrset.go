package validate

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/miekg/dns"
)

// MaxSignedRRsets is the maximum number of signed RRsets in a response that is validated. Responses to ANY and with
// long chains of aliases have the most.
const MaxSignedRRsets = 24

// An RRset holds the records with the same name, class and type, and the signatures that cover them. NewRRset and
// GroupRRsets create an RRset. The RRset and its records must not be changed afterwards. It is safe for concurrent use.
//
// Signatures cover the received bytes. A record that package dns cannot parse, or would not write as it was read, must
// therefore be a *dns.RFC3597, as wire.ParseMsg returns it.
type RRset struct {
	Name        string // owner name as received
	Type, Class uint16
	TTL         uint32 // minimum TTL of the records, in seconds
	Records     []dns.RR
	Sigs        []*dns.RRSIG // RRSIG records that cover Records

	once      sync.Once // sets canonical
	canonical canonicalRRset
}

// A canonicalRRset is the canonical form of an RRset (RFC 4034 §6), which signatures cover.
type canonicalRRset struct {
	owner name
	rdata [][]byte // data of the records, sorted, without duplicates
	sigs  []signature
	ok    bool // false if the RRset has no canonical form, so that all signatures are invalid
}

// NewRRset returns an RRset of the records, with the signatures sigs, which must cover them. There must be at least one
// record, and all must have the same name, class and type.
func NewRRset(records []dns.RR, sigs ...*dns.RRSIG) *RRset {
	h := records[0].Header()
	s := &RRset{Name: h.Name, Type: h.Rrtype, Class: h.Class, TTL: maxTTL, Records: records, Sigs: sigs}
	for _, rr := range records {
		s.TTL = min(s.TTL, ValidTTL(rr.Header().Ttl))
	}
	return s
}

// GroupRRsets groups the records of each section into RRsets. The result has one slice for each section, in the order
// of the records. OPT records are dropped, and so are signatures without the records that they cover.
//
// The error is a *Reason if the sections have more than MaxSignedRRsets signed RRsets.
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
			owner, ok := last.parseCached(h.Name)
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
			owner, _ := last.parseCached(sig.Hdr.Name)
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
		return nil, &Reason{EDE: dns.ExtendedErrorCodeDNSBogus, Text: "a response has too many RRsets"}
	}
	return all, nil
}

// A nameParser parses domain names. It caches the last result, because most records of a message have the same owner
// name as the record before.
type nameParser struct {
	text string // last argument of parseCached
	name name   // result for text
	ok   bool
}

// parseCached returns the result of parseName for s, from the cache if s is equal to the argument of the last call.
func (p *nameParser) parseCached(s string) (name, bool) {
	if s != p.text {
		p.text = s
		p.name, p.ok = parseName(s)
	}
	return p.name, p.ok
}

// SignerNames returns the signer names in the signatures of the RRset, without duplicates. It omits impossible signers:
// the RRset must be in the signer's zone, and the signer of DS records must be a parent zone.
//
// The signatures are not verified. If a signer is below the zone whose server was asked, a zone cut exists for which no
// referral was received.
func (s *RRset) SignerNames() []string {
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

// canonicalForm returns the canonical form of the RRset. The first call computes it.
func (s *RRset) canonicalForm() *canonicalRRset {
	s.once.Do(func() { s.canonical.setRRset(s) })
	return &s.canonical
}

// setRRset sets c to the canonical form of s. It does not change the records, which other goroutines may read.
func (c *canonicalRRset) setRRset(s *RRset) {
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

const headerLen = 12 // length of a DNS message header, in bytes

// A wireRecord is a parsed record of an uncompressed DNS message. Its slices are parts of the message.
type wireRecord struct {
	owner      []byte // owner name in lower case
	typ, class uint16
	ttl        uint32 // seconds
	data       []byte
}

// parseRecord parses the record at the offset off of the message b, and converts its owner name to lower case in place.
// end is the offset after the record. ok is false if the record is malformed.
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

const maxTTL = 1<<31 - 1 // maximum TTL in seconds (RFC 2181 §8)

// ValidTTL returns ttl, in seconds. If ttl is above the maximum of 2^31 - 1, it returns 0 (RFC 2181 §8).
func ValidTTL(ttl uint32) uint32 {
	if ttl > maxTTL {
		return 0
	}
	return ttl
}
