package wire

import (
	"encoding/binary"

	"github.com/miekg/dns"
)

const optPadding = 12 // code of the padding option (RFC 7830)

// Messages are padded to multiples of these lengths in bytes (RFC 8467 §4.1).
const (
	queryBlock    = 128
	responseBlock = 468
)

// PadResponse pads the response that begins at b[start] to a multiple of 468 bytes (RFC 8467 §4.1), but at most MaxMsg,
// and returns the extended slice. The OPT record must be the last record. Without an OPT record or room, the response
// is unchanged.
func PadResponse(b []byte, start int) []byte {
	m := b[start:]
	size := 0
	_ = walkRecords(m, func(r messageRecord) {
		size = 0
		if r.typ == dns.TypeOPT && r.section == additional {
			size = r.ttl + 4
		}
	})
	room := MaxMsg - len(m) - 4
	if size == 0 || room < 0 {
		return b
	}
	b = appendPadding(b, min(paddingLen(len(m), responseBlock), room))
	m = b[start:]
	binary.BigEndian.PutUint16(m[size:], uint16(len(m)-size-2))
	return b
}

// paddingLen returns the number of zero bytes in a padding option that makes the length of a message a multiple of
// block bytes. size is the length of the message without the option. The option's header of 4 bytes is not counted.
func paddingLen(size, block int) int { return (block - (size+4)%block) % block }

// appendPadding appends an EDNS padding option with n zero bytes to b (RFC 7830 §3) and returns the extended slice.
func appendPadding(b []byte, n int) []byte {
	b = append(b, 0, optPadding)
	b = binary.BigEndian.AppendUint16(b, uint16(n))
	return append(b, make([]byte, n)...)
}
