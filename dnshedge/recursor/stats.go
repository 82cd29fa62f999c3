package recursor

import (
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/dnssec"
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
	if c.chains != nil {
		c.chains.Fill(&s)
		c.count.notes.Fill(&s)
	}
	c.fleet.Fill(&s)
	return s
}

// note takes why an answer to a question is bogus.
func (c *core) note(name string, qtype uint16, why *dnssec.Error) {
	c.count.notes.Bogus(c.conf.Logger, "recursor", observe.RecursorBogus{
		Time: time.Now(), Name: name, Type: dns.Type(qtype).String(), Reason: observe.ExtendedError(why.EDE), Text: why.Text, Zone: why.Zone, Server: why.Server,
	})
}

// watch logs what the root's keys have told, if that is due.
func (c *core) watch() { c.count.notes.Root(c.conf.Logger, "recursor", time.Now(), c.chains.Fill) }
