package policy

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"time"
)

// Resting reports whether hedging is off for the audit.
func (k *Key) Resting() bool { return k.experiment.audit.Load().IsHedgingOff() }

// Audits returns the number of audits.
func (e *Engine) Audits() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.experiments.Len()
}

// Export writes an export of the key's engine.
func (k *Key) Export(w io.Writer, now time.Time) error { return k.engine.Export(w, now) }

// ExportChanged returns an export with a modified verdict and a valid checksum.
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

// Remembered returns the number of safety states of evicted keys.
func (e *Engine) Remembered() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.safetyStates.Len()
}
