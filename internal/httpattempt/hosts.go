package httpattempt

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// hosts bounds the connections that several pools have to a host together. The zero hosts is ready.
type hosts struct {
	mu  sync.Mutex // guards all
	all map[string]*host
}

// A host has so many places as it may have connections.
type host struct {
	places chan struct{} // a place that is taken is in it
	users  int           // connections, and who waits for one; guarded by the hosts' mu
}

// again is how long after idle connections were closed there may be others.
const again = patience / 5

// errNoPlace is the error of a dial that would be one too many.
var errNoPlace = errors.New("hedge: there are as many connections for hedges as MaxConnsPerHost allows")

// dial dials when the host has a place, or at once if limit is not positive. While there is none,
// it calls closeIdle now and then, which should close connections of other pools. It does not wait
// for longer than patience: net/http lets a dial go on when its request is cancelled.
func (h *hosts) dial(ctx context.Context, addr string, limit int, closeIdle func(), dial func() (net.Conn, error)) (conn net.Conn, err error) {
	if limit <= 0 {
		return dial()
	}
	to := h.enter(addr, limit)
	if err := to.take(ctx, closeIdle); err != nil {
		h.leave(addr, to)
		return nil, err
	}
	free := sync.OnceFunc(func() {
		<-to.places
		h.leave(addr, to)
	})
	defer func() { // also if dial panics
		if conn == nil {
			free()
		}
	}()
	if conn, err = dial(); err != nil || conn == nil {
		return nil, err
	}
	return &placed{conn, free}, nil
}

// take takes a place.
func (to *host) take(ctx context.Context, closeIdle func()) error {
	begun := time.Now()
	for {
		select {
		case to.places <- struct{}{}:
			return nil
		default:
		}
		if time.Since(begun) >= patience {
			return errNoPlace
		}
		closeIdle()
		select {
		case to.places <- struct{}{}:
			return nil
		case <-time.After(again):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (h *hosts) enter(addr string, limit int) *host {
	h.mu.Lock()
	defer h.mu.Unlock()
	to := h.all[addr]
	if to == nil {
		if h.all == nil {
			h.all = make(map[string]*host)
		}
		to = &host{places: make(chan struct{}, limit)}
		h.all[addr] = to
	}
	to.users++
	return to
}

func (h *hosts) leave(addr string, to *host) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if to.users--; to.users == 0 {
		delete(h.all, addr)
	}
}

// placed is a connection that has a place until it is closed.
type placed struct {
	net.Conn
	free func()
}

func (p *placed) Close() error {
	defer p.free()
	return p.Conn.Close()
}
