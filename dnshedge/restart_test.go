package dnshedge_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

// The client waits for a server that restarts. A server that has refused connections for longer than Timeout does not
// restart, so its error is returned at once.
func TestClientDoesNotWaitForServerThatRefusesForLong(t *testing.T) {
	for _, network := range []string{"udp", "tcp"} {
		for name, answered := range map[string]bool{"from the start": false, "after answers": true} {
			bubble(t, func(l *lab) {
				c := l.client(new(dnshedge.Client), l.up(network, "a"))
				if answered {
					a := l.serve("a", good)
					l.must(c, "w.example.")
					a.Close()
				}
				start := time.Now()
				_, took, err := l.ask(c, "x.example.")
				assert.Error(t, err)
				assert.InDelta(t, 4800*ms, took, float64(200*ms), "%s, %s", network, name)
				time.Sleep(time.Until(start.Add(5 * time.Second)))
				for i := range 20 {
					_, took, err := l.ask(c, fmt.Sprintf("y%d.example.", i))
					assert.ErrorContains(t, err, "refused")
					assert.LessOrEqual(t, took, 60*ms, "%s, %s", network, name)
					time.Sleep(500 * ms)
				}
				back := l.serve("a", good)
				l.must(c, "z.example.")
				back.Close()
				time.AfterFunc(3*time.Second, func() { l.serve("a", good) })
				_, took = l.must(c, "z2.example.")
				assert.LessOrEqual(t, took, 4200*ms, "it has answered since, and restarts again")
			})
		}
	}
}

// The sockets of Windows have their own code for a refused connection.
func TestClientWaitsForRestartOnWindows(t *testing.T) {
	bubble(t, func(l *lab) {
		l.serve("a", good)
		c := l.client(new(dnshedge.Client), l.up("tcp", "a"))
		inner, dials := c.Dialer, 0
		c.Dialer = dialFunc(func(ctx context.Context, network, address string) (net.Conn, error) {
			if dials++; dials == 1 {
				return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connectex", syscall.Errno(10061))}
			}
			return inner.DialContext(ctx, network, address)
		})
		_, took := l.must(c, "x.example.")
		assert.Equal(t, 240*ms, took, "a pause of 200 ms, a handshake, and a round trip")
	})
}

// One of two servers has refused connections for long, and the other server restarts.
func TestClientWaitsForRestartBesideServerThatIsGone(t *testing.T) {
	bubble(t, func(l *lab) {
		b := l.serve("b", good)
		c := l.client(&dnshedge.Client{ResolvConf: l.resolvConf("", "a", "b")})
		for i := range 20 {
			l.must(c, fmt.Sprintf("x%d.example.", i))
			time.Sleep(500 * ms)
		}
		b.Close()
		time.AfterFunc(2*time.Second, func() { l.serve("b", good) })
		_, took := l.must(c, "y.example.")
		assert.LessOrEqual(t, took, 3500*ms)
	})
}

// Two servers respond with failures. The third server closes its connection or refuses connections, and would answer a
// moment later. The question may be the reason, so the client does not send it to that server until the deadline.
func TestClientReturnsFailureBesideServerThatEndsConnections(t *testing.T) {
	lame := func(q dnstest.Query) dnstest.Reply {
		r := rcode(dns.RcodeSuccess)(q)
		r.Msg.RecursionAvailable = false
		return r
	}
	prohibited := func(q dnstest.Query) dnstest.Reply {
		return dnstest.Reply{Msg: dnstest.EDE(dnstest.Rcode(q, dns.RcodeRefused), dns.ExtendedErrorCodeProhibited)}
	}
	for _, network := range []string{"tcp", "tls"} {
		for _, order := range []string{"a b c", "c a b", "a c b"} {
			for _, closes := range []bool{true, false} {
				bubble(t, func(l *lab) {
					prohibits := l.serve("a", prohibited)
					l.serve("b", lame)
					var ends atomic.Int64
					if closes {
						l.serve("c", func(dnstest.Query) dnstest.Reply { ends.Add(1); return dnstest.Reply{Close: true} })
					}
					var ups []dnshedge.Upstream
					for host := range strings.FieldsSeq(order) {
						ups = append(ups, l.up(network, host))
					}
					r, took := l.must(l.client(off(), ups...), "x.example.")
					assert.Empty(t, r.Answer)
					assert.Less(t, took, 3*100*ms, "%s, %s, closes: %v: three round trips at most for each", network, order, closes)
					assert.EqualValues(t, 1, prohibits.Queries.Load(), "%s, %s, closes: %v", network, order, closes)
					assert.LessOrEqual(t, ends.Load(), int64(1), "%s, %s", network, order)
				})
			}
		}
	}
}
