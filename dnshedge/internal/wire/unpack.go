package wire

import (
	"encoding/binary"

	"github.com/miekg/dns"
)

// ParseMsg parses a message. A record whose data package dns cannot parse or would change becomes a record of unknown
// type (RFC 3597). Invalid addresses, and invalid records whose data may hold compressed names, are dropped. The error
// is a *MalformedError. It does not keep b.
func ParseMsg(b []byte) (*dns.Msg, error) {
	m, err := readMessage(b, true)
	if err != nil {
		return nil, &MalformedError{err}
	}
	return m, nil
}

// unpackMessage is ParseMsg, except that it returns an error for the records that ParseMsg drops.
func unpackMessage(b []byte) (*dns.Msg, error) { return readMessage(b, false) }

// readMessage parses a message. If drop is set, it is ParseMsg, else unpackMessage.
func readMessage(b []byte, drop bool) (*dns.Msg, error) {
	odd, bad, err := checkRecordData(b)
	if err != nil {
		return nil, err
	}
	if len(bad) > 0 && !drop {
		return nil, errRecord
	}
	m := new(dns.Msg)
	seen := newOwners(b)
	if len(bad) == 0 && !odd && seen == nil && m.Unpack(b) == nil {
		return m, nil
	}
	var head [HeaderLen]byte
	copy(head[:4], b)
	*m = dns.Msg{}
	if err := m.Unpack(head[:]); err != nil {
		return nil, err
	}
	first, _, err := dns.UnpackDomainName(b, HeaderLen) // for the records that refer to it
	if err != nil {
		return nil, err
	}
	var off int
	if m.Question, off, err = readQuestions(b); err != nil {
		return nil, err
	}
	n := -1 // of all records
	for i, section := range [...]*[]dns.RR{&m.Answer, &m.Ns, &m.Extra} {
		for range binary.BigEndian.Uint16(b[6+2*i:]) {
			if _, ok := seen.ownerAt(b, off); !ok {
				if _, _, err := dns.UnpackDomainName(b, off); err != nil {
					return nil, err
				}
			}
			var rr dns.RR
			rr, off = unpackRecord(b, off, first, seen)
			if n++; len(bad) > 0 && bad[0] == n {
				bad = bad[1:]
				continue
			}
			h := rr.Header()
			if h.Rdlength == 0 && isKnownType(h.Rrtype) {
				rr = &dns.RFC3597{Hdr: *h}
			}
			if _, opaque := rr.(*dns.RFC3597); opaque {
				if _, ok := layouts[h.Rrtype]; ok && (h.Class == dns.ClassINET || h.Rrtype == dns.TypeOPT) {
					if drop && h.Rrtype != dns.TypeOPT {
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

// readQuestions returns the questions of a message and the offset after them.
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

// An ownerNames caches owner names in presentation format by compression pointer, so that the long owner of many
// records is read only once. A nil ownerNames caches nothing.
type ownerNames map[uint16]string

// newOwners returns a cache for the owner names of a message, or nil if the message is too short to gain by one.
func newOwners(b []byte) ownerNames {
	if len(b) <= 4096 {
		return nil
	}
	return make(ownerNames)
}

// ownerAt returns the cached name at off. ok is false if there is no pointer at off or it is not cached.
func (o ownerNames) ownerAt(b []byte, off int) (name string, ok bool) {
	if o == nil || b[off] < 0xc0 {
		return "", false
	}
	name, ok = o[binary.BigEndian.Uint16(b[off:])]
	return name, ok
}

// addOwner caches the name at off if there is a pointer at off.
func (o ownerNames) addOwner(b []byte, off int, name string) {
	if o != nil && b[off] >= 0xc0 {
		o[binary.BigEndian.Uint16(b[off:])] = name
	}
}

// checkRecordData returns the indexes of the records whose data does not match their layout. odd reports whether a
// record lacks required data, or has data that package dns would change. The error means that the message is malformed.
//
// Data may be missing in an UPDATE (RFC 2136 §2.4).
func checkRecordData(b []byte) (odd bool, bad []int, err error) {
	query := len(b) > 2 && b[2]>>3&15 == dns.OpcodeQuery
	n := -1
	err = walkRecords(b, func(r messageRecord) {
		n++
		odd = odd || isDataChanged(b, r)
		if !query {
			return
		}
		l, ok := layouts[r.typ]
		switch {
		case ok && r.class == dns.ClassINET:
			if !l.matchesRecord(b, r) {
				bad = append(bad, n)
			}
		case len(r.data) == 0 && isKnownType(r.typ):
			odd = true
		}
	})
	return odd, bad, err
}
