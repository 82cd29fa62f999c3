package policy

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/gohedge/hedge/internal/decode"
)

const (
	// SlowLimit is the share of slow calls above which no hedge starts: it is an outage then, not a tail.
	// Keep it above 0.7: that is the share of slow calls when one of three replicas pauses.
	SlowLimit = 0.75

	// PushStop is the share of answers with pushback above which no hedge starts until the share is below PushResume.
	PushStop   = 0.05
	PushResume = 0.025

	minBudgetScale = 0.1              // of the budget remains, however few hedges win
	maxPause       = 10 * time.Second // the longest time that a server may have hedging wait
)

// A brakeState is the part of a key's brakes that is kept when the key is evicted, and that is exported.
type brakeState struct {
	Slow     float64   // moving average of "reached the learned delay"
	Scale    float64   // factor of the budget, in [minBudgetScale, 1]
	Push     float64   // moving average of "this answer pushed back"
	Pushed   bool      // Push exceeded PushStop, and has not been below PushResume since
	PausedTo time.Time // until then the server has asked to wait
}

// isNotable reports whether the state restrains hedging enough to be kept. That of a key with few calls does not.
func (s *brakeState) isNotable() bool {
	return s.Slow > SlowLimit/2 || s.Push > PushResume || s.Pushed || s.Scale < 1
}

// merge makes s at least as restrictive as other.
func (s *brakeState) merge(other *brakeState) {
	s.Slow, s.Scale = max(s.Slow, other.Slow), min(s.Scale, other.Scale)
	s.Push, s.Pushed = max(s.Push, other.Push), s.Pushed || other.Pushed
	if other.PausedTo.After(s.PausedTo) {
		s.PausedTo = other.PausedTo
	}
}

// clearPushback forgets all pushback.
func (s *brakeState) clearPushback() { s.Push, s.Pushed, s.PausedTo = 0, false, time.Time{} }

// append appends the three shares as IEEE 754 numbers; then Pushed, as 0 or 1; then the rest of the pause in nanoseconds.
func (s *brakeState) append(b []byte, now time.Time) []byte {
	for _, x := range [...]float64{s.Slow, s.Scale, s.Push} {
		b = binary.AppendUvarint(b, math.Float64bits(x))
	}
	pushed := uint64(0)
	if s.Pushed {
		pushed = 1
	}
	b = binary.AppendUvarint(b, pushed)
	return binary.AppendUvarint(b, uint64(min(max(s.PausedTo.Sub(now), 0), maxPause)))
}

// decodeBrakeState takes off a state that was appended at the time then, and reports whether it is valid.
func decodeBrakeState(d *decode.Decoder, then time.Time) (s brakeState, ok bool) {
	for _, x := range [...]*float64{&s.Slow, &s.Scale, &s.Push} {
		if *x = math.Float64frombits(d.Uvarint()); !(*x >= 0 && *x <= 1) { // written so that NaN fails
			return s, false
		}
	}
	pushed, wait := d.Uvarint(), d.Uvarint()
	if s.Pushed = pushed == 1; wait > 0 {
		s.PausedTo = then.Add(time.Duration(min(wait, uint64(maxPause))))
	}
	return s, *d != nil && pushed <= 1 && wait <= uint64(maxPause) && s.Scale >= minBudgetScale
}
