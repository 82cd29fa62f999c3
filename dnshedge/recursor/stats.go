package recursor

import (
	"sync/atomic"

	"github.com/gohedge/hedge/observe"
)

// Stats is what a Resolver knows and has done. The fields are documented at
// observe.RecursorStats, for which debug and hedgeprom need no package recursor.
type Stats = observe.RecursorStats

// Stats returns what the Resolver knows and did. That of a Resolver whose fields are invalid
// has but its Name.
func (r *Resolver) Stats() Stats {
	c, err := r.setup()
	if err != nil {
		return Stats{Name: r.Name}
	}
	s := Stats{
		Name: r.Name, MaxBytes: c.maxBytes, Questions: c.count.questions.Load(), Failures: c.count.failures.Load(), Local: c.count.local.Load(),
		Lookups: c.count.lookups.Load(), Scrubbed: c.count.scrubbed.Load(), Limited: make(map[string]int64),
	}
	c.count.limited.Range(func(field, n any) bool {
		s.Limited[field.(string)] = n.(*atomic.Int64).Load()
		return true
	})
	c.cache.stats(&s)
	c.fleet.Fill(&s)
	return s
}
