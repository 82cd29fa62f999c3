package policy

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/gohedge/hedge/internal/decode"
)

// A brakeState is the part of a key's brakes that is kept when the key is evicted, and that is exported.
type brakeState struct {
	outage   outageCheck
	pushback pushbackCheck
	scale    float64 // see [winRateThrottle]
}

// isNotable reports whether the state restrains hedging enough to be kept. That of a key with few calls does not.
func (s *brakeState) isNotable() bool {
	return s.outage.slowShare > SlowLimit/2 || s.pushback.share > PushResume || s.pushback.stopped || s.scale < 1
}

// mergeState makes s at least as restrictive as other.
func (s *brakeState) mergeState(other *brakeState) {
	p, o := &s.pushback, &other.pushback
	s.outage.slowShare, s.scale = max(s.outage.slowShare, other.outage.slowShare), min(s.scale, other.scale)
	p.share, p.stopped = max(p.share, o.share), p.stopped || o.stopped
	if o.waitUntil.After(p.waitUntil) {
		p.waitUntil = o.waitUntil
	}
}

// appendTo appends the slow share, the scale and the pushback share as IEEE 754 numbers; then whether pushback has stopped hedges, as 0 or 1;
// then the rest of the pause in nanoseconds.
func (s *brakeState) appendTo(b []byte, now time.Time) []byte {
	for _, x := range [...]float64{s.outage.slowShare, s.scale, s.pushback.share} {
		b = binary.AppendUvarint(b, math.Float64bits(x))
	}
	stopped := uint64(0)
	if s.pushback.stopped {
		stopped = 1
	}
	b = binary.AppendUvarint(b, stopped)
	return binary.AppendUvarint(b, uint64(min(max(s.pushback.waitUntil.Sub(now), 0), maxPause)))
}

// decodeBrakeState reads a state that was appended at the time then, and reports whether it is valid.
func decodeBrakeState(d *decode.Decoder, then time.Time) (s brakeState, ok bool) {
	for _, x := range [...]*float64{&s.outage.slowShare, &s.scale, &s.pushback.share} {
		if *x = math.Float64frombits(d.Uvarint()); !(*x >= 0 && *x <= 1) { // written so that NaN fails
			return s, false
		}
	}
	stopped, wait := d.Uvarint(), d.Uvarint()
	if s.pushback.stopped = stopped == 1; wait > 0 {
		s.pushback.waitUntil = then.Add(time.Duration(min(wait, uint64(maxPause))))
	}
	return s, *d != nil && stopped <= 1 && wait <= uint64(maxPause) && s.scale >= minBudgetScale
}
