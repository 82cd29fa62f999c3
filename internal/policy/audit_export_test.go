package policy

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"time"
)

// Resting reports whether the audit lets hedging rest.
func (k *Key) Resting() bool { return k.experiment.IsHedgingOff() }

// Audits returns the number of audits.
func (e *Engine) Audits() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.experiments.Len()
}

// Export writes what the key's engine has learned.
func (k *Key) Export(w io.Writer, now time.Time) error { return k.engine.Export(w, now) }

// ExportChanged returns an export whose verdict has been changed, with a right checksum.
func (k *Key) ExportChanged(now time.Time, change func([]byte)) []byte {
	var b bytes.Buffer
	_ = k.engine.Export(&b, now)
	audits, _, _, _ := k.engine.encodeStates(now)
	out := b.Bytes()[:b.Len()-crc32.Size]
	change(out[bytes.LastIndex(out, audits):])
	return binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(out))
}

// Engine returns the key's engine.
func (k *Key) Engine() *Engine { return k.engine }

// Remembered returns how many holds of forgotten keys there are.
func (e *Engine) Remembered() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.brakeStates.Len()
}
