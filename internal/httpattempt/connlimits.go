package httpattempt

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// A connLimits limits the number of connections per host across several connection pools. The zero value is ready to
// use.
type connLimits struct {
	mu sync.Mutex // guards all
	// by host and port
	all map[string]*connLimit
}

// A connLimit limits the connections to one host. Each connection occupies a slot.
type connLimit struct {
	slots chan struct{} // semaphore with one element for each occupied slot
	users int           // number of connections, and of dials that wait for a slot; guarded by connLimits.mu
}

// closeIdleInterval is the time between two attempts to free a slot by closing idle connections.
const closeIdleInterval = fallbackDelay / 5

// errTooManyConns is the error of a dial that got no slot in time.
var errTooManyConns = errors.New("hedge: there are as many connections for hedges as MaxConnsPerHost allows")

// dialWithSlot calls dial after it has acquired a slot for the host and port in addr. If limit is not positive, there
// is no limit. While no slot is free, it calls closeIdle every closeIdleInterval to close idle connections of other
// pools.
//
// It gives up with errTooManyConns after fallbackDelay, because net/http does not stop a dial when its request is
// cancelled.
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

// acquireSlot waits for a free slot, and calls closeIdle meanwhile. It returns errTooManyConns after fallbackDelay, or
// the cause of ctx if ctx ends before.
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

// addUser returns the connLimit of addr, creates it if necessary, and increments its number of users.
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

// removeUser decrements the number of users of the connLimit of addr, and deletes it at 0.
func (h *connLimits) removeUser(addr string, to *connLimit) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if to.users--; to.users == 0 {
		delete(h.all, addr)
	}
}

// A limitedConn is a connection that occupies a slot until it is closed.
type limitedConn struct {
	net.Conn
	releaseSlot func()
}

func (p *limitedConn) Close() error {
	defer p.releaseSlot()
	return p.Conn.Close()
}
