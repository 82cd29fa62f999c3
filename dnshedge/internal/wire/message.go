// Package wire reads and writes DNS messages. A [Query] is a question, from which the message to send is made. An
// [Answer] is a parsed response with its [Outcome].
//
// It does not know sockets, servers or caches. Most functions work on bytes, because a hedged query is written several
// times and a cached answer is read often.
package wire

import (
	"encoding/binary"
	"errors"

	"github.com/miekg/dns"
)

const (
	// HeaderLen is the length of a header in bytes, and thus of the shortest message.
	HeaderLen = 12
	// MaxName is the maximum length of a name in wire format.
	MaxName = 255
	// MaxMsg is the maximum length of a message.
	MaxMsg = 1<<16 - 1
	// DefaultUDPSize is the maximum size of a UDP message that every path carries without fragments (DNS flag day 2020).
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

// The reasons why a message is not accepted as the response to a query.
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

// ErrVersion is the error of a query with an EDNS version other than 0. Its response code is BADVERS (RFC 6891 §6.1.3).
var ErrVersion = errors.New("dnshedge: message with an unknown version of EDNS; want 0")

// ErrSigned is the error of a message with a TSIG (RFC 8945) or SIG(0) record (RFC 2931). Its signature covers the ID,
// and each attempt has an ID of its own.
var ErrSigned = errors.New("dnshedge: message with a TSIG or SIG(0) record, which covers the message's ID; want none, or a dns.Client")

// errRecords is the error of a query with records other than its question and an OPT record. Such records would not be
// sent.
var errRecords = errors.New("dnshedge: query with records; want none but OPT")

// ErrSpelling is the error of a response that is right except for the case of letters in its name, which the query has
// chosen at random.
var ErrSpelling = errors.New("dnshedge: response with another spelling of the name")

// A messageRecord locates one resource record in a message.
type messageRecord struct {
	typ, class uint16
	name, ttl  int // offsets of the owner and the TTL
	data       []byte
	section    section
}

// A section is the section of a message that a record is in.
type section uint8

const (
	answer section = iota
	authority
	additional
)

// walkRecords calls f for each record of a message in order, OPT records included. It skips the questions. It returns
// an error if the message is malformed; f was then called for the records before the fault.
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

// FindOPT reports whether a message has an OPT record, and its DO bit. In a malformed message it finds only records
// before the fault.
func FindOPT(b []byte) (has, do bool) {
	_ = walkRecords(b, func(r messageRecord) {
		if r.typ == dns.TypeOPT {
			has, do = true, do || b[r.ttl+2]&0x80 != 0
		}
	})
	return has, do
}

// skipName returns the offset after the name at off. It does not follow compression pointers.
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

// isUncompressed reports whether a name that skipName has accepted contains no compression pointer.
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

// AppendLower appends a name in wire format, converted to lower case. Label lengths are below 64 and thus are no
// letters.
func AppendLower(b []byte, name string) []byte {
	start := len(b)
	b = append(b, name...)
	for i, c := range b[start:] {
		b[start+i] = lowerByte(c)
	}
	return b
}

// lowerByte converts an ASCII letter to lower case.
func lowerByte(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}

// equalFold reports whether two names in wire format are equal, ignoring case.
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
