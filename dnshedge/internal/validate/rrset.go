package validate

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/miekg/dns"
)

// MaxSignedRRsets is the number of RRsets with signatures that a response may have. ANY and long chains of aliases have most.
const MaxSignedRRsets = 24

// An RRset is the records of one name, class and type, with the signatures that came with them. It is made by NewRRset or Sets,
// and neither it nor its records are changed then. Its canonical form is made when it is first needed, and kept. Several goroutines may
// use it at once.
//
// Data that package dns cannot read, or would not write as it was read, must come as a *dns.RFC3597 of its type: its
// bytes are what was signed. wire.ParseMsg sees to that.
type RRset struct {
	Name        string // as it came
	Type, Class uint16
	TTL         uint32 // seconds, the lowest of the records'
	Records     []dns.RR
	Sigs        []*dns.RRSIG

	once      sync.Once
	canonical canonical
}

// canonical is the canonical form of an RRset (RFC 4034 §6).
type canonical struct {
	owner name
	rdata [][]byte // in order, each once
	sigs  []signature
	ok    bool // false: there is none, and no signature can fit
}

// NewRRset returns an RRset of records, of which there must be one at least, and of the signatures that cover them.
func NewRRset(records []dns.RR, sigs ...*dns.RRSIG) *RRset {
	h := records[0].Header()
	s := &RRset{Name: h.Name, Type: h.Rrtype, Class: h.Class, TTL: maxTTL, Records: records, Sigs: sigs}
	for _, rr := range records {
		s.TTL = min(s.TTL, ValidTTL(rr.Header().Ttl))
	}
	return s
}

// GroupRRsets groups the records of a response's sections into RRsets, in the order in which they came: one list for each section. Signatures
// without records, and OPT, are left out. The error is for a response with more than MaxSets RRsets that are signed.
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

// nameParser parses names, most of which are the same as the one before.
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

// SignerZones returns the zones that the signatures say have signed the RRset, each once, if its name is in them: what they say is
// not verified. A signer below the zone whose server was asked is a cut that no referral told of. No zone signs its own DS.
func (s *RRset) SignerZones() []string {
	if len(s.Sigs) == 0 { // nobody pays for the canonical form of what is not signed
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

// canonical returns the canonical form.
func (s *RRset) canonicalForm() *canonical {
	s.once.Do(func() { s.canonical.canonicalize(s) })
	return &s.canonical
}

// canonicalize makes the canonical form of an RRset. It packs the records as one message, because dns.PackRR writes to the record.
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

const headerLen = 12 // of a message

// A wireRecord is one of a message without pointers.
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
