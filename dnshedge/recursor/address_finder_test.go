package recursor_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// host has a server with glue that serves zones of other owners, whose delegations have no glue.
const host = `
. served 198.41.0.4
net. delegated 192.0.2.1
  host NS ns0.host
  host NS ns1.host
  ns0.host A 192.0.2.4
  ns1.host A 192.0.2.5
com. delegated 192.0.2.2
  a NS ns1.host.net.
  b NS ns1.host.net.
  evil NS ns.evil
  ns.evil A 203.0.113.66
host.net. served 192.0.2.4 192.0.2.5
  @ NS ns0.host.net.
  @ NS ns1.host.net.
  ns0 A 192.0.2.4
  ns1 A 192.0.2.5
a.com. served 192.0.2.5
  www A 192.0.2.80
b.com. served 192.0.2.5
  www A 192.0.2.81
`

func TestResolverUsesGlueForAllZonesOfServer(t *testing.T) {
	bubble(t, host, func(t *testing.T, w *testNetwork) {
		r := w.resolver()
		assert.Equal(t, "NOERROR www.a.com. A 192.0.2.80", formatResponse(w.ask(r, "www.a.com. A")))
		assert.Equal(t, "NOERROR www.b.com. A 192.0.2.81", formatResponse(w.ask(r, "www.b.com. A")))
		assert.Equal(t, []string{"www.a.com. A", "www.b.com. A"}, w.questions("192.0.2.5"))
		assert.Zero(t, w.countQueries("192.0.2.4"))
		assert.Equal(t, "NOERROR ns1.host.net. A 192.0.2.5", formatResponse(w.ask(r, "ns1.host.net. A")))
		assert.Equal(t, 3, w.countQueries("192.0.2.4", "192.0.2.5"), "the record was used as an answer")
	})
}

func TestResolverLooksUpNameOfServerWithWrongGlue(t *testing.T) {
	bubble(t, host+`
  sub NS ns2.host.net.
sub.b.com. served 192.0.2.7
  www A 192.0.2.82
`, func(t *testing.T, w *testNetwork) {
		w.server("192.0.2.1").zones[0].add(t, "host NS ns2.host")
		w.server("192.0.2.1").zones[0].add(t, "ns2.host A 192.0.2.66")
		w.server("192.0.2.4").zones[0].add(t, "ns2 A 192.0.2.7")
		r := w.resolver()
		assert.Equal(t, "NOERROR www.sub.b.com. A 192.0.2.82", formatResponse(w.ask(r, "www.sub.b.com. A")))
		assert.NotZero(t, w.countQueries("192.0.2.66"))
		assert.LessOrEqual(t, w.countQueries("192.0.2.66"), 3)
	})
}

func TestResolverDropsGlueWithReferral(t *testing.T) {
	bubble(t, host, func(t *testing.T, w *testNetwork) {
		r := w.resolver()
		w.ask(r, "www.a.com. A")
		w.setFault("192.0.2.1", respondWith("referral | host.net. NS ns1.host.net. | ns1.host.net. A 192.0.2.6"))
		w.updateServers("192.0.2.6", func(s *server) { s.zones = w.server("192.0.2.5").zones })
		time.Sleep(time.Hour)
		n := w.countQueries("192.0.2.5")
		assert.Equal(t, "NOERROR www.b.com. A 192.0.2.81", formatResponse(w.ask(r, "www.b.com. A")))
		assert.Equal(t, n, w.countQueries("192.0.2.5"))
		assert.Equal(t, []string{"www.b.com. A"}, w.questions("192.0.2.6"))
	})
}

func TestResolverUsesGlueOnlyFromParentOfServerName(t *testing.T) {
	const evil = "203.0.113.66"
	bubble(t, host, func(t *testing.T, w *testNetwork) {
		w.setFault(evil, respondWith("referral | x.evil.com. NS ns1.host.net. | ns1.host.net. A "+evil+"; ns0.host.net. A "+evil))
		r := w.resolver()
		w.ask(r, "www.x.evil.com. A")
		n := w.countQueries(evil)
		assert.Equal(t, "NOERROR www.a.com. A 192.0.2.80", formatResponse(w.ask(r, "www.a.com. A")))
		assert.Equal(t, n, w.countQueries(evil))
	})
}
