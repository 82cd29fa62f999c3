package transport

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/localerror"
)

const (
	// maxSockets is the maximum number of connections of a pool. With it, a pool has a stream for every question that a
	// Client may have at a time.
	maxSockets = 32

	growWait          = 50 * time.Millisecond // expected wait for a stream, from which on another connection is opened
	growPause         = 5 * time.Second       // time without further connections after one could not be opened or ended unused
	waitCheckInterval = 50 * time.Millisecond // time between two checks of the waiting requests
)

// An httpConnPool is a connection pool of an httpsTransport. A request uses the first connection with a free stream, so
// that connections opened for a burst become idle and are closed. If no stream is free and the expected wait is long,
// another connection is opened, one at a time.
//
// The most recent request gets the first free stream, because the time of an old request may end before its answer.
type httpConnPool struct {
	makeConn func(sockets int) *httpConn // makes an httpConn; it does not dial
	done     <-chan struct{}             // closed when the transport is closed

	mu           sync.Mutex    // guards the fields below; a connection's lock is taken after it, never before
	conns        []*httpConn   // connections that accept requests, oldest first
	waiting      []*httpWaiter // oldest request first
	limit        int           // httpConn.limit of a new connection: 0 and 1 mean 1; more for an HTTP/1.1 server
	usedStreams  int           // number of streams in use
	answerTime   time.Duration // smoothed latency of answers; 0: not known
	lastProgress time.Time     // time of the last answer, or of the first request after none was in flight
	nextGrowth   time.Time     // no further connection before this time
	isChecking   bool          // the timer that calls checkWaiting runs
}

// An httpWaiter is a request that waits for a stream.
type httpWaiter struct {
	end  time.Time      // deadline of the request; zero: none
	conn chan *httpConn // capacity 1: receives the connection, or nil if none is free in time
}

// acquireConn returns a connection with a stream for one request. It waits until a stream is free or ctx ends, and
// returns localerror.ErrBusy if none will be free in time. Meanwhile w records the oldest connection. The caller must
// call releaseStream and releaseRequest.
func (l *httpConnPool) acquireConn(ctx context.Context, w *QueryPath) (*httpConn, error) {
	l.mu.Lock()
	now := time.Now()
	h := l.takeConn(now)
	if h == nil && len(l.waiting) == 0 {
		h = l.openAnother(now)
	}
	if h != nil {
		l.mu.Unlock()
		return h, nil
	}
	me := &httpWaiter{conn: make(chan *httpConn, 1)}
	me.end, _ = ctx.Deadline()
	if l.willMissDeadline(me, now, l.expectedWait(now)) {
		l.mu.Unlock()
		return nil, localerror.ErrBusy
	}
	w.lastAnswer.Store(&l.conns[0].lastAnswer)
	l.waiting = append(l.waiting, me)
	l.serveRequests(now)
	l.mu.Unlock()
	select {
	case h = <-me.conn:
		if h == nil {
			return nil, localerror.ErrBusy
		}
		return h, nil
	case <-ctx.Done():
	case <-l.done:
	}
	l.mu.Lock()
	i := slices.Index(l.waiting, me)
	if i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	l.mu.Unlock()
	if i < 0 {
		if h = <-me.conn; h != nil {
			l.releaseStream(h)
			h.releaseRequest()
		}
	}
	if ctx.Err() == nil {
		return nil, ErrClosed
	}
	return nil, causeOf(ctx)
}

// takeConn returns a connection with a free stream, which it reserves, or nil. It makes a connection if the pool has
// none, and removes retired and closed ones. The caller holds mu.
func (l *httpConnPool) takeConn(now time.Time) *httpConn {
	for i := 0; i < len(l.conns); {
		h := l.conns[i]
		if h.isRetired() || i > 0 && h.isClosed() {
			l.conns = slices.Delete(l.conns, i, i+1)
			continue
		}
		room := h.capacity
		if i > 0 && !h.hasConnected.Load() {
			room = 1
		}
		if h.usedStreams < room && l.reserveStream(h, now) {
			return h
		}
		i++
	}
	if len(l.conns) > 0 {
		return nil
	}
	h := l.addConn()
	l.reserveStream(h, now)
	return h
}

// reserveStream reserves a stream of h for a request. It reports false if h accepts no further requests. The caller
// holds mu.
func (l *httpConnPool) reserveStream(h *httpConn, now time.Time) bool {
	if !h.addRequest() {
		return false
	}
	if l.usedStreams == 0 {
		l.lastProgress = now
	}
	h.usedStreams++
	l.usedStreams++
	return true
}

// addConn adds a connection to the pool. Its first request dials. The caller holds mu.
func (l *httpConnPool) addConn() *httpConn {
	h := l.makeConn(max(l.limit, 1))
	h.pool, h.added = l, time.Now()
	l.conns = append(l.conns, h)
	return h
}

// openAnother adds another connection if the expected wait is long and no other connection is being opened. It reserves
// and returns it; otherwise it returns nil. The caller holds mu.
func (l *httpConnPool) openAnother(now time.Time) *httpConn {
	if l.isFull(now) || l.expectedWait(now) < growWait {
		return nil
	}
	if slices.ContainsFunc(l.conns, func(h *httpConn) bool { return !h.hasConnected.Load() }) {
		return nil
	}
	h := l.addConn()
	l.reserveStream(h, now)
	return h
}

// isFull reports whether the pool may open no further connection now. The caller holds mu.
func (l *httpConnPool) isFull(now time.Time) bool {
	return now.Before(l.nextGrowth) || (len(l.conns)+1)*max(l.limit, 1) > maxSockets
}

// expectedWait returns the expected time for which one more request would wait for a stream. The caller holds mu.
func (l *httpConnPool) expectedWait(now time.Time) time.Duration {
	streams := 0
	for _, h := range l.conns {
		streams += h.capacity
	}
	return max(l.answerTime, now.Sub(l.lastProgress)) * time.Duration(len(l.waiting)+1) / time.Duration(max(streams, 1))
}

// willMissDeadline reports whether a request would miss its deadline after the given wait. The wait counts as 0 if another
// connection may be opened. The caller holds mu.
func (l *httpConnPool) willMissDeadline(w *httpWaiter, now time.Time, wait time.Duration) bool {
	if !l.isFull(now) {
		wait = 0
	}
	return !w.end.IsZero() && w.end.Sub(now) < wait+l.answerTime/2
}

// serveRequests assigns free streams to waiting requests, the newest first. The caller holds mu.
func (l *httpConnPool) serveRequests(now time.Time) {
	for n := len(l.waiting); n > 0; n-- {
		h := l.takeConn(now)
		if h == nil {
			h = l.openAnother(now)
		}
		if h == nil {
			break
		}
		l.waiting[n-1].conn <- h
		l.waiting = l.waiting[:n-1]
	}
	if len(l.waiting) > 0 && !l.isChecking {
		l.isChecking = true
		time.AfterFunc(waitCheckInterval, l.checkWaiting)
	}
}

// checkWaiting ends the wait of requests that would miss their deadline, and opens another connection if the wait is
// long.
func (l *httpConnPool) checkWaiting() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.isChecking = false
	l.waiting = slices.DeleteFunc(l.waiting, func(w *httpWaiter) bool {
		if !l.willMissDeadline(w, now, 0) {
			return false
		}
		w.conn <- nil
		return true
	})
	l.serveRequests(now)
}

// serveWaiting assigns free streams to waiting requests. It is called when a connection was opened, has ended or has
// more streams.
func (l *httpConnPool) serveWaiting() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.serveRequests(time.Now())
}

// releaseStream frees the stream of a request, and assigns it to a waiting one.
func (l *httpConnPool) releaseStream(h *httpConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h.usedStreams--
	l.usedStreams--
	l.serveRequests(time.Now())
}

// recordAnswerTime adds the latency of an answer.
func (l *httpConnPool) recordAnswerTime(took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastProgress = time.Now()
	if l.answerTime == 0 {
		l.answerTime = took
	}
	l.answerTime += (took - l.answerTime) / 8
}

// recordFailure records that a request over h has failed or was canceled. It reports whether h is an additional
// connection that has answered nothing. The server may not accept that connection, and the request may be repeated over
// another one. The pool then opens no connection for growPause.
//
// A canceled request counts only after half of the stall timeout. Before, a hedge may have been answered during the
// handshake.
func (l *httpConnPool) recordFailure(h *httpConn, canceled bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if slices.Index(l.conns, h) <= 0 || h.hasAnswered.Load() || canceled && now.Sub(h.added) < h.stallTimeout()/2 {
		return false
	}
	l.nextGrowth = now.Add(growPause)
	h.stopRequests()
	return true
}

// lowerCapacity lowers the capacity of h by one stream, because the server has refused one. It reports false, and
// changes nothing, if the capacity is 1. resetCapacity undoes it for a new connection.
func (l *httpConnPool) lowerCapacity(h *httpConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.capacity == 1 {
		return false
	}
	h.capacity--
	return true
}

// resetCapacity sets the capacity of h when a new connection was opened for it. The capacity is the initial one, or
// that of the pool's oldest connection if that is less.
func (l *httpConnPool) resetCapacity(h *httpConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h.capacity = h.initialCapacity()
	if len(l.conns) > 0 && l.conns[0] != h {
		h.capacity = min(h.capacity, l.conns[0].capacity)
	}
}

// allowMoreConns gives the next httpConn several connections, because the server uses HTTP/1.1.
func (l *httpConnPool) allowMoreConns() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limit = serialConns
}

// oldestConn returns the oldest connection, or nil if there is none.
func (l *httpConnPool) oldestConn() *httpConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.conns) == 0 {
		return nil
	}
	return l.conns[0]
}

// acquireProbeConn returns the oldest connection that accepts requests, or a new one, for a probe. A probe needs no reserved
// stream. The caller must call releaseRequest.
func (l *httpConnPool) acquireProbeConn() *httpConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.conns {
		if h.addRequest() {
			return h
		}
	}
	h := l.addConn()
	h.addRequest()
	return h
}

// closeConns closes the connections of the pool. No request may be in flight.
func (l *httpConnPool) closeConns() {
	l.mu.Lock()
	conns := slices.Clone(l.conns)
	l.mu.Unlock()
	for _, h := range conns {
		h.closeConns()
	}
}
