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

// MaxAge is the maximum age of an export. Older latencies say too little about today's.
const MaxAge = 24 * time.Hour

// ErrDamaged is the error for an export that was modified or cut off.
var ErrDamaged = errors.New("the export is damaged or cut off")

// version is the version of the format of all exports.
const version = "1"

// An Envelope describes the frame of an export. The header is a line with name and version, and the time in Unix nanoseconds as a Varint. A
// checksum follows the content.
type Envelope struct {
	Name    string // name of the content, with a space at its end
	Foreign error  // error that Open returns if the name differs
	Max     int    // maximum size of an export in bytes
}

// Header returns the header of an export that is written at the time now.
func (e *Envelope) Header(now time.Time) []byte {
	return binary.AppendVarint([]byte(e.Name+version+"\n"), now.UnixNano())
}

// AppendChecksum returns b, an export with header and content, with the checksum appended.
func AppendChecksum(b []byte) []byte { return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b)) }

// Open reads an export. It returns the time since the export was written, and its content. It returns an error if the export has another
// name or version, is damaged, larger than Max, or older than MaxAge. If the clock of the writer was ahead, the time is 0.
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
