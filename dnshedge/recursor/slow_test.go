package recursor_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/recursor"
)

// TestResolverAnswersFromSlowZone has servers so slow that only the wait for late answers helps. BIND and unbound
// answer as well.
func TestResolverAnswersFromSlowZone(t *testing.T) {
	const slow = `
. served 198.41.0.4
example. delegated 192.0.2.1
  www A 192.0.2.80
  a.b.c.d.e A 192.0.2.81
`
	for _, rtt := range []time.Duration{2100 * ms, 2500 * ms, 3000 * ms, 4000 * ms} {
		for _, name := range []string{"www.example. A 192.0.2.80", "a.b.c.d.e.example. A 192.0.2.81"} {
			for _, whole := range []bool{false, true} {
				if rtt >= 3*time.Second && name[0] == 'a' && !whole {
					continue // a part of the name was asked for at first
				}
				t.Run(fmt.Sprint(rtt, name, whole), func(t *testing.T) {
					bubble(t, slow, func(t *testing.T, w *testNetwork) {
						w.server("192.0.2.1").rtt = rtt
						c := w.client(w.resolver(func(r *recursor.Resolver) { r.NoMinimise = whole }))
						for range 5 {
							assert.Equal(t, "NOERROR "+name, formatResponse(w.askClient(c, name)))
							time.Sleep(2 * time.Hour) // its TTL is one hour
						}
					})
				})
			}
		}
	}
}

// TestResolverLooksUpServerNameInSlowZone looks up a server name in a zone with slow servers.
func TestResolverLooksUpServerNameInSlowZone(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
hoster. delegated 192.0.2.1
  ns A 192.0.2.2
example. served 192.0.2.2
  www A 192.0.2.80
`, func(t *testing.T, w *testNetwork) {
		w.server("198.41.0.4").zones[0].add(t, "example. NS ns.hoster.")
		w.server("192.0.2.1").rtt = 2500 * ms
		assert.Equal(t, "NOERROR www.example. A 192.0.2.80", formatResponse(w.ask(w.resolver(), "www.example. A")))
	})
}
