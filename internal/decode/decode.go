// Package decode reads and writes the binary format of exports, which consist of values in an [Envelope].
package decode

import (
	"encoding/binary"
	"math"
	"time"
)

// A Decoder holds the part of an export that is not decoded yet. Each method decodes one value at the start of this part and
// removes it.
//
// If the data are invalid, the Decoder becomes nil, and all further methods return zero values. So the caller may check for
// nil once, at the end.
type Decoder []byte

// Uvarint decodes a number that [binary.AppendUvarint] has encoded.
func (d *Decoder) Uvarint() uint64 {
	v, n := binary.Uvarint(*d)
	d.Skip(n)
	return v
}

// Varint decodes a number that [binary.AppendVarint] has encoded.
func (d *Decoder) Varint() int64 {
	v, n := binary.Varint(*d)
	d.Skip(n)
	return v
}

// Duration decodes an unsigned number of nanoseconds that [binary.AppendUvarint] has encoded. Numbers that are too large are
// decoded as the maximum Duration.
func (d *Decoder) Duration() time.Duration {
	return time.Duration(min(d.Uvarint(), math.MaxInt64))
}

// Bytes decodes a byte slice that [AppendBytes] has encoded. It fails if the slice is longer than maxLen bytes. The result
// shares the memory of the Decoder.
func (d *Decoder) Bytes(maxLen uint64) []byte {
	n := d.Uvarint()
	if n > maxLen || n > uint64(len(*d)) {
		*d = nil
		return nil
	}
	b := (*d)[:n]
	*d = (*d)[n:]
	return b
}

// AppendBytes appends the length of s, as a uvarint, and the bytes of s to b.
func AppendBytes[S string | []byte](b []byte, s S) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// Skip removes the first n bytes, which the caller has decoded itself. n must not exceed the number of bytes left. Skip
// fails if n is 0 or negative, which are results of [binary.Uvarint] for invalid data.
func (d *Decoder) Skip(n int) {
	if n <= 0 {
		*d = nil
		return
	}
	*d = (*d)[n:]
}
