package budget

import "time"

const (
	minMeasured = time.Second // after which a rate is known, or after so many requests:
	minCounted  = 20          // in minSpan at least
	minSpan     = 10 * time.Millisecond
	everyMark   = 10 * time.Second // a rate is measured over this time at least, and over twice this time at most while there are calls
)

// A meter measures a rate: between two marks, the older one first, and now.
type meter [2]mark

// mark is how many requests there were at a time.
type mark struct {
	at       time.Time
	requests int64
}

// start begins to measure, if that has not begun.
func (m *meter) start(now time.Time, requests int64) {
	if m[0].at.IsZero() {
		m[0] = mark{now, requests}
		m[1] = m[0]
	}
}

// measure returns the requests per second of the last 10 to 20 s, or of as long as
// there were any. It reports false until a second, or twenty requests, tell it.
func (m *meter) measure(now time.Time, requests int64) (rps float64, known bool) {
	switch late := m[1].at.Sub(now); {
	case late >= everyMark: // the clock was set back
		m[0].at = time.Time{}
	case late > 0: // another call has ended later, and was told of before
		now = m[1].at
	}
	m.start(now, requests)
	if now.Sub(m[1].at) >= everyMark {
		m[0], m[1] = m[1], mark{now, requests}
	}
	age, counted := now.Sub(m[0].at), requests-m[0].requests
	if age < minMeasured && (age < minSpan || counted < minCounted) {
		return 0, false
	}
	return float64(counted) / age.Seconds(), true
}
