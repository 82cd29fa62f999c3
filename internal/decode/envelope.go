package decode

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strings"
	"time"
)

// MaxAge is how old an export may be: what is older says nothing about today.
const MaxAge = 24 * time.Hour

// ErrDamaged says that an export is not as it was written.
var ErrDamaged = errors.New("the export is damaged or cut off")

// An Envelope is what is around an export: before it a line that says what it is and of which
// version, and the time in Unix nanoseconds as a Varint; after it a checksum.
type Envelope struct {
	Name     string   // of what is exported, with a space at its end
	Foreign  error    // what Open returns for anything else
	Versions []string // those that are known
	Max      int      // bytes of an export
}

// Begin returns the beginning of an export.
func (e *Envelope) Begin(version string, now time.Time) []byte {
	return binary.AppendVarint([]byte(e.Name+version+"\n"), now.UnixNano())
}

// End ends the export that b is.
func End(b []byte) []byte { return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b)) }

// Open reads an export: its version, the time that has passed since it was written, and its content. It
// returns an error if that is no export of this kind, larger than Max, or older than MaxAge. The time is never negative: an
// export from a clock that is ahead counts as written now.
func (e *Envelope) Open(r io.Reader, now time.Time) (version string, passed time.Duration, d Decoder, err error) {
	b, err := io.ReadAll(io.LimitReader(r, int64(e.Max)+1))
	if err != nil {
		return "", 0, nil, err
	}
	if len(b) > e.Max {
		return "", 0, nil, fmt.Errorf("the export is larger than %d MiB", e.Max>>20)
	}
	rest, ok := strings.CutPrefix(string(b[:min(len(b), len(e.Name)+16)]), e.Name)
	if !ok {
		return "", 0, nil, e.Foreign
	}
	version, _, ok = strings.Cut(rest, "\n")
	if ok && !slices.Contains(e.Versions, version) {
		return "", 0, nil, fmt.Errorf("the export is of version %q, and only %s known", version, e.known())
	}
	begin, end := len(e.Name+version+"\n"), len(b)-crc32.Size
	if !ok || end < begin || binary.BigEndian.Uint32(b[end:]) != crc32.ChecksumIEEE(b[:end]) {
		return "", 0, nil, ErrDamaged
	}
	d = Decoder(b[begin:end])
	passed = max(now.Sub(time.Unix(0, d.Varint())), 0)
	if passed > MaxAge {
		return "", 0, nil, fmt.Errorf("the export is %v old, more than %v", passed.Round(time.Second), MaxAge)
	}
	return version, passed, d, nil
}

// known returns the versions that are known, and the verb.
func (e *Envelope) known() string {
	var quoted []string
	for _, v := range e.Versions {
		quoted = append(quoted, fmt.Sprintf("%q", v))
	}
	verb := " is"
	if len(quoted) > 1 {
		verb = " are"
	}
	return strings.Join(quoted, " and ") + verb
}
