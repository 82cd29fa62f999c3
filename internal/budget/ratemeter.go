package budget

import "time"

const (
	minMeasureTime     = time.Second           // a rate is known after this time,
	minMeasureRequests = 20                    // or after this number of requests
	minBusyMeasureTime = 10 * time.Millisecond // if at least this time has passed
	markPeriod         = 10 * time.Second      // a rate is measured over the last one to two periods
)

// A rateMeter measures the rate of requests. It holds two readings of a request counter, the older one first. The rate is
// measured from the older reading to the present. When the younger reading is old enough, it replaces the older one.
//
// The zero value is a measurement that has not started. The owner of a rateMeter guards it with a lock.
type rateMeter [2]rateMark

// A rateMark is a reading of the request counter at one point in time.
type rateMark struct {
	at       time.Time // time of the reading; zero: not started
	requests int64     // reading of the request counter
}

// startAt starts the measurement at the time now with the given reading of the request counter. It does nothing if the
// measurement has already started.
func (m *rateMeter) startAt(now time.Time, requests int64) {
	if m[0].at.IsZero() {
		m[0] = rateMark{now, requests}
		m[1] = m[0]
	}
}

// measure returns the number of requests per second over the last 10 to 20 seconds, or since the start if that is less. The
// argument requests is the reading of the request counter at the time now.
//
// known is false, and rps is 0, until the measurement has lasted one second, or 10 ms with at least 20 requests.
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
