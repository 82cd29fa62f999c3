// Package decode reads what Export has written: its envelope, and value by value what is in it.
package decode

import (
	"encoding/binary"
	"math"
	"time"
)

// A Decoder takes values off its beginning. It is nil once it failed; then all values
// are zero.
type Decoder []byte

// Uvarint takes a number off, as binary.AppendUvarint writes it.
func (d *Decoder) Uvarint() uint64 {
	v, n := binary.Uvarint(*d)
	d.Skip(n)
	return v
}

// Varint takes a number off, as binary.AppendVarint writes it.
func (d *Decoder) Varint() int64 {
	v, n := binary.Varint(*d)
	d.Skip(n)
	return v
}

// Duration takes nanoseconds off, as a Uvarint; more than a Duration holds are its longest.
func (d *Decoder) Duration() time.Duration {
	return time.Duration(min(d.Uvarint(), math.MaxInt64))
}

// Bytes takes a Uvarint n and n bytes off, and fails if n is more than most. The bytes are
// those of the Decoder.
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

// AppendBytes appends what Bytes takes off.
func AppendBytes[S string | []byte](b []byte, s S) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// Skip takes n bytes off, of which there must be as many. It fails if n is not positive.
func (d *Decoder) Skip(n int) {
	if n <= 0 {
		*d = nil
		return
	}
	*d = (*d)[n:]
}
