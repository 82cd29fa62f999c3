package wire

import (
	"encoding/binary"

	"github.com/miekg/dns"
)

// ParseMsg parses the message b. A malformed OPT record is an error. Other malformed IN records with a type in
// dataLayouts, such as MX, are dropped. Records that package dns cannot represent become a dns.RFC3597. The error is a
// *MalformedError. b is not retained.
func ParseMsg(b []byte) (*dns.Msg, error) {
	m, err := readMessage(b, true)
	if err != nil {
		return nil, &MalformedError{err}
	}
	return m, nil
}

// unpackMessage parses the message b. A malformed record of the class IN is an error if its type is in dataLayouts, for
// example an address or a CNAME record. Any other record whose data package dns cannot parse, or would change, becomes
// a dns.RFC3597.
func unpackMessage(b []byte) (*dns.Msg, error) { return readMessage(b, false) }

// readMessage parses the message b. Malformed records of the class IN with a type in dataLayouts are dropped if
// dropMalformed is true, and otherwise an error. A malformed OPT record is always an error. Other records that package
// dns cannot represent become a dns.RFC3597.
func readMessage(b []byte, dropMalformed bool) (*dns.Msg, error) {
	isChanged, malformed, err := checkRecordData(b)
	if err != nil {
		return nil, err
	}
	if len(malformed) > 0 && !dropMalformed {
		return nil, errRecord
	}
	m := new(dns.Msg)
	seen := newOwnerNameCache(b)
	if len(malformed) == 0 && !isChanged && seen == nil && m.Unpack(b) == nil {
		return m, nil
	}
	var head [HeaderLen]byte
	copy(head[:4], b)
	*m = dns.Msg{}
	if err := m.Unpack(head[:]); err != nil {
		return nil, err
	}
	first, _, err := dns.UnpackDomainName(b, HeaderLen) // owner of most records, by a compression pointer
	if err != nil {
		return nil, err
	}
	var off int
	if m.Question, off, err = readQuestions(b); err != nil {
		return nil, err
	}
	n := -1 // index of the record in the message
	for i, section := range [...]*[]dns.RR{&m.Answer, &m.Ns, &m.Extra} {
		for range binary.BigEndian.Uint16(b[6+2*i:]) {
			if _, ok := seen.lookUpOwner(b, off); !ok {
				if _, _, err := dns.UnpackDomainName(b, off); err != nil {
					return nil, err
				}
			}
			var rr dns.RR
			rr, off = unpackRecord(b, off, first, seen)
			if n++; len(malformed) > 0 && malformed[0] == n {
				malformed = malformed[1:]
				continue
			}
			h := rr.Header()
			if h.Rdlength == 0 && requiresData(h.Rrtype) {
				rr = &dns.RFC3597{Hdr: *h}
			}
			if _, opaque := rr.(*dns.RFC3597); opaque {
				if _, ok := dataLayouts[h.Rrtype]; ok && (h.Class == dns.ClassINET || h.Rrtype == dns.TypeOPT) {
					if dropMalformed && h.Rrtype != dns.TypeOPT {
						continue
					}
					return nil, errRecord
				}
			}
			*section = append(*section, rr)
		}
	}
	if opt := m.IsEdns0(); opt != nil {
		m.Rcode |= opt.ExtendedRcode()
	}
	return m, nil
}

// readQuestions returns the questions of the message b, and the offset after them. It returns an error if they are
// malformed.
func readQuestions(b []byte) (all []dns.Question, end int, err error) {
	off := HeaderLen
	for range binary.BigEndian.Uint16(b[4:]) {
		name, end, err := dns.UnpackDomainName(b, off)
		if err != nil {
			return nil, 0, err
		}
		if end+4 > len(b) {
			return nil, 0, errRecord
		}
		all = append(all, dns.Question{Name: name, Qtype: binary.BigEndian.Uint16(b[end:]), Qclass: binary.BigEndian.Uint16(b[end+2:])})
		off = end + 4
	}
	return all, off, nil
}

// An ownerNameCache caches the owner names of one message in presentation format, so that a long name is converted only
// once. The key is the compression pointer by which records refer to the name. A nil ownerNameCache caches nothing and
// may be used.
type ownerNameCache map[uint16]string

// newOwnerNameCache returns an empty cache for the owner names of the message b. It returns nil, which caches nothing,
// if b is so short that a cache would not save time.
func newOwnerNameCache(b []byte) ownerNameCache {
	if len(b) <= 4096 {
		return nil
	}
	return make(ownerNameCache)
}

// lookUpOwner returns the cached name for the compression pointer at the offset off of b. ok is false if there is no
// pointer at off, or its name is not cached.
func (o ownerNameCache) lookUpOwner(b []byte, off int) (name string, ok bool) {
	if o == nil || b[off] < 0xc0 {
		return "", false
	}
	name, ok = o[binary.BigEndian.Uint16(b[off:])]
	return name, ok
}

// addOwner stores name, the name at the offset off of b, in the cache. It does nothing if there is no compression
// pointer at off.
func (o ownerNameCache) addOwner(b []byte, off int, name string) {
	if o != nil && b[off] >= 0xc0 {
		o[binary.BigEndian.Uint16(b[off:])] = name
	}
}

// checkRecordData finds the records of b that package dns cannot represent. isChanged is true if package dns would
// change data, or data is missing. malformed has the indexes of malformed IN records with a type in dataLayouts. An
// error means that b is malformed.
func checkRecordData(b []byte) (isChanged bool, malformed []int, err error) {
	query := len(b) > 2 && b[2]>>3&15 == dns.OpcodeQuery
	n := -1
	err = walkRecords(b, func(r messageRecord) {
		n++
		isChanged = isChanged || isLossy(b, r)
		if !query { // an UPDATE has records without data (RFC 2136 §2.4)
			return
		}
		l, ok := dataLayouts[r.typ]
		switch {
		case ok && r.class == dns.ClassINET:
			if !l.matchesRecord(b, r) {
				malformed = append(malformed, n)
			}
		case len(r.data) == 0 && requiresData(r.typ):
			isChanged = true
		}
	})
	return isChanged, malformed, err
}
