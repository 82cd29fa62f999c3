package main

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	idleTime  = 10 * time.Second // after which a client's connection is closed
	writeTime = 5 * time.Second  // that a client may take to accept an answer
	inFlight  = 100              // questions of one connection, then it is not read
)

// streams answers questions over TCP and TLS, as they come: an answer does not wait for
// the question before (RFC 7766 §6.2.1.1).
type streams struct {
	handler dns.Handler
	access  *access

	mu     sync.Mutex // guards the fields below
	closed bool
	open   map[net.Conn]bool
	wg     sync.WaitGroup
}

// serve answers those who connect, until the listener is closed.
func (s *streams) serve(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			time.Sleep(50 * time.Millisecond) // as when there are no descriptors left
			continue
		}
		if !s.enter(c) {
			_ = c.Close()
			return nil
		}
		go func() {
			defer s.leave(c)
			s.talk(c)
		}()
	}
}

func (s *streams) enter(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	if s.open == nil {
		s.open = make(map[net.Conn]bool)
	}
	s.open[c] = true
	s.wg.Add(1)
	return true
}

func (s *streams) leave(c net.Conn) {
	_ = c.Close()
	s.mu.Lock()
	delete(s.open, c)
	s.mu.Unlock()
	s.wg.Done()
}

// shutdown reads no more questions, and returns when those that were read have their
// answers, or when ctx ends. Listeners must be closed before.
func (s *streams) shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	for c := range s.open {
		_ = c.SetReadDeadline(time.Unix(1, 0))
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// await bounds the next read, unless shutdown has ended all reading.
func (s *streams) await(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.closed && c.SetReadDeadline(time.Now().Add(idleTime)) == nil
}

// talk answers the questions of one connection, until the client has no more, is idle or
// does not take its answers.
func (s *streams) talk(c net.Conn) {
	var (
		wg      sync.WaitGroup
		room    = make(chan struct{}, inFlight)
		writing = make(chan struct{}, 1) // held while an answer is written
		ip      = client(c.RemoteAddr())
	)
	defer wg.Wait()
	send := func(b []byte) error {
		b = append(binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(b)), uint16(len(b))), b...)
		writing <- struct{}{}
		defer func() { <-writing }()
		_ = c.SetWriteDeadline(time.Now().Add(writeTime))
		_, err := c.Write(b)
		if err != nil {
			_ = c.Close() // it may have half an answer
		}
		return err
	}
	for {
		m, err := s.read(c, len(room) > 0)
		if err != nil {
			return
		}
		if m.Response {
			return
		}
		time.Sleep(s.access.wait(ip))
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			s.handler.ServeDNS(&reply{local: c.LocalAddr(), remote: c.RemoteAddr(), send: send}, m)
		})
	}
}

// read reads one question. A client that waits for an answer is not idle.
func (s *streams) read(c net.Conn, busy bool) (*dns.Msg, error) {
	var head [2]byte
	for {
		if !s.await(c) {
			return nil, net.ErrClosed
		}
		n, err := io.ReadFull(c, head[:])
		if err == nil {
			break
		}
		if t := net.Error(nil); !busy || n > 0 || !errors.As(err, &t) || !t.Timeout() {
			return nil, err
		}
		busy = false
	}
	b := make([]byte, binary.BigEndian.Uint16(head[:]))
	if _, err := io.ReadFull(c, b); err != nil {
		return nil, err
	}
	m := new(dns.Msg)
	if err := m.Unpack(b); err != nil {
		if len(b) < 12 {
			return nil, err
		}
		m = &dns.Msg{MsgHdr: m.MsgHdr} // which gets FORMERR
	}
	return m, nil
}

// reply is a dns.ResponseWriter that sends messages somewhere.
type reply struct {
	local, remote net.Addr
	send          func([]byte) error
}

var _ dns.ResponseWriter = (*reply)(nil)

func (r *reply) LocalAddr() net.Addr  { return r.local }
func (r *reply) RemoteAddr() net.Addr { return r.remote }

func (r *reply) Write(b []byte) (int, error) { return len(b), r.send(b) }

func (r *reply) WriteMsg(m *dns.Msg) error {
	b, err := m.Pack()
	if err != nil {
		return err
	}
	return r.send(b)
}

func (*reply) Close() error        { return nil } // after its last answer
func (*reply) TsigStatus() error   { return nil }
func (*reply) TsigTimersOnly(bool) {}
func (*reply) Hijack()             {}
