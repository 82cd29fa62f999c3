// Package decode decodes exports, which consist of values in an [Envelope], and has functions to encode them.
package decode

import (
	"encoding/binary"
	"math"
	"time"
)

// A Decoder holds the bytes that are still to be decoded. Each method decodes a value at the beginning and removes it. After a failure, the
// Decoder is nil, and all further values are zero.
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

// Duration decodes a Uvarint of nanoseconds. A number that is too large gives the longest Duration.
func (d *Decoder) Duration() time.Duration {
	return time.Duration(min(d.Uvarint(), math.MaxInt64))
}

// Bytes decodes a byte slice that [AppendBytes] has encoded. It fails if the slice is longer than most. The result shares memory with the
// Decoder.
func (d *Decoder) Bytes(most uint64) []byte {
	n := d.Uvarint()
	if n > most || n > uint64(len(*d)) {
		*d = nil
		return nil
	}
	b := (*d)[:n]
	*d = (*d)[n:]
	return b
}

// AppendBytes appends s to b, preceded by its length as a Uvarint.
func AppendBytes[S string | []byte](b []byte, s S) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// Skip removes n bytes. The Decoder must have as many. It fails if n is not positive, so that Skip accepts the result of [binary.Uvarint].
func (d *Decoder) Skip(n int) {
	if n <= 0 {
		*d = nil
		return
	}
	*d = (*d)[n:]
}
