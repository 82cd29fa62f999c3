package quic_test

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	quicgo "github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/forward"
	"github.com/gohedge/hedge/dnshedge/quic"
	"github.com/gohedge/hedge/internal/dnstest"
)

// The queries that a client cancels at once count until they are answered, so that it does not get more by cancelling
// ("rapid reset", CVE-2023-44487).
func TestCancelledQueriesCountUntilAnswered(t *testing.T) {
	f := startForwarder(t, nil)
	conn := mustDialRaw(t, f.doq.Addr())
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	sent := 0
	for ; sent < 4*quic.MaxStreams; sent++ {
		stream, err := conn.OpenStreamSync(ctx)
		if err != nil {
			break
		}
		_, _ = stream.Write(frame(pack(t, question(fmt.Sprintf("stuck%d.example.", sent)))))
		_ = stream.Close()
		time.Sleep(100 * time.Microsecond) // so that the query arrives before its end
		stream.CancelRead(requestCancelled)
	}
	time.Sleep(100 * time.Millisecond)
	assert.GreaterOrEqual(t, sent, quic.MaxStreams)
	assert.LessOrEqual(t, f.client.Stats().Queries, int64(quic.MaxStreams))
	ask(t, f.newClient(t, "quic"), "other.example.")
}

// The same over HTTP/3, by STOP_SENDING and RESET_STREAM.
func TestHTTP3CancelledRequestsCountUntilAnswered(t *testing.T) {
	f := startForwarder(t, nil)
	conn, err := dialRaw(t, f.http3.Addr(), func(c *tls.Config, _ *quicgo.Config) { c.NextProtos = []string{"h3"} })
	require.NoError(t, err)
	client := new(http3.Transport).NewClientConn(conn)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for i := range 1000 {
		query := base64.RawURLEncoding.EncodeToString(pack(t, question(fmt.Sprintf("stuck%d.example.", i))))
		r, err := http.NewRequest(http.MethodGet, "https://"+dnstest.Name+"/dns-query?dns="+query, nil)
		require.NoError(t, err)
		stream, err := client.OpenRequestStream(ctx)
		if err != nil {
			break // the Listener permits no more streams
		}
		require.NoError(t, stream.SendRequestHeader(r))
		wg.Go(func() {
			time.Sleep(time.Millisecond) // so that the request arrives before its end
			stream.CancelWrite(quicgo.StreamErrorCode(http3.ErrCodeRequestCanceled))
			stream.CancelRead(quicgo.StreamErrorCode(http3.ErrCodeRequestCanceled))
		})
	}
	wg.Wait()
	time.Sleep(100 * time.Millisecond)
	assert.Positive(t, f.client.Stats().Queries)
	assert.LessOrEqual(t, f.client.Stats().Queries, int64(quic.MaxRequests))
	ask(t, f.newClient(t, "h3"), "other.example.")
}

// Incomplete queries use up the budget of their connection, which then ends, and no other one.
func TestIncompleteQueriesHaveBudget(t *testing.T) {
	f := startForwarder(t, nil)
	conn := mustDialRaw(t, f.doq.Addr())
	for range quic.MaxStreams {
		stream, err := conn.OpenStream()
		if err != nil {
			break // the connection has ended
		}
		go func() { _, _ = stream.Write(append([]byte{0xff, 0xff}, make([]byte, 6000)...)) }()
	}
	other := f.newClient(t, "quic")
	ask(t, other, "a.example.")
	assert.Equal(t, excessiveLoad, closeCode(t, conn))
	ask(t, other, "b.example.")
}

// A client that announces large queries and sends nothing costs nothing, and loses its connection.
func TestAnnouncedQueriesTakeNoMemory(t *testing.T) {
	f := startForwarder(t, nil)
	conn := mustDialRaw(t, f.doq.Addr())
	for range quic.MaxStreams {
		sendRaw(t, conn, []byte{0xff, 0xff}, false)
	}
	time.Sleep(300 * time.Millisecond)
	assert.NoError(t, conn.Context().Err(), "within the budget")
	assert.Equal(t, protocolError, closeCode(t, conn), "after the time for a query")
}

// A client that opens no flow control window for responses loses its connection.
func TestUnreadResponsesEndConnection(t *testing.T) {
	f := startForwarder(t, nil)
	conn, err := dialRaw(t, f.doq.Addr(), func(_ *tls.Config, c *quicgo.Config) {
		c.InitialStreamReceiveWindow, c.MaxStreamReceiveWindow = 1, 1
	})
	require.NoError(t, err)
	m := question("long.example.")
	m.Question[0].Qtype = dns.TypeTXT
	sendRaw(t, conn, frame(pack(t, m)), true)
	assert.Equal(t, excessiveLoad, closeCode(t, conn))
}

// Over HTTP/3, such a client loses the request.
func TestHTTP3UnreadResponseEndsRequest(t *testing.T) {
	f := startForwarder(t, nil)
	conn, err := dialRaw(t, f.http3.Addr(), func(tls *tls.Config, c *quicgo.Config) {
		tls.NextProtos, c.InitialStreamReceiveWindow, c.MaxStreamReceiveWindow = []string{"h3"}, 1, 1
	})
	require.NoError(t, err)
	stream, err := new(http3.Transport).NewClientConn(conn).OpenRequestStream(t.Context())
	require.NoError(t, err)
	m := question("long.example.")
	m.Question[0].Qtype = dns.TypeTXT
	query := base64.RawURLEncoding.EncodeToString(pack(t, m))
	r, err := http.NewRequest(http.MethodGet, "https://"+dnstest.Name+"/dns-query?dns="+query, nil)
	require.NoError(t, err)
	require.NoError(t, stream.SendRequestHeader(r))
	require.NoError(t, stream.Close())
	time.Sleep(2500 * time.Millisecond) // after the time for the query and the time for the response
	_ = stream.SetReadDeadline(time.Now().Add(10 * time.Second))
	resp, err := stream.ReadResponse()
	require.NoError(t, err)
	b, _ := io.ReadAll(resp.Body)
	assert.Less(t, len(b), 4096, "the rest of 61,000 bytes does not wait for the client")
	assert.NoError(t, conn.Context().Err())
}

// A deafConn sends packets and receives none, so that a handshake does not end. It receives packets of the type Retry if
// provesAddress is true.
type deafConn struct {
	*net.UDPConn
	provesAddress bool
}

func (c deafConn) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		n, from, err := c.UDPConn.ReadFrom(b)
		if err != nil || c.provesAddress && n > 0 && b[0]&0xf0 == 0xf0 {
			return n, from, err
		}
	}
}

// beginHandshakes begins n handshakes, each from a socket of its own, and does not end them. If the server demands it, the
// client proves its address if provesAddress is true.
func beginHandshakes(t *testing.T, n int, at net.Addr, provesAddress bool) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	_, trusting := dnstest.Certificate()
	trusting = trusting.Clone()
	trusting.ServerName, trusting.NextProtos = dnstest.Name, []string{"doq"}
	for range n {
		socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		require.NoError(t, err)
		wg.Go(func() {
			defer socket.Close()
			tr := &quicgo.Transport{Conn: struct{ net.PacketConn }{deafConn{socket, provesAddress}}}
			defer tr.Close()
			for ctx.Err() == nil { // the server or the client ends a handshake that takes too long
				_, _ = tr.Dial(ctx, at, trusting, nil)
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// Handshakes that do not end take memory for a few clients only. Others must prove their address first, and get answers.
func TestUnfinishedHandshakesNeedAddressValidation(t *testing.T) {
	f := startForwarder(t, nil)
	stop := beginHandshakes(t, 4*quic.FreeHandshakes, f.doq.Addr(), false)
	defer stop()
	require.Eventually(t, func() bool { return f.doq.UnfinishedHandshakes() == quic.FreeHandshakes }, 10*time.Second, 10*time.Millisecond)
	ask(t, f.newClient(t, "quic"), "a.example.")
	// The client can have the answer before the server counts the end of its handshake.
	assert.Eventually(t, func() bool { return f.doq.UnfinishedHandshakes() <= quic.FreeHandshakes }, 10*time.Second, 10*time.Millisecond)
	stop()
	assert.Eventually(t, func() bool { return f.doq.UnfinishedHandshakes() == 0 }, 5*time.Second, 10*time.Millisecond)
}

// A client that proves its address and does not end its handshakes keeps itself out, and no other client.
func TestUnfinishedHandshakesOfClientAreLimited(t *testing.T) {
	f := startForwarder(t, nil)
	defer beginHandshakes(t, 2*quic.FreeHandshakes, f.doq.Addr(), false)() // twice as many, because the server ends the oldest ones
	require.Eventually(t, func() bool { return f.doq.UnfinishedHandshakes() == quic.FreeHandshakes }, 10*time.Second, 5*time.Millisecond)
	defer beginHandshakes(t, 3*quic.MaxClientHandshakes, f.doq.Addr(), true)()
	client := netip.MustParseAddr("127.0.0.1")
	require.Eventually(t, func() bool { return f.doq.ValidatedHandshakes(client) == quic.MaxClientHandshakes }, 10*time.Second, 5*time.Millisecond)

	_, err := dialRaw(t, f.doq.Addr(), nil)
	var refused *quicgo.TransportError
	if assert.ErrorAs(t, err, &refused) {
		assert.Equal(t, quicgo.ConnectionRefused, refused.ErrorCode)
	}
	assert.LessOrEqual(t, f.doq.UnfinishedHandshakes(), quic.FreeHandshakes+quic.MaxClientHandshakes)

	socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 2)})
	require.NoError(t, err)
	defer socket.Close()
	tr := &quicgo.Transport{Conn: socket}
	defer tr.Close()
	_, trusting := dnstest.Certificate()
	trusting = trusting.Clone()
	trusting.ServerName, trusting.NextProtos = dnstest.Name, []string{"doq"}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	conn, err := tr.Dial(ctx, f.doq.Addr(), trusting, nil)
	require.NoError(t, err, "another client")
	_ = conn.CloseWithError(noError, "")
}

// A client has as many connections as the Forwarder allows.
func TestConnectionsOfClientAreLimited(t *testing.T) {
	f := startForwarder(t, func(c *forward.Config, _ *tls.Config) { c.Limits = &forward.Limits{Conns: 10, ConnsPerClient: 3} })
	for range 3 {
		conn := mustDialRaw(t, f.doq.Addr())
		readRaw(t, sendRaw(t, conn, frame(pack(t, question("a.example."))), true))
	}
	assert.Equal(t, excessiveLoad, refusalCode(t, f.doq.Addr(), nil))
	assert.Equal(t, 3, f.doq.OpenConns())
}

// A connection over HTTP/3 is refused with a code of HTTP/3.
func TestHTTP3ConnectionIsRefusedWithItsCode(t *testing.T) {
	f := startForwarder(t, func(c *forward.Config, _ *tls.Config) { c.Limits = &forward.Limits{Conns: 10, ConnsPerClient: 1} })
	useHTTP3 := func(c *tls.Config, _ *quicgo.Config) { c.NextProtos = []string{"h3"} }
	_, err := dialRaw(t, f.http3.Addr(), useHTTP3)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return f.http3.OpenConns() == 1 }, 3*time.Second, time.Millisecond)
	assert.EqualValues(t, http3.ErrCodeExcessiveLoad, refusalCode(t, f.http3.Addr(), useHTTP3))
}

// When all clients have too many connections, the client with the most loses the one that was idle for longest.
func TestIdleConnectionMakesRoom(t *testing.T) {
	f := startForwarder(t, func(c *forward.Config, _ *tls.Config) { c.Limits = &forward.Limits{Conns: 2, ConnsPerClient: 10} })
	var conns []*quicgo.Conn
	for range 3 {
		conn := mustDialRaw(t, f.doq.Addr())
		readRaw(t, sendRaw(t, conn, frame(pack(t, question("a.example."))), true))
		conns = append(conns, conn)
	}
	assert.Equal(t, noError, closeCode(t, conns[0]))
	assert.NoError(t, conns[1].Context().Err())
}

// A connection whose queries are incomplete makes room at once.
func TestIncompleteQueriesDoNotKeepConnection(t *testing.T) {
	f := startForwarder(t, func(c *forward.Config, _ *tls.Config) { c.Limits = &forward.Limits{Conns: 1, ConnsPerClient: 10} })
	conn := mustDialRaw(t, f.doq.Addr())
	readRaw(t, sendRaw(t, conn, frame(pack(t, question("a.example."))), true))
	sendRaw(t, conn, []byte{0}, false)
	other := mustDialRaw(t, f.doq.Addr())
	readRaw(t, sendRaw(t, other, frame(pack(t, question("a.example."))), true))
	assert.Equal(t, noError, closeCode(t, conn), "closed before the query has had its time")
}

func TestClientOutsideAccessListIsRefused(t *testing.T) {
	f := startForwarder(t, func(c *forward.Config, _ *tls.Config) {
		c.Allow = forward.AccessList{netip.MustParsePrefix("192.0.2.0/24")}
	})
	_, err := dialRaw(t, f.doq.Addr(), nil)
	var refused *quicgo.TransportError
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, quicgo.ConnectionRefused, refused.ErrorCode)
}

// A client that asks too much loses its connection.
func TestQuestionsAboveRateLimitEndConnection(t *testing.T) {
	f := startForwarder(t, func(c *forward.Config, _ *tls.Config) {
		limits := forward.DefaultLimits()
		limits.QuestionsPerSecond = 5
		c.Limits = &limits
	})
	conn := mustDialRaw(t, f.doq.Addr())
	for range 30 {
		stream, err := conn.OpenStreamSync(t.Context())
		if err != nil {
			break // the connection has ended
		}
		_, _ = stream.Write(frame(pack(t, question("a.example."))))
		_ = stream.Close()
	}
	assert.Equal(t, excessiveLoad, closeCode(t, conn))
}

// Shutdown answers the queries that were received, and closes the connections of clients.
func TestShutdownAnswersQueries(t *testing.T) {
	for _, scheme := range schemes {
		t.Run(scheme, func(t *testing.T) {
			f := startForwarder(t, nil)
			c := f.newClient(t, scheme)
			c.Hedge.Off = true
			ask(t, c, "a.example.")
			time.AfterFunc(100*time.Millisecond, f.stop)
			_, _, err := c.Exchange(question("slow.example."), "")
			assert.NoError(t, err)
			assert.EqualValues(t, 2, c.Stats().Wire, "not sent again")
		})
	}
}
