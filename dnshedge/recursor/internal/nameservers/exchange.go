package nameservers

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/usercode"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/stack"
)

const (
	dialTimeout = 2 * time.Second

	maxMismatched = 3 // messages that match no query before a socket is closed
)

var (
	// errTruncated leads to a repetition over TCP: the answer was truncated.
	errTruncated = errors.New("recursor: answer was cut")
	// errTruncatedTCP rejects a response that is truncated even over TCP.
	errTruncatedTCP = errors.New("recursor: answer over TCP was cut")
	// errEDNSRejected leads to a repetition without EDNS: the server does not understand it.
	errEDNSRejected = errors.New("recursor: server does not understand EDNS")
	// errEvicted ends a query whose socket another query needs.
	errEvicted = errors.New("recursor: socket was needed for another query")
	// errTooManyForgeries ends a query because of many messages with wrong IDs.
	errTooManyForgeries = errors.New("recursor: too many messages that answer no query")
)

// sendAndReceive sends q and waits for its answer. Without slots, it first waits for them until gone is closed.
func (q *query) sendAndReceive(gone <-chan struct{}) {
	defer q.wg.Done()
	stack.GrowTo8KiB()
	if gone != nil {
		if !q.awaitSlots(gone) {
			q.err = ErrNoServers
			q.inbox.pushEvent(queryEvent{q, true})
			return
		}
		q.inbox.pushEvent(queryEvent{q, false})
	}
	q.counters.wire.Add(1)
	if q.tcp {
		q.counters.tcp.Add(1)
		q.msg, q.err = q.exchangeTCP()
	} else {
		q.msg, q.err = q.exchangeUDP()
	}
	q.mu.Lock()
	q.conn, q.cancel = nil, nil
	q.mu.Unlock()
	if q.err != nil && q.err != errTruncated {
		q.recordFailure()
	}
	q.inbox.pushEvent(queryEvent{q, true})
}

// recordFailure ends q with an error.
func (q *query) recordFailure() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		q.err = errEvicted
	} else if !q.tcp && q.err != errTooManyForgeries && (!q.wrote.IsZero() || isUnreachable(q.err)) {
		q.recordTimeout()
	}
	q.releaseSlots()
}

var bufferPool = sync.Pool{New: func() any { return new([transport.MaxDatagram]byte) }}

// exchangeUDP sends q over UDP from a socket and thus a port of its own. It returns nothing if the answer is not needed
// any more.
func (q *query) exchangeUDP() (*dns.Msg, error) {
	conn, err := q.openSocket()
	if isOutOfDescriptors(err) {
		q.mu.Lock()
		q.evictQuery(&q.sockets.slots)
		q.mu.Unlock()
		conn, err = q.openSocket()
	}
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := q.setConn(conn, min(q.rto, answerTimeout)); err != nil {
		return nil, err
	}
	buf := bufferPool.Get().(*[transport.MaxDatagram]byte)
	defer bufferPool.Put(buf)
	id := wire.RandomID()
	out := q.wire.Append(buf[:0], id, wire.Shape{Size: wire.DefaultUDPSize})
	q.wrote = time.Now()
	if _, err := conn.Write(out); err != nil {
		return nil, err
	}
	for wrong := 0; ; {
		n, err := transport.ReceiveDatagram(conn, buf[:])
		if errors.Is(err, os.ErrDeadlineExceeded) && q.extendWait() {
			continue
		}
		if err != nil {
			return nil, err
		}
		b := buf[:n]
		if q.wire.Check(b, id) == nil {
			return q.parseResponse(b)
		}
		q.counters.ignored.Add(1)
		if wrong++; wrong >= maxMismatched {
			return nil, errTooManyForgeries
		}
	}
}

func (q *query) openSocket() (net.Conn, error) {
	if d := q.conf.Dialer; d != nil {
		return q.dialWithTimeout(d, "udp", answerTimeout)
	}
	return dialRandomPort(q.addr)
}

const (
	firstPort = 1024 // lower ports are reserved for the system
	portTries = 5    // ports in use before the system chooses
)

// dialRandomPort opens a socket with a random port of all unreserved ports (RFC 5452 §9.2). The system chooses among
// fewer: 28,232 on Linux. It chooses only if all tries are in use or forbidden.
func dialRandomPort(to netip.AddrPort) (net.Conn, error) {
	remote := net.UDPAddrFromAddrPort(to)
	for range portTries {
		port := firstPort + rand.IntN(1<<16-firstPort)
		c, err := net.DialUDP("udp", &net.UDPAddr{Port: port}, remote)
		if err == nil {
			return c, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	c, err := net.DialUDP("udp", nil, remote)
	if err != nil {
		return nil, err // a nil *net.UDPConn would be a non-nil net.Conn
	}
	return c, nil
}

// dialWithTimeout opens a connection. Stopping q ends it.
func (q *query) dialWithTimeout(d Dialer, network string, most time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(q.ctx, most)
	defer cancel()
	q.mu.Lock()
	q.cancel = cancel
	stopped := q.stopped
	q.mu.Unlock()
	if stopped {
		return nil, net.ErrClosed
	}
	return usercode.DialGuarded(ctx, d, network, q.addr.String())
}

// isOutOfDescriptors reports whether too many files are open.
func isOutOfDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// isUnreachable reports whether this machine has no route to the server.
func isUnreachable(err error) bool {
	return errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EHOSTUNREACH)
}

// setConn makes conn the connection of q, with a deadline after d. It fails if q is stopped.
func (q *query) setConn(conn net.Conn, d time.Duration) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return net.ErrClosed
	}
	q.conn = conn
	return conn.SetDeadline(time.Now().Add(d)) // dialing may have taken longer
}

// extendWait is called when a deadline of q has passed, and reports whether its answer is still awaited. The first call counts a timeout of the server
// and waits until loserDeadline. A later call waits as long as the task runs and no other query waits for the slots of q.
func (q *query) extendWait() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	needs := q.neededSlots()
	switch end := q.loserDeadline(); {
	case q.stopped:
		return false
	case !q.countedAsTimeout:
		q.recordTimeout()
		return q.conn.SetDeadline(end) == nil
	case q.abandoned || slices.ContainsFunc(needs[:], func(n slotLimit) bool { return n.last != nil }):
		return false
	}
	return q.conn.SetDeadline(time.Time{}) == nil
}

// parseResponse parses a response that is still needed.
func (q *query) parseResponse(b []byte) (*dns.Msg, error) {
	if !q.recordAnswer() {
		return nil, nil
	}
	if cut := b[2]&2 != 0; cut && q.tcp {
		return nil, errTruncatedTCP
	} else if cut {
		return nil, errTruncated
	}
	return wire.ParseMsg(b)
}

// exchangeTCP sends q over a new TCP connection.
func (q *query) exchangeTCP() (*dns.Msg, error) {
	d := q.conf.Dialer
	if d == nil {
		d = new(net.Dialer)
	}
	conn, err := q.dialWithTimeout(d, "tcp", dialTimeout)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := q.setConn(conn, tcpTimeout); err != nil {
		return nil, err
	}
	id := wire.RandomID()
	b := q.wire.Append(make([]byte, 2, 512), id, wire.Shape{Size: wire.DefaultUDPSize})
	binary.BigEndian.PutUint16(b, uint16(len(b)-2))
	q.wrote = time.Now()
	if _, err := conn.Write(b); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(conn, b[:2]); err != nil {
		return nil, err
	}
	b = make([]byte, binary.BigEndian.Uint16(b))
	if _, err := io.ReadFull(conn, b); err != nil {
		return nil, err
	}
	if err := q.wire.Check(b, id); err != nil {
		q.counters.ignored.Add(1)
		return nil, err
	}
	return q.parseResponse(b)
}
