// Package wire reads and writes DNS messages. A [Query] is a question, from which the message to a server is made. An
// [Answer] is a parsed response with its [Outcome].
//
// The package does no network I/O and has no cache. Most functions work on messages in wire format, because a hedged
// query is written several times and a cached answer is read often.
package wire

import (
	"encoding/binary"
	"errors"

	"github.com/miekg/dns"
)

const (
	// HeaderLen is the length of a header in bytes, and thus of the shortest message.
	HeaderLen = 12
	// MaxName is the maximum length in bytes of a name in wire format.
	MaxName = 255
	// MaxMsg is the maximum length in bytes of a message.
	MaxMsg = 1<<16 - 1
	// DefaultUDPSize is the maximum length in bytes of a UDP message that nearly all networks carry without fragmentation
	// (DNS flag day 2020).
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

// The reasons why Query.CheckResponse, or a parser of messages, rejects a message.
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

// ErrVersion is the error of a query with an EDNS version other than 0. The response to that query must have the code
// BADVERS (RFC 6891 §6.1.3).
var ErrVersion = errors.New("dnshedge: message with an unknown version of EDNS; want 0")

// ErrSigned is the error of a message with a TSIG record (RFC 8945) or a SIG(0) record (RFC 2931). The message cannot
// be hedged, because its signature covers the ID, and each attempt has another ID.
var ErrSigned = errors.New("dnshedge: message with a TSIG or SIG(0) record, which covers the message's ID; want none, or a dns.Client")

// errRecords is the error of a query with records other than an OPT record. They are rejected because a Query would not
// send them.
var errRecords = errors.New("dnshedge: query with records; want none but OPT")

// ErrSpelling is the error of a response that differs from the query only in the case of letters in the name. It only
// occurs for queries with random case (see Query.WithRandomCase).
var ErrSpelling = errors.New("dnshedge: response with another spelling of the name")

// A messageRecord describes one resource record in a message: where it is, its type and its data.
type messageRecord struct {
	typ, class uint16
	name, ttl  int     // offsets in the message of the owner and of the TTL
	data       []byte  // record data, which shares the memory of the message
	section    section // the section of the message that contains the record
}

// A section is the section of a message that holds a record: answer, authority or additional (RFC 1035 §4.1).
type section uint8

const (
	answer section = iota
	authority
	additional
)

// walkRecords calls f for each record of the message b in order, including OPT records. It skips the questions. It
// returns an error if b is malformed, after it has called f for the records before the fault.
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

// FindOPT reports whether the message b has an OPT record, and whether the DO bit of an OPT record is set. If b is
// malformed, it only finds records before the fault.
func FindOPT(b []byte) (has, do bool) {
	_ = walkRecords(b, func(r messageRecord) {
		if r.typ == dns.TypeOPT {
			has, do = true, do || b[r.ttl+2]&0x80 != 0
		}
	})
	return has, do
}

// skipName returns the offset after the name at the offset off of b. It does not follow compression pointers. It
// returns an error if the name is malformed.
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

// isUncompressed reports whether name contains no compression pointer. skipName must have accepted name.
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

// AppendLower appends name, which is in wire format, to b in lower case, and returns the extended slice. It may convert
// every byte of name, because the length bytes are below 64 and so are never letters.
func AppendLower(b []byte, name string) []byte {
	start := len(b)
	b = append(b, name...)
	for i, c := range b[start:] {
		b[start+i] = lowerByte(c)
	}
	return b
}

// lowerByte returns c in lower case if c is an upper-case ASCII letter, or else c.
func lowerByte(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}

// equalFold reports whether a and b, two names in wire format, are equal, ignoring the case of ASCII letters.
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
