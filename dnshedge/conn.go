package dnshedge

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/gohedge/hedge/internal/deadline"
)

// maxQueued bounds the answers that a Conn's reader has not taken, and the
// questions on their way.
const maxQueued = 128

var (
	errQueued    = errors.New("dnshedge: too many questions on one connection")
	errBootstrap = errors.New("dnshedge: an upstream's own name must not be resolved through it; give its address, or Upstream.Addrs")
)

// Dial returns a connection to the Client itself, for net.Resolver's Dial field.
// It opens no socket; network and address, which are a server's, are ignored.
//
// What is written to it are questions framed as over TCP (RFC 1035 §4.2.2), also
// if the network is udp, so that no answer needs to be cut; the answers can be
// read in the same format. The questions end with ctx, which Go's resolver
// cancels when it has its answer, and with Close. If one cannot be answered, the
// next Read returns why.
func (c *Client) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	core, err := c.init()
	if err != nil {
		return nil, err
	}
	if ctx.Value(bootstrapKey{}) != nil {
		return nil, errBootstrap
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	k := &conn{core: core, remote: pseudo{network, address}, more: make(chan struct{}, 1)}
	k.ctx, k.cancel = context.WithCancel(ctx)
	k.closed = make(chan struct{})
	return k, nil
}

// Resolver returns a resolver that asks this Client: for net.Dialer, and so for
// http.Transport and all else that dials, or as net.DefaultResolver. Search
// domains, ndots and /etc/hosts remain as Go has them.
func (c *Client) Resolver() *net.Resolver { return &net.Resolver{PreferGo: true, Dial: c.Dial} }

// pseudo is the address of a conn.
type pseudo struct{ network, address string }

func (p pseudo) Network() string { return p.network }
func (p pseudo) String() string  { return p.address }

// conn is a connection to a Client. It is no net.PacketConn, for what Go's
// resolver reads from those it reads 1232 bytes at a time.
type conn struct {
	core   *core
	ctx    context.Context
	cancel context.CancelFunc
	remote pseudo
	closed chan struct{}
	once   sync.Once

	more chan struct{} // capacity 1: out or err changed

	mu     sync.Mutex // guards the fields below
	in     []byte     // written, without the end of its last question
	out    []byte     // to be read
	err    error      // of a question; read after out
	queued int

	read, write deadline.Deadline
}

var _ net.Conn = (*conn)(nil)

func (k *conn) LocalAddr() net.Addr  { return pseudo{k.remote.network, "dnshedge"} }
func (k *conn) RemoteAddr() net.Addr { return k.remote }

func (k *conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: k.remote.network, Source: k.LocalAddr(), Addr: k.remote, Err: err}
}

func (k *conn) Write(b []byte) (int, error) {
	select {
	case <-k.closed:
		return 0, k.opError("write", net.ErrClosed)
	case <-k.write.Passed():
		return 0, k.opError("write", os.ErrDeadlineExceeded)
	default:
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.in = append(k.in, b...)
	for len(k.in) >= 2 {
		n := 2 + int(binary.BigEndian.Uint16(k.in))
		if len(k.in) < n {
			break
		}
		q, err := parseQuery(k.in[2:n])
		k.in = k.in[n:]
		if err == nil && q.raw != nil {
			err = errNotQuery
		}
		if err == nil && k.queued >= maxQueued {
			err = errQueued
		}
		if err != nil {
			return 0, k.opError("write", err)
		}
		k.queued++
		if !k.core.spawn(func(context.Context) { k.answer(q) }) {
			k.queued--
			return 0, k.opError("write", errClosed)
		}
	}
	return len(b), nil
}

var errNotQuery = errors.New("dnshedge: message is not a query")

// answer has one question answered.
func (k *conn) answer(q *query) {
	b, err := k.core.answerWire(k.ctx, make([]byte, 2, 514), q, maxMsg)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.queued--
	if err == nil {
		binary.BigEndian.PutUint16(b, uint16(len(b)-2))
		k.out = append(k.out, b...)
	} else if k.err == nil {
		k.err = err
	}
	k.tell()
}

func (k *conn) tell() {
	select {
	case k.more <- struct{}{}:
	default:
	}
}

func (k *conn) Read(b []byte) (int, error) {
	for {
		select {
		case <-k.closed:
			return 0, k.opError("read", net.ErrClosed)
		case <-k.read.Passed():
			return 0, k.opError("read", os.ErrDeadlineExceeded)
		default:
		}
		k.mu.Lock()
		if len(k.out) > 0 || len(b) == 0 {
			n := copy(b, k.out)
			k.out = k.out[n:]
			if len(k.out) > 0 {
				k.tell() // another reader may wait
			}
			k.mu.Unlock()
			return n, nil
		}
		err := k.err
		k.err = nil
		k.mu.Unlock()
		if err != nil {
			return 0, k.opError("read", err)
		}
		select {
		case <-k.more:
		case <-k.closed:
		case <-k.read.Passed():
		case <-k.ctx.Done():
			select {
			case <-k.closed:
				return 0, k.opError("read", net.ErrClosed)
			default:
				return 0, k.opError("read", context.Cause(k.ctx))
			}
		}
	}
}

func (k *conn) Close() error {
	err := k.opError("close", net.ErrClosed)
	k.once.Do(func() {
		err = nil
		close(k.closed)
		k.cancel()
		k.read.Set(time.Time{})
		k.write.Set(time.Time{})
	})
	return err
}

func (k *conn) SetDeadline(t time.Time) error {
	return errors.Join(k.SetReadDeadline(t), k.SetWriteDeadline(t))
}
func (k *conn) SetReadDeadline(t time.Time) error  { return k.set(&k.read, t) }
func (k *conn) SetWriteDeadline(t time.Time) error { return k.set(&k.write, t) }

func (k *conn) set(d *deadline.Deadline, t time.Time) error {
	select {
	case <-k.closed:
		return k.opError("set", net.ErrClosed)
	default:
		d.Set(t)
		return nil
	}
}
