package nameservers

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// refuseNames answers after a while with REFUSED for names, and with NOERROR for other names.
func refuseNames(after time.Duration, names ...string) handler {
	return func(q sent) []reply {
		for _, name := range names {
			if q.Question[0].Name == name {
				return respondAfter(dns.RcodeRefused, after)(q)
			}
		}
		return answerAfter(after)(q)
	}
}

// servePair adds a server that answers after 10 ms and refuses names, and a server that takes 50 ms. The RTTs of
// both are known.
func (n *network) servePair(f *Pool, names ...string) []netip.AddrPort {
	all := []netip.AddrPort{n.serve("192.0.2.1", refuseNames(10*ms, names...)), n.serve("192.0.2.2", answerAfter(50*ms))}
	for _, at := range all {
		_, _, err := n.ask(f, newTaskFor("example.", "met.example.", dns.TypeA, at))
		require.NoError(n, err)
	}
	return all
}

// measureQuery returns the time of a question for a name in example.
func (n *network) measureQuery(f *Pool, name string, servers []netip.AddrPort) time.Duration {
	n.Helper()
	_, took, err := n.ask(f, newTaskFor("example.", name, dns.TypeA, servers...))
	require.NoError(n, err)
	return took
}

func TestLameTableAvoidsServerOnlyForRefusedName(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		pair := n.servePair(f, "bad.example.")
		assert.Equal(t, 60*ms, n.measureQuery(f, "bad.example.", pair))
		for i := range 30 {
			assert.Equal(t, 50*ms, n.measureQuery(f, "bad.example.", pair), "the server has refused the name")
			assert.Equal(t, 10*ms, n.measureQuery(f, fmt.Sprintf("n%d.example.", i), pair), "other names are not affected")
			time.Sleep(20 * time.Second)
		}
		time.Sleep(5 * time.Minute)
		assert.Equal(t, 60*ms, n.measureQuery(f, "bad.example.", pair), "the server is queried again after 15 minutes")
	})
}

func TestLameTableAvoidsServerForZoneAfterTwoRefusals(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		pair := n.servePair(f)
		n.serve("192.0.2.1", respondAfter(dns.RcodeRefused, 10*ms))
		assert.Equal(t, 60*ms, n.measureQuery(f, "a.example.", pair))
		assert.Equal(t, 60*ms, n.measureQuery(f, "b.example.", pair))
		for i := range 10 {
			assert.Equal(t, 50*ms, n.measureQuery(f, fmt.Sprintf("n%d.example.", i), pair))
		}
		n.serve("192.0.2.1", answerAfter(10*ms))
		time.Sleep(lameTime)
		assert.Equal(t, 10*ms, n.measureQuery(f, "c.example.", pair))
	})
}

// TestLameTableIgnoresRefusalsBetweenAnswers queries names that a server refuses, for example names in a zone that
// has moved. Clients can choose the names.
func TestLameTableIgnoresRefusalsBetweenAnswers(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.newPool(Config{})
		pair := n.servePair(f, "a.example.", "b.example.", "c.example.")
		for _, bad := range []string{"a.example.", "b.example.", "c.example.", "b.example."} {
			assert.Equal(t, 60*ms, n.measureQuery(f, bad, pair), bad)
			assert.Equal(t, 10*ms, n.measureQuery(f, "good.example.", pair), bad)
		}
	})
}
