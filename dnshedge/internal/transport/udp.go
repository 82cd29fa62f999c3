package transport

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

func init() {
	register(Scheme{Name: "udp", RFC: 1035, Port: "53", New: func(c Config) Transport {
		return &udp{Config: c, tcp: newStream(c, nil)}
	}})
}

const (
	// MaxDatagrams is how often one question is sent to one server over UDP before
	// it goes over TCP (RFC 9520 §3.1).
	MaxDatagrams = 3

	// MaxDatagram is the longest datagram that is read, in bytes: a server may send
	// more than it was told to.
	MaxDatagram = 4096
)

// udp asks over UDP, each time from a new socket, and so from a new port, with a
// new random ID. A response that does not fit a datagram is asked for again over
// TCP, in the same exchange.
type udp struct {
	Config
	tcp *stream
}

var _ Transport = (*udp)(nil)

func (u *udp) Ready() bool { return true }
func (u *udp) Close()      { u.tcp.Close() }

var datagrams = sync.Pool{New: func() any { return new([MaxDatagram]byte) }}

// datagram is a query that was sent from a socket of its own.
type datagram struct {
	*udp
	q    *wire.Query
	id   uint16
	conn net.Conn
	sent time.Time
}

func (u *udp) Exchange(ctx context.Context, q *wire.Query, n int) (*wire.Answer, time.Duration, error) {
	if n >= MaxDatagrams {
		return u.tcp.Exchange(ctx, q, n)
	}
	d := datagram{udp: u, q: q, id: wire.RandomID()}
	var err error
	if d.conn, err = u.open(ctx, "udp"); err != nil {
		return nil, 0, err
	}
	out := datagrams.Get().(*[MaxDatagram]byte)
	err = d.write(q.Append(out[:0], d.id, wire.Shape{Size: u.Size}))
	datagrams.Put(out)
	if err != nil {
		_ = d.conn.Close()
		return nil, 0, err
	}

	deadline, _ := ctx.Deadline()
	_ = d.conn.SetReadDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { _ = d.conn.SetReadDeadline(time.Unix(1, 0)) })
	a, err := d.read()
	stopped := stop()
	if err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		// The socket's deadline may pass a moment before the context's. Without the wait it
		// would look as if the server failed in time, and another would be asked.
		<-ctx.Done()
		d.abandon(!stopped)
		return nil, 0, context.Cause(ctx)
	}
	_ = d.conn.Close()
	if err != nil {
		return nil, 0, err
	}
	if a == nil {
		return u.tcp.Exchange(ctx, q, n)
	}
	return a, 0, nil
}

func (d *datagram) write(b []byte) error {
	d.sent = time.Now()
	d.Owner.Wrote()
	_, err := d.conn.Write(b)
	return err
}

// read returns the response, or nil if the server cut it. Other messages that
// arrive before it are ignored.
func (d *datagram) read() (*wire.Answer, error) {
	buf := datagrams.Get().(*[MaxDatagram]byte)
	defer datagrams.Put(buf)
	for {
		n, err := d.conn.Read(buf[:])
		if err != nil {
			if errors.Is(err, syscall.EMSGSIZE) {
				d.Owner.Ignored(err)
				continue
			}
			return nil, err
		}
		// A message that cannot be read is forged or damaged: the true response may follow.
		a, err := wire.ParseDatagram(buf[:n], d.q, d.id)
		if err != nil {
			d.Owner.Ignored(err)
			continue
		}
		d.Owner.Answered(time.Since(d.sent), 0)
		return a, nil
	}
}

// abandon keeps the socket open for a while, to measure when the answer comes,
// and so that the answer does not reach the next owner of the port. If expiring,
// the function that runs when the context ends may still be about to set the
// deadline.
func (d *datagram) abandon(expiring bool) {
	left := d.Owner.Linger() - time.Since(d.sent)
	if left <= 0 || !d.Owner.Abandon() {
		_ = d.conn.Close()
		return
	}
	ok := d.tcp.spawn(func() {
		defer d.Owner.AbandonEnded()
		defer d.conn.Close()
		stop := context.AfterFunc(d.tcp.ctx, func() { _ = d.conn.Close() })
		defer stop()
		end := time.Now().Add(left)
		for {
			_ = d.conn.SetReadDeadline(end)
			_, err := d.read()
			if expiring && errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(end) {
				continue
			}
			return
		}
	})
	if !ok {
		d.Owner.AbandonEnded()
		_ = d.conn.Close()
	}
}
