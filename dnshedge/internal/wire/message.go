// Package wire reads and writes DNS messages: the question of a [Query], its messages on
// the wire, the check that a message is its response, and the outcome of the response.
//
// It knows no sockets, no servers and no cache. Most of it works on bytes, because
// a hedged query is written several times and a cached answer is read often.
package wire

import (
	"encoding/binary"
	"errors"

	"github.com/miekg/dns"
)

const (
	// HeaderLen is the length of the shortest message, a header.
	HeaderLen = 12
	// MaxName is the length of the longest name in wire format.
	MaxName = 255
	// MaxMsg is the length of the longest message.
	MaxMsg = 1<<16 - 1
	// DefaultUDPSize is the length of the longest datagram that every path carries
	// without fragments (DNS flag day 2020).
	DefaultUDPSize = 1232

	flagQR = 1 << 15
	flagAA = 1 << 10
	flagTC = 1 << 9
	flagRD = 1 << 8
	flagRA = 1 << 7
	flagZ  = 1 << 6
	flagAD = 1 << 5
	flagCD = 1 << 4
)

// Why a message was not taken for the response to a query.
var (
	errShort    = errors.New("dnshedge: message shorter than a header")
	errID       = errors.New("dnshedge: message with another ID")
	errNotReply = errors.New("dnshedge: message is not a response to a query")
	errQuestion = errors.New("dnshedge: response to another question")
	errRecord   = errors.New("dnshedge: malformed record")
	errOption   = errors.New("dnshedge: malformed EDNS option")
	errSubnet   = errors.New("dnshedge: malformed client subnet, or two of them")
	errOPT      = errors.New("dnshedge: message with two OPT records, or one that is not in the additional section")
)

// ErrVersion is why a query with another version of EDNS than 0 is not read. Its
// response code is BADVERS (RFC 6891 §6.1.3).
var ErrVersion = errors.New("dnshedge: message with an unknown version of EDNS; want 0")

// ErrSigned is why a message with a signature is not read: TSIG (RFC 8945) and SIG(0) (RFC 2931) cover the ID, and each attempt has
// an ID of its own.
var ErrSigned = errors.New("dnshedge: message with a TSIG or SIG(0) record, which covers the message's ID; want none, or a dns.Client")

// errRecords is why a query is not read that has records besides its question and an OPT record: they would not be sent.
var errRecords = errors.New("dnshedge: query with records; want none but OPT")

// ErrSpelling is why a message is not taken for the response to a query with a
// spelling of its own: all else is right.
var ErrSpelling = errors.New("dnshedge: response with another spelling of the name")

// messageRecord is one resource record of a message.
type messageRecord struct {
	typ, class uint16
	name, ttl  int // offsets of the owner and the TTL
	data       []byte
	section    section
}

// section is a section of a message.
type section uint8

const (
	answer section = iota
	authority
	additional
)

// walkRecords calls f for every record of a message, in its order. Questions are skipped.
func walkRecords(b []byte, f func(messageRecord)) error {
	if len(b) < HeaderLen {
		return errShort
	}
	off := HeaderLen
	for range binary.BigEndian.Uint16(b[4:]) {
		end, err := skipName(b, off)
		if err != nil {
			return err
		}
		off = end + 4
	}
	for s := answer; s <= additional; s++ {
		for range binary.BigEndian.Uint16(b[6+2*s:]) {
			name := off
			end, err := skipName(b, name)
			if err != nil {
				return err
			}
			if end+10 > len(b) {
				return errRecord
			}
			data := end + 10
			off = data + int(binary.BigEndian.Uint16(b[end+8:]))
			if off > len(b) {
				return errRecord
			}
			f(messageRecord{name: name, typ: binary.BigEndian.Uint16(b[end:]), class: binary.BigEndian.Uint16(b[end+2:]), ttl: end + 4, data: b[data:off], section: s})
		}
	}
	return nil
}

// FindOPT reports whether a message has an OPT record, as far as its records can be read, and its DO bit.
func FindOPT(b []byte) (has, do bool) {
	_ = walkRecords(b, func(r messageRecord) {
		if r.typ == dns.TypeOPT {
			has, do = true, do || b[r.ttl+2]&0x80 != 0
		}
	})
	return has, do
}

// skipName returns the offset behind the name that begins at off.
func skipName(b []byte, off int) (int, error) {
	for off < len(b) {
		switch n := int(b[off]); {
		case n == 0:
			return off + 1, nil
		case n >= 0xc0:
			if off+2 > len(b) {
				return 0, errRecord
			}
			return off + 2, nil
		case n > 63:
			return 0, errRecord
		default:
			off += 1 + n
		}
	}
	return 0, errRecord
}

// isUncompressed reports whether a name that skipName accepted holds no compression
// pointer.
func isUncompressed(name []byte) bool {
	if name[len(name)-1] != 0 {
		return false
	}
	for off := 0; off < len(name); off += 1 + int(name[off]) {
		if name[off] >= 0xc0 {
			return false
		}
	}
	return true
}

// AppendLower appends a name in wire format in lower case. A label's length is
// below 64 and so is no letter.
func AppendLower(b []byte, name string) []byte {
	start := len(b)
	b = append(b, name...)
	for i, c := range b[start:] {
		b[start+i] = lowerByte(c)
	}
	return b
}

func lowerByte(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}

// equalFold reports whether two names in wire format are the same but for case.
func equalFold(a []byte, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i, c := range a {
		d := b[i]
		if c == d {
			continue
		}
		if c|0x20 != d|0x20 || c|0x20 < 'a' || c|0x20 > 'z' {
			return false
		}
	}
	return true
}
