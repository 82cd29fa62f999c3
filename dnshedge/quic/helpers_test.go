package quic_test

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"io"
	"log"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	quicgo "github.com/quic-go/quic-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/forward"
	"github.com/gohedge/hedge/dnshedge/quic"
	"github.com/gohedge/hedge/internal/dnstest"
	"github.com/gohedge/hedge/internal/doubles"
)

// The error codes of RFC 9250 §8.4.
const (
	noError, internalError, protocolError, requestCancelled, excessiveLoad = 0, 1, 2, 3, 4
)

func TestMain(m *testing.M) {
	if os.Getenv(loadServer) != "" {
		runLoadServer()
		return
	}
	log.SetOutput(io.Discard) // package quic-go logs that the system limits the buffers of sockets
	doubles.PreloadNetConfig()
	if flag.Parse(); flag.Lookup("test.fuzz").Value.String() != "" {
		os.Exit(m.Run()) // package testing leaves goroutines behind
	}
	doubles.RunWithoutLeaks(m, func() {})
}

// A forwarder is a running forward.Forwarder with listeners for both protocols.
type forwarder struct {
	doq, http3 *quic.Listener
	stop       func() // shuts the forwarder down
	client     *dnshedge.Client
	upstream   *dnstest.Server

	mu       sync.Mutex
	received map[string]*dns.Msg // queries that the upstream has received, by name
}

// answer is the handler of the upstream of a forwarder: names that begin with stuck get no answer, long has 8,000 bytes.
func answer(q dnstest.Query) dnstest.Reply {
	switch name := strings.ToLower(q.Question[0].Name); {
	case strings.HasPrefix(name, "stuck"):
		return dnstest.Reply{}
	case strings.HasPrefix(name, "slow"):
		return dnstest.Reply{Msg: dnstest.Answer(q, "A 192.0.2.1"), Delay: 500 * time.Millisecond}
	case strings.HasPrefix(name, "fail"):
		return dnstest.Reply{Msg: dnstest.Rcode(q, dns.RcodeServerFailure)}
	case strings.HasPrefix(name, "long"):
		if q.Net == "udp" {
			m := dnstest.Rcode(q, dns.RcodeSuccess)
			m.Truncated = true
			return dnstest.Reply{Msg: m}
		}
		return dnstest.Reply{Msg: dnstest.Answer(q, "TXT "+strings.Repeat(strings.Repeat("x", 255)+" ", 240))}
	}
	return dnstest.Reply{Msg: dnstest.Answer(q, "A 192.0.2.1")}
}

// startForwarder starts a forwarder. The caller may change its configuration.
func startForwarder(t testing.TB, change func(c *forward.Config, serverTLS *tls.Config)) *forwarder {
	t.Helper()
	f := &forwarder{received: make(map[string]*dns.Msg)}
	f.upstream = &dnstest.Server{Handler: func(q dnstest.Query) dnstest.Reply {
		f.mu.Lock()
		f.received[strings.ToLower(q.Question[0].Name)] = q.Msg
		f.mu.Unlock()
		return answer(q)
	}}
	at, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	f.upstream.ServeUDP(at)
	if l, err := net.Listen("tcp", at.LocalAddr().String()); err == nil {
		f.upstream.ServeTCP(l)
	}
	t.Cleanup(f.upstream.Close)
	f.client = &dnshedge.Client{Upstreams: []dnshedge.Upstream{{Addr: at.LocalAddr().String()}}, Cache: new(dnshedge.Cache), Timeout: 2 * time.Second}
	t.Cleanup(func() { f.client.Close() })
	serverTLS, _ := dnstest.Certificate()
	serverTLS = serverTLS.Clone()
	config := forward.Config{Client: f.client}
	if change != nil {
		change(&config, serverTLS)
	}
	f.doq, err = quic.Listen("127.0.0.1:0", serverTLS)
	require.NoError(t, err)
	f.http3, err = quic.ListenHTTP3("127.0.0.1:0", serverTLS)
	require.NoError(t, err)
	config.Listeners = []forward.Listener{f.doq, f.http3}
	server, err := forward.New(config)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	f.stop = cancel
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
	return f
}

// newClient returns a Client of the forwarder over quic or h3.
func (f *forwarder) newClient(t testing.TB, scheme string) *dnshedge.Client {
	at := f.doq.Addr()
	if scheme == "h3" {
		at = f.http3.Addr()
	}
	return newClient(t, scheme, at.String())
}

func newClient(t testing.TB, scheme, at string) *dnshedge.Client {
	_, trusting := dnstest.Certificate()
	c := &dnshedge.Client{Upstreams: []dnshedge.Upstream{{Net: scheme, Addr: at, ServerName: dnstest.Name}}, TLSConfig: trusting}
	t.Cleanup(func() { c.Close() })
	return c
}

// question returns a query for the addresses of a name, with EDNS and the ID 0.
func question(name string) *dns.Msg {
	m := new(dns.Msg).SetQuestion(name, dns.TypeA)
	m.Id = 0
	return m.SetEdns0(1232, false)
}

func pack(t testing.TB, m *dns.Msg) []byte {
	b, err := m.Pack()
	require.NoError(t, err)
	return b
}

// frame returns a message after its length.
func frame(b []byte) []byte { return append([]byte{byte(len(b) >> 8), byte(len(b))}, b...) }

// ask sends a question by a Client and requires an address.
func ask(t testing.TB, c *dnshedge.Client, name string) time.Duration {
	t.Helper()
	start := time.Now()
	r, _, err := c.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), "")
	require.NoError(t, err)
	require.Len(t, r.Answer, 1)
	return time.Since(start)
}

// dialRaw opens a QUIC connection to a listener. A client may use it to violate the protocol.
func dialRaw(t testing.TB, at net.Addr, change func(*tls.Config, *quicgo.Config)) (*quicgo.Conn, error) {
	_, trusting := dnstest.Certificate()
	trusting = trusting.Clone()
	trusting.ServerName, trusting.NextProtos = dnstest.Name, []string{"doq"}
	config := new(quicgo.Config)
	if change != nil {
		change(trusting, config)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := quicgo.DialAddr(ctx, at.String(), trusting, config)
	if err == nil {
		t.Cleanup(func() { _ = conn.CloseWithError(noError, "") })
	}
	return conn, err
}

func mustDialRaw(t testing.TB, at net.Addr) *quicgo.Conn {
	t.Helper()
	conn, err := dialRaw(t, at, nil)
	require.NoError(t, err)
	return conn
}

// sendRaw writes bytes to a new stream, and ends it if end is true.
func sendRaw(t testing.TB, conn *quicgo.Conn, b []byte, end bool) *quicgo.Stream {
	t.Helper()
	stream, err := conn.OpenStreamSync(context.Background())
	require.NoError(t, err)
	_, err = stream.Write(b)
	require.NoError(t, err)
	if end {
		require.NoError(t, stream.Close())
	}
	return stream
}

// readRaw reads a response up to the end of the stream.
func readRaw(t testing.TB, stream *quicgo.Stream) *dns.Msg {
	t.Helper()
	_ = stream.SetReadDeadline(time.Now().Add(30 * time.Second))
	b, err := io.ReadAll(stream)
	require.NoError(t, err)
	require.Greater(t, len(b), 2)
	require.Equal(t, len(b)-2, int(b[0])<<8|int(b[1]))
	m := new(dns.Msg)
	require.NoError(t, m.Unpack(b[2:]))
	return m
}

// closeCode waits for the end of a connection, and returns the application error code from the peer.
func closeCode(t testing.TB, conn *quicgo.Conn) int {
	t.Helper()
	select {
	case <-conn.Context().Done():
	case <-time.After(5 * time.Second):
		require.Fail(t, "the connection is still open")
	}
	return remoteCode(t, context.Cause(conn.Context()))
}

// refusalCode dials a listener that ends the connection after the handshake, and returns the application error code. The end may
// arrive before the dial returns.
func refusalCode(t testing.TB, at net.Addr, change func(*tls.Config, *quicgo.Config)) int {
	t.Helper()
	conn, err := dialRaw(t, at, change)
	if err != nil {
		return remoteCode(t, err)
	}
	return closeCode(t, conn)
}

// remoteCode returns the application error code of a connection that the peer has ended.
func remoteCode(t testing.TB, err error) int {
	t.Helper()
	var ended *quicgo.ApplicationError
	require.ErrorAs(t, err, &ended)
	require.True(t, ended.Remote)
	return int(ended.ErrorCode)
}

// A rawServer is a server whose streams a test handles.
type rawServer struct {
	at    net.Addr
	conns chan *quicgo.Conn // connections that were accepted
}

// serveRaw starts a server. handle gets each stream with the bytes that arrived on it, and whether they were followed by its
// end.
func serveRaw(t testing.TB, alpn string, handle func(conn *quicgo.Conn, stream *quicgo.Stream, query []byte)) *rawServer {
	t.Helper()
	serverTLS, _ := dnstest.Certificate()
	serverTLS = serverTLS.Clone()
	serverTLS.NextProtos = []string{alpn}
	l, err := quicgo.ListenAddr("127.0.0.1:0", serverTLS, &quicgo.Config{MaxIncomingStreams: 1000})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	s := &rawServer{at: l.Addr(), conns: make(chan *quicgo.Conn, 100)}
	go func() {
		for {
			conn, err := l.Accept(context.Background())
			if err != nil {
				return
			}
			s.conns <- conn
			go func() {
				for {
					stream, err := conn.AcceptStream(context.Background())
					if err != nil {
						return
					}
					go func() {
						b, err := io.ReadAll(stream)
						if err == nil {
							handle(conn, stream, b)
						}
					}()
				}
			}()
		}
	}()
	return s
}

// reply returns the framed response to a framed query.
func reply(t testing.TB, framed []byte) []byte {
	m := new(dns.Msg)
	if !assert.NoError(t, m.Unpack(framed[2:])) {
		return nil
	}
	b, err := dnstest.Answer(dnstest.Query{Msg: m}, "A 192.0.2.1").Pack()
	assert.NoError(t, err)
	return frame(b)
}

// respond writes bytes to a stream and ends it.
func respond(stream *quicgo.Stream, b []byte) {
	_, _ = stream.Write(b)
	_ = stream.Close()
}

// asStreamError returns the error code with which the peer has reset a stream, or -1.
func asStreamError(err error) int {
	var reset *quicgo.StreamError
	if errors.As(err, &reset) && reset.Remote {
		return int(reset.ErrorCode)
	}
	return -1
}
