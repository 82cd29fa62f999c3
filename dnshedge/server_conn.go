package dnshedge

import (
	"bufio"
	"cmp"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/usercode"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/connlimit"
)

// Serve answers queries on the connections that ln accepts. It closes ln before it returns. The error is
// ErrServerClosed after Shutdown, or says that the Server is invalid or that Accept has failed permanently.
//
//   - Up to 128 questions of a connection are answered at a time, in any order (RFC 7766 §6.2.1.1).
//   - Over TLS, responses to queries with EDNS are padded (RFC 8467).
//   - At most twice Client.MaxInFlight questions of all connections wait. When one more arrives, the oldest question of
//     the client (an IPv4 address or an IPv6 /64 network) with the most waiting questions gets SERVFAIL.
func (s *Server) Serve(ln net.Listener) error {
	if err := s.startServing(ln); err != nil {
		return err
	}
	defer s.unregisterCloser(ln, true)
	for {
		conn, err := ln.Accept()
		if err == nil && conn == nil {
			return errors.New("dnshedge: accept: the Listener returned neither a connection nor an error")
		}
		if err == nil {
			s.startConn(conn)
			continue
		}
		if s.isClosing() {
			return ErrServerClosed
		}
		if t := net.Error(nil); !errors.As(err, &t) || errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("dnshedge: accept: %w", err)
		}
		time.Sleep(readPause) // for example, too many files are open
	}
}

// startConn serves conn in a new goroutine. If MaxConns connections are open, it first ends another connection, and may
// wait until one has closed. It closes conn instead if no other may be ended, too many calls already wait, or Shutdown
// was called.
func (s *Server) startConn(conn net.Conn) {
	_, usesTLS := conn.(interface{ ConnectionState() tls.ConnectionState })
	conn = usercode.WrapConn(conn)
	c := &serverConn{
		Conn: conn, s: s, reader: bufio.NewReaderSize(conn, queryBufferSize), usesTLS: usesTLS, subqueueKey: streamSubqueueKey(conn.RemoteAddr()),
		writing: make(chan struct{}, 1), waiting: make(chan struct{}, maxPipelined),
	}
	slot, ok := s.connLimiter.AcquireSlot(connlimit.ClientAddress(conn.RemoteAddr()), s.closing, c.stopReading)
	if !ok {
		_ = conn.Close()
		return
	}
	if !s.registerCloser(conn, false) {
		slot.Release()
		_ = conn.Close()
		return
	}
	c.slot = slot
	if usesTLS {
		go c.handshakeAndServe()
	} else {
		go c.serveQueries()
	}
}

// A serverConn is one connection of a DNS client over TCP or TLS. Its goroutine reads queries, and further goroutines
// answer the queries that the cache cannot answer.
type serverConn struct {
	net.Conn
	s           *Server
	reader      *bufio.Reader // of queries
	inputEnded  bool          // the client sends no more
	usesTLS     bool          // then responses are padded, because TLS does not hide their length
	writing     chan struct{} // a mutex for writing: it holds a value while a response is written
	waiting     chan struct{} // holds one value per question in flight
	slot        *connlimit.Slot
	subqueueKey string // of the client, in the queue of waiting questions
	stopped     bool   // no more questions are read; guarded by s.mu
	wasInUse    bool   // the connection was in use when it was stopped; guarded by s.mu

	firstQueryBy  time.Time     // deadline for the first query; zero: IdleTimeout from when it is awaited
	lastWrite     time.Time     // when a response was last written; guarded by writing
	drainedBytes  int           // bytes read after Shutdown
	drainDuration time.Duration // time spent reading them
}

// stopReading ends the reading of queries, so that the connection closes after the responses to its unanswered
// questions. inUse says that there are unanswered questions. If it is false, the connection closes without reading its
// remaining input.
func (c *serverConn) stopReading(inUse bool) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.stopped, c.wasInUse = true, inUse
	_ = c.SetReadDeadline(time.Unix(1, 0))
}

// handshakeAndServe performs the TLS handshake, and then starts serveQueries in a new goroutine. The handshake and the
// first query together may take IdleTimeout. After a failed handshake, serveQueries only closes the connection.
func (c *serverConn) handshakeAndServe() {
	ready := false
	defer func() { // also if a callback of the TLS configuration calls runtime.Goexit
		if !ready {
			c.stopReading(false)
		}
		go c.serveQueries() // the handshake has grown the stack of this goroutine, which would stay large
	}()
	idle := c.s.idleTimeout()
	c.firstQueryBy = time.Now().Add(idle)
	err := c.setReadDeadline(idle)
	if secure, ok := c.Conn.(interface{ Handshake() error }); ok && err == nil {
		err = secure.Handshake()
	}
	ready = err == nil
}

// idleTimeout returns the effective IdleTimeout: the field, or 10 s if it is zero.
func (s *Server) idleTimeout() time.Duration { return cmp.Or(s.IdleTimeout, defaultIdleTimeout) }

// serveQueries reads and answers queries until the connection ends. It then waits for the last responses, drains the
// input and closes the connection.
func (c *serverConn) serveQueries() {
	s := c.s
	defer c.slot.Release()
	defer s.unregisterCloser(c.Conn, false)
	defer c.drainInput()
	var wg sync.WaitGroup
	defer wg.Wait() // a client that has closed its sending side still reads
	from := c.RemoteAddr()
	for {
		m, err := c.readMessage()
		if err != nil {
			c.inputEnded = errors.Is(err, io.EOF)
			return
		}
		c.slot.BeginUse()
		if !c.answerMessage(m, from, &wg) {
			return
		}
	}
}

// answerMessage answers the client's message m: at once, or in a new goroutine of wg if the cache has no answer. It
// returns false if the connection must be closed: m is not a query, Admit returned Ignore, or the response was not
// written.
func (c *serverConn) answerMessage(m []byte, client net.Addr, wg *sync.WaitGroup) bool {
	p := messageBuffers.Get().(*messageBuffer)
	defer messageBuffers.Put(p)
	q := c.s.handleMessage(&p.q, append(p.b[:0], 0, 0), m, client, wire.MaxMsg)
	switch {
	case q.drop:
		return false
	case q.Query != nil && c.answerQuery(q, wg):
		return true
	case q.Query != nil:
		q.reply = q.AppendFailure(append(p.b[:0], 0, 0), dns.RcodeServerFailure, wire.MaxMsg, wire.EDE{Code: edeOther})
	}
	p.b = c.padResponse(q.reply)
	c.lockWriting()
	err := c.writeResponse(p.b)
	c.unlockWriting()
	c.slot.EndUse()
	return err == nil
}

// answerQuery answers the question q in a new goroutine of wg, and returns true. It first waits while 128 questions of
// the connection are being answered. If all connections together have too many questions, it returns false, and the
// caller must respond with SERVFAIL.
func (c *serverConn) answerQuery(q handledMessage, wg *sync.WaitGroup) bool {
	s := c.s
	c.waiting <- struct{}{}
	// A question counts until its response is written, to limit the memory of clients that do not read responses.
	if s.answering.Add(1) > int64(2*s.waiting.streams.max) {
		s.answering.Add(-1)
		<-c.waiting
		q.core.count.dropped.Add(1)
		return false
	}
	w := q.core.enqueueQuery(s.ctx, &s.waiting.streams, c.subqueueKey)
	wg.Go(func() {
		defer func() {
			s.answering.Add(-1)
			<-c.waiting
			c.slot.EndUse()
		}()
		r, _ := w.answerQueuedQuery(s.ctx, q.Query)
		c.lockWriting()
		defer c.unlockWriting()
		// While it waits for the lock, a question holds only the answer, which equal questions share.
		p := messageBuffers.Get().(*messageBuffer)
		defer messageBuffers.Put(p)
		p.b = c.padResponse(appendResult(append(p.b[:0], 0, 0), q.Query, r, wire.MaxMsg))
		_ = c.writeResponse(p.b)
	})
	return true
}

// AnswerQuery returns the response to m, a query in wire format, for a protocol that Serve does not support. client is
// the address for Admit, and must not be a *net.UDPAddr. Responses to queries with EDNS are padded (RFC 8467). As in
// Serve, too many waiting questions cause SERVFAIL. Shutdown waits for the call.
//
// The result is nil if the connection must be closed:
//
//   - m is not a query;
//   - Admit returned Ignore;
//   - Client is nil;
//   - Shutdown already waits for the last answers.
func (s *Server) AnswerQuery(m []byte, client net.Addr) []byte {
	if !s.tryBeginAnswer() {
		return nil
	}
	defer s.wg.Done()
	var scratch wire.Query
	q := s.handleMessage(&scratch, nil, m, client, wire.MaxMsg)
	if q.drop || q.Query == nil {
		return wire.PadResponse(q.reply, 0)
	}
	if s.answering.Add(1) > int64(2*s.waiting.streams.max) {
		s.answering.Add(-1)
		q.core.count.dropped.Add(1)
		return wire.PadResponse(q.AppendFailure(nil, dns.RcodeServerFailure, wire.MaxMsg, wire.EDE{Code: edeOther}), 0)
	}
	defer s.answering.Add(-1)
	w := q.core.enqueueQuery(s.ctx, &s.waiting.streams, streamSubqueueKey(client))
	r, _ := w.answerQueuedQuery(s.ctx, q.Query)
	return wire.PadResponse(appendResult(nil, q.Query, r, wire.MaxMsg), 0)
}

// tryBeginAnswer makes Shutdown wait for a call of AnswerQuery, until the caller calls s.wg.Done. It returns false,
// without effect, if the query must not be answered: Client is nil, or Shutdown already waits for the last answers.
func (s *Server) tryBeginAnswer() bool {
	s.init()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Client == nil || s.answersStopped {
		return false
	}
	s.wg.Add(1)
	return true
}

// queryBufferSize is the size of the buffer for queries that a connection has. It is enough for a query that is padded
// to 256 bytes (RFC 8467), with its length prefix.
const queryBufferSize = 288

// readMessage reads a DNS message with its length prefix (RFC 1035 §4.2.2), and returns it without the prefix. The
// result is valid until the next call. It returns an error after IdleTimeout, but waits longer for the first byte while
// questions are unanswered.
func (c *serverConn) readMessage() ([]byte, error) {
	const prefix = 2
	var head []byte
	var start time.Time
	closing := c.s.isClosing()
	if closing {
		start = time.Now()
	}
	idle := c.s.idleTimeout()
	for {
		if !c.firstQueryBy.IsZero() {
			idle, c.firstQueryBy = time.Until(c.firstQueryBy), time.Time{}
		}
		if err := c.setReadDeadline(idle); err != nil {
			return nil, err
		}
		var err error
		if head, err = c.reader.Peek(prefix); err == nil {
			break
		}
		if t := net.Error(nil); len(head) > 0 || !errors.As(err, &t) || !t.Timeout() || len(c.waiting) == 0 || c.s.isClosing() {
			return nil, err
		}
	}
	n := prefix + int(binary.BigEndian.Uint16(head))
	m, err := c.reader.Peek(min(n, queryBufferSize))
	if n > queryBufferSize && err == nil {
		m = make([]byte, n)
		_, err = io.ReadFull(c.reader, m)
	} else if err == nil {
		_, err = c.reader.Discard(n)
	}
	if closing {
		c.drainedBytes += n
		c.drainDuration += time.Since(start)
	}
	if err != nil {
		return nil, err
	}
	return m[prefix:], nil
}

// setReadDeadline sets the deadline for reading the next message: the duration idle from now, or 100 ms from now after
// Shutdown. It returns ErrServerClosed after stopReading, or if 256 KiB were read, or 1 s was spent reading, since
// Shutdown.
func (c *serverConn) setReadDeadline(idle time.Duration) error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.stopped || c.s.closed && (c.drainedBytes >= drainBytes || c.drainDuration >= drainTime) {
		return ErrServerClosed
	}
	if c.s.closed {
		idle = receivedTime
	}
	deadline := time.Now().Add(idle)
	if c.usesTLS {
		select { // TLS may write while it reads, for example after a KeyUpdate (RFC 8446 §4.6.3)
		case c.writing <- struct{}{}:
			_ = c.SetWriteDeadline(deadline)
			<-c.writing
		default: // a response is being written, with a deadline of its own
		}
	}
	return c.SetReadDeadline(deadline)
}

// lockWriting waits until no other goroutine writes to the connection, and sets the write deadline: WriteTimeout after
// the call, including the wait. The caller must call unlockWriting after the write.
func (c *serverConn) lockWriting() {
	// Before the wait, because otherwise a client that reads slowly could keep all its responses in memory.
	deadline := time.Now().Add(cmp.Or(c.s.WriteTimeout, defaultWriteTimeout))
	c.writing <- struct{}{}
	_ = c.SetWriteDeadline(deadline)
}

// unlockWriting releases the lock of lockWriting. On a TLS connection it first sets the write deadline to IdleTimeout
// from now, because TLS may also write while it reads.
func (c *serverConn) unlockWriting() {
	if c.usesTLS {
		_ = c.SetWriteDeadline(time.Now().Add(c.s.idleTimeout()))
	}
	<-c.writing
}

// padResponse pads the DNS message that begins at b[2] to a multiple of 468 bytes (RFC 8467), and returns the extended
// slice. It returns b unchanged if the connection does not use TLS, or the message has no OPT record.
func (c *serverConn) padResponse(b []byte) []byte {
	if c.usesTLS {
		return wire.PadResponse(b, 2)
	}
	return b
}

// writeResponse writes the DNS message that begins at b[2]. It stores the message's length in the two bytes before it
// (RFC 1035 §4.2.2). The caller must have called lockWriting. If writing fails, it closes the connection and returns
// the error.
func (c *serverConn) writeResponse(b []byte) error {
	binary.BigEndian.PutUint16(b, uint16(len(b)-2))
	_, err := c.Conn.Write(b)
	if err != nil {
		_ = c.Close()
	} else {
		c.lastWrite = time.Now()
	}
	return err
}

// drainInput ends the sending direction of the connection, and discards input for at most 1 s until the client closes
// its side. It does nothing if the client already has, or no response was written in the last second. The caller must
// close the connection.
func (c *serverConn) drainInput() {
	c.s.mu.Lock()
	idle := c.stopped && !c.wasInUse
	c.s.mu.Unlock()
	if idle || c.inputEnded || time.Since(c.lastWrite) > drainTime { // safe without the lock: all writers have ended
		return
	}
	// If a socket is closed with unread input, the kernel resets the connection, and the client may lose responses.
	wait := receivedTime
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		wait = drainTime
	}
	_ = c.SetReadDeadline(time.Now().Add(wait))
	_, _ = io.CopyN(io.Discard, c.Conn, drainBytes)
}
