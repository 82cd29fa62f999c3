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

// dialWithSlot acquires a slot for addr, a host and port, and then calls dial. It releases the slot when the connection
// is closed or dial fails. If limit is not positive, there is no limit and no slot. While no slot is free, dialWithSlot
// calls closeIdle every closeIdleInterval, to close idle connections of other pools.
//
// It returns errTooManyConns if no slot becomes free within fallbackDelay. The time is limited because net/http does
// not stop a dial when its request is cancelled.
func (h *connLimits) dialWithSlot(ctx context.Context, addr string, limit int, closeIdle func(), dial func() (net.Conn, error)) (conn net.Conn, err error) {
	if limit <= 0 {
		return dial()
	}
	to := h.addUser(addr, limit)
	if err := to.acquireSlot(ctx, closeIdle); err != nil {
		h.removeUser(addr, to)
		return nil, err
	}
	free := sync.OnceFunc(func() {
		<-to.slots
		h.removeUser(addr, to)
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
func (to *connLimit) acquireSlot(ctx context.Context, closeIdle func()) error {
	begun := time.Now()
	for {
		select {
		case to.slots <- struct{}{}:
			return nil
		default:
		}
		if time.Since(begun) >= fallbackDelay {
			return errTooManyConns
		}
		closeIdle()
		select {
		case to.slots <- struct{}{}:
			return nil
		case <-time.After(closeIdleInterval):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// addUser returns the connLimit for addr and increments its number of users. If there is no connLimit for addr, it
// creates one with the given limit.
func (h *connLimits) addUser(addr string, limit int) *connLimit {
	h.mu.Lock()
	defer h.mu.Unlock()
	to := h.all[addr]
	if to == nil {
		if h.all == nil {
			h.all = make(map[string]*connLimit)
		}
		to = &connLimit{slots: make(chan struct{}, limit)}
		h.all[addr] = to
	}
	to.users++
	return to
}

// removeUser decrements the number of users of to, the connLimit for addr. It deletes the connLimit when it has no
// users left.
func (h *connLimits) removeUser(addr string, to *connLimit) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if to.users--; to.users == 0 {
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
