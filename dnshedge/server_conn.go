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

// Serve answers the queries on connections that ln accepts, until Shutdown, and closes ln. It then returns
// ErrServerClosed. It also returns an error if the Server is invalid, if ln is closed, or if Accept returns an error
// that is no net.Error. It continues after other errors, for example if too many files are open.
//
// Up to 128 questions of a connection are answered at a time, and their responses may be out of order (RFC 7766
// §6.2.1.1). Over TLS, responses to queries with EDNS are padded to multiples of 468 bytes (RFC 7830, RFC 8467).
//
// At most twice Client.MaxInFlight questions of all connections wait at a time, including questions that are equal.
// When one more question comes, the oldest question of the client with the most questions gets SERVFAIL. A client is an
// IPv4 address, or an IPv6 /64 network.
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

// startConn serves a connection in a new goroutine. If MaxConns connections are open, another connection loses its
// place, and startConn may wait until one has closed. It closes conn instead if no connection may lose its place to
// conn (see MaxConns), if too many calls wait, or after Shutdown.
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

// stopReading makes the connection end after its present responses. No more questions are read. It is called when a new
// connection needs the place of this connection, because MaxConns is reached, or when the TLS handshake has failed.
// inUse is true if questions are being answered.
func (c *serverConn) stopReading(inUse bool) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.stopped, c.wasInUse = true, inUse
	_ = c.SetReadDeadline(time.Unix(1, 0))
}

// handshakeAndServe performs the TLS handshake, and then starts serveQueries in a new goroutine: the handshake grows
// the stack of its goroutine, which would stay large. The handshake and the first query together may take IdleTimeout.
// After a failed handshake, serveQueries only closes the connection.
func (c *serverConn) handshakeAndServe() {
	ready := false
	defer func() { // also if a callback of the TLS configuration calls runtime.Goexit
		if !ready {
			c.stopReading(false)
		}
		go c.serveQueries()
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

// answerMessage answers the message m of the client with the address from: at once, or in a new goroutine of wg if the
// cache has no answer. It returns false if the connection must be closed: m is not a query, Admit has returned Ignore,
// or the response could not be written.
func (c *serverConn) answerMessage(m []byte, from net.Addr, wg *sync.WaitGroup) bool {
	p := messageBuffers.Get().(*messageBuffer)
	defer messageBuffers.Put(p)
	q := c.s.handleMessage(&p.q, append(p.b[:0], 0, 0), m, from, wire.MaxMsg)
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

// answerQuery answers a question in a new goroutine of wg and returns true. Before that it waits while 128 questions of
// this connection (maxPipelined) are being answered. If streams already have four times Client.MaxInFlight questions,
// it does nothing and returns false. The caller must then respond with SERVFAIL.
//
// A question counts until its response is written, even if a newer question has displaced it from the queue of waiting
// questions. So clients that do not read responses use no more memory than others.
func (c *serverConn) answerQuery(q handledMessage, wg *sync.WaitGroup) bool {
	s := c.s
	c.waiting <- struct{}{}
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

// AnswerQuery answers a query m in wire format, which a client has sent over a connection of a protocol that Serve does
// not know. It blocks until there is a response. A response to a query with EDNS is padded (RFC 8467).
//
// It calls Admit with client, the client's address. client must not be a *net.UDPAddr, because that type stands for
// datagrams there.
//
// The query shares the limits of the queries that Serve reads: at most twice Client.MaxInFlight questions wait at a
// time. When one more question comes, the oldest question of the client with the most questions gets SERVFAIL.
//
// The result is nil if the connection must be closed without a response: m is not a query, Admit has returned Ignore,
// Client is nil, or Shutdown has stopped the answering of queries. Shutdown waits for questions that were asked before.
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

// tryBeginAnswer registers a question that AnswerQuery is about to answer, so that Shutdown waits for it, and returns
// true. It returns false if the question must not be answered: Client is nil, or Shutdown already waits for the last
// answers.
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

// readMessage reads one DNS message with its length prefix (RFC 1035 §4.2.2). The message is valid until the next call.
// readMessage returns an error if the message has not arrived within IdleTimeout. While questions of the connection
// wait for answers, it waits for longer for the first byte.
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

// setReadDeadline sets the deadline for reading the next message: after the duration idle, or, after Shutdown, in 100
// ms (receivedTime), which is enough for queries received before.
//
// It returns ErrServerClosed if no more messages may be read. That is the case after stopReading. It is also the case
// after Shutdown, when 256 KiB (drainBytes) were read since, or reading has taken 1 s (drainTime).
//
// A TLS connection also writes while it reads, for example in answer to a KeyUpdate (RFC 8446 §4.6.3). So it gets the
// same deadline for writing, unless a response is being written, which has its own.
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
		select {
		case c.writing <- struct{}{}:
			_ = c.SetWriteDeadline(deadline)
			<-c.writing
		default:
		}
	}
	return c.SetReadDeadline(deadline)
}

// lockWriting waits until no other goroutine writes to the connection, and sets the write deadline. The caller must
// call unlockWriting after the write.
//
// The deadline includes the wait. Otherwise a client that reads slowly could keep all its responses in memory.
func (c *serverConn) lockWriting() {
	deadline := time.Now().Add(cmp.Or(c.s.WriteTimeout, defaultWriteTimeout))
	c.writing <- struct{}{}
	_ = c.SetWriteDeadline(deadline)
}

// unlockWriting ends the exclusive right to write that lockWriting has given. TLS may also write while the connection
// is read. So on a TLS connection unlockWriting sets a new write deadline: IdleTimeout from now.
func (c *serverConn) unlockWriting() {
	if c.usesTLS {
		_ = c.SetWriteDeadline(time.Now().Add(c.s.idleTimeout()))
	}
	<-c.writing
}

// padResponse pads the DNS message in b to a multiple of 468 bytes (RFC 8467), and returns the extended slice. It does
// so only if the connection uses TLS, because TLS does not hide the length, and if the message has an OPT record.
//
// The message begins after the two bytes of the length prefix, which padResponse does not change: writeResponse sets
// it.
func (c *serverConn) padResponse(b []byte) []byte {
	if c.usesTLS {
		return wire.PadResponse(b, 2)
	}
	return b
}

// writeResponse writes the response in b. It stores the length prefix in the first two bytes of b, which precede the
// message. The caller must have called lockWriting. If writing fails, for example because the client does not read the
// response before the write deadline, writeResponse closes the connection and returns the error.
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

// drainInput reads and discards input before the connection is closed, so that the client receives the last responses.
// If a socket is closed with unread input, the kernel resets the connection, and the responses may be lost.
//
// It first closes this side's sending direction (CloseWrite). It then reads until the client closes its side, at most
// 256 KiB (drainBytes) and for at most 1 s (drainTime). For a connection without CloseWrite the time is 100 ms.
//
// It does nothing if the client has closed its sending side, if no response was written in the last second, or if
// stopReading was called for an idle connection.
func (c *serverConn) drainInput() {
	c.s.mu.Lock()
	idle := c.stopped && !c.wasInUse
	c.s.mu.Unlock()
	if idle || c.inputEnded || time.Since(c.lastWrite) > drainTime { // safe without the lock: all writers have ended
		return
	}
	wait := receivedTime
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		wait = drainTime
	}
	_ = c.SetReadDeadline(time.Now().Add(wait))
	_, _ = io.CopyN(io.Discard, c.Conn, drainBytes)
}
