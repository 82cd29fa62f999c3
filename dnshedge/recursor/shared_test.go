package recursor

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// about returns a task that asks for a name in a zone.
func about(zone, name string, qtype uint16, servers ...netip.AddrPort) *task {
	x := plain(servers...)
	x.zone, x.name, x.qtype = zone, name, qtype
	return x
}

// unless answers after a while, but queries of which drops is true.
func unless(drops func(q dns.Question) bool, after time.Duration) handler {
	return func(q sent) []reply {
		if drops(q.Question[0]) {
			return nil
		}
		return good(after)(q)
	}
}

// Many servers drop queries for types that they do not know, and for AAAA (RFC 4074 §4.1).
func TestAQuestionThatServersDropLetsNoZoneRest(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.fleet(&Resolver{})
		h := unless(func(q dns.Question) bool { return q.Qtype == dns.TypeHTTPS }, 30*ms)
		a, b := n.serve("192.0.2.1", h), n.serve("192.0.2.2", h)
		for i := range 5 {
			_, _, err := n.ask(f, about("example.", fmt.Sprintf("n%d.example.", i), dns.TypeA, a, b))
			require.NoError(t, err, "question %d", i)
			_, _, err = n.ask(f, about("example.", "www.example.", dns.TypeHTTPS, a, b))
			require.ErrorIs(t, err, errNoServers)
		}
	})
}

// Whoever has zones can name anybody's servers for them, and many servers drop questions about
// zones that they do not have.
func TestZonesForWhichServersOfOthersAreSilentTakeNoneOfTheirPlaces(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.fleet(&Resolver{})
		h := unless(func(q dns.Question) bool { return dns.IsSubDomain("evil.", q.Name) }, 30*ms)
		var hoster []netip.AddrPort
		for i := range 4 {
			hoster = append(hoster, n.serve(fmt.Sprintf("192.0.2.%d", i), h))
		}
		for i := range 1000 {
			zone := fmt.Sprintf("z%d.evil.", i%8)
			time.AfterFunc(time.Duration(i)*10*ms, func() {
				_, _ = f.ask(context.Background(), about(zone, fmt.Sprintf("n%d.%s", i, zone), dns.TypeA, hoster...))
			})
		}
		for i := range 200 {
			_, took, err := n.ask(f, about("example.", fmt.Sprintf("n%d.example.", i), dns.TypeA, hoster...))
			require.NoError(t, err)
			require.LessOrEqual(t, took, 100*ms, "after %v", time.Since(n.start))
			time.Sleep(50 * ms)
		}
		time.Sleep(10 * time.Second)
	})
}

func TestAServerThatHasAnsweredSinceIsNotSilent(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.fleet(&Resolver{Hedge: Hedge{Off: true}})
		a := n.serve("192.0.2.1", good(30*ms))
		b := n.serve("192.0.2.2", good(90*ms))
		for _, at := range []netip.AddrPort{a, b} {
			_, _, err := n.ask(f, plain(at))
			require.NoError(t, err)
		}
		n.serve("192.0.2.1", unless(func(q dns.Question) bool { return dns.IsSubDomain("lost.example.", q.Name) }, 30*ms))
		for i := range 3 {
			go func() {
				_, _ = f.ask(n.Context(), about("example.", fmt.Sprintf("n%d.lost.example.", i), dns.TypeA, a, b))
			}()
		}
		time.Sleep(ms)
		_, _, err := n.ask(f, about("example.", "www.example.", dns.TypeA, a, b))
		require.NoError(t, err)
		time.Sleep(time.Second)
		_, took, err := n.ask(f, about("example.", "www.example.", dns.TypeA, a, b))
		require.NoError(t, err)
		assert.Equal(t, 30*ms, took)
	})
}
