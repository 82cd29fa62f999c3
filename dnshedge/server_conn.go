package dnshedge

import (
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

// Serve answers the queries on connections that ln accepts, until Shutdown,
// and closes ln. Questions of one connection are answered in the order in which their
// answers come, and 128 at a time (RFC 7766 §6.2.1.1). Over TLS, responses to queries with
// EDNS are padded to multiples of 468 bytes (RFC 7830, RFC 8467).
//
// Over all connections, twice as many questions as Client.MaxInFlight wait at a time, copies of one included. When one more
// comes, the client that has most gets SERVFAIL for the one that has waited longest. A client is as for MaxConns.
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
		select {
		case <-s.closing:
			return ErrServerClosed
		default:
		}
		if t := net.Error(nil); !errors.As(err, &t) || errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("dnshedge: accept: %w", err)
		}
		time.Sleep(readPause) // as when there are too many open files
	}
}

// startConn serves a connection in a goroutine, or closes it if there is no room for it.
func (s *Server) startConn(conn net.Conn) {
	_, pads := conn.(interface{ ConnectionState() tls.ConnectionState })
	conn = usercode.WrapConn(conn)
	c := &serverConn{
		Conn: conn, s: s, pads: pads, subqueueKey: streamSubqueueKey(conn.RemoteAddr()),
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
	go c.serveQueries()
}

// serverConn is a connection of a client.
type serverConn struct {
	net.Conn
	s           *Server
	pads        bool          // TLS hides what is written, but not its length
	writing     chan struct{} // a lock: holds a value while a response is written
	waiting     chan struct{} // one value per question that waits
	slot        *connlimit.Slot
	subqueueKey string // of the client, in the line of questions that wait
	stopped     bool   // no more questions are read; guarded by s.mu
	wasInUse    bool   // it was in use then; guarded by s.mu

	lastWrite time.Time     // when a response was last written; guarded by writing
	received  int           // bytes that were read after Shutdown
	readFor   time.Duration // the time that was waited for them
}

// stopReading is called when the connection has to give up its slot: no more questions are read.
func (c *serverConn) stopReading(inUse bool) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.stopped, c.wasInUse = true, inUse
	_ = c.SetReadDeadline(time.Unix(1, 0))
}

func (c *serverConn) serveQueries() {
	s := c.s
	defer c.slot.Release()
	defer s.unregisterCloser(c.Conn, false)
	defer c.drainInput()
	var wg sync.WaitGroup
	defer wg.Wait() // a client that has closed its half still reads
	from := c.RemoteAddr()
	var scratch wire.Query
	in, out := make([]byte, 0, 512), make([]byte, 0, 1024)
	for {
		m, err := c.readMessage(in[:0])
		if err != nil {
			return
		}
		in = m
		c.slot.BeginUse()
		q := s.handleMessage(&scratch, append(out[:0], 0, 0), m, from, wire.MaxMsg)
		if q.Query != nil && c.answerQuery(q, &wg) {
			continue
		}
		switch {
		case q.drop:
			return
		case q.Query != nil:
			q.reply = q.AppendFailure(append(out[:0], 0, 0), dns.RcodeServerFailure, wire.MaxMsg, wire.EDE{Code: edeOther})
		}
		out = c.padResponse(q.reply)
		c.lockWriting()
		err = c.writeResponse(out)
		c.unlockWriting()
		c.slot.EndUse()
		if err != nil {
			return
		}
	}
}

// answerQuery answers a question in a goroutine of wg, or reports false if there are too many. Questions that have lost their place in
// the line count until their responses are written, so that clients that do not read take no more memory than others.
func (c *serverConn) answerQuery(q handledMessage, wg *sync.WaitGroup) bool {
	s := c.s
	c.waiting <- struct{}{}
	if s.answering.Add(1) > int64(2*s.waiting.streams.max) {
		s.answering.Add(-1)
		<-c.waiting
		q.core.count.dropped.Add(1)
		return false
	}
	w := q.core.enterQueue(s.ctx, &s.waiting.streams, c.subqueueKey)
	wg.Go(func() {
		defer func() {
			w.End(nil)
			s.answering.Add(-1)
			<-c.waiting
			c.slot.EndUse()
		}()
		r, _ := w.answerInQueue(s.ctx, q.Query)
		c.lockWriting()
		defer c.unlockWriting()
		// What waits to be written is the answer, which all have in common.
		p := responseBuffers.Get().(*responseBuffer)
		defer responseBuffers.Put(p)
		p.b = c.padResponse(appendResult(append(p.b[:0], 0, 0), q.Query, r, wire.MaxMsg))
		_ = c.writeResponse(p.b)
	})
	return true
}

// readMessage reads one DNS message with its length prefix (RFC 1035 §4.2.2), into b if that has room. It returns an error when the
// connection has been idle for IdleTimeout. A connection with questions that wait for answers is not idle.
func (c *serverConn) readMessage(b []byte) ([]byte, error) {
	var head [2]byte
	start, closing := time.Now(), c.s.isClosing()
	idle := cmp.Or(c.s.IdleTimeout, defaultIdleTimeout)
	for {
		if err := c.setReadDeadline(idle); err != nil {
			return nil, err
		}
		n, err := io.ReadFull(c, head[:])
		if err == nil {
			break
		}
		if t := net.Error(nil); n > 0 || !errors.As(err, &t) || !t.Timeout() || len(c.waiting) == 0 || c.s.isClosing() {
			return nil, err
		}
	}
	n := int(binary.BigEndian.Uint16(head[:]))
	if cap(b) < n {
		b = make([]byte, n)
	}
	_, err := io.ReadFull(c, b[:n])
	if closing {
		c.received += len(head) + n
		c.readFor += time.Since(start)
	}
	return b[:n], err
}

// setReadDeadline sets how long the next message may take. It fails after leave, and after Shutdown when enough has been read
// that may have been received before.
func (c *serverConn) setReadDeadline(idle time.Duration) error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.stopped || c.s.closed && (c.received >= drainBytes || c.readFor >= drainTime) {
		return ErrServerClosed
	}
	if c.s.closed {
		idle = receivedTime
	}
	return c.SetReadDeadline(time.Now().Add(idle))
}

// lockWriting locks writing, and sets the deadline of the next response. The time that earlier responses took counts.
// Otherwise a client that reads slowly could keep all its responses in memory.
func (c *serverConn) lockWriting() {
	deadline := time.Now().Add(cmp.Or(c.s.WriteTimeout, defaultWriteTimeout))
	c.writing <- struct{}{}
	_ = c.SetWriteDeadline(deadline)
}

func (c *serverConn) unlockWriting() { <-c.writing }

// padResponse pads a response that is sent over TLS, behind two bytes for its length.
func (c *serverConn) padResponse(b []byte) []byte {
	if c.pads {
		return wire.PadResponse(b, 2)
	}
	return b
}

// writeResponse writes a response, for whose length b has two bytes in front, after lock. If the
// client does not read it, the connection is closed.
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

// drainInput ends a connection to which a response was written a moment ago: if it were closed with questions unread, the kernel would
// reset it, and its last answers might be lost. A connection that cannot be half closed is read for a moment only.
func (c *serverConn) drainInput() {
	c.s.mu.Lock()
	idle := c.stopped && !c.wasInUse
	c.s.mu.Unlock()
	if idle || time.Since(c.lastWrite) > drainTime { // no goroutine writes any more
		return
	}
	wait := receivedTime
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		wait = drainTime
	}
	_ = c.SetReadDeadline(time.Now().Add(wait))
	_, _ = io.CopyN(io.Discard, c.Conn, drainBytes)
}
