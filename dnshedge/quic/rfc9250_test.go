package quic_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	quicgo "github.com/quic-go/quic-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/quic"
	"github.com/gohedge/hedge/internal/dnstest"
)

func withID(id uint16) *dns.Msg {
	m := question("a.example.")
	m.Id = id
	return m
}

func withKeepalive(m *dns.Msg) *dns.Msg {
	m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE})
	return m
}

// TestListenerObeysRFC9250 has the clauses with MUST and SHOULD about servers, by section. The port and the application protocol
// (§4.1) are below, the limit of amplification (§5.3) is in TestListenerAmplifiesThreeTimesAtMost. The clauses about transactions in
// early data (§4.5) do not apply without 0-RTT.
func TestListenerObeysRFC9250(t *testing.T) {
	f := startForwarder(t, nil)
	query := frame(pack(t, question("a.example.")))
	violates := func(b []byte, end bool) func(*testing.T, *quicgo.Conn) {
		return func(t *testing.T, conn *quicgo.Conn) {
			sendRaw(t, conn, b, end)
			assert.Equal(t, protocolError, closeCode(t, conn))
		}
	}
	for _, clause := range []struct {
		section, text string
		test          func(t *testing.T, conn *quicgo.Conn)
	}{
		{"4.2", "the response comes on the stream of the query, after its length, and is followed by the end of the stream", func(t *testing.T, conn *quicgo.Conn) {
			assert.Len(t, readRaw(t, sendRaw(t, conn, query, true)).Answer, 1)
		}},
		{"4.2", "a query without the end of its stream is a violation", violates(query, false)},
		{"4.2.1", "the message ID of a response is 0", func(t *testing.T, conn *quicgo.Conn) {
			assert.Zero(t, readRaw(t, sendRaw(t, conn, query, true)).Id)
		}},
		{"4.2.1", "a query that is forwarded over another transport has an ID of its own", func(t *testing.T, conn *quicgo.Conn) {
			for i := range 8 {
				readRaw(t, sendRaw(t, conn, frame(pack(t, question(fmt.Sprintf("id%d.example.", i)))), true))
			}
			ids := make(map[uint16]bool)
			f.mu.Lock()
			defer f.mu.Unlock()
			for name, q := range f.received {
				if strings.HasPrefix(name, "id") {
					ids[q.Id] = true
				}
			}
			assert.Greater(t, len(ids), 1)
		}},
		{"4.3.1", "a query whose stream is reset before its end is abandoned, and its stream is reset", func(t *testing.T, conn *quicgo.Conn) {
			stream := sendRaw(t, conn, frame(pack(t, question("reset.example."))), false)
			stream.CancelWrite(requestCancelled)
			_ = stream.SetReadDeadline(time.Now().Add(5 * time.Second))
			_, err := stream.Read(make([]byte, 1))
			assert.Equal(t, requestCancelled, asStreamError(err), "%v", err)
			assert.NoError(t, conn.Context().Err())
			f.mu.Lock()
			defer f.mu.Unlock()
			assert.NotContains(t, f.received, "reset.example.")
		}},
		{"4.3.1", "a cancelled query does not disturb others", func(t *testing.T, conn *quicgo.Conn) {
			stream := sendRaw(t, conn, frame(pack(t, question("stuck.example."))), true)
			stream.CancelRead(requestCancelled)
			assert.Len(t, readRaw(t, sendRaw(t, conn, query, true)).Answer, 1)
		}},
		{"4.3.2", "a DNS error is a response", func(t *testing.T, conn *quicgo.Conn) {
			assert.Equal(t, dns.RcodeServerFailure, readRaw(t, sendRaw(t, conn, frame(pack(t, question("fail.example."))), true)).Rcode)
		}},
		{"4.3.3", "a message ID that is not 0 is a violation", violates(frame(pack(t, withID(1))), true)},
		{"4.3.3", "the end of a stream inside a message is a violation", violates(query[:20], true)},
		{"4.3.3", "a stream without a message is a violation", violates(query[:1], true)},
		{"4.3.3", "a message shorter than a header is a violation", violates(frame([]byte{0, 0, 1, 0}), true)},
		{"4.3.3", "a second query on a stream is a violation", violates(append(bytes.Clone(query), query...), true)},
		{"4.3.3", "a response as a query is a violation", violates(reply(t, query), true)},
		{"5.5.2", "the option edns-tcp-keepalive is a violation", violates(frame(pack(t, withKeepalive(question("a.example.")))), true)},
		{"5.5.2", "responses have no option edns-tcp-keepalive", func(t *testing.T, conn *quicgo.Conn) {
			for _, o := range readRaw(t, sendRaw(t, conn, query, true)).IsEdns0().Option {
				assert.NotEqual(t, uint16(dns.EDNS0TCPKEEPALIVE), o.Option())
			}
		}},
		{"4.3.3", "a client cannot open a unidirectional stream", func(t *testing.T, conn *quicgo.Conn) {
			_, err := conn.OpenUniStream()
			var limit quicgo.StreamLimitReachedError
			assert.True(t, errors.As(err, &limit) || errors.As(err, new(*quicgo.StreamLimitReachedError)), "%v", err)
		}},
		{"5.4", "responses are padded", func(t *testing.T, conn *quicgo.Conn) {
			b, err := io.ReadAll(sendRaw(t, conn, query, true))
			require.NoError(t, err)
			assert.Zero(t, (len(b)-2)%468, "RFC 8467 §4.1")
		}},
		{"5.6", "queries are answered in parallel, and out of order", func(t *testing.T, conn *quicgo.Conn) {
			stuck := sendRaw(t, conn, frame(pack(t, question("stuck.example."))), true) // has no answer for 2 s
			start := time.Now()
			readRaw(t, sendRaw(t, conn, query, true))
			assert.Less(t, time.Since(start), 1900*time.Millisecond)
			readRaw(t, stuck)
		}},
		{"4.2", "a query may have the maximum size", func(t *testing.T, conn *quicgo.Conn) {
			m := question("a.example.")
			m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_PADDING{Padding: make([]byte, 65535-m.Len()-4)})
			b := pack(t, m)
			require.Len(t, b, 65535)
			assert.Len(t, readRaw(t, sendRaw(t, conn, frame(b), true)).Answer, 1)
		}},
		{"4.2", "a response may have the maximum size", func(t *testing.T, conn *quicgo.Conn) {
			m := question("long.example.")
			m.Question[0].Qtype = dns.TypeTXT
			assert.Greater(t, readRaw(t, sendRaw(t, conn, frame(pack(t, m)), true)).Len(), 61000)
		}},
		{"5.7", "zone transfers are refused", func(t *testing.T, conn *quicgo.Conn) {
			m := question("example.")
			m.Question[0].Qtype = dns.TypeAXFR
			assert.Equal(t, dns.RcodeRefused, readRaw(t, sendRaw(t, conn, frame(pack(t, m)), true)).Rcode)
		}},
	} {
		t.Run(clause.section+" "+clause.text, func(t *testing.T) { clause.test(t, mustDialRaw(t, f.doq.Addr())) })
	}
}

func TestListenerNegotiatesDoQ(t *testing.T) {
	f := startForwarder(t, nil)
	_, err := dialRaw(t, f.doq.Addr(), func(c *tls.Config, _ *quicgo.Config) { c.NextProtos = []string{"h3"} })
	assert.Error(t, err)
	assert.Equal(t, "doq", mustDialRaw(t, f.doq.Addr()).ConnectionState().TLS.NegotiatedProtocol)
}

// Port 53 is not for DNS over QUIC (RFC 9250 §4.1.1).
func TestPort53IsRefused(t *testing.T) {
	serverTLS, _ := dnstest.Certificate()
	_, err := quic.Listen("127.0.0.1:53", serverTLS)
	assert.ErrorContains(t, err, "port 53")
	c := newClient(t, "quic", "127.0.0.1:53")
	_, _, err = c.Exchange(question("a.example."), "")
	assert.ErrorContains(t, err, "port 53")
}

// A listener at a port that the system chooses needs port 0.
func TestListenRefusesAddressWithoutPort(t *testing.T) {
	serverTLS, _ := dnstest.Certificate()
	for _, address := range []string{"", ":", "127.0.0.1:", "127.0.0.1"} {
		_, err := quic.Listen(address, serverTLS)
		assert.ErrorContains(t, err, "missing port", address)
		_, err = quic.ListenHTTP3(address, serverTLS)
		assert.ErrorContains(t, err, "missing port", address)
	}
}

// A sessionCache stores the session of a client, and signals that it has a ticket.
type sessionCache struct {
	tls.ClientSessionCache
	stored chan struct{}
}

func newSessionCache() sessionCache {
	return sessionCache{tls.NewLRUClientSessionCache(1), make(chan struct{}, 1)}
}

func (c sessionCache) Put(key string, session *tls.ClientSessionState) {
	c.ClientSessionCache.Put(key, session)
	if session != nil {
		select {
		case c.stored <- struct{}{}:
		default:
		}
	}
}

func (c sessionCache) waitForTicket(t *testing.T) {
	t.Helper()
	select {
	case <-c.stored:
	case <-time.After(10 * time.Second):
		require.Fail(t, "the server sends no ticket")
	}
}

// A client that resumes a session gets no 0-RTT, although it tries (RFC 9250 §4.5).
func TestListenerAcceptsNoEarlyData(t *testing.T) {
	f := startForwarder(t, nil)
	_, trusting := dnstest.Certificate()
	trusting = trusting.Clone()
	trusting.ServerName, trusting.NextProtos = dnstest.Name, []string{"doq"}
	sessions := newSessionCache()
	trusting.ClientSessionCache = sessions
	query := frame(pack(t, question("a.example.")))
	for i := range 2 {
		conn, err := quicgo.DialAddrEarly(t.Context(), f.doq.Addr().String(), trusting, nil)
		require.NoError(t, err)
		readRaw(t, sendRaw(t, conn, query, true))
		<-conn.HandshakeComplete()
		assert.False(t, conn.ConnectionState().Used0RTT)
		assert.Equal(t, i == 1, conn.ConnectionState().TLS.DidResume)
		if i == 0 {
			sessions.waitForTicket(t)
		}
		require.NoError(t, conn.CloseWithError(noError, ""))
	}
}

// A firstDatagram is a socket that sends one datagram only, and counts the bytes that arrive.
type firstDatagram struct {
	net.PacketConn
	sent, received atomic.Int64
}

func (c *firstDatagram) WriteTo(b []byte, to net.Addr) (int, error) {
	if !c.sent.CompareAndSwap(0, int64(len(b))) {
		return len(b), nil
	}
	return c.PacketConn.WriteTo(b, to)
}

func (c *firstDatagram) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := c.PacketConn.ReadFrom(b)
	c.received.Add(int64(n))
	return n, from, err
}

// A client that has not proved its address gets three times its own bytes at most (RFC 9250 §5.3, RFC 9000 §8.1).
func TestListenerAmplifiesThreeTimesAtMost(t *testing.T) {
	f := startForwarder(t, nil)
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	defer socket.Close()
	c := &firstDatagram{PacketConn: socket}
	tr := &quicgo.Transport{Conn: c}
	defer tr.Close()
	clientTLS := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"doq"}}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // in which the server repeats its packets
	defer cancel()
	_, err = tr.Dial(ctx, f.doq.Addr(), clientTLS, nil)
	require.Error(t, err)
	assert.Positive(t, c.received.Load())
	assert.LessOrEqual(t, c.received.Load(), 3*c.sent.Load())
}

// TestClientObeysRFC9250 has the clauses about the queries of clients.
func TestClientObeysRFC9250(t *testing.T) {
	var mu sync.Mutex
	var streams []quicgo.StreamID
	arrived, release := make(chan struct{}), make(chan struct{})
	s := serveRaw(t, "doq", func(conn *quicgo.Conn, stream *quicgo.Stream, b []byte) {
		_, err := conn.OpenStream()
		assert.Error(t, err, "§4.3.3: a server cannot open a stream")
		_, err = conn.OpenUniStream()
		assert.Error(t, err, "§4.3.3: a server cannot open a unidirectional stream")
		mu.Lock()
		streams = append(streams, stream.StreamID())
		mu.Unlock()
		assert.Equal(t, len(b)-2, int(b[0])<<8|int(b[1]), "§4.2: the length, and the end of the stream after one query")
		assert.Zero(t, b[2]|b[3], "§4.2.1: the ID")
		assert.Zero(t, (len(b)-2)%128, "§5.4: padding")
		m := new(dns.Msg)
		if assert.NoError(t, m.Unpack(b[2:])) {
			for _, o := range m.IsEdns0().Option {
				assert.NotEqual(t, uint16(dns.EDNS0TCPKEEPALIVE), o.Option(), "§5.5.2")
			}
		}
		if m.Question[0].Name == "slow.example." {
			close(arrived)
			<-release
		}
		respond(stream, reply(t, b))
	})
	c := newClient(t, "quic", s.at.String())
	c.Hedge.Off = true
	ask(t, c, "a.example.")
	var wg sync.WaitGroup
	wg.Go(func() { ask(t, c, "slow.example.") })
	<-arrived
	ask(t, c, "b.example.") // §5.5: does not wait for other answers
	close(release)
	wg.Wait()
	assert.Equal(t, []quicgo.StreamID{0, 4, 8}, streams, "§4.2: the next stream for each query")
	assert.Len(t, s.conns, 1, "§5.5: one connection")
	conn := <-s.conns
	require.NoError(t, c.Close())
	assert.Equal(t, noError, closeCode(t, conn), "§4.3: the code of a connection that is no longer needed")
}

// TestClientEndsConnectionAfterViolation has the violations of servers in RFC 9250 §4.3.3.
func TestClientEndsConnectionAfterViolation(t *testing.T) {
	unpack := func(b []byte) *dns.Msg {
		m := new(dns.Msg)
		assert.NoError(t, m.Unpack(b[2:]))
		return m
	}
	for name, violate := range map[string]func(stream *quicgo.Stream, query []byte){
		"message ID": func(stream *quicgo.Stream, query []byte) {
			b := reply(t, query)
			b[3] = 1
			respond(stream, b)
		},
		"no response":     func(stream *quicgo.Stream, _ []byte) { respond(stream, nil) },
		"half a response": func(stream *quicgo.Stream, query []byte) { respond(stream, reply(t, query)[:20]) },
		"short message":   func(stream *quicgo.Stream, _ []byte) { respond(stream, []byte{0, 1, 0}) },
		"two responses": func(stream *quicgo.Stream, query []byte) {
			respond(stream, append(reply(t, query), reply(t, query)...))
		},
		"no end of the stream": func(stream *quicgo.Stream, query []byte) { _, _ = stream.Write(reply(t, query)) },
		"keepalive": func(stream *quicgo.Stream, query []byte) {
			m := dnstest.Answer(dnstest.Query{Msg: unpack(query)}, "A 192.0.2.1")
			respond(stream, frame(pack(t, withKeepalive(m.SetEdns0(1232, false)))))
		},
	} {
		t.Run(name, func(t *testing.T) {
			var once sync.Once
			s := serveRaw(t, "doq", func(_ *quicgo.Conn, stream *quicgo.Stream, query []byte) {
				violates := false
				once.Do(func() { violates = true })
				if violates {
					violate(stream, query)
				} else {
					respond(stream, reply(t, query))
				}
			})
			c := newClient(t, "quic", s.at.String())
			_, _, err := c.Exchange(question("a.example."), "")
			assert.Equal(t, protocolError, closeCode(t, <-s.conns), "%v", err)
			ask(t, c, "b.example.") // over another connection
		})
	}
}

// A server that tells the client to stop sending violates the protocol (RFC 9250 §4.3.3). Package quic-go reports it only while a
// part of the query waits for flow control.
func TestClientEndsConnectionAfterStopSending(t *testing.T) {
	l, err := quicgo.ListenAddr("127.0.0.1:0", serverConfig("quic"), &quicgo.Config{InitialStreamReceiveWindow: 1000})
	require.NoError(t, err)
	defer l.Close()
	stopped := make(chan *quicgo.Conn, 1)
	go func() {
		conn, err := l.Accept(context.Background())
		if err != nil {
			return
		}
		if stream, err := conn.AcceptStream(context.Background()); err == nil {
			stream.CancelRead(internalError)
		}
		stopped <- conn
	}()
	client, err := quic.DialDoQ(t.Context(), dialTarget(l.Addr()))
	require.NoError(t, err)
	m := question("a.example.")
	m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_PADDING{Padding: make([]byte, 10_000)})
	_, err = client.Exchange(t.Context(), pack(t, m))
	assert.ErrorContains(t, err, "stopped a query")
	assert.Equal(t, protocolError, closeCode(t, <-stopped))
}

// A client that resumes a session sends no query in 0-RTT, although the server accepts it (RFC 9250 §4.5, §7.1).
func TestClientSendsNoEarlyData(t *testing.T) {
	l, err := quicgo.ListenAddrEarly("127.0.0.1:0", serverConfig("quic"), &quicgo.Config{Allow0RTT: true})
	require.NoError(t, err)
	defer l.Close()
	target := dialTarget(l.Addr())
	sessions := newSessionCache()
	target.TLS.ClientSessionCache = sessions
	for i := range 2 {
		exchanged := make(chan error, 1)
		client, err := quic.DialDoQ(t.Context(), target)
		require.NoError(t, err)
		go func() {
			_, err := client.Exchange(t.Context(), pack(t, question("a.example.")))
			exchanged <- err
		}()
		conn, err := l.Accept(t.Context())
		require.NoError(t, err)
		stream, err := conn.AcceptStream(t.Context())
		require.NoError(t, err)
		b, err := io.ReadAll(stream)
		require.NoError(t, err)
		respond(stream, reply(t, b))
		require.NoError(t, <-exchanged)
		assert.False(t, conn.ConnectionState().Used0RTT)
		assert.Equal(t, i == 1, conn.ConnectionState().TLS.DidResume)
		if i == 0 {
			sessions.waitForTicket(t)
		}
		require.NoError(t, client.Close())
	}
}

// A server ends a connection with a code that the client does not know, which means DOQ_UNSPECIFIED_ERROR (RFC 9250 §4.3.4).
func TestClientExplainsUnknownCode(t *testing.T) {
	s := serveRaw(t, "doq", func(conn *quicgo.Conn, _ *quicgo.Stream, _ []byte) { _ = conn.CloseWithError(77, "") })
	conn, err := quic.DialDoQ(t.Context(), dialTarget(s.at))
	require.NoError(t, err)
	_, err = conn.Exchange(t.Context(), pack(t, question("a.example.")))
	assert.ErrorContains(t, err, "DOQ_UNSPECIFIED_ERROR")
}

// A server that cannot answer a query resets its stream (RFC 9250 §4.3.2). Unknown codes mean DOQ_UNSPECIFIED_ERROR (§4.3.4).
func TestClientKeepsConnectionAfterStreamReset(t *testing.T) {
	for code, name := range map[quicgo.StreamErrorCode]string{internalError: "DOQ_INTERNAL_ERROR", excessiveLoad: "DOQ_EXCESSIVE_LOAD", 77: "DOQ_UNSPECIFIED_ERROR"} {
		t.Run(name, func(t *testing.T) {
			s := serveRaw(t, "doq", func(_ *quicgo.Conn, stream *quicgo.Stream, query []byte) {
				if bytes.Contains(query, []byte("broken")) {
					stream.CancelWrite(code)
				} else {
					respond(stream, reply(t, query))
				}
			})
			c := newClient(t, "quic", s.at.String())
			c.Timeout = 500 * time.Millisecond
			ask(t, c, "a.example.")
			_, _, err := c.Exchange(question("broken.example."), "")
			assert.ErrorContains(t, err, name)
			conn := <-s.conns
			assert.NoError(t, conn.Context().Err())
			ask(t, c, "b.example.")
		})
	}
}

// When nobody waits for a response any more, the server is told to stop (RFC 9250 §4.3.1).
func TestClientCancelsQuery(t *testing.T) {
	stopped := make(chan error, 10)
	s := serveRaw(t, "doq", func(_ *quicgo.Conn, stream *quicgo.Stream, query []byte) {
		<-stream.Context().Done()
		stopped <- context.Cause(stream.Context())
	})
	c := newClient(t, "quic", s.at.String())
	c.Timeout = 300 * time.Millisecond
	_, _, err := c.Exchange(question("a.example."), "")
	require.Error(t, err)
	select {
	case err := <-stopped:
		assert.Equal(t, requestCancelled, asStreamError(err), "%v", err)
	case <-time.After(4 * time.Second):
		assert.Fail(t, "not cancelled")
	}
}
