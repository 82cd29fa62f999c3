// Package hold remembers what holds the hedges of a key back, beyond the key's life.
package hold

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/gohedge/hedge/internal/decode"
)

// The bounds by which a Hold is judged.
const (
	SlowLimit  = 0.75             // no hedge starts while more of the calls are slow
	PushStop   = 0.05             // no hedge starts when the share of answers that push back exceeds this …
	PushResume = 0.025            // … until it is below this
	Floor      = 0.1              // of the budget is always spent
	MaxPause   = 10 * time.Second // is how long a server may have hedging wait
)

// A Hold is what holds the hedges of a key back. It is remembered when the key is forgotten, and exported.
type Hold struct {
	Slow     float64   // moving average of "reached the learned delay"
	Scale    float64   // of the budget, in [Floor, 1]
	Push     float64   // moving average of "this answer pushed back"
	Pushed   bool      // Push exceeded PushStop, and has not been below PushResume since
	PausedTo time.Time // until then the server has asked to wait
}

// None is the Hold of a key of which nothing is known.
var None = Hold{Scale: 1}

// Matters reports whether h is worth to be remembered. That of a key that was hardly called is not.
func (h *Hold) Matters() bool {
	return h.Slow > SlowLimit/2 || h.Push > PushResume || h.Pushed || h.Scale < 1
}

// Add makes h hold back whatever it or the other one did.
func (h *Hold) Add(other *Hold) {
	h.Slow, h.Scale = max(h.Slow, other.Slow), min(h.Scale, other.Scale)
	h.Push, h.Pushed = max(h.Push, other.Push), h.Pushed || other.Pushed
	if other.PausedTo.After(h.PausedTo) {
		h.PausedTo = other.PausedTo
	}
}

// Resume forgets that the server asked for less.
func (h *Hold) Resume() { h.Push, h.Pushed, h.PausedTo = 0, false, time.Time{} }

// Append appends the three shares as IEEE 754 numbers; then whether it is Pushed, as 0 or 1; then how long the server
// has asked to wait, in nanoseconds.
func (h *Hold) Append(b []byte, now time.Time) []byte {
	for _, x := range [...]float64{h.Slow, h.Scale, h.Push} {
		b = binary.AppendUvarint(b, math.Float64bits(x))
	}
	pushed := uint64(0)
	if h.Pushed {
		pushed = 1
	}
	b = binary.AppendUvarint(b, pushed)
	return binary.AppendUvarint(b, uint64(min(max(h.PausedTo.Sub(now), 0), MaxPause)))
}

// Decode takes off what Append has appended at the given time, and reports whether it makes sense.
func Decode(d *decode.Decoder, then time.Time) (h Hold, ok bool) {
	for _, x := range [...]*float64{&h.Slow, &h.Scale, &h.Push} {
		if *x = math.Float64frombits(d.Uvarint()); !(*x >= 0 && *x <= 1) { // written so that NaN fails
			return h, false
		}
	}
	pushed, wait := d.Uvarint(), d.Uvarint()
	if h.Pushed = pushed == 1; wait > 0 {
		h.PausedTo = then.Add(time.Duration(min(wait, uint64(MaxPause))))
	}
	return h, *d != nil && pushed <= 1 && wait <= uint64(MaxPause) && h.Scale >= Floor
}
