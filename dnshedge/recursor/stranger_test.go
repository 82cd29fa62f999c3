package recursor_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestForeignDelegationDelaysNoOtherQuestion has foreign zones that name a server of example., which drops questions
// about zones that it does not serve.
func TestForeignDelegationDelaysNoOtherQuestion(t *testing.T) {
	bubble(t, `
. served 198.41.0.4
example. delegated 192.0.2.1 192.0.2.2
stranger. delegated 203.0.113.1
`, func(t *testing.T, w *testNetwork) {
		z := w.server("203.0.113.1").zones[0]
		for i := range 40 {
			z.put(record(fmt.Sprintf("s%d.stranger. NS ns.s%d.stranger.", i, i)))
			z.put(record(fmt.Sprintf("ns.s%d.stranger. A 192.0.2.1", i)))
		}
		w.setFault("192.0.2.1", func(q query, r *dns.Msg) *dns.Msg {
			if dns.IsSubDomain("stranger.", q.name) {
				return nil
			}
			return r
		})
		w.server("192.0.2.2").rtt = 300 * ms
		r := w.resolver(noHedges)
		took := func(name string) time.Duration {
			start := time.Now()
			w.ask(r, name+".example. A")
			return time.Since(start)
		}
		for i := range 20 {
			took(fmt.Sprintf("met%d", i))
		}
		require.Equal(t, 10*ms, took("first"))
		for i := range 40 {
			go w.ask(r, fmt.Sprintf("www.s%d.stranger. A", i))
			for j := range 10 {
				time.Sleep(700 * ms)
				assert.Equal(t, 10*ms, took(fmt.Sprintf("n%d-%d", i, j)))
			}
			time.Sleep(time.Duration(i%3) * 20 * time.Second) // sometimes without questions for example. in between
		}
		time.Sleep(10 * time.Second)
	})
}
