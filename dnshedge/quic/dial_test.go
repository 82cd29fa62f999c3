package quic_test

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	quicgo "github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/quic"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/netsim"
)

// A quicServer accepts QUIC connections, and has a handler for the queries on them.
type quicServer struct {
	at     net.Addr
	handle func(conn *quicgo.Conn, query []byte, to responseStream) // query is framed
	wg     sync.WaitGroup

	mu    sync.Mutex
	conns []*quicgo.Conn
	http3 []*http3.Server // one for each connection of HTTP/3
}

// A responseStream is the stream on which a quicServer responds to a query.
type responseStream struct {
	ctx     context.Context               // ends when the client has cancelled the query
	respond func(framed []byte, end bool) // sends a response or a part of it, and the end of the stream
	reset   func()
}

// serverConfig returns the configuration of a server for scheme.
func serverConfig(scheme string) *tls.Config {
	c, _ := dnstest.Certificate()
	c = c.Clone()
	c.NextProtos = []string{map[string]string{"quic": "doq", "h3": "h3"}[scheme]}
	return c
}

// startServer starts a server for scheme that permits so many streams on a connection.
func startServer(t *testing.T, scheme string, streams int64, answer func(conn *quicgo.Conn, query []byte) (framed []byte)) *quicServer {
	l, err := quicgo.ListenAddr("127.0.0.1:0", serverConfig(scheme), &quicgo.Config{MaxIncomingStreams: streams})
	require.NoError(t, err)
	s := serveQUIC(l, scheme, func(conn *quicgo.Conn, query []byte, to responseStream) {
		if r := answer(conn, query); r != nil {
			to.respond(r, true)
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		for _, conn := range s.accepted() {
			_ = conn.CloseWithError(noError, "")
		}
		s.wg.Wait()
	})
	return s
}

// serveQUIC starts a server that ends with its listener and its connections.
func serveQUIC(l *quicgo.Listener, scheme string, handle func(conn *quicgo.Conn, query []byte, to responseStream)) *quicServer {
	s := &quicServer{at: l.Addr(), handle: handle}
	s.wg.Go(func() {
		for {
			conn, err := l.Accept(context.Background())
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns = append(s.conns, conn)
			h := &http3.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serveRequest(conn, w, r) })}
			s.http3 = append(s.http3, h)
			s.mu.Unlock()
			if scheme == "h3" {
				s.wg.Go(func() { _ = h.ServeQUICConn(conn) })
			} else {
				s.wg.Go(func() { s.serveStreams(conn) })
			}
		}
	})
	return s
}

// accepted returns the connections so far.
func (s *quicServer) accepted() []*quicgo.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*quicgo.Conn(nil), s.conns...)
}

func (s *quicServer) serveStreams(conn *quicgo.Conn) {
	for {
		stream, err := conn.AcceptStream(context.Background())
		if err != nil {
			return
		}
		go func() {
			b := make([]byte, 1024)
			n, _ := stream.Read(b)
			s.handle(conn, b[:n], responseStream{
				stream.Context(), func(framed []byte, end bool) {
					_, _ = stream.Write(framed)
					if end {
						_ = stream.Close()
					}
				}, func() { stream.CancelWrite(internalError) },
			})
		}()
	}
}

func (s *quicServer) serveRequest(conn *quicgo.Conn, w http.ResponseWriter, r *http.Request) {
	b, err := base64.RawURLEncoding.DecodeString(r.URL.Query().Get("dns"))
	if err != nil {
		return
	}
	s.handle(conn, frame(b), responseStream{r.Context(), func(framed []byte, end bool) {
		w.Header().Set("Content-Type", mediaType)
		_, _ = w.Write(framed[2:])
		if !end {
			_ = http.NewResponseController(w).Flush()
		}
	}, func() { panic(http.ErrAbortHandler) }})
}

// A connection whose streams all wait for slow answers cannot send a probe, and is not dead.
func TestClientKeepsConnectionAtStreamLimit(t *testing.T) {
	for _, scheme := range schemes {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, scheme, 2, func(_ *quicgo.Conn, query []byte) []byte {
				if strings.Contains(string(query), "slow") {
					time.Sleep(3500 * time.Millisecond)
				}
				return reply(t, query)
			})
			c := newClient(t, scheme, s.at.String())
			c.Hedge.Off, c.Timeout = true, 8*time.Second
			ask(t, c, "a.example.")
			var wg sync.WaitGroup
			for _, name := range []string{"slow.example.", "slow.test."} {
				wg.Go(func() { ask(t, c, name) })
			}
			wg.Wait()
			assert.Len(t, s.accepted(), 1)
		})
	}
}

// Slow questions use up all streams of a server. The other questions are answered over further connections.
func TestClientOpensConnectionsAtStreamLimit(t *testing.T) {
	dnstest.Certificate() // outside the bubbles
	for _, scheme := range schemes {
		for _, streams := range []int64{1, 2, 10} {
			synctest.Test(t, func(t *testing.T) {
				n, err := netsim.NewMemory(1, "client", "s")
				require.NoError(t, err)
				defer n.Close()
				n.Set("client", "s", netsim.Profile{Delay: netsim.Constant(10 * time.Millisecond)})
				socket, err := n.Host("s").ListenPacket("udp", ":853")
				require.NoError(t, err)
				server := &quicgo.Transport{Conn: socket}
				l, err := server.Listen(serverConfig(scheme), &quicgo.Config{MaxIncomingStreams: streams})
				require.NoError(t, err)
				run := serveQUIC(l, scheme, func(_ *quicgo.Conn, query []byte, to responseStream) {
					if strings.Contains(string(query), "slow") {
						time.Sleep(3 * time.Second)
					}
					to.respond(reply(t, query), true)
				})
				c := newClient(t, scheme, n.Host("s").Addr().String()+":853")
				c.Dialer = n.Host("client")
				ask(t, c, "first.example.")
				var all sync.WaitGroup
				for i := range 24 {
					all.Go(func() {
						if i != 5 {
							ask(t, c, fmt.Sprintf("x%d.slow.example.", i))
							return
						}
						assert.LessOrEqual(t, ask(t, c, "x.example."), 300*time.Millisecond, "%s %d", scheme, streams)
					})
					time.Sleep(3 * time.Millisecond)
				}
				all.Wait()
				assert.LessOrEqual(t, len(run.accepted()), 2*(24/int(streams)+3), "%s %d", scheme, streams)
				_ = c.Close()
				time.Sleep(time.Second)
				_ = socket.Close()
				_ = server.Close()
				run.wg.Wait()
				time.Sleep(time.Minute) // package quic-go keeps closed connections for a moment
			})
		}
	}
}

// A connection at its limit of streams is dead if the last query is not acknowledged.
func TestClientReplacesDeadConnectionAtStreamLimit(t *testing.T) {
	for _, scheme := range schemes {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, scheme, 1, func(_ *quicgo.Conn, query []byte) []byte { return reply(t, query) })
			var d lossyDialer
			c := newClient(t, scheme, s.at.String())
			c.Dialer, c.Hedge.Off = &d, true
			ask(t, c, "a.example.")
			time.Sleep(100 * time.Millisecond) // the server permits another stream
			d.dead.Load().drops.Store(true)
			took := ask(t, c, "b.example.")
			assert.Greater(t, took, 900*time.Millisecond)
			assert.Less(t, took, 2*time.Second)
		})
	}
}

// After a GOAWAY frame, queries use another connection, and those in flight are answered.
func TestHTTP3ClientLeavesConnectionAfterGoAway(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	s := startServer(t, "h3", 100, func(_ *quicgo.Conn, query []byte) []byte {
		if strings.Contains(string(query), "slow") {
			close(arrived)
			<-release
		}
		return reply(t, query)
	})
	c := newClient(t, "h3", s.at.String())
	c.Hedge.Off = true
	ask(t, c, "a.example.")
	var wg sync.WaitGroup
	wg.Go(func() { ask(t, c, "slow.example.") })
	<-arrived
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	wg.Go(func() { _ = s.http3[0].Shutdown(ctx) })
	time.Sleep(200 * time.Millisecond)
	assert.Less(t, ask(t, c, "b.example."), time.Second)
	assert.Less(t, ask(t, c, "c.example."), time.Second)
	close(release)
	wg.Wait()
	assert.Len(t, s.accepted(), 2)
}

// Done is closed before Exchange returns an error because the connection has ended.
func TestConnectionIsDoneBeforeExchangeFails(t *testing.T) {
	for _, scheme := range schemes {
		t.Run(scheme, func(t *testing.T) {
			s := startServer(t, scheme, 100, func(conn *quicgo.Conn, _ []byte) []byte {
				_ = conn.CloseWithError(noError, "")
				return nil
			})
			dial := map[string]func(context.Context, dnshedge.DialTarget) (dnshedge.ProtocolConn, error){"quic": quic.DialDoQ, "h3": quic.DialHTTP3}[scheme]
			for range 50 {
				conn, err := dial(t.Context(), dialTarget(s.at))
				require.NoError(t, err)
				_, err = conn.Exchange(t.Context(), pack(t, question("a.example.")))
				require.Error(t, err)
				select {
				case <-conn.Done():
				default:
					require.Fail(t, "the connection is not done", err)
				}
				_ = conn.Close()
			}
		})
	}
}

// dialTarget describes the server at an address.
func dialTarget(at net.Addr) dnshedge.DialTarget {
	_, trusting := dnstest.Certificate()
	trusting = trusting.Clone()
	trusting.ServerName = dnstest.Name
	return dnshedge.DialTarget{Addr: at.String(), Path: "/dns-query", TLS: trusting, DialContext: func(ctx context.Context, network string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, at.String())
	}}
}
