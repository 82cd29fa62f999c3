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
	crowdSize = 32              // sockets that take queries at a time
	crowdTime = 2 * time.Second // how long they do
	maxCrowd  = 4 * crowdSize   // sockets
)

// crowd is the sockets that queries share while so many wait that a socket for each
// would take all that the process may have: the descriptors of a server are bounded
// by maxOwn and maxCrowd.
//
// Guessing an answer is not easier than with a socket of one's own (RFC 5452 §9.2). A
// query has one of the ports, unknown and chosen at random, and a random ID, and a
// message with that port and ID has to repeat its question. Whoever has found out the
// ports of all sockets still has to guess 21 bits, within two seconds; then there are
// other sockets. He has maxWrong guesses at a socket: then it is closed, and its
// queries go over TCP.
type crowd struct {
	mu      sync.Mutex // guards the fields below
	sockets []*shared  // that take queries
	opening int        // sockets that are being opened
	open    int        // sockets, those included that take no more queries
	turning bool       // a timer runs that replaces sockets

	opened chan struct{} // closed when opening changes; nil: nobody waits for that
}

// shared is a socket with many queries.
type shared struct {
	u    *udp
	conn net.Conn

	mu      sync.Mutex           // guards the fields below
	waiting map[uint16]*datagram // nil for those that have ended: their IDs are not given to others
	live    int                  // that have not ended
	wrong   int                  // messages that answered no query
	old     bool                 // takes no more queries
	closed  bool
}

var errNoSocket = errors.New("dnshedge: no socket for another query")

// ask is udp.ask over a shared socket.
func (c *crowd) ask(ctx context.Context, d *datagram) (*wire.Answer, error) {
	d.done = make(chan response, 1)
	s, err := c.join(ctx, d)
	if err != nil {
		return nil, err
	}
	if err := d.write(s.conn); err != nil {
		s.end(d, response{err: err})
	}
	select {
	case r := <-d.done:
		return r.a, r.err
	case <-ctx.Done():
	}
	if left := d.Owner.AbandonedLifetime() - time.Since(d.sent); left > 0 && d.Owner.BeginAbandoned() {
		time.AfterFunc(left, func() {
			s.end(d, response{})
			d.Owner.EndAbandoned()
		})
	} else {
		s.end(d, response{})
	}
	return nil, causeOf(ctx)
}

// join gives a query an ID and one of the sockets.
func (c *crowd) join(ctx context.Context, d *datagram) (*shared, error) {
	for {
		c.mu.Lock()
		if !c.turning {
			c.turning = true
			time.AfterFunc(crowdTime, c.turn)
		}
		var s *shared
		grow := len(c.sockets)+c.opening < crowdSize && c.open < maxCrowd
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
			if s, err = c.add(ctx, d.udp); err != nil {
				return nil, err
			}
		}
		if s == nil {
			return nil, errNoSocket
		}
		if s.enter(d) {
			return s, nil
		}
		c.leave(s)
	}
}

// turn lets the sockets take no more queries. The next query opens another one.
func (c *crowd) turn() {
	c.mu.Lock()
	if c.open+crowdSize > maxCrowd { // too many wait for their last answers
		time.AfterFunc(crowdTime, c.turn)
		c.mu.Unlock()
		return
	}
	old := c.sockets
	c.sockets, c.turning = nil, false
	c.mu.Unlock()
	for _, s := range old {
		s.retire()
	}
}

// add opens a socket, or takes another one if there is none to be had.
func (c *crowd) add(ctx context.Context, u *udp) (*shared, error) {
	conn, err := u.socket(ctx)
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
	s := &shared{u: u, conn: conn, waiting: make(map[uint16]*datagram)}
	c.sockets = append(c.sockets, s)
	if !u.tcp.spawn(s.read) {
		_ = conn.Close()
		return nil, ErrClosed
	}
	return s, nil
}

// leave takes a socket out of those that take queries.
func (c *crowd) leave(s *shared) {
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

// enter gives a query an ID, or reports false if the socket takes no more.
func (s *shared) enter(d *datagram) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.old || s.closed || len(s.waiting) >= maxPending {
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

// end ends a query. Only the first call for it does anything.
func (s *shared) end(d *datagram, r response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting[d.id] != d {
		return
	}
	s.waiting[d.id] = nil
	d.done <- r
	if s.live--; s.live == 0 && s.old {
		s.closed = true
		_ = s.conn.Close()
	}
}

// retire lets the socket take no more queries. It is closed when its last one ends.
func (s *shared) retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.old = true
	if s.live == 0 && !s.closed {
		s.closed = true
		_ = s.conn.Close()
	}
}

// read takes the messages that the server sends, until the socket is closed.
func (s *shared) read() {
	stop := context.AfterFunc(s.u.tcp.ctx, func() { _ = s.conn.Close() })
	defer stop()
	buf := make([]byte, MaxDatagram)
	for {
		n, err := Receive(s.conn, buf)
		if errors.Is(err, syscall.EMSGSIZE) {
			s.u.Owner.RecordIgnored(err)
			continue
		}
		if err == nil {
			err = s.deliver(buf[:n])
		}
		if err != nil {
			s.fail(err)
			return
		}
	}
}

// deliver hands a message to the query that it answers. It returns an error if too
// many answered none.
func (s *shared) deliver(b []byte) error {
	err := errShort
	if len(b) >= wire.HeaderLen {
		s.mu.Lock()
		d, known := s.waiting[binary.BigEndian.Uint16(b)]
		s.mu.Unlock()
		if known && d == nil {
			return nil // it came late, or twice
		}
		err = errForged
		if known {
			var a *wire.Answer
			if a, err = d.judge(b); ends(err) {
				took := time.Since(d.sent)
				s.end(d, response{a, err})
				s.u.Owner.RecordAnswer(took, 0)
				return nil
			}
		}
	}
	s.u.ignore(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wrong++; s.wrong >= maxWrong {
		return errForgers
	}
	return nil
}

// fail closes the socket, and ends its queries with err.
func (s *shared) fail(err error) {
	c := &s.u.crowd
	c.leave(s)
	c.mu.Lock()
	c.open--
	c.mu.Unlock()
	if s.u.tcp.ctx.Err() != nil {
		err = ErrClosed
	}
	_ = s.conn.Close()
	s.mu.Lock()
	s.closed = true
	var left []*datagram
	for _, d := range s.waiting {
		if d != nil {
			left = append(left, d)
		}
	}
	s.mu.Unlock()
	for _, d := range left {
		s.end(d, response{err: err})
	}
}
