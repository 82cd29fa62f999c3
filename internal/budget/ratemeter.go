package budget

import "time"

const (
	minMeasureTime     = time.Second           // a rate is known after this time,
	minMeasureRequests = 20                    // or after so many requests
	minBusyMeasureTime = 10 * time.Millisecond // and this time
	markPeriod         = 10 * time.Second      // a rate is measured over 1 to 2 periods, while there are calls
)

// A rateMeter measures a request rate, from the older of its two marks until now. The older mark comes first.
type rateMeter [2]rateMark

// A rateMark holds the number of requests that were counted until a time.
type rateMark struct {
	at       time.Time
	requests int64
}

// startAt starts the measurement, unless it runs already.
func (m *rateMeter) startAt(now time.Time, requests int64) {
	if m[0].at.IsZero() {
		m[0] = rateMark{now, requests}
		m[1] = m[0]
	}
}

// measure returns the requests per second in the last 10 to 20 s, or since the start. The rate is not known until a second has passed,
// or twenty requests were counted.
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
