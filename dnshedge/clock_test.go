package dnshedge_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge"
)

// While a machine sleeps, its wall clock advances, and its monotonic clock does not.
func TestSleepAwareClockCountsSleep(t *testing.T) {
	for name, test := range map[string]struct {
		jump time.Duration
		kept bool
	}{
		"awake":                        {0, true},
		"asleep for less than the TTL": {4 * time.Minute, true},
		"asleep for a night":           {8 * time.Hour, false},
		"the time of day is set back":  {-8 * time.Hour, true},
	} {
		bubble(t, func(l *lab) {
			cache := &dnshedge.Cache{MaxStale: -1}
			jump := time.Duration(0)
			dnshedge.SetTimeOfDay(cache, func() time.Time { return time.Now().Add(jump) })
			c, s := cached(l, cache, with("300 A 192.0.2.1"))
			l.must(c, "x.example.")
			asked := s.Queries.Load()
			time.Sleep(2 * time.Second)
			jump = test.jump
			time.Sleep(2 * time.Second)
			r, _ := l.must(c, "x.example.")
			assert.Equal(t, test.kept, s.Queries.Load() == asked, name)
			if test.kept {
				assert.InDelta(t, 296-max(test.jump, 0).Seconds(), r.Answer[0].Header().Ttl, 1, name)
			}
			jump = 0 // the wall clock is set back, which does not change the age of the answer
			time.Sleep(2 * time.Second)
			if test.kept && test.jump >= 0 {
				r, _ := l.must(c, "x.example.")
				assert.InDelta(t, 294-test.jump.Seconds(), r.Answer[0].Header().Ttl, 1, name)
			}
		})
	}
}
