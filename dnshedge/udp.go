package dnshedge

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// defaultUDPSize is what fits every path without fragments (DNS flag day 2020).
	defaultUDPSize = 1232

	maxDatagram = 4096 // of what a server may send though it was told less
)

// udp asks over UDP, each time from a new socket, and so from a new port, with a
// new random ID. What does not fit a datagram is asked again over TCP in the
// same attempt.
type udp struct {
	opener
	obs  observer
	size int
	bare func() bool // the server cannot take EDNS
	tcp  *stream
}

var _ transport = (*udp)(nil)

func (u *udp) ready() bool               { return true }
func (u *udp) keepalive(d time.Duration) { u.tcp.keepalive(d) }
func (u *udp) close()                    { u.tcp.close() }

var datagrams = sync.Pool{New: func() any { return new([maxDatagram]byte) }}

// asked is a query that was sent from a socket of its own.
type asked struct {
	*udp
	q    *query
	id   uint16
	conn net.Conn
	sent time.Time
}

func (u *udp) exchange(ctx context.Context, q *query, lane int) (reply, error) {
	a := asked{udp: u, q: q, id: randomID()}
	var err error
	if a.conn, err = u.open(ctx, "udp"); err != nil {
		return reply{}, err
	}
	out := datagrams.Get().(*[maxDatagram]byte)
	_, err = a.write(q.append(out[:0], a.id, shape{size: u.size, plain: u.bare()}))
	datagrams.Put(out)
	if err != nil {
		_ = a.conn.Close()
		return reply{}, err
	}

	deadline, _ := ctx.Deadline()
	_ = a.conn.SetReadDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { _ = a.conn.SetReadDeadline(time.Unix(1, 0)) })
	ans, err := a.read()
	stopped := stop()
	if err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		// The socket's deadline may pass a moment before the context's.
		cause := context.Cause(ctx)
		if cause == nil {
			cause = context.DeadlineExceeded
		}
		a.abandon(!stopped)
		return reply{}, cause
	}
	_ = a.conn.Close()
	if err != nil {
		return reply{}, err
	}
	if ans == nil {
		return u.tcp.exchange(ctx, q, lane)
	}
	return reply{answer: ans}, nil
}

func (a *asked) write(b []byte) (int, error) {
	a.sent = time.Now()
	a.obs.wrote()
	return a.conn.Write(b)
}

// read returns the response, whatever else arrives before; nil if it was cut.
func (a *asked) read() (*answer, error) {
	buf := datagrams.Get().(*[maxDatagram]byte)
	defer datagrams.Put(buf)
	for {
		n, err := a.conn.Read(buf[:])
		if err != nil {
			if errors.Is(err, syscall.EMSGSIZE) {
				a.obs.ignored(err)
				continue
			}
			return nil, err
		}
		if err := a.q.check(buf[:n], a.id); err != nil {
			a.obs.ignored(err)
			continue
		}
		var ans *answer
		if buf[2]&(flagTC>>8) == 0 {
			// What cannot be read is a forger's, or damaged: the true response may follow.
			if ans, err = newAnswer(append([]byte(nil), buf[:n]...), a.q); err != nil {
				a.obs.ignored(err)
				continue
			}
		}
		a.obs.answered(time.Since(a.sent), 0)
		return ans, nil
	}
}

// abandon keeps the socket open for a while, to learn when the answer comes and
// so that it does not meet the port's next owner. If the context ended, its
// function may still be about to set the deadline.
func (a *asked) abandon(racing bool) {
	left := a.obs.linger() - time.Since(a.sent)
	if left <= 0 || !a.obs.abandon() {
		_ = a.conn.Close()
		return
	}
	ok := a.tcp.spawn(func() {
		defer a.obs.abandoned()
		defer a.conn.Close()
		stop := context.AfterFunc(a.tcp.ctx, func() { _ = a.conn.Close() })
		defer stop()
		end := time.Now().Add(left)
		for {
			_ = a.conn.SetReadDeadline(end)
			_, err := a.read()
			if racing && errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(end) {
				continue
			}
			return
		}
	})
	if !ok {
		a.obs.abandoned()
		_ = a.conn.Close()
	}
}
