package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

const (
	// A forged response must have the port and the ID of a query (RFC 5452 §9.2). An attacker that knows all poolSockets
	// ports must still guess 5 bits for the port and 16 bits for the ID.
	poolSockets    = 32              // number of shared sockets that accept queries at the same time
	poolSocketTime = 2 * time.Second // time after which shared sockets are replaced
	maxPoolSockets = 4 * poolSockets // maximum number of open shared sockets, including retired ones
)

// A socketPool holds UDP sockets that several queries share, to limit the number of open sockets for one server. It
// replaces its sockets every two seconds (poolSocketTime), so that their ports are hard to learn. It is safe for
// concurrent use.
type socketPool struct {
	mu         sync.Mutex      // guards the fields below
	sockets    []*sharedSocket // open sockets that accept queries
	opening    int             // number of sockets that are being opened
	open       int             // number of all open sockets, plus the sockets that are being opened
	isRotating bool            // a timer will call rotateSockets

	opened chan struct{} // closed when an opening ends; nil: no query waits for that
}

// A sharedSocket is a UDP socket of a socketPool, with several queries that wait for their responses.
type sharedSocket struct {
	u    *udpTransport // the transport whose queries use the socket
	conn net.Conn      // the socket, connected to the server

	mu        sync.Mutex           // guards the fields below
	waiting   map[uint16]*udpQuery // queries by their ID; nil element: the query has ended, and its ID must not be used again
	live      int                  // number of queries that have not ended
	wrong     int                  // number of received messages that fit no query
	isRetired bool                 // the socket accepts no further queries
	closed    bool                 // the socket is closed
}

// errNoSocket is the error of a query for which no shared socket is free and none may be opened.
var errNoSocket = errors.New("dnshedge: no socket for another query")

// exchangeShared sends the query d over a shared socket and returns the response. If ctx ends first, it returns the
// cause of ctx. If the Owner then permits an abandoned query (TryBeginAbandonedQuery), d keeps waiting in the
// background, to measure its latency.
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
	if left := d.Owner.AbandonedQueryLifetime() - time.Since(d.sent); left > 0 && d.Owner.TryBeginAbandonedQuery() {
		time.AfterFunc(left, func() {
			s.endQuery(d, udpResult{})
			d.Owner.EndAbandonedQuery()
		})
	} else {
		s.endQuery(d, udpResult{})
	}
	return nil, contextCause(ctx)
}

// joinSocket adds d to the queries of a shared socket, and returns the socket. It opens a new socket while the pool may
// grow, and otherwise selects a random one. The error is errNoSocket if there is none, or the cause of ctx.
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
				return nil, contextCause(ctx)
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

// rotateSockets retires all sockets that accept queries: they only wait for responses to earlier queries. Later queries
// open sockets with other ports, which an attacker does not know. If too many retired sockets are open, it tries again
// after two seconds (poolSocketTime).
func (c *socketPool) rotateSockets() {
	c.mu.Lock()
	if c.open+poolSockets > maxPoolSockets { // too many retired sockets still wait for responses
		time.AfterFunc(poolSocketTime, c.rotateSockets)
		c.mu.Unlock()
		return
	}
	old := c.sockets
	c.sockets, c.isRotating = nil, false
	c.mu.Unlock()
	for _, s := range old {
		s.retireSocket()
	}
}

// addSocket opens a socket of the transport u, adds it to the pool, and returns it. If that fails, it returns a random
// other socket, or an error if there is none or ctx has ended. The caller must have incremented c.opening and c.open.
func (c *socketPool) addSocket(ctx context.Context, u *udpTransport) (s *sharedSocket, err error) {
	var conn net.Conn
	err = errGoexit
	defer func() { s, err = c.finishOpening(ctx, u, conn, err) }()
	conn, err = u.openSocket(ctx)
	return nil, err
}

// finishOpening adds conn, a socket of the transport u, to the pool and returns it. If u is closed, it closes conn and
// returns ErrClosed. If err is not nil, it returns another socket, or err if there is none or ctx has ended.
func (c *socketPool) finishOpening(ctx context.Context, u *udpTransport, conn net.Conn, err error) (*sharedSocket, error) {
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

// removeSocket removes s from the sockets of the pool that accept queries. It does not close s.
func (c *socketPool) removeSocket(s *sharedSocket) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.sockets, s); i >= 0 {
		c.sockets = slices.Delete(c.sockets, i, i+1)
	}
}

// addQuery gives d a random unused ID, stores the time in d.sent, and adds d to the waiting queries. It returns false
// if the socket accepts no further queries, because it is retired or closed, or has used half of all IDs (maxPending).
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
	d.sent = time.Now() // before a message can be delivered to d
	s.waiting[d.id] = d
	s.live++
	return true
}

// endQuery ends the query d with the outcome r. Further calls for the same query have no effect. It closes the socket
// if the socket is retired and d was the last query.
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

// retireSocket retires the socket: it accepts no further queries, and is closed when the last query ends.
func (s *sharedSocket) retireSocket() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isRetired = true
	if s.live == 0 && !s.closed {
		s.closed = true
		_ = s.conn.Close()
	}
}

// readMessages reads the socket and passes each message to its query. If reading fails, or too many messages fit no
// query, it closes the socket and ends the remaining queries with an error.
func (s *sharedSocket) readMessages() {
	stop := context.AfterFunc(s.u.tcp.ctx, func() { _ = s.conn.Close() })
	defer stop()
	buf := make([]byte, MaxDatagram)
	for {
		n, err := receiveDatagram(s.conn, buf)
		if errors.Is(err, syscall.EMSGSIZE) {
			s.u.Owner.RecordIgnored(err)
			continue
		}
		if err == nil {
			err = s.deliverMessage(buf[:n])
		}
		if err != nil {
			s.closeWithError(err)
			return
		}
	}
}

// deliverMessage passes the received message b to the query that it answers. It ignores messages for ended queries, and
// counts other messages that fit no query. After three of these (MaxWrongMessages) it returns ErrSpoofed, and the
// caller must close the socket.
func (s *sharedSocket) deliverMessage(b []byte) error {
	err := errShort
	if len(b) >= wire.HeaderLen {
		s.mu.Lock()
		d, known := s.waiting[binary.BigEndian.Uint16(b)]
		s.mu.Unlock()
		if known && d == nil {
			return nil // the message is late or a duplicate
		}
		err = errUnsolicited
		if known {
			var a *wire.Answer
			var isResponse bool
			if a, isResponse, err = d.parseResponse(b); isResponse {
				took := time.Since(d.sent)
				s.endQuery(d, udpResult{a, err})
				s.u.Owner.RecordAnswer(took, 0)
				return nil
			}
		}
	}
	s.u.reportSpoofed(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wrong++; s.wrong >= MaxWrongMessages {
		return ErrSpoofed
	}
	return nil
}

// closeWithError closes the socket and ends all its queries with err, or with ErrClosed if the transport is closed.
func (s *sharedSocket) closeWithError(err error) {
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
