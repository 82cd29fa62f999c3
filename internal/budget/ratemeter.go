package budget

import "time"

const (
	minMeasureTime     = time.Second           // a rate is known after this time;
	minMeasureRequests = 20                    // or after this number of requests
	minBusyMeasureTime = 10 * time.Millisecond // together with this time
	markPeriod         = 10 * time.Second      // a rate is measured over 1 to 2 periods, while there are calls
)

// A rateMeter measures a request rate from the older of its two marks until now. The older mark comes first. The zero value has not
// started.
type rateMeter [2]rateMark

// A rateMark holds the number of requests that were counted until the time at.
type rateMark struct {
	at       time.Time
	requests int64
}

// startAt starts the measurement at now, unless it has started already.
func (m *rateMeter) startAt(now time.Time, requests int64) {
	if m[0].at.IsZero() {
		m[0] = rateMark{now, requests}
		m[1] = m[0]
	}
}

// measure returns the requests per second during the last 10 to 20 s, or since the start if that is shorter. The rate is known after a
// second, or after twenty requests and 10 ms.
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
