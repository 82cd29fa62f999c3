package dnshedge_test

import (
	"errors"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

// deadName does not answer questions about dead.example., answers names that begin with slow after three seconds, and
// other names at once.
func deadName(q dnstest.Query) dnstest.Reply {
	if q.Question[0].Name == "dead.example." {
		return drop(q)
	}
	return slowNames(q)
}

func TestServerLimitsEqualQuestionsOverConnections(t *testing.T) {
	for _, cache := range []*dnshedge.Cache{nil, new(dnshedge.Cache)} {
		bubble(t, func(l *lab) {
			l.serve("a", deadName)
			c := l.client(&dnshedge.Client{MaxInFlight: 10, Cache: cache, Hedge: dnshedge.Hedge{Off: true}}, l.up("tcp", "a"))
			l.startServer(&dnshedge.Server{Client: c})
			other := l.from("b", "tcp")
			require.NoError(t, other.WriteMsg(question("slow.example.", dns.TypeA)))
			synctest.Wait()
			before := runtime.NumGoroutine()
			const conns, each = 5, 100
			var failed atomic.Int64
			for range conns {
				conn := l.connect("tcp")
				go func() {
					for {
						r, err := conn.ReadMsg()
						if err != nil {
							return
						}
						assert.Equal(t, dns.RcodeServerFailure, r.Rcode)
						failed.Add(1)
					}
				}()
				for range each {
					require.NoError(t, conn.WriteMsg(question("dead.example.", dns.TypeA)))
				}
			}
			time.Sleep(time.Second)
			synctest.Wait()
			// 20 questions wait, including the question of the other client. The goroutine of the first question about
			// the dead name serves them all. On a busy machine there may be a second goroutine.
			const wait = 20 - 1
			assert.InDelta(t, conns*each-wait-1, failed.Load(), 1)
			assert.EqualValues(t, conns*each-wait, c.Stats().Dropped)
			assert.Less(t, runtime.NumGoroutine(), before+10*conns+2*wait)
			r, err := other.ReadMsg()
			require.NoError(t, err)
			assert.Equal(t, "192.0.2.1", addr(r), "a client that has few questions keeps them")
			time.Sleep(10 * time.Second)
			assert.EqualValues(t, conns*each, failed.Load(), "each question has a response")
		})
	}
}

func TestServeDNSLimitsEqualQuestions(t *testing.T) {
	for _, network := range []string{"udp", "tcp"} {
		bubble(t, func(l *lab) {
			l.serve("a", deadName)
			c := l.client(&dnshedge.Client{MaxInFlight: 10, Cache: new(dnshedge.Cache), Hedge: dnshedge.Hedge{Off: true}}, l.up("tcp", "a"))
			var wg sync.WaitGroup
			var ended atomic.Int64
			ask := func(name string, client net.IP) (rcode int) {
				w := &recorder{remote: &net.TCPAddr{IP: client}}
				if network == "udp" {
					w.remote = &net.UDPAddr{IP: client}
				}
				c.ServeDNS(w, question(name, dns.TypeA))
				r := new(dns.Msg)
				assert.NoError(t, r.Unpack(w.wire))
				return r.Rcode
			}
			wg.Go(func() {
				assert.Equal(t, dns.RcodeSuccess, ask("slow.other.", net.IPv4(192, 0, 2, 2)), "%s: other clients and domains", network)
			})
			synctest.Wait()
			for range 200 {
				wg.Go(func() {
					assert.Equal(t, dns.RcodeServerFailure, ask("dead.example.", net.IPv4(192, 0, 2, 1)))
					ended.Add(1)
				})
			}
			time.Sleep(time.Second)
			// The goroutine of the first question serves them all. On a busy machine there may be a second goroutine.
			assert.InDelta(t, 200-19-1, ended.Load(), 1, network)
			assert.EqualValues(t, 200-19, c.Stats().Dropped, network)
			wg.Wait()
		})
	}
}

func TestMaxInFlightLimitsQuestionsToAddress(t *testing.T) {
	for _, network := range []string{"udp", "tcp"} {
		bubble(t, func(l *lab) {
			l.serve("a", deadName)
			c := l.client(&dnshedge.Client{MaxInFlight: 10, Hedge: dnshedge.Hedge{Off: true}})
			address := l.up(network, "a").String()
			var wg sync.WaitGroup
			var tooMany atomic.Int64
			for range 50 {
				wg.Go(func() {
					_, _, err := c.Exchange(question("dead.example.", dns.TypeA), address)
					if assert.Error(t, err); errors.Is(err, dnshedge.ErrTooManyQuestions) {
						tooMany.Add(1)
					}
				})
			}
			wg.Wait()
			assert.EqualValues(t, 40, tooMany.Load(), network)
			assert.EqualValues(t, 40, c.Stats().Dropped, network)
			r, _, err := c.Exchange(question("x.example.", dns.TypeA), address)
			require.NoError(t, err)
			assert.Equal(t, "192.0.2.1", addr(r))
		})
	}
}
