package race

import "time"

// Unbounded is a Style's Usual for attempts that have timeouts of their own: a primary that has
// failed waits for its hedges as long as they take.
const Unbounded time.Duration = -1

const (
	minBound = 10 * time.Millisecond
	maxBound = time.Second // or as long as the primary took
)

// Bound returns how long the youngest hedge may take once the primary has failed, which took so
// long: what an answer usually takes or, if that is not known (0), what the primary took. The
// failure in hand is then returned.
func Bound(usual, took time.Duration) time.Duration {
	if usual <= 0 {
		usual = took
	}
	return max(min(usual, max(took, maxBound)), minBound)
}

// holding is what says how long the failure of a primary is held while hedges are out.
type holding struct {
	began    time.Time // about when the primary did; known once a hedge has started
	youngest time.Time // when the latest hedge started
	failed   time.Time // when the primary did, if hedges were out; zero: it has not
	over     bool      // it is not held any longer
}

// hedged notes that a hedge starts, which is due so long after the primary.
func (h *holding) hedged(due time.Duration) {
	h.youngest = time.Now()
	if h.began.IsZero() {
		h.began = h.youngest.Add(-due)
	}
}

// end returns until when a failure is held. The primary has failed.
func (h *holding) end(usual time.Duration) time.Time {
	return h.youngest.Add(Bound(usual, h.failed.Sub(h.began)))
}
