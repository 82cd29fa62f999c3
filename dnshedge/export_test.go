package dnshedge

import (
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// SetTimeOfDay has a Cache take day for the time of day.
func SetTimeOfDay(c *Cache, day func() time.Time) {
	c.init()
	c.clock.wallClock = day
}

// SharesLane reports whether questions about two names wait in the same subqueue.
func SharesLane(c *Client, one, other string) bool {
	core, err := c.init()
	if err != nil {
		panic(err)
	}
	zone := func(name string) string {
		q, err := wire.NewQuery(new(dns.Msg).SetQuestion(name, dns.TypeA))
		if err != nil {
			panic(err)
		}
		return q.ApproximateZone()
	}
	l := &core.queryQueue
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.selectSubqueue(zone(one)) == l.selectSubqueue(zone(other))
}
