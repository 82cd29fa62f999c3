package decode

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"time"
)

// MaxAge is how old an export may be: what is older says nothing about today.
const MaxAge = 24 * time.Hour

// ErrDamaged says that an export is not as it was written.
var ErrDamaged = errors.New("the export is damaged or cut off")

// version is that of the format of all exports.
const version = "1"

// An Envelope is the frame of an export: in front a line with its name and version, and the time in Unix nanoseconds as a
// Varint; at the end a checksum.
type Envelope struct {
	Name    string // of the content, with a space at its end
	Foreign error  // is returned by Open for anything else
	Max     int    // bytes of an export
}

// Begin returns the beginning of an export.
func (e *Envelope) Begin(now time.Time) []byte {
	return binary.AppendVarint([]byte(e.Name+version+"\n"), now.UnixNano())
}

// End ends the export that b is.
func End(b []byte) []byte { return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b)) }

// Open reads an export, and returns the time since it was written and its content. It
// returns an error if that is no export of this kind, larger than Max, or older than MaxAge. The time is never negative: an
// export from a clock that is ahead counts as written now.
func (e *Envelope) Open(r io.Reader, now time.Time) (passed time.Duration, d Decoder, err error) {
	b, err := io.ReadAll(io.LimitReader(r, int64(e.Max)+1))
	if err != nil {
		return 0, nil, err
	}
	if len(b) > e.Max {
		return 0, nil, fmt.Errorf("the export is larger than %d MiB", e.Max>>20)
	}
	rest, ok := strings.CutPrefix(string(b[:min(len(b), len(e.Name)+16)]), e.Name)
	if !ok {
		return 0, nil, e.Foreign
	}
	written, _, ok := strings.Cut(rest, "\n")
	if ok && written != version {
		return 0, nil, fmt.Errorf("the export is of version %q, and only %q is known", written, version)
	}
	begin, end := len(e.Name+written+"\n"), len(b)-crc32.Size
	if !ok || end < begin || binary.BigEndian.Uint32(b[end:]) != crc32.ChecksumIEEE(b[:end]) {
		return 0, nil, ErrDamaged
	}
	d = Decoder(b[begin:end])
	passed = max(now.Sub(time.Unix(0, d.Varint())), 0)
	if passed > MaxAge {
		return 0, nil, fmt.Errorf("the export is %v old, more than %v", passed.Round(time.Second), MaxAge)
	}
	return passed, d, nil
}
