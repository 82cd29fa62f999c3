package dnshedge_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

func TestFairQueueFloodDisplacesItsOwnDomain(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", func(q dnstest.Query) dnstest.Reply {
			if strings.HasSuffix(q.Question[0].Name, ".dead.example.") {
				return dnstest.Reply{}
			}
			return after(150*ms, good)(q)
		})
		c := l.client(&dnshedge.Client{Cache: new(dnshedge.Cache), MaxInFlight: 100}, l.up("tcp", "a"))
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			for i := range 2000 {
				wg.Go(func() { _, _, _ = c.Exchange(question(fmt.Sprintf("n%d.dead.example.", i), dns.TypeA), "") })
				time.Sleep(ms)
			}
		})
		time.Sleep(500 * ms)
		for i, asked := 0, 0; asked < 8; i++ {
			name := fmt.Sprintf("good%d.example.", i)
			if dnshedge.SharesLane(c, name, "n.dead.example.") {
				continue // by chance, which the line does not exclude
			}
			_, _, err := c.Exchange(question(name, dns.TypeA), "")
			assert.NoError(t, err)
			asked++
		}
	})
}
