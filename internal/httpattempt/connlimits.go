package httpattempt

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// A connLimits limits the number of connections per host across several connection pools. The zero value is ready to
// use. It is safe for concurrent use.
type connLimits struct {
	mu sync.Mutex // guards all
	// by host and port
	all map[string]*connLimit
}

// A connLimit is a semaphore that limits the connections to one host. Each connection occupies a slot until it is
// closed.
type connLimit struct {
	slots chan struct{} // has one element for each occupied slot; its capacity is the limit
	users int           // number of connections and of dials that wait for a slot; guarded by connLimits.mu
}

// closeIdleInterval is how often a dial that waits for a slot closes idle connections to free a slot.
const closeIdleInterval = fallbackDelay / 5

// errTooManyConns is the error of a dial that got no slot within fallbackDelay.
var errTooManyConns = errors.New("hedge: there are as many connections for hedges as MaxConnsPerHost allows")

// dialWithSlot calls dial to connect to addr, a host and port, but only while fewer than limit connections to addr
// exist. It acquires a slot before dial, and releases the slot when dial fails or the connection is closed. If limit is
// not positive, the number of connections is not limited.
//
// While no slot is free, dialWithSlot calls closeIdle every closeIdleInterval, to close idle connections of other
// pools. It returns errTooManyConns if no slot becomes free within fallbackDelay. The wait is limited because net/http
// does not stop a dial when its request is cancelled.
func (h *connLimits) dialWithSlot(ctx context.Context, addr string, limit int, closeIdle func(), dial func() (net.Conn, error)) (conn net.Conn, err error) {
	if limit <= 0 {
		return dial()
	}
	l := h.addUser(addr, limit)
	if err := l.acquireSlot(ctx, closeIdle); err != nil {
		h.removeUser(addr, l)
		return nil, err
	}
	free := sync.OnceFunc(func() {
		<-l.slots
		h.removeUser(addr, l)
	})
	defer func() { // also if dial panics
		if conn == nil {
			free()
		}
	}()
	if conn, err = dial(); err != nil || conn == nil {
		return nil, err
	}
	return &limitedConn{conn, free}, nil
}

// acquireSlot waits for a free slot and occupies it. While it waits, it calls closeIdle every closeIdleInterval. It
// returns errTooManyConns after fallbackDelay, or the cause of ctx if ctx ends first.
func (l *connLimit) acquireSlot(ctx context.Context, closeIdle func()) error {
	begun := time.Now()
	for {
		select {
		case l.slots <- struct{}{}:
			return nil
		default:
		}
		if time.Since(begun) >= fallbackDelay {
			return errTooManyConns
		}
		closeIdle()
		select {
		case l.slots <- struct{}{}:
			return nil
		case <-time.After(closeIdleInterval):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// addUser returns the connLimit for addr, a host and port, and counts one more user of it. A user is a connection, or a
// dial that waits for a slot. If there is no connLimit for addr, addUser creates one with the given limit. The caller
// must call removeUser later.
func (h *connLimits) addUser(addr string, limit int) *connLimit {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.all[addr]
	if l == nil {
		if h.all == nil {
			h.all = make(map[string]*connLimit)
		}
		l = &connLimit{slots: make(chan struct{}, limit)}
		h.all[addr] = l
	}
	l.users++
	return l
}

// removeUser undoes a call of addUser for addr that returned l. It deletes l when no users are left.
func (h *connLimits) removeUser(addr string, l *connLimit) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(h.all, addr)
	}
}

// A limitedConn is a connection that occupies a slot of a [connLimit] until it is closed.
type limitedConn struct {
	net.Conn
	releaseSlot func() // may be called several times
}

// Close closes the connection and releases its slot.
func (p *limitedConn) Close() error {
	defer p.releaseSlot()
	return p.Conn.Close()
}
