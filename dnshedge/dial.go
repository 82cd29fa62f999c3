package dnshedge

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/deadline"
)

// maxConnQuestions limits the questions in flight on one connection of Client.Dial.
const maxConnQuestions = 128

var (
	errTooManyOnConn = errors.New("dnshedge: too many questions on one connection")
	errNotQuery      = errors.New("dnshedge: message is not a query")
	errBootstrap     = errors.New("dnshedge: an upstream's own name must not be resolved through it; give its address, or Upstream.Addrs")
)

// Dial returns an in-process connection to the Client, for the Dial field of a net.Resolver. network and address only
// appear in the addresses and errors of the connection.
//
//   - Messages have a length prefix, as over TCP (RFC 1035 §4.2.2), even if network is "udp".
//   - Write accepts only standard queries, and at most 128 at a time. The end of ctx, Close and Client.Close cancel
//     them.
//   - Read returns the error of a query that cannot be answered, after the responses that are ready.
//   - Dial fails if the Client's fields are invalid, if ctx has ended, or if ctx is from a dial that resolves the name
//     of an upstream of this Client.
func (c *Client) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	core, err := c.init()
	if err != nil {
		return nil, err
	}
	if core.servers.dialing.isResolvingUpstream(ctx) {
		return nil, errBootstrap
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	k := &inProcessConn{core: core, remote: connAddr{network, address}, wake: make(chan struct{}, 1)}
	k.ctx, k.cancel = context.WithCancelCause(ctx)
	k.stop = context.AfterFunc(core.ctx, func() { k.cancel(transport.ErrClosed) })
	k.closed = make(chan struct{})
	return k, nil
}

// Resolver returns a net.Resolver that sends its questions to this Client, for use in a net.Dialer or as
// net.DefaultResolver. Search domains, ndots and /etc/hosts have the same effect as in Go's own resolver. A Dialer from
// CompleteNames uses search domains only for names without a dot.
func (c *Client) Resolver() *net.Resolver { return &net.Resolver{PreferGo: true, Dial: c.Dial} }

// connAddr is the local or remote address of an inProcessConn.
type connAddr struct{ network, address string }

func (a connAddr) Network() string { return a.network }
func (a connAddr) String() string  { return a.address }

// An inProcessConn is the connection that Client.Dial returns: a net.Conn from a resolver to a Client in the same
// process. It is not a net.PacketConn, because Go's resolver reads at most 1232 bytes from a net.PacketConn.
type inProcessConn struct {
	core   *core
	ctx    context.Context
	cancel context.CancelCauseFunc
	stop   func() bool // removes the cancellation by Client.Close
	remote connAddr
	closed chan struct{}
	once   sync.Once

	wake chan struct{} // capacity 1: out or err changed

	mu     sync.Mutex // guards the fields below
	in     []byte     // bytes written that are not yet a complete question
	out    []byte     // responses to be read
	err    error      // error of a question, which Read returns after out
	queued int        // questions in flight

	read, write deadline.Deadline
}

var _ net.Conn = (*inProcessConn)(nil)

func (k *inProcessConn) LocalAddr() net.Addr  { return connAddr{k.remote.network, "dnshedge"} }
func (k *inProcessConn) RemoteAddr() net.Addr { return k.remote }

func (k *inProcessConn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: k.remote.network, Source: k.LocalAddr(), Addr: k.remote, Err: err}
}

func (k *inProcessConn) Write(b []byte) (int, error) {
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
		q, err := wire.ParseQuery(k.in[2:n])
		k.in = k.in[n:]
		if err == nil && !q.IsStandard() {
			err = errNotQuery
		}
		if err == nil && k.queued >= maxConnQuestions {
			err = errTooManyOnConn
		}
		if err != nil {
			return 0, k.opError("write", err)
		}
		k.queued++
		if !k.core.spawnGoroutine(func(context.Context) { k.queueAnswer(q) }) {
			k.queued--
			return 0, k.opError("write", transport.ErrClosed)
		}
	}
	return len(b), nil
}

// queueAnswer answers the question q, and makes the response, or the error, available to Read.
func (k *inProcessConn) queueAnswer(q *wire.Query) {
	b, err := k.core.appendAnswer(k.ctx, make([]byte, 2, 514), q, wire.MaxMsg)
	if err == nil && int(b[2+3]&15) == dns.RcodeNameError && k.core.search.Contains(q, time.Now()) {
		k.core.count.searchMisses.Add(1)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.queued--
	if err == nil {
		binary.BigEndian.PutUint16(b, uint16(len(b)-2))
		k.out = append(k.out, b...)
	} else if k.err == nil {
		k.err = err
	}
	k.wakeReader()
}

// appendAnswer answers q and appends the response to b in wire format. The response has at most limit bytes. Its flag
// RA is set and AA is cleared, as in the responses of a forwarder. After an error, appendAnswer returns b unchanged and
// the error.
func (c *core) appendAnswer(ctx context.Context, b []byte, q *wire.Query, limit int) ([]byte, error) {
	if f, ok := c.answerFromFreshCache(ctx, q); ok {
		return f.appendResponse(b, q, limit), nil
	}
	r := c.answerQuestion(ctx, context.Background(), q, "") // the second context keeps the flight in this goroutine; Client.Close ends it
	if r.err != nil {
		return b, r.err
	}
	return appendForwarderResponse(b, q, r.answer, r.view, limit), nil
}

// wakeReader wakes one call of Read that waits for a response, or else the next call that would wait. It must be called
// when k.out has bytes to read or k.err is set.
func (k *inProcessConn) wakeReader() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

func (k *inProcessConn) Read(b []byte) (int, error) {
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
				k.wakeReader() // another Read may wait
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
		case <-k.wake:
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

func (k *inProcessConn) Close() error {
	err := k.opError("close", net.ErrClosed)
	k.once.Do(func() {
		err = nil
		close(k.closed)
		k.stop()
		k.cancel(nil)
		k.read.Set(time.Time{})
		k.write.Set(time.Time{})
	})
	return err
}

func (k *inProcessConn) SetDeadline(t time.Time) error {
	return errors.Join(k.SetReadDeadline(t), k.SetWriteDeadline(t))
}
func (k *inProcessConn) SetReadDeadline(t time.Time) error  { return k.setDeadlines(&k.read, t) }
func (k *inProcessConn) SetWriteDeadline(t time.Time) error { return k.setDeadlines(&k.write, t) }

func (k *inProcessConn) setDeadlines(d *deadline.Deadline, t time.Time) error {
	select {
	case <-k.closed:
		return k.opError("set", net.ErrClosed)
	default:
		d.Set(t)
		return nil
	}
}
