package nameservers

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/socketerror"
	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/usercode"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/dnshedge/recursor/internal/stack"
)

const dialTimeout = 2 * time.Second // time limit for opening a connection over TCP

var (
	// errTruncated is the error of a query over UDP with a truncated response. The query is repeated over TCP.
	errTruncated = errors.New("recursor: response is truncated")
	// errTruncatedTCP is the error of a query over TCP with a truncated response. The next server is then queried.
	errTruncatedTCP = errors.New("recursor: response over TCP is truncated")
	// errEDNSRejected is the error of a query to a server that does not support EDNS. The query is repeated without EDNS.
	errEDNSRejected = errors.New("recursor: server does not support EDNS")
	// errEvicted is the error of a query that was stopped so that another query can use its socket or slot.
	errEvicted = errors.New("recursor: socket was needed for another query")
	// errGoexit is the error of a query whose Dialer has called runtime.Goexit.
	errGoexit = errors.New("recursor: Dialer ended its goroutine")
	// errTooManyForgeries is the error of a query that has received too many messages that do not match it, and are
	// probably forged.
	errTooManyForgeries = transport.ErrSpoofed
)

// sendAndReceive sends the message of q to its server, receives the response, and adds an event to q.inbox when q ends.
// It runs on a goroutine of its own.
//
// If taskDone is nil, q already has its slots (see slotLimits). Otherwise it first waits for them. It gives up when
// taskDone is closed, which means that the Task has ended.
func (q *query) sendAndReceive(taskDone <-chan struct{}) {
	defer q.wg.Done()
	stack.GrowTo8KiB()
	if taskDone != nil {
		if !q.awaitSlots(taskDone) {
			q.err = ErrNoServers
			q.inbox.pushEvent(queryEvent{q, true})
			return
		}
		q.inbox.pushEvent(queryEvent{q, false})
	}
	q.counters.wire.Add(1)
	q.err = errGoexit
	defer q.endExchange()
	if q.tcp {
		q.counters.tcp.Add(1)
		q.msg, q.err = q.exchangeTCP()
	} else {
		q.msg, q.err = q.exchangeUDP()
	}
}

// endExchange records the end of q, whose response or error is set, and adds an event to q.inbox.
func (q *query) endExchange() {
	q.mu.Lock()
	q.conn, q.cancelDial = nil, nil
	q.mu.Unlock()
	if q.err != nil && q.err != errTruncated {
		q.recordFailure()
	}
	q.inbox.pushEvent(queryEvent{q, true})
}

// recordFailure records that q has failed, and releases its slots. If q was sent over UDP, it counts as unanswered (see
// recordTimeout), so that other servers are preferred. So does a query over UDP that cannot be sent because there is no
// route to the server. A query to another server or address family may succeed.
//
// A query over TCP does not count, because the server has just sent a truncated response over UDP. A query that was
// stopped or received too many forgeries does not count, because that says nothing about the server.
func (q *query) recordFailure() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		q.err = errEvicted
	} else if !q.tcp && q.err != errTooManyForgeries && (!q.writtenAt.IsZero() || isUnreachable(q.err)) {
		q.recordTimeout()
	}
	q.releaseSlots()
}

// exchangeUDP sends q over UDP from a new socket, and returns the response. If the Task of q has ended before the
// response arrives, it returns nil and no error.
func (q *query) exchangeUDP() (*dns.Msg, error) {
	conn, err := q.openSocket()
	if err != nil && isOutOfDescriptors(err) {
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
	id := wire.RandomID()
	q.writtenAt = time.Now()
	if err := transport.SendDatagram(conn, q.wire, id, wire.PackOptions{Size: wire.DefaultUDPSize}); err != nil {
		return nil, err
	}
	var m *dns.Msg
	receiveErr := transport.ReceiveResponse(conn, transport.MaxWrongMessages, func(b []byte) bool {
		if q.wire.CheckResponse(b, id) != nil {
			q.counters.ignored.Add(1)
			return false
		}
		m, err = q.parseResponse(b)
		return true
	}, func(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) && q.extendDeadline() })
	if receiveErr != nil {
		return nil, receiveErr
	}
	return m, err
}

// openSocket opens a UDP socket that is connected to the server of q.
func (q *query) openSocket() (net.Conn, error) {
	if d := q.conf.Dialer; d != nil {
		return q.dialWithTimeout(d, "udp", answerTimeout)
	}
	return dialRandomPort(q.addr)
}

const (
	firstPort = 1024 // lower ports are reserved
	portTries = 5    // random ports to try before the operating system selects a port
)

// dialRandomPort opens a UDP socket that is connected to the server address to. Its local port is random, among all
// unreserved ports, so that responses are hard to forge (RFC 5452 §9.2).
//
// If the random ports are in use or forbidden, the operating system selects the port. It selects among fewer ports:
// 28,232 on Linux.
func dialRandomPort(to netip.AddrPort) (net.Conn, error) {
	for range portTries {
		c, err := dialUDP(firstPort+uint16(rand.IntN(1<<16-firstPort)), to)
		if err == nil {
			return c, nil
		}
		if !socketerror.IsAny(err, syscall.EADDRINUSE) {
			break
		}
	}
	return dialUDPByNet(nil, to)
}

// dialWithTimeout opens a connection to the server of q with the Dialer d. The network is "udp" or "tcp". It gives up
// after timeout, and stopExchange cancels it.
func (q *query) dialWithTimeout(d Dialer, network string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(q.ctx, timeout)
	defer cancel()
	q.mu.Lock()
	q.cancelDial = cancel
	stopped := q.stopped
	q.mu.Unlock()
	if stopped {
		return nil, net.ErrClosed
	}
	return usercode.DialGuarded(ctx, d, network, q.addr.String())
}

// isOutOfDescriptors reports whether err means that this process or machine has no free file descriptor.
func isOutOfDescriptors(err error) bool {
	return socketerror.IsAny(err, syscall.EMFILE, syscall.ENFILE)
}

// isUnreachable reports whether err means that there is no route to the server.
func isUnreachable(err error) bool {
	return socketerror.IsAny(err, syscall.ENETUNREACH, syscall.EHOSTUNREACH)
}

// setConn stores the connection of q, so that stopExchange can close it. It sets the deadline of the connection to
// timeout from now. It returns net.ErrClosed if q was stopped.
func (q *query) setConn(conn net.Conn, timeout time.Duration) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return net.ErrClosed
	}
	q.conn = conn
	return conn.SetDeadline(time.Now().Add(timeout)) // dialing may have taken longer
}

// extendDeadline is called at the deadline of a query over UDP. It returns true if the query continues to wait for a late
// response, and false if it ends, or was stopped before.
//
// The first call counts a timeout of the server, and moves the deadline to loserDeadline. At a later call, the query ends if
// the Task has ended or another query waits for a slot of q. Otherwise it waits without a deadline.
func (q *query) extendDeadline() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	needs := q.slotLimits()
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

// parseResponse parses b, a response in wire format, and records that the server has answered q. If the Task of q has
// ended, it returns nil and no error. The error is errTruncated or errTruncatedTCP if the response is truncated.
func (q *query) parseResponse(b []byte) (*dns.Msg, error) {
	if !q.recordAnswer() {
		return nil, nil
	}
	if truncated := b[2]&2 != 0; truncated && q.tcp {
		return nil, errTruncatedTCP
	} else if truncated {
		return nil, errTruncated
	}
	return wire.ParseMsg(b)
}

// exchangeTCP sends q over a new TCP connection, and returns the response. If the Task of q has ended before the
// response arrives, it returns nil and no error.
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
	q.writtenAt = time.Now()
	if err := transport.WriteFrame(conn, q.wire, id, wire.PackOptions{Size: wire.DefaultUDPSize}); err != nil {
		return nil, err
	}
	b, err := transport.ReadFrame(conn)
	if err != nil && err != transport.ErrFrame {
		return nil, err
	}
	if err := q.wire.CheckResponse(b, id); err != nil {
		q.counters.ignored.Add(1)
		return nil, err
	}
	return q.parseResponse(b)
}
