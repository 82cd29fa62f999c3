package budget

import "time"

const (
	minMeasureTime     = time.Second // after which a rate is known, or after minCounted requests:
	minMeasureRequests = 20          // in minSpan at least
	minBusyMeasureTime = 10 * time.Millisecond
	markPeriod         = 10 * time.Second // a rate is measured over this time at least, and over twice this time at most while there are calls
)

// A rateMeter measures a rate of requests between one of two marks, the older first, and the present.
type rateMeter [2]rateMark

// A rateMark is the number of requests at a time.
type rateMark struct {
	at       time.Time
	requests int64
}

// startAt begins to measure, if that has not begun.
func (m *rateMeter) startAt(now time.Time, requests int64) {
	if m[0].at.IsZero() {
		m[0] = rateMark{now, requests}
		m[1] = m[0]
	}
}

// measure returns the requests per second of the last 10 to 20 s, or since start. It reports false until it has measured a second,
// or twenty requests.
func (m *rateMeter) measure(now time.Time, requests int64) (rps float64, known bool) {
	switch late := m[1].at.Sub(now); {
	case late >= markPeriod: // the clock was set back
		m[0].at = time.Time{}
	case late > 0: // a call that ended later was reported earlier
		now = m[1].at
	}
	m.startAt(now, requests)
	if now.Sub(m[1].at) >= markPeriod {
		m[0], m[1] = m[1], rateMark{now, requests}
	}
	age, counted := now.Sub(m[0].at), requests-m[0].requests
	if age < minMeasureTime && (age < minBusyMeasureTime || counted < minMeasureRequests) {
		return 0, false
	}
	return float64(counted) / age.Seconds(), true
}
