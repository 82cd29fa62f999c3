package quic

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	quicgo "github.com/quic-go/quic-go"

	"github.com/gohedge/hedge/dnshedge"
)

const (
	alpnDoQ   = "doq"
	alpnHTTP3 = "h3"

	idleTimeout   = 30 * time.Second      // of a connection on which no packet arrives
	streamTimeout = 50 * time.Millisecond // time in which a query must get a stream

	minSilence = time.Second // a connection with waiting queries on which nothing arrives for so long has ended
	silentRTTs = 8           // or for as many round trips, if that is longer

	// streamWindow and connWindow are flow control windows in bytes for responses. They suffice for a few messages of maximum
	// size. With larger windows, a server could make this side store megabytes.
	streamWindow = 1 << 17
	connWindow   = 1 << 18
)

// dialConn opens a QUIC connection to the upstream to, through the Client's Dialer. alpn is the application protocol:
// doq, or h3 for HTTP/3. config holds further QUIC settings, to which dialConn adds timeouts and limits.
func dialConn(ctx context.Context, to dnshedge.DialTarget, alpn string, config *quicgo.Config) (*upstreamConn, error) {
	socket, err := to.DialContext(ctx, "udp")
	if err != nil {
		return nil, err
	}
	t := &quicgo.Transport{Conn: asPacketConn(socket)}
	to.TLS.NextProtos = []string{alpn}
	config.MaxIdleTimeout = idleTimeout
	config.InitialStreamReceiveWindow, config.MaxStreamReceiveWindow = streamWindow, streamWindow
	config.InitialConnectionReceiveWindow, config.MaxConnectionReceiveWindow = connWindow, connWindow
	config.MaxIncomingStreams = -1 // a server opens none (RFC 9250 §4.3.3, RFC 9114 §6.1)
	conn, err := t.Dial(ctx, remoteAddr(socket), to.TLS, config)
	if err != nil {
		_ = t.Close()
		_ = socket.Close()
		return nil, err
	}
	go func() {
		<-conn.Context().Done()
		_ = t.Close()
		_ = socket.Close()
	}()
	c := &upstreamConn{Conn: conn}
	c.usable, c.markUnusable = context.WithCancel(conn.Context())
	c.checkStream = func(ctx context.Context) error {
		_, err := conn.OpenStreamSync(ctx)
		return err
	}
	return c, nil
}

// An upstreamConn is a QUIC connection to an upstream. It is safe for concurrent use.
type upstreamConn struct {
	*quicgo.Conn
	abortCode quicgo.ApplicationErrorCode // sent to the server when this side ends the connection without its fault

	// sendQuery sends rootQuery if a stream is free. It then sets probeSent, and waits for the response.
	sendQuery func(context.Context)

	failure   atomic.Pointer[error] // why this side has ended the connection; nil: it has not
	probing   atomic.Bool           // a probe waits for a stream or for its response
	probeSent atomic.Bool           // the probe has got a stream

	usable       context.Context // ends when the connection accepts no further queries
	markUnusable context.CancelFunc
	checkStream  func(ctx context.Context) error // tries to open a stream; ctx has ended, so that none is opened
}

// endedContext is a context that has ended.
var endedContext = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// Done returns a channel that is closed when the connection accepts no further queries. It implements
// dnshedge.ProtocolConn.
//
// Each call asks package quic-go for the state of the connection. The context of a connection does not suffice: it ends
// only after the exchanges in flight have failed, and not if the server shuts down (RFC 9114 §5.2).
func (c *upstreamConn) Done() <-chan struct{} {
	if !errors.Is(c.checkStream(endedContext), context.Canceled) {
		c.markUnusable()
	}
	return c.usable.Done()
}

// Close closes the connection, with the code for the regular end of a connection. It implements dnshedge.ProtocolConn.
func (c *upstreamConn) Close() error { return c.CloseWithError(c.abortCode, "") }

// abort ends the connection because of err, and sends code to the server. The queries that wait for responses fail with
// err.
func (c *upstreamConn) abort(code quicgo.ApplicationErrorCode, err error) {
	c.failure.CompareAndSwap(nil, &err)
	_ = c.CloseWithError(code, err.Error())
}

// explainQueryError converts the error of a failed query to the one for the caller. If this side has ended the
// connection, it returns the reason for that, and otherwise the result of explainError.
func (c *upstreamConn) explainQueryError(err error) error {
	if f := c.failure.Load(); f != nil {
		return *f
	}
	return explainError(err)
}

// rootQuery asks for the NS records of the root, with RD and the ID 0.
var rootQuery = []byte{0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1}

// sendProbe sends a probe in the background: a query whose packets a living server must acknowledge. It does nothing if
// an earlier probe still waits, or if the server permits no further stream.
func (c *upstreamConn) sendProbe() {
	if !c.probing.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer c.probing.Store(false)
		defer c.probeSent.Store(false)
		ctx, cancel := context.WithTimeout(c.Context(), c.silenceTimeout())
		defer cancel()
		c.sendQuery(ctx)
	}()
}

// silenceTimeout returns the time after which a connection counts as dead if a query waits and no packet arrives: one
// second, or eight round trips if that is longer.
func (c *upstreamConn) silenceTimeout() time.Duration {
	return max(minSilence, silentRTTs*c.ConnectionStats().SmoothedRTT)
}

// A silenceWatch ends a connection on which nothing arrives while a query waits, because it is dead. The server may need
// long for a response, so the watch sends a probe after half of the silenceTimeout. QUIC repeats packets that are not
// acknowledged, so the loss of a few does not make a connection silent.
//
// A connection at the server's limit of streams cannot send a probe. It is silent only if the query itself is not
// acknowledged.
type silenceWatch struct {
	conn      *upstreamConn
	querySent atomic.Bool // the query was sent, and nothing had arrived since at the last check
	received  uint64      // packets that had arrived at the last check
	silent    bool        // nothing had arrived at the last check since the one before
	stopped   atomic.Bool
	timer     atomic.Pointer[time.Timer]
}

// watchSilence starts a silenceWatch for a query, which ends the connection if the server is silent. The caller must set
// the field querySent when the query is sent, and call stop when the query has ended.
func (c *upstreamConn) watchSilence() *silenceWatch {
	w := &silenceWatch{conn: c, received: c.ConnectionStats().PacketsReceived}
	w.startTimer()
	return w
}

func (w *silenceWatch) startTimer() {
	w.timer.Store(time.AfterFunc(w.conn.silenceTimeout()/2, w.checkSilence))
}

// checkSilence ends the connection if it is dead: if nothing has arrived over two calls, although a query or probe was
// sent. Otherwise, if nothing has arrived since the last call, it sends a probe. It starts the timer for the next call,
// after half of the silenceTimeout.
func (w *silenceWatch) checkSilence() {
	now := w.conn.ConnectionStats().PacketsReceived
	silent := now == w.received
	w.received = now
	switch {
	case w.stopped.Load():
		return
	case !silent:
		w.querySent.Store(false)
	case w.silent && (w.querySent.Load() || w.conn.probeSent.Load()):
		w.conn.abort(w.conn.abortCode, errSilent)
		return
	default:
		w.conn.sendProbe()
	}
	w.silent = silent
	w.startTimer()
}

func (w *silenceWatch) stop() {
	w.stopped.Store(true)
	w.timer.Load().Stop()
}

// remoteAddr returns the remote address of socket, which package quic-go needs. It returns an empty address if socket has
// none, as the connection of a user's Dialer may.
func remoteAddr(socket net.Conn) net.Addr {
	if a := socket.RemoteAddr(); a != nil {
		return a
	}
	return new(net.UDPAddr)
}

// asPacketConn converts a connected socket to the net.PacketConn that package quic-go needs. Packets go to the connected
// address, whatever address is given.
func asPacketConn(socket net.Conn) net.PacketConn {
	if u, ok := socket.(*net.UDPConn); ok {
		return connectedUDP{u}
	}
	return connectedSocket{socket}
}

// A connectedUDP is a connected UDP socket, to which packets are written without an address. All other methods are those of
// the socket, so that package quic-go can use its optimizations.
type connectedUDP struct{ *net.UDPConn }

var _ quicgo.OOBCapablePacketConn = connectedUDP{}

func (c connectedUDP) WriteTo(b []byte, _ net.Addr) (int, error) { return c.Write(b) }

func (c connectedUDP) WriteMsgUDP(b, oob []byte, _ *net.UDPAddr) (n, oobn int, err error) {
	return c.UDPConn.WriteMsgUDP(b, oob, nil)
}

// A connectedSocket is a net.PacketConn over a connection for datagrams that a user's Dialer has made, for package
// quic-go.
type connectedSocket struct{ net.Conn }

func (c connectedSocket) ReadFrom(b []byte) (int, net.Addr, error) {
	n, err := c.Read(b)
	return n, remoteAddr(c.Conn), err
}

func (c connectedSocket) WriteTo(b []byte, _ net.Addr) (int, error) { return c.Write(b) }

// SetReadBuffer and SetWriteBuffer do nothing. Without them, package quic-go would log a warning.
func (c connectedSocket) SetReadBuffer(int) error  { return nil }
func (c connectedSocket) SetWriteBuffer(int) error { return nil }

// errPort53 is the error of DNS over QUIC at the port of DNS over UDP (RFC 9250 §4.1.1).
var errPort53 = errors.New("dnshedge/quic: DNS over QUIC must not use port 53")

// checkPort returns an error if address is not a host and port. It also returns an error for the port 53, which DNS over
// QUIC must not use (RFC 9250 §4.1.1).
func checkPort(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err == nil && (port == "53" || port == "domain") {
		return errPort53
	}
	return err
}
