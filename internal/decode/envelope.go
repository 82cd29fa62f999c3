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

// MaxAge is the maximum age of an export that Open accepts. Older latencies say too little about the present.
const MaxAge = 24 * time.Hour

// ErrDamaged is the error for an export that was modified or truncated.
var ErrDamaged = errors.New("the export is damaged or cut off")

// version is the version of the export format.
const version = "1"

// An Envelope describes the frame of one kind of export: the header and the checksum that enclose its content. The header is
// a line with the name and the version, followed by the time in Unix nanoseconds as a varint. The checksum at the end is a
// CRC-32.
type Envelope struct {
	Name    string // name of the kind of export, which must end with a space
	Foreign error  // error that Open returns for data that does not start with Name
	Max     int    // maximum size of an export in bytes
}

// Header returns the start of an export that is written at the time now. The caller must append the content and then call
// AppendChecksum.
func (e *Envelope) Header(now time.Time) []byte {
	return binary.AppendVarint([]byte(e.Name+version+"\n"), now.UnixNano())
}

// AppendChecksum appends the checksum to b, which must be a whole export: the header and the content.
func AppendChecksum(b []byte) []byte { return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b)) }

// Open reads an export from r and checks its frame. It returns the content, and the time that has passed from the writing of
// the export to now. passed is 0 if the clock of the writer was ahead.
//
// Open returns an error if reading fails, or if the export has another name or version. It also returns an error if the
// export is damaged, larger than Max or older than MaxAge.
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
