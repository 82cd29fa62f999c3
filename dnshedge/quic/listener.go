package quic

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	quicgo "github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/dnshedge/forward"
)

// handshakeTimeout is the time in which a handshake must end. Half of it without a packet ends it as well. It is shorter in
// tests.
var handshakeTimeout = 5 * time.Second

const (
	maxStreams = 128             // queries of a connection in flight, as over TCP; over HTTP/3 there are maxRequests
	unusedTime = 2 * time.Minute // time after which a connection without queries is closed, even if it sends packets

	// Flow control windows in bytes for queries.
	queryStreamWindow = 1 << 13
	queryConnWindow   = 1 << 16
)

var errRefused = errors.New("dnshedge/quic: connection refused")

// A Listener answers clients over DNS over QUIC or HTTP/3, for a forward.Forwarder. It must be made by Listen or
// ListenHTTP3.
//
// The limits of the Forwarder apply, and further ones that keep clients from using up memory. Of a connection, 128
// queries are answered at a time. Its incomplete queries may have 128 KiB in all. A client that has used too much gets
// DOQ_EXCESSIVE_LOAD.
//
// A connection is closed if a query is incomplete after 5 s, or if a response is not read in 5 s. It is closed as well
// after two minutes without a query, and after 30 s without a packet.
//
// Over HTTP/3, 100 requests of a connection are answered at a time. A request ends, and not its connection, if it is
// incomplete after 5 s, or if the response is not read 5 s later.
type Listener struct {
	socket    *net.UDPConn
	transport *quicgo.Transport
	tls       *tls.Config
	config    *quicgo.Config
	serve     func(*serverConn) // serves a connection until it ends

	handler    *forward.QueryHandler
	handshakes handshakeCounter

	mu      sync.Mutex // guards the fields below
	inner   *quicgo.Listener
	closing bool
	conns   map[*serverConn]bool // open connections whose handshake has ended
	wg      sync.WaitGroup       // connections in conns
}

var _ forward.Listener = (*Listener)(nil)

// Listen opens a listener for DNS over QUIC (RFC 9250) at address, for example ":853". The port must not be 53. config must
// have a certificate.
func Listen(address string, config *tls.Config) (*Listener, error) {
	if err := checkPort(address); err != nil {
		return nil, err
	}
	return listen(address, config, alpnDoQ, &quicgo.Config{MaxIncomingStreams: maxStreams, MaxIncomingUniStreams: -1}, (*serverConn).serveQueries)
}

// ListenHTTP3 opens a listener for DNS over HTTP/3 at address, for example ":443". config must have a certificate. The path
// is /dns-query, and the methods are GET, HEAD and POST. The header of a request, which includes its URL, may have 8 KiB.
func ListenHTTP3(address string, config *tls.Config) (*Listener, error) {
	limits := &quicgo.Config{MaxIncomingStreams: maxRequests, MaxIncomingUniStreams: http3UniStreams}
	return listen(address, config, alpnHTTP3, limits, (*serverConn).serveHTTP3)
}

func listen(address string, config *tls.Config, alpn string, quicConfig *quicgo.Config, serve func(*serverConn)) (*Listener, error) {
	if config == nil || len(config.Certificates) == 0 && config.GetCertificate == nil && config.GetConfigForClient == nil {
		return nil, errors.New("dnshedge/quic: the tls.Config has no certificate")
	}
	_, port, err := net.SplitHostPort(address)
	if err == nil && port == "" {
		err = errors.New("missing port") // package net would choose one
	}
	if err != nil {
		return nil, fmt.Errorf("dnshedge/quic: listen on %q: %w", address, err)
	}
	at, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return nil, fmt.Errorf("dnshedge/quic: listen on %s: %w", address, err)
	}
	socket, err := net.ListenUDP("udp", at)
	if err != nil {
		return nil, fmt.Errorf("dnshedge/quic: listen on %s: %w", address, err)
	}
	l := &Listener{socket: socket, config: quicConfig, serve: serve, conns: make(map[*serverConn]bool)}
	l.tls = config.Clone()
	l.tls.NextProtos = []string{alpn}
	quicConfig.HandshakeIdleTimeout, quicConfig.MaxIdleTimeout = handshakeTimeout/2, idleTimeout
	quicConfig.InitialStreamReceiveWindow, quicConfig.MaxStreamReceiveWindow = queryStreamWindow, queryStreamWindow
	quicConfig.InitialConnectionReceiveWindow, quicConfig.MaxConnectionReceiveWindow = queryConnWindow, queryConnWindow
	l.transport = &quicgo.Transport{
		Conn: socket, StatelessResetKey: new(quicgo.StatelessResetKey), ConnContext: l.admitHandshake,
		VerifySourceAddress: func(net.Addr) bool { return l.handshakes.count() >= freeHandshakes },
	}
	_, _ = rand.Read(l.transport.StatelessResetKey[:]) // never fails
	return l, nil
}

// Addr returns the address of the listener.
func (l *Listener) Addr() net.Addr { return l.socket.LocalAddr() }

// Serve answers the queries on all connections with h, until Shutdown is called. It then returns
// dnshedge.ErrServerClosed. A forward.Forwarder calls it once.
func (l *Listener) Serve(h *forward.QueryHandler) error {
	inner, err := l.startListening(h)
	if err != nil {
		return err
	}
	for {
		conn, err := inner.Accept(context.Background())
		if err != nil {
			if l.isClosing() {
				return dnshedge.ErrServerClosed
			}
			return fmt.Errorf("dnshedge/quic: accept: %w", err)
		}
		go l.serveConn(conn)
	}
}

// startListening makes the listener accept connections, whose queries h answers. It returns dnshedge.ErrServerClosed
// after Shutdown was called.
func (l *Listener) startListening(h *forward.QueryHandler) (*quicgo.Listener, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		return nil, dnshedge.ErrServerClosed
	}
	l.handler = h
	inner, err := l.transport.Listen(l.tls, l.config)
	if err != nil {
		return nil, fmt.Errorf("dnshedge/quic: listen: %w", err)
	}
	l.inner = inner
	return inner, nil
}

func (l *Listener) isClosing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closing
}

// serveConn serves a connection whose handshake has succeeded, until it ends.
func (l *Listener) serveConn(conn *quicgo.Conn) {
	h := conn.Context().Value(handshakeKey{}).(*handshake)
	h.end()
	client := h.client
	if client == nil { // the handshake has validated the address
		var ok bool
		if client, ok = l.handler.AdmitConn(conn.RemoteAddr()); !ok {
			_ = conn.CloseWithError(l.closeCode(codeExcessiveLoad), "too many connections")
			return
		}
		context.AfterFunc(conn.Context(), client.Close)
	}
	c := &serverConn{Conn: conn, listener: l, client: client}
	if !client.Start(c.closeToFreeSlot) || !l.addConn(c) {
		_ = conn.CloseWithError(l.closeCode(codeExcessiveLoad), "too many connections")
		return
	}
	defer l.removeConn(c)
	c.unusedTimer = time.AfterFunc(unusedTime, c.drain)
	defer c.unusedTimer.Stop()
	l.serve(c)
}

// closeCode converts an error code of DNS over QUIC to the code with which the listener closes a connection. For an
// HTTP/3 listener this is the HTTP/3 code with the same meaning (RFC 9114 §8.1).
func (l *Listener) closeCode(code errorCode) quicgo.ApplicationErrorCode {
	if l.tls.NextProtos[0] != alpnHTTP3 {
		return quicgo.ApplicationErrorCode(code)
	}
	switch code {
	case codeNoError:
		return quicgo.ApplicationErrorCode(http3.ErrCodeNoError)
	case codeExcessiveLoad:
		return quicgo.ApplicationErrorCode(http3.ErrCodeExcessiveLoad)
	case codeProtocolError:
		return quicgo.ApplicationErrorCode(http3.ErrCodeGeneralProtocolError)
	default:
		return quicgo.ApplicationErrorCode(http3.ErrCodeInternalError)
	}
}

// addConn adds a connection to those that Shutdown closes and waits for. It returns false, without adding c, if Shutdown
// has been called.
func (l *Listener) addConn(c *serverConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		return false
	}
	l.conns[c] = true
	l.wg.Add(1)
	return true
}

func (l *Listener) removeConn(c *serverConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
	l.wg.Done()
}

// Shutdown refuses new connections, answers the queries that were received before, and then closes all connections and
// the socket. If ctx ends first, it closes the connections at once and returns the cause of ctx.
func (l *Listener) Shutdown(ctx context.Context) error {
	l.mu.Lock()
	l.closing = true
	if l.inner != nil {
		_ = l.inner.Close() // connections stay open
	}
	for c := range l.conns {
		go c.drain()
	}
	l.mu.Unlock()
	done := make(chan struct{})
	go func() {
		l.wg.Wait()
		close(done)
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return errors.Join(err, l.transport.Close(), l.socket.Close())
}

// A serverConn is a connection of a client whose handshake has ended.
type serverConn struct {
	*quicgo.Conn
	listener    *Listener
	client      *forward.ClientConn
	unusedTimer *time.Timer // calls drain when there was no query for unusedTime

	incomplete atomic.Int64 // bytes of queries that are being read

	mu         sync.Mutex // guards the fields below
	inFlight   int        // queries that are being read or answered
	draining   bool       // no more queries are accepted
	lastAnswer time.Time  // when the last response was ready to be written
}

// beginQuery counts a new query of the connection, and restarts the timer that closes connections without queries. It
// returns false if the connection accepts no more queries. Otherwise the caller must call endQuery when the query has
// ended.
func (c *serverConn) beginQuery() bool {
	c.unusedTimer.Reset(unusedTime)
	return c.beginStream()
}

// beginStream counts a new stream, which carries one query or request. It returns false if the connection accepts no more
// of them. Otherwise the caller must call endQuery when the stream has ended.
func (c *serverConn) beginStream() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.draining {
		return false
	}
	c.inFlight++
	return true
}

// endQuery records that a query has ended, which beginQuery or beginStream has counted. If it was the last one, and the
// connection accepts no new queries (drain was called), the connection is closed.
func (c *serverConn) endQuery() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inFlight--; c.inFlight == 0 && c.draining {
		go c.closeAfterResponse(time.Now())
	}
}

// recordAnswer records the present time as that of the last response. closeToFreeSlot closes an idle connection only some
// time after it, so that the client receives that response.
func (c *serverConn) recordAnswer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastAnswer = time.Now()
}

// closeToFreeSlot makes the connection end, because the limit of connections is reached and a new connection needs its
// place. If inUse is true, it ends when the queries that are being answered have their responses.
//
// If inUse is false, the connection ends when the client has had time to receive the last response. A query that has
// arrived only in part is then lost.
func (c *serverConn) closeToFreeSlot(inUse bool) {
	if inUse {
		go c.drain()
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.draining = true
	go c.closeAfterResponse(c.lastAnswer)
}

// drain makes the connection refuse new queries, and close when its present queries are answered. Further calls have no
// effect.
func (c *serverConn) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.draining && c.inFlight == 0 {
		go c.closeAfterResponse(time.Now())
	}
	c.draining = true
}

// closeAfterResponse closes the connection when the client has had time to receive the last response: three round trips
// after the time written, but between 100 ms and a second. Package quic-go does not tell whether data has arrived, and
// discards data that is not acknowledged when a connection is closed.
func (c *serverConn) closeAfterResponse(written time.Time) {
	needed := min(max(3*c.ConnectionStats().SmoothedRTT, 100*time.Millisecond), time.Second)
	t := time.NewTimer(time.Until(written.Add(needed)))
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.Context().Done():
	}
	_ = c.CloseWithError(c.listener.closeCode(codeNoError), "")
}
