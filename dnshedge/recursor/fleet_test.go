package recursor

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// plain returns a task whose servers answer if they say NOERROR.
func plain(servers ...netip.AddrPort) *task {
	return &task{
		question: question{name: "www.example.com.", qtype: dns.TypeA},
		zone:     "example.com.",
		servers:  servers,
		judge: func(m *dns.Msg, _ netip.AddrPort) error {
			if m.Rcode != dns.RcodeSuccess {
				return errLame
			}
			return nil
		},
	}
}

// ask has f ask, and returns how long that took.
func (n *network) ask(f *fleet, t *task) (*dns.Msg, time.Duration, error) {
	n.Helper()
	start := time.Now()
	m, err := f.ask(context.Background(), t)
	return m, time.Since(start), err
}

func TestAQueryIsAnIterativeOneWithEDNS(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.fleet(&Resolver{})
		a := n.serve("192.0.2.1", good(30*ms))
		x := plain(a)
		x.do, x.cd = true, true
		m, took, err := n.ask(f, x)
		require.NoError(t, err)
		assert.Equal(t, "www.example.com.", m.Question[0].Name)
		assert.Equal(t, 30*ms, took)
		q := n.queries()[0]
		assert.False(t, q.RecursionDesired)
		assert.False(t, q.AuthenticatedData)
		assert.True(t, q.CheckingDisabled)
		require.NotNil(t, q.IsEdns0())
		assert.EqualValues(t, 1232, q.IsEdns0().UDPSize())
		assert.True(t, q.IsEdns0().Do())
	})
}

func TestALameServerIsLeftAtOnceAndForAQuarterOfAnHour(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.fleet(&Resolver{})
		lame := n.serve("192.0.2.1", good(10*ms))
		ok := n.serve("192.0.2.2", good(50*ms))
		for _, a := range []netip.AddrPort{lame, ok} {
			_, _, err := n.ask(f, plain(a))
			require.NoError(t, err)
		}
		n.serve("192.0.2.1", says(dns.RcodeRefused, 10*ms))
		_, took, err := n.ask(f, plain(lame, ok))
		require.NoError(t, err)
		assert.Equal(t, 60*ms, took)
		for _, wait := range []time.Duration{0, lameTime - time.Second} {
			time.Sleep(wait)
			_, took, err = n.ask(f, plain(lame, ok))
			require.NoError(t, err)
			assert.Equal(t, 50*ms, took)
		}
		other := plain(lame, ok)
		other.zone = "example."
		_, took, err = n.ask(f, other)
		require.NoError(t, err)
		assert.Equal(t, 60*ms, took, "it may serve other zones")
		time.Sleep(time.Second)
		n.serve("192.0.2.1", good(10*ms))
		_, took, err = n.ask(f, plain(lame, ok))
		require.NoError(t, err)
		assert.Equal(t, 10*ms, took)
	})
}

func TestASilentServerIsLeftAfterItsTimeout(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.fleet(&Resolver{Hedge: Hedge{Off: true}})
		a := n.serve("192.0.2.1", dead)
		b := n.serve("192.0.2.2", good(30*ms))
		x := plain(a)
		x.more = func(context.Context) ([]netip.AddrPort, error) { return []netip.AddrPort{b}, nil }
		_, took, err := n.ask(f, x)
		require.NoError(t, err)
		assert.Equal(t, 230*ms, took)
	})
}

func TestAZoneWhoseServersAreSilentRests(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.fleet(&Resolver{})
		a, b := n.serve("192.0.2.1", dead), n.serve("192.0.2.2", dead)
		_, took, err := n.ask(f, plain(a, b))
		assert.ErrorIs(t, err, errNoServers)
		assert.Less(t, took, 5*time.Second)
		sent := len(n.queries())
		assert.Equal(t, 6, sent)
		_, took, err = n.ask(f, plain(a, b))
		assert.ErrorIs(t, err, errNoServers)
		assert.Zero(t, took)
		assert.Len(t, n.queries(), sent)
		time.Sleep(zoneRest)
		_, _, err = n.ask(f, plain(a, b))
		assert.ErrorIs(t, err, errNoServers)
		assert.Greater(t, len(n.queries()), sent)
	})
}

func TestACutAnswerIsAskedForOverTCPAtTheSameServer(t *testing.T) {
	inBubble(t, func(n *network) {
		f := n.fleet(&Resolver{})
		a := n.serve("192.0.2.1", func(q sent) []reply {
			r := new(dns.Msg).SetReply(q.Msg)
			r.Truncated = !q.tcp
			return []reply{{r, 20 * ms}}
		})
		b := n.serve("192.0.2.2", good(900*ms))
		_, _, err := n.ask(f, plain(a))
		require.NoError(t, err)
		m, took, err := n.ask(f, plain(a, b))
		require.NoError(t, err)
		assert.Equal(t, 40*ms, took)
		assert.False(t, m.Truncated)
		all := n.queries()
		require.Len(t, all, 4)
		assert.True(t, all[3].tcp)
		assert.Equal(t, a, all[3].to)
	})
}

func TestAServerThatRejectsEDNSIsAskedWithoutForAnHour(t *testing.T) {
	for _, rcode := range []int{dns.RcodeFormatError, dns.RcodeNotImplemented} {
		inBubble(t, func(n *network) {
			f := n.fleet(&Resolver{})
			a := n.serve("192.0.2.1", func(q sent) []reply {
				if q.IsEdns0() != nil {
					r := new(dns.Msg).SetRcode(q.Msg, rcode)
					r.Question = nil
					return []reply{{r, 20 * ms}}
				}
				return good(20 * ms)(q)
			})
			for range 2 {
				_, _, err := n.ask(f, plain(a))
				require.NoError(t, err)
			}
			require.Len(t, n.queries(), 3)
			time.Sleep(time.Hour)
			_, _, err := n.ask(f, plain(a))
			require.NoError(t, err)
			require.Len(t, n.queries(), 5)
		})
	}
}
