package policy

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/gohedge/hedge/internal/decode"
)

// A safetyState is the state of a key's safety checks (see safetyChecks) that outlives the key: the outage check, the pushback
// check and the budget scale. The engine exports it, and keeps it after the key is evicted.
type safetyState struct {
	outage   outageCheck
	pushback pushbackCheck
	scale    float64 // factor of the budget while few hedges win, see [winRateThrottle]
}

// isWorthKeeping reports whether the engine must keep or export the state, because it restricts hedging or is close to it. Other
// states hardly differ from the state of a new key.
func (s *safetyState) isWorthKeeping() bool {
	return s.outage.slowShare > SlowLimit/2 || s.pushback.share > PushResume || s.pushback.stopped || s.scale < 1
}

// mergeState combines two states of the same key: each field of s gets the more restrictive of the values in s and other.
func (s *safetyState) mergeState(other *safetyState) {
	p, o := &s.pushback, &other.pushback
	s.outage.slowShare, s.scale = max(s.outage.slowShare, other.outage.slowShare), min(s.scale, other.scale)
	p.share, p.stopped = max(p.share, o.share), p.stopped || o.stopped
	if o.waitUntil.After(p.waitUntil) {
		p.waitUntil = o.waitUntil
	}
}

// appendTo appends the encoded state to b. The encoding is a sequence of uvarints:
//
//   - the slow share, the scale and the pushback share, each as the bits of a float64;
//   - 1 if pushback has stopped hedging, and otherwise 0;
//   - the remaining time of the pause after the time now, in nanoseconds.
func (s *safetyState) appendTo(b []byte, now time.Time) []byte {
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

// decodeSafetyState decodes a state that appendTo has encoded. The argument then is the time at which it was encoded. ok is
// false if the encoding or one of its values is invalid.
func decodeSafetyState(d *decode.Decoder, then time.Time) (s safetyState, ok bool) {
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
