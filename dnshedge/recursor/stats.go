package recursor

import (
	"sync/atomic"

	"github.com/gohedge/hedge/observe"
)

// Stats are the statistics of a Resolver. The fields are documented in package observe, so that packages debug and
// hedgeprom need not import package recursor.
type Stats = observe.RecursorStats

// Stats returns the current statistics of the Resolver. If a field of the Resolver is invalid, only Name is set.
func (r *Resolver) Stats() Stats {
	c, err := r.initOnce()
	if err != nil {
		return Stats{Name: r.Name}
	}
	s := Stats{
		Name: r.Name, MaxBytes: c.maxBytes, Questions: c.counters.questions.Load(), Failures: c.counters.failures.Load(), Local: c.counters.localAnswers.Load(),
		Lookups: c.counters.lookups.Load(), Scrubbed: c.counters.scrubbed.Load(), Limited: make(map[string]int64),
	}
	c.counters.limited.Range(func(field, n any) bool {
		s.Limited[field.(string)] = n.(*atomic.Int64).Load()
		return true
	})
	c.cache.fillStats(&s)
	if c.validator != nil {
		c.validator.FillStats(&s)
	}
	c.pool.FillStats(&s)
	return s
}
