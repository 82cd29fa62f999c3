package dnshedge_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

// slowNames answers names that begin with slow after three seconds.
func slowNames(q dnstest.Query) dnstest.Reply {
	if strings.HasPrefix(q.Question[0].Name, "slow") {
		return after(3*time.Second, good)(q)
	}
	return good(q)
}

// crowded starts a server that accepts n connections, over TCP and TLS, and counts the open connections.
func (l *lab) crowded(n int) *openListener {
	l.serve("a", slowNames)
	s := &dnshedge.Server{Client: l.client(off(), l.up("udp", "a")), MaxConns: n}
	open := new(openListener)
	serving, _ := dnstest.Certificate()
	var wg sync.WaitGroup
	for port, secure := range map[string]bool{":53": false, ":853": true} {
		ln, err := l.net.Host("c").Listen("tcp", port)
		require.NoError(l, err)
		ln = &countedListener{ln, open}
		if secure {
			ln = tls.NewListener(ln, serving.Clone())
		}
		wg.Go(func() { assert.ErrorIs(l, s.Serve(ln), dnshedge.ErrServerClosed) })
	}
	l.Cleanup(func() {
		require.NoError(l, s.Shutdown(background))
		wg.Wait()
	})
	return open
}

// openListener counts the open connections of its listeners, and records the maximum.
type openListener struct{ now, most atomic.Int64 }

type countedListener struct {
	net.Listener
	open *openListener
}

func (l *countedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.open.most.Store(max(l.open.most.Load(), l.open.now.Add(1)))
	return &countedConn{Conn: c, ended: sync.OnceFunc(func() { l.open.now.Add(-1) })}, nil
}

type countedConn struct {
	net.Conn
	ended func()
}

func (c *countedConn) Close() error {
	c.ended()
	return c.Conn.Close()
}

// from connects a host to the server, over TCP or TLS.
func (l *lab) from(host, network string) *dns.Conn {
	l.Helper()
	port := map[string]string{"tcp": ":53", "tls": ":853"}[network]
	c, err := l.net.Host(host).DialContext(background, "tcp", l.net.Host("c").Addr().String()+port)
	require.NoError(l, err)
	l.Cleanup(func() { c.Close() })
	if network == "tls" {
		_, trusting := dnstest.Certificate()
		config := trusting.Clone()
		config.ServerName = dnstest.Name
		c = tls.Client(c, config)
	}
	return &dns.Conn{Conn: c}
}

// works reports whether a question over a connection is answered. Otherwise the connection has been closed, within ten seconds.
func works(t *testing.T, c *dns.Conn, name string) bool {
	t.Helper()
	if c.WriteMsg(question(name, dns.TypeA)) != nil || c.SetReadDeadline(time.Now().Add(10*time.Second)) != nil {
		return false
	}
	_, err := c.ReadMsg()
	var timeout net.Error
	assert.False(t, errors.As(err, &timeout) && timeout.Timeout(), "neither answered nor closed: %v", err)
	return err == nil
}

// A client holds all available connections, sends questions on each from time to time, and opens a new connection for
// each that is closed. Other clients get answers as they would without it.
func TestServerLimitsConnectionsOfOneClient(t *testing.T) {
	for _, network := range []string{"tcp", "tls"} {
		for _, name := range []string{"x.example.", "slow.example."} { // the connections are idle, or always in use
			bubble(t, func(l *lab) {
				open := l.crowded(20)
				var quit atomic.Bool
				var wg sync.WaitGroup
				for range 25 {
					wg.Go(func() {
						for !quit.Load() {
							conn := l.from("b", network)
							for !quit.Load() && works(l.T, conn, name) {
								if name == "x.example." {
									time.Sleep(9 * time.Second)
								}
							}
							conn.Close()
							time.Sleep(time.Second)
						}
					})
				}
				time.Sleep(5 * time.Second)
				conn := l.from("client", network)
				for i := range 15 {
					start := time.Now()
					assert.True(t, works(t, conn, fmt.Sprintf("y%d.example.", i)), "%s, %s, question %d", network, name, i)
					assert.LessOrEqual(t, time.Since(start), 120*ms)
					time.Sleep(8 * time.Second)
				}
				wait := 120 * ms
				if name != "x.example." {
					wait += 3*time.Second + time.Second // more than two connections to be closed still have questions in flight, and are drained first
				}
				for i := range 10 {
					start := time.Now()
					conn := l.from("client", network)
					assert.True(t, works(t, conn, fmt.Sprintf("z%d.example.", i)), "%s, %s, connection %d", network, name, i)
					assert.LessOrEqual(t, time.Since(start), wait)
					conn.Close()
				}
				quit.Store(true)
				wg.Wait()
				assert.LessOrEqual(t, open.most.Load(), int64(20+20/8+2), "%s, %s; one of each listener waits", network, name)
			})
		}
	}
}

// Which connection is closed is a matter of use, and not of age.
func TestServerClosesLongestIdleConnectionOfClient(t *testing.T) {
	for _, network := range []string{"tcp", "tls"} {
		bubble(t, func(l *lab) {
			l.crowded(3)
			var conns [3]*dns.Conn
			for i := range conns {
				conns[i] = l.from("client", network)
			}
			for _, i := range []int{0, 2, 1, 0} {
				require.True(t, works(t, conns[i], "x.example."))
				time.Sleep(time.Second)
			}
			assert.True(t, works(t, l.from("client", network), "x.example."))
			assert.True(t, works(t, conns[0], "x.example."))
			assert.True(t, works(t, conns[1], "x.example."))
			assert.False(t, works(t, conns[2], "x.example."))
		})
	}
}

func TestServerRejectsConnectionOfClientThatUsesAll(t *testing.T) {
	bubble(t, func(l *lab) {
		l.crowded(2)
		var wg sync.WaitGroup
		for i := range 2 {
			conn := l.from("client", "tcp")
			wg.Go(func() { assert.True(t, works(t, conn, fmt.Sprintf("slow%d.example.", i))) })
		}
		time.Sleep(time.Second)
		more := l.from("client", "tcp")
		start := time.Now()
		assert.False(t, works(t, more, "x.example."))
		assert.LessOrEqual(t, time.Since(start), 20*ms)
		wg.Wait()
		assert.True(t, works(t, l.from("client", "tcp"), "x.example."))
	})
}

// Earlier questions of the connection are answered, and later ones are not read.
func TestServerClosesConnectionInUseAfterAnswers(t *testing.T) {
	bubble(t, func(l *lab) {
		l.crowded(2)
		var busy [2]*dns.Conn
		for i := range busy {
			busy[i] = l.from("b", "tcp")
			for range 3 {
				require.NoError(t, busy[i].WriteMsg(question(fmt.Sprintf("slow%d.example.", i), dns.TypeA)))
			}
			time.Sleep(100 * ms)
		}
		start := time.Now()
		conn := l.from("client", "tcp")
		assert.True(t, works(t, conn, "x.example."))
		assert.LessOrEqual(t, time.Since(start), 60*ms)
		for i := range busy {
			require.NoError(t, busy[i].WriteMsg(question("late.example.", dns.TypeA)))
		}
		answers := func(c *dns.Conn) (n int) {
			require.NoError(t, c.SetReadDeadline(time.Now().Add(9*time.Second)))
			for {
				if _, err := c.ReadMsg(); err != nil {
					return n
				}
				n++
			}
		}
		assert.Equal(t, 3, answers(busy[0]), "it has been in use for longer")
		assert.Equal(t, 4, answers(busy[1]))
	})
}
