package dnshedge_test

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

// endingListener closes the first connections, each in a goroutine of its own, and serves the later ones.
type endingListener struct {
	net.Listener
	left, ended atomic.Int64
	end         func(net.Conn)
}

func (l *endingListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || l.left.Add(-1) < 0 {
			return c, err
		}
		l.ended.Add(1)
		go func() {
			defer c.Close()
			l.end(c)
		}()
	}
}

// serverTLS returns the configuration of a server with a protocol.
func serverTLS(protocol string) *tls.Config {
	config, _ := dnstest.Certificate()
	config = config.Clone()
	config.NextProtos = []string{protocol}
	return config
}

// readQuery reads a query from a stream.
func readQuery(c io.Reader) error {
	var head [2]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, binary.BigEndian.Uint16(head[:])))
	return err
}

// endAfter returns a function that closes a connection after it has received a query and sent some bytes. It uses TLS
// if there is a TLS configuration.
func endAfter(config *tls.Config, b ...byte) func(net.Conn) {
	return func(c net.Conn) {
		if config != nil {
			secure := tls.Server(c, config)
			defer secure.Close()
			c = secure
		}
		if readQuery(c) == nil {
			_, _ = c.Write(b)
		}
	}
}

// endHTTP2 returns a function that serves an HTTP/2 connection and responds to request n, counted from 1, with the
// given frames. It closes the connection if the frames require that.
func endHTTP2(answer func(f *http2.Framer, stream uint32, n int) (closes bool)) func(net.Conn) {
	config := serverTLS("h2")
	return func(c net.Conn) {
		c = tls.Server(c, config)
		defer c.Close()
		if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		f := http2.NewFramer(c, c)
		_ = f.WriteSettings()
		for n := 1; ; {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			if _, ok := frame.(*http2.HeadersFrame); ok {
				if answer(f, frame.Header().StreamID, n) {
					return
				}
				n++
			}
		}
	}
}

// goAway returns a function that shuts down an HTTP/2 connection by GOAWAY, after the first request or before it.
func goAway(handled, closes bool) func(*http2.Framer, uint32, int) bool {
	return func(f *http2.Framer, stream uint32, _ int) bool {
		if !handled {
			stream = 0
		}
		_ = f.WriteGoAway(stream, http2.ErrCodeNo, nil)
		return closes
	}
}

// The first three connections end before a response, in each possible way (RFC 7766 §6.2.4).
func TestClientRetriesAfterConnectionEnds(t *testing.T) {
	atOnce := func(net.Conn) {}
	inHandshake := func(c net.Conn) { _, _ = c.Read(make([]byte, 5)) }
	dot := serverTLS("dot")
	for name, tc := range map[string]struct {
		network string
		end     func(net.Conn)
	}{
		"at once": {"tcp", atOnce}, "after the query": {"tcp", endAfter(nil)}, "in the length": {"tcp", endAfter(nil, 0)},
		"in the answer": {"tcp", endAfter(nil, 0, 40, 1, 2, 3)},
		"tls, at once":  {"tls", atOnce}, "tls, in the handshake": {"tls", inHandshake}, "tls, after the query": {"tls", endAfter(dot)},
		"tls, in the answer": {"tls", endAfter(dot, 0, 40, 1, 2, 3)},
		"https, at once":     {"https", atOnce}, "https, in the handshake": {"https", inHandshake},
		"https, after the request": {"https", endHTTP2(func(*http2.Framer, uint32, int) bool { return true })},
		"https, GOAWAY":            {"https", endHTTP2(goAway(false, false))},
		"https, GOAWAY, ends":      {"https", endHTTP2(goAway(false, true))},
		"https, GOAWAY, handled":   {"https", endHTTP2(goAway(true, true))},
		"https, INTERNAL_ERROR": {"https", endHTTP2(func(f *http2.Framer, stream uint32, n int) bool {
			_ = f.WriteRSTStream(stream, http2.ErrCodeInternal)
			return n == 2
		})},
		"https, CANCEL in the answer": {"https", endHTTP2(func(f *http2.Framer, stream uint32, n int) bool {
			var header bytes.Buffer
			encoder := hpack.NewEncoder(&header)
			_ = encoder.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
			_ = encoder.WriteField(hpack.HeaderField{Name: "content-type", Value: "application/dns-message"})
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, EndHeaders: true, BlockFragment: header.Bytes()})
			_ = f.WriteRSTStream(stream, http2.ErrCodeCancel)
			return n == 2
		})},
		"https, REFUSED_STREAM": {"https", endHTTP2(func(f *http2.Framer, stream uint32, n int) bool {
			_ = f.WriteRSTStream(stream, http2.ErrCodeRefusedStream)
			return n == 2
		})},
	} {
		bubble(t, func(l *lab) {
			ln := l.serveEnding("a", tc.network, 3, tc.end)
			r, took, err := l.ask(l.client(off(), l.up(tc.network, "a")), "x.example.")
			if assert.NoError(l, err, name) {
				assert.Equal(l, "192.0.2.1", addr(r), name)
			}
			assert.LessOrEqual(l, took, 4*time.Second, name)
			assert.EqualValues(l, 3, ln.ended.Load(), name)
		})
	}
}

// serveEnding starts a server of one protocol that closes its first connections.
func (l *lab) serveEnding(host, network string, first int64, end func(net.Conn)) *endingListener {
	s := &dnstest.Server{Handler: good}
	ln, err := l.net.Host(host).Listen("tcp", map[string]string{"tcp": ":53", "tls": ":853", "https": ":443"}[network])
	require.NoError(l, err)
	ending := &endingListener{Listener: ln, end: end}
	ending.left.Store(first)
	map[string]func(net.Listener){"tcp": s.ServeTCP, "tls": s.ServeTLS, "https": s.ServeHTTPS}[network](ending)
	l.Cleanup(s.Close)
	return ending
}

// A kernel resets the first connections, before or after the query.
func TestClientRetriesAfterConnectionReset(t *testing.T) {
	for name, end := range map[string]func(net.Conn){"before": func(net.Conn) {}, "after": func(c net.Conn) { _ = readQuery(c) }} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		ending := &endingListener{Listener: ln, end: func(c net.Conn) {
			end(c)
			_ = c.(*net.TCPConn).SetLinger(0)
		}}
		ending.left.Store(2)
		s := &dnstest.Server{Handler: good}
		s.ServeTCP(ending)
		up, err := dnshedge.ParseUpstream("tcp://" + ln.Addr().String())
		require.NoError(t, err)
		c := &dnshedge.Client{Upstreams: []dnshedge.Upstream{up}}
		r, _, err := c.Exchange(question("x.example.", dns.TypeA), "")
		if assert.NoError(t, err, name) {
			assert.Equal(t, "192.0.2.1", addr(r), name)
		}
		c.Close()
		s.Close()
	}
}

// One of two servers closes each connection.
func TestClientFailsOverWhenConnectionsEnd(t *testing.T) {
	for _, network := range []string{"tcp", "tls", "https"} {
		for _, order := range []dnshedge.Order{dnshedge.OrderAuto, dnshedge.OrderStrict} {
			bubble(t, func(l *lab) {
				ends := l.serve("a", func(dnstest.Query) dnstest.Reply { return dnstest.Reply{Close: true} })
				l.serve("b", good)
				c := off()
				c.Order = order
				l.client(c, l.up(network, "a"), l.up(network, "b"))
				for i := range 20 {
					_, took := l.must(c, fmt.Sprintf("x%d.example.", i))
					assert.LessOrEqual(l, took, 300*ms, "%s, %v: two connections of three round trips at most", network, order)
				}
				assert.LessOrEqual(l, ends.Queries.Load(), int64(20), "%s, %v", network, order)
			})
		}
	}
}

// One server responds with a failure, and another one is unavailable. The failure is returned at once.
func TestClientReturnsFailureWithoutWaiting(t *testing.T) {
	for name, bad := range map[string]dnstest.Handler{
		"ends": func(dnstest.Query) dnstest.Reply { return dnstest.Reply{Close: true} },
		"503":  func(dnstest.Query) dnstest.Reply { return dnstest.Reply{Status: http.StatusServiceUnavailable} },
	} {
		for _, hosts := range [][2]string{{"a", "b"}, {"b", "a"}} {
			for _, order := range []dnshedge.Order{dnshedge.OrderAuto, dnshedge.OrderStrict} {
				bubble(t, func(l *lab) {
					l.serve("a", rcode(dns.RcodeServerFailure))
					l.serve("b", bad)
					c := off()
					c.Order = order
					r, took := l.must(l.client(c, l.up("https", hosts[0]), l.up("https", hosts[1])), "x.example.")
					assert.Equal(l, dns.RcodeServerFailure, r.Rcode)
					assert.LessOrEqual(l, took, 200*ms, "%s, %v, %v", name, hosts, order)
				})
			}
		}
	}
}

// A question makes the server close the connection. The question is sent again over connections of its own, but not
// until its deadline.
func TestClientRepeatsQuestionOnSeparateConnection(t *testing.T) {
	for _, network := range []string{"tcp", "tls", "https"} {
		bubble(t, func(l *lab) {
			var ends atomic.Int64
			var conns sync.Map
			l.serve("a", func(q dnstest.Query) dnstest.Reply {
				if q.Question[0].Name == "ends.example." {
					ends.Add(1)
					return dnstest.Reply{Close: true}
				}
				conns.Store(q.Conn, true)
				return good(q)
			})
			c := off()
			c.Timeout = time.Minute
			l.client(c, l.up(network, "a"))
			done := make(chan error, 1)
			go func() {
				_, _, err := l.ask(c, "ends.example.")
				done <- err
			}()
			time.Sleep(150 * ms)
			for i := range 200 {
				_, took := l.must(c, fmt.Sprintf("x%d.example.", i))
				assert.LessOrEqual(l, took, 100*ms, network)
				time.Sleep(50 * ms)
			}
			require.Error(l, <-done)
			assert.LessOrEqual(l, ends.Load(), int64(1+8), network)
			n := 0
			conns.Range(func(any, any) bool { n++; return true })
			assert.Equal(l, 1, n, network)
		})
	}
}

func TestClientParsesRetryAfterDate(t *testing.T) {
	for _, tc := range []struct {
		in      time.Duration
		took    time.Duration // at most
		fails   bool
		queries int64
	}{
		{3 * time.Second, 3500 * ms, false, 2}, {-time.Hour, 500 * ms, false, 2}, {time.Hour, 500 * ms, true, 1},
	} {
		bubble(t, func(l *lab) {
			s := l.serve("a", script(func(dnstest.Query) dnstest.Reply {
				at := time.Now().Add(tc.in).UTC().Format(http.TimeFormat)
				return dnstest.Reply{Status: http.StatusServiceUnavailable, Header: http.Header{"Retry-After": {at}}}
			}, good))
			_, took, err := l.ask(l.client(off(), l.up("https", "a")), "x.example.")
			assert.Equal(l, tc.fails, err != nil, "%v: %v", tc.in, err)
			assert.LessOrEqual(l, took, tc.took, tc.in)
			if !tc.fails {
				assert.GreaterOrEqual(l, took, tc.in-time.Second, "dates have no fractions")
			}
			assert.EqualValues(l, tc.queries, s.Queries.Load(), tc.in)
		})
	}
}
