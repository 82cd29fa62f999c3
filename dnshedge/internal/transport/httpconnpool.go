package transport

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/localerror"
)

const (
	// maxSockets is the maximum number of connections of a pool. It suffices for all questions that a Client may have at
	// the same time.
	maxSockets = 32

	growWait          = 50 * time.Millisecond // expected wait for a stream above which another connection is opened
	maxStreamWait     = 3 * growWait          // wait of the oldest request above which another one is opened in any case
	growPause         = 5 * time.Second       // time without new connections after an additional connection failed or answered nothing
	waitCheckInterval = 50 * time.Millisecond // interval at which waiting requests are checked for their deadlines
)

// An httpConnPool is a connection pool of an httpsTransport. A request uses the oldest connection with a free HTTP/2
// stream, or waits for a stream. If requests wait long, further connections are opened. It is safe for concurrent use.
type httpConnPool struct {
	makeConn func(sockets int) *httpConn // returns a new httpConn with the given limit, without dialing
	done     <-chan struct{}             // closed when the transport closes

	mu           sync.Mutex    // guards the fields below; httpConn.mu may be locked while it is held, but not the reverse
	conns        []*httpConn   // connections that accept requests, oldest first
	waiting      []*httpWaiter // waiting requests, oldest first
	limit        int           // httpConn.limit of new connections; 0 means 1; more than 1 for an HTTP/1.1 server
	usedStreams  int           // number of streams in use on all connections
	answerTime   time.Duration // smoothed latency of responses; 0: unknown
	lastProgress time.Time     // time of the last response, or of the first request after an idle time
	nextGrowth   time.Time     // no additional connection is opened before this time
	isChecking   bool          // a timer will call serveWaiting
}

// An httpWaiter is a request that waits for a free stream of an httpConnPool.
type httpWaiter struct {
	since time.Time      // time at which the request began to wait
	end   time.Time      // deadline of the request; zero: none
	conn  chan *httpConn // receives the connection, or nil if no stream will be free in time; capacity 1
}

// acquireConn returns a connection with a stream reserved for one request. It waits for a free stream until ctx ends.
// The error is localerror.ErrNoStream if the request would probably miss its deadline. After the request, the caller
// must call releaseStream, and then releaseRequest.
func (l *httpConnPool) acquireConn(ctx context.Context, w *QueryPath) (*httpConn, error) {
	l.mu.Lock()
	now := time.Now()
	h := l.acquireFreeConn(now)
	if h == nil && len(l.waiting) == 0 {
		h = l.openAdditionalConn(now)
	}
	if h != nil {
		l.mu.Unlock()
		return h, nil
	}
	me := &httpWaiter{since: now, conn: make(chan *httpConn, 1)}
	me.end, _ = ctx.Deadline()
	if l.willMissDeadline(me, now, l.expectedWait(now)) {
		l.mu.Unlock()
		return nil, localerror.ErrNoStream
	}
	w.lastAnswer.Store(&l.conns[0].lastAnswer) // its responses show that the server works
	l.waiting = append(l.waiting, me)
	l.assignStreams(now)
	l.mu.Unlock()
	select {
	case h = <-me.conn:
		if h == nil {
			return nil, localerror.ErrNoStream
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
	return nil, contextCause(ctx)
}

// acquireFreeConn reserves a free stream for a request and returns its connection, or nil if all streams are in use. It
// adds a connection if the pool has none, and removes closed ones. now is the present time. The caller must hold mu.
func (l *httpConnPool) acquireFreeConn(now time.Time) *httpConn {
	for i := 0; i < len(l.conns); { // oldest first, so that connections that were opened for a burst become idle
		h := l.conns[i]
		if h.isRetired() || i > 0 && h.isClosed() {
			l.conns = slices.Delete(l.conns, i, i+1)
			continue
		}
		room := h.capacity
		if i > 0 && !h.hasConnected.Load() {
			room = 1 // until the connection is open
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

// reserveStream reserves a stream of h for a request that begins at the time now. It returns false if h accepts no
// further requests. The caller must have checked that h has a free stream, and must hold mu.
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

// addConn adds a connection to the pool and returns it. Its first request dials the server. The caller must hold mu.
func (l *httpConnPool) addConn() *httpConn {
	h := l.makeConn(max(l.limit, 1))
	h.pool, h.addedAt = l, time.Now()
	if len(l.conns) > 0 {
		h.capacity = min(h.capacity, l.conns[0].capacity)
	}
	l.conns = append(l.conns, h)
	return h
}

// openAdditionalConn adds a connection to the pool and reserves a stream of it for a request. It returns the
// connection, or nil if no request would wait long for a stream, or the pool may not open another connection now. The
// caller must hold mu.
func (l *httpConnPool) openAdditionalConn(now time.Time) *httpConn {
	opening, streams := 0, 0
	for _, h := range l.conns {
		if !h.hasConnected.Load() {
			opening++
			streams += h.capacity - h.usedStreams
		}
	}
	isOverdue := len(l.waiting) > 0 && now.Sub(l.waiting[0].since) >= maxStreamWait // requests for slow answers have most streams
	switch {
	case !l.canGrow(now), !isOverdue && l.expectedWait(now) < growWait:
		return nil
	case opening > 0 && (streams >= len(l.waiting) || opening >= len(l.conns)-opening):
		return nil // a server that accepts no more connections rejects at most as many as it has accepted
	}
	h := l.addConn()
	l.reserveStream(h, now)
	return h
}

// canGrow reports whether the pool may open another connection at the time now. It returns false if the pool has the
// maximum number of connections (maxSockets), or until nextGrowth, five seconds (growPause) after a connection beyond
// the first has failed. The caller must hold mu.
func (l *httpConnPool) canGrow(now time.Time) bool {
	return !now.Before(l.nextGrowth) && (len(l.conns)+1)*max(l.limit, 1) <= maxSockets
}

// expectedWait estimates how long one more request would wait for a free stream at the time now. It uses the latency of
// earlier responses and the numbers of streams and waiting requests. The caller must hold mu.
func (l *httpConnPool) expectedWait(now time.Time) time.Duration {
	streams := 0
	for _, h := range l.conns {
		streams += h.capacity
	}
	// If responses have stopped, the time since the last one is longer than the smoothed latency.
	return max(l.answerTime, now.Sub(l.lastProgress)) * time.Duration(len(l.waiting)+1) / time.Duration(max(streams, 1))
}

// willMissDeadline reports whether the request w will probably have no response before its deadline. now is the present
// time, and wait the expected time until a stream is free. The result is false if w has no deadline. The caller must
// hold mu.
func (l *httpConnPool) willMissDeadline(w *httpWaiter, now time.Time, wait time.Duration) bool {
	if l.canGrow(now) {
		wait = 0 // a new connection has free streams
	}
	return !w.end.IsZero() && w.end.Sub(now) < wait+l.answerTime/2
}

// assignStreams assigns free streams to the requests that wait for one, the newest request first, and may open a
// connection for them. If requests remain, it starts the timer that calls serveWaiting. now is the present time. The
// caller must hold mu.
func (l *httpConnPool) assignStreams(now time.Time) {
	for n := len(l.waiting); n > 0; n-- { // an old request may reach its deadline before it is answered
		h := l.acquireFreeConn(now)
		if h == nil {
			h = l.openAdditionalConn(now)
		}
		if h == nil {
			break
		}
		l.waiting[n-1].conn <- h
		l.waiting = l.waiting[:n-1]
	}
	if len(l.waiting) > 0 && !l.isChecking {
		l.isChecking = true
		time.AfterFunc(waitCheckInterval, l.serveWaiting)
	}
}

// serveWaiting ends the wait of requests that will miss their deadline even if they get a stream at once: acquireConn
// returns ErrNoStream for them. It then assigns free streams to the other waiting requests, and may open a connection
// for them. A timer calls it.
func (l *httpConnPool) serveWaiting() {
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
	l.assignStreams(now)
}

// distributeStreams assigns free streams to waiting requests. It must be called when further streams may be free: when
// a connection was opened or has ended, or may carry more requests. The caller must not hold mu.
func (l *httpConnPool) distributeStreams() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.assignStreams(time.Now())
}

// releaseStream frees a stream of h that a request has used, and assigns it to a waiting request, if there is one.
func (l *httpConnPool) releaseStream(h *httpConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h.usedStreams--
	l.usedStreams--
	l.assignStreams(time.Now())
}

// recordLatency records that a request was answered after the time took. The pool estimates from these times how long a
// request must wait for a stream.
func (l *httpConnPool) recordLatency(took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastProgress = time.Now()
	if l.answerTime == 0 {
		l.answerTime = took
	}
	l.answerTime += (took - l.answerTime) / 8
}

// recordFailure records that a request over h has failed, or was canceled if canceled is true. It returns true if the
// server may reject additional connections, and h is one. Then h accepts no further requests, and the pool does not
// grow for five seconds.
func (l *httpConnPool) recordFailure(h *httpConn, canceled bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	// A hedge may have been answered during the handshake of h, so an early cancellation does not count.
	if slices.Index(l.conns, h) <= 0 || h.hasAnswered.Load() || canceled && now.Sub(h.addedAt) < h.stallTimeout()/2 {
		return false
	}
	l.nextGrowth = now.Add(growPause)
	h.retireConnection()
	return true
}

// lowerCapacity lowers by one the number of requests that h may carry at the same time, because the server has refused
// a stream. It returns false, and changes nothing, if that number is 1. The new number holds until net/http opens
// another connection for h.
func (l *httpConnPool) lowerCapacity(h *httpConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.capacity == 1 {
		return false
	}
	h.capacity--
	return true
}

// resetCapacity sets the number of requests that h may carry at the same time to its initial value, but not above the
// number of the pool's oldest connection. It must be called when net/http opens a connection for h.
func (l *httpConnPool) resetCapacity(h *httpConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h.capacity = h.initialCapacity() // lowerCapacity applied to the earlier connection
	if len(l.conns) > 0 && l.conns[0] != h {
		h.capacity = min(h.capacity, l.conns[0].capacity)
	}
}

// setConnLimit sets the maximum number of open connections of each httpConn that is added from now on. n must be
// serialConns if the server uses HTTP/1.1, which carries one request per connection at a time, and 1 if it uses HTTP/2.
func (l *httpConnPool) setConnLimit(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limit = n
}

// oldestConn returns the oldest connection of the pool that accepts requests, or nil if the pool has none.
func (l *httpConnPool) oldestConn() *httpConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.IndexFunc(l.conns, func(h *httpConn) bool { return !h.isRetired() }); i >= 0 {
		return l.conns[i]
	}
	return nil
}

// acquireProbeConn returns a connection for a query that tests whether the server answers. It is the oldest connection
// that accepts requests, or a new one. The caller must call releaseRequest of the connection after the query.
func (l *httpConnPool) acquireProbeConn() *httpConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.conns { // reserves no stream, because each HTTP/2 connection keeps one for probes
		if h.addRequest() {
			return h
		}
	}
	h := l.addConn()
	h.addRequest()
	return h
}

// closeConns closes all connections of the pool. It must only be called when no request is in flight and none can
// follow.
func (l *httpConnPool) closeConns() {
	l.mu.Lock()
	conns := slices.Clone(l.conns)
	l.mu.Unlock()
	for _, h := range conns {
		h.closeConns()
	}
}
