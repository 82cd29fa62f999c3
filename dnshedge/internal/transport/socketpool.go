package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

const (
	poolSockets    = 32              // shared sockets that accept queries at a time
	poolSocketTime = 2 * time.Second // how long a shared socket accepts queries
	maxPoolSockets = 4 * poolSockets // maximum number of shared sockets
)

// A socketPool holds the sockets that queries share when many wait. Its limit maxPoolSockets, together with maxOwnSockets, limits
// the file descriptors for a server.
//
// A response is as hard to guess as with one socket for each query (RFC 5452 §9.2). A query has the random port of a
// socket in the pool and a random ID, and a response must repeat its question. An attacker that knows all ports must
// still guess 21 bits within two seconds, before the sockets change.
//
// After maxWrongMessages wrong messages a socket is closed, and its queries go over TCP.
type socketPool struct {
	mu         sync.Mutex      // guards the fields below
	sockets    []*sharedSocket // sockets that accept queries
	opening    int             // number of sockets that are being opened
	open       int             // number of sockets, with those that accept no further queries or are being opened
	isRotating bool            // the timer that replaces the sockets runs

	opened chan struct{} // closed when opening changes; nil: no query waits for that
}

// A sharedSocket is a UDP socket with several queries.
type sharedSocket struct {
	u    *udpTransport
	conn net.Conn

	mu        sync.Mutex           // guards the fields below
	waiting   map[uint16]*udpQuery // by ID; nil: the query has ended, and its ID must not be used again
	live      int                  // number of queries that have not ended
	wrong     int                  // number of messages that answered no query
	isRetired bool                 // accepts no further queries
	closed    bool
}

// errNoSocket is the error of a query if no shared socket can accept it.
var errNoSocket = errors.New("dnshedge: no socket for another query")

// exchangeShared sends the query over a shared socket and waits for its outcome.
func (c *socketPool) exchangeShared(ctx context.Context, d *udpQuery) (*wire.Answer, error) {
	d.done = make(chan udpResult, 1)
	s, err := c.joinSocket(ctx, d)
	if err != nil {
		return nil, err
	}
	if err := d.writeQuery(s.conn); err != nil {
		s.endQuery(d, udpResult{err: err})
	}
	select {
	case r := <-d.done:
		return r.a, r.err
	case <-ctx.Done():
	}
	if left := d.Owner.AbandonedLifetime() - time.Since(d.sent); left > 0 && d.Owner.BeginAbandoned() {
		time.AfterFunc(left, func() {
			s.endQuery(d, udpResult{})
			d.Owner.EndAbandoned()
		})
	} else {
		s.endQuery(d, udpResult{})
	}
	return nil, causeOf(ctx)
}

// joinSocket adds a query to a random socket of the pool, or to a new one while the pool has fewer than poolSockets.
func (c *socketPool) joinSocket(ctx context.Context, d *udpQuery) (*sharedSocket, error) {
	for {
		c.mu.Lock()
		if !c.isRotating {
			c.isRotating = true
			time.AfterFunc(poolSocketTime, c.rotateSockets)
		}
		var s *sharedSocket
		grow := len(c.sockets)+c.opening < poolSockets && c.open < maxPoolSockets
		if grow {
			c.opening++
			c.open++
		} else if n := len(c.sockets); n > 0 {
			s = c.sockets[rand.IntN(n)]
		}
		var opened chan struct{}
		if !grow && s == nil && c.opening > 0 {
			if c.opened == nil {
				c.opened = make(chan struct{})
			}
			opened = c.opened
		}
		c.mu.Unlock()
		if opened != nil {
			select {
			case <-opened:
				continue
			case <-ctx.Done():
				return nil, causeOf(ctx)
			}
		}
		var err error
		if grow {
			if s, err = c.addSocket(ctx, d.udpTransport); err != nil {
				return nil, err
			}
		}
		if s == nil {
			return nil, errNoSocket
		}
		if s.addQuery(d) {
			return s, nil
		}
		c.removeSocket(s)
	}
}

// rotateSockets retires all sockets that accept queries. The next queries open others.
func (c *socketPool) rotateSockets() {
	c.mu.Lock()
	if c.open+poolSockets > maxPoolSockets { // too many wait for their last answers
		time.AfterFunc(poolSocketTime, c.rotateSockets)
		c.mu.Unlock()
		return
	}
	old := c.sockets
	c.sockets, c.isRotating = nil, false
	c.mu.Unlock()
	for _, s := range old {
		s.stopQueries()
	}
}

// addSocket opens a socket and adds it to the pool. If that fails, it returns a random socket of the pool, if there is
// one.
func (c *socketPool) addSocket(ctx context.Context, u *udpTransport) (*sharedSocket, error) {
	conn, err := u.openSocket(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opening--
	if c.opened != nil {
		close(c.opened)
		c.opened = nil
	}
	if err != nil {
		c.open--
		if n := len(c.sockets); n > 0 && ctx.Err() == nil {
			return c.sockets[rand.IntN(n)], nil
		}
		return nil, err
	}
	s := &sharedSocket{u: u, conn: conn, waiting: make(map[uint16]*udpQuery)}
	c.sockets = append(c.sockets, s)
	if !u.tcp.spawnGoroutine(s.readMessages) {
		_ = conn.Close()
		return nil, ErrClosed
	}
	return s, nil
}

// removeSocket removes a socket from the sockets that accept queries.
func (c *socketPool) removeSocket(s *sharedSocket) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, t := range c.sockets {
		if s == t {
			last := len(c.sockets) - 1
			c.sockets[i] = c.sockets[last]
			c.sockets = c.sockets[:last]
			return
		}
	}
}

// addQuery assigns a free ID to a query. It reports false if the socket accepts no further queries.
func (s *sharedSocket) addQuery(d *udpQuery) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isRetired || s.closed || len(s.waiting) >= maxPending {
		return false
	}
	for {
		d.id = wire.RandomID()
		if _, taken := s.waiting[d.id]; !taken {
			break
		}
	}
	s.waiting[d.id] = d
	s.live++
	return true
}

// endQuery ends a query with the given outcome. Only the first call for a query has an effect.
func (s *sharedSocket) endQuery(d *udpQuery, r udpResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting[d.id] != d {
		return
	}
	s.waiting[d.id] = nil
	d.done <- r
	if s.live--; s.live == 0 && s.isRetired {
		s.closed = true
		_ = s.conn.Close()
	}
}

// stopQueries retires the socket: it accepts no further queries, and is closed when the last one ends.
func (s *sharedSocket) stopQueries() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isRetired = true
	if s.live == 0 && !s.closed {
		s.closed = true
		_ = s.conn.Close()
	}
}

// readMessages delivers the messages of the server to their queries until the socket is closed.
func (s *sharedSocket) readMessages() {
	stop := context.AfterFunc(s.u.tcp.ctx, func() { _ = s.conn.Close() })
	defer stop()
	buf := make([]byte, MaxDatagram)
	for {
		n, err := ReceiveDatagram(s.conn, buf)
		if errors.Is(err, syscall.EMSGSIZE) {
			s.u.Owner.RecordIgnored(err)
			continue
		}
		if err == nil {
			err = s.deliverMessage(buf[:n])
		}
		if err != nil {
			s.failQueries(err)
			return
		}
	}
}

// deliverMessage delivers a message to the query that it answers. It returns an error after maxWrongMessages messages that
// answered none.
func (s *sharedSocket) deliverMessage(b []byte) error {
	err := errShort
	if len(b) >= wire.HeaderLen {
		s.mu.Lock()
		d, known := s.waiting[binary.BigEndian.Uint16(b)]
		s.mu.Unlock()
		if known && d == nil {
			return nil // it came late, or twice
		}
		err = errUnsolicited
		if known {
			var a *wire.Answer
			if a, err = d.parseResponse(b); isConclusive(err) {
				took := time.Since(d.sent)
				s.endQuery(d, udpResult{a, err})
				s.u.Owner.RecordAnswer(took, 0)
				return nil
			}
		}
	}
	s.u.ignoreMessage(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wrong++; s.wrong >= maxWrongMessages {
		return errSpoofed
	}
	return nil
}

// failQueries closes the socket and ends its queries with err.
func (s *sharedSocket) failQueries(err error) {
	c := &s.u.sharedSockets
	c.removeSocket(s)
	c.mu.Lock()
	c.open--
	c.mu.Unlock()
	if s.u.tcp.ctx.Err() != nil {
		err = ErrClosed
	}
	_ = s.conn.Close()
	s.mu.Lock()
	s.closed = true
	var left []*udpQuery
	for _, d := range s.waiting {
		if d != nil {
			left = append(left, d)
		}
	}
	s.mu.Unlock()
	for _, d := range left {
		s.endQuery(d, udpResult{err: err})
	}
}
