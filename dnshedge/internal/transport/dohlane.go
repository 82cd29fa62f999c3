package transport

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/localerror"
)

const (
	// maxSockets is how many connections a lane opens: they have streams for as many requests as a Client has questions.
	maxSockets = 32

	growAfter = 50 * time.Millisecond // that a request is expected to wait for a stream, before another connection is opened
	growPause = 5 * time.Second       // after another connection could not be opened or was ended unused
	lookEvery = 50 * time.Millisecond // while requests wait
)

// An httpLane is the connections for one kind of requests. Requests use the first connection with a free stream, so
// that connections that a burst has opened become idle and are closed. If no stream is free and the wait would be long,
// one further connection is opened at a time. The most recent request gets the first free stream, because an old
// request may end before its answer.
type httpLane struct {
	open func(sockets int) *httpConn
	done <-chan struct{} // closed when the transport is

	mu       sync.Mutex    // guards the fields below; a connection's lock is taken after it, never before
	conns    []*httpConn   // that take requests, in the order they were opened
	waiting  []*httpWaiter // the one that has waited longest is first
	limit    int           // sockets of a new connection: more than one if the server speaks HTTP/1.1
	inUse    int           // streams
	took     time.Duration // by answers, smoothed; 0: not known
	progress time.Time     // when the last answer came, or the first request began
	growAt   time.Time     // no further connection is opened before
	looking  bool          // a timer runs that looks after those who wait
}

// An httpWaiter is a request that waits for a stream.
type httpWaiter struct {
	end  time.Time      // of its time; zero: it has no end
	conn chan *httpConn // capacity 1: the connection that it got, or nil if there is none in time
}

// acquireConn returns a connection with a stream for one request. It waits for a stream until ctx ends, and returns localerror.ErrBusy if none is free in
// time. The request must call release and leave. While it waits, w.carried is the time of the last
// answer over the first connection.
func (l *httpLane) acquireConn(ctx context.Context, w *QueryPath) (*httpConn, error) {
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
	if l.isHopeless(me, now, l.expectedWait(now)) {
		l.mu.Unlock()
		return nil, localerror.ErrBusy
	}
	w.lastAnswer.Store(&l.conns[0].carried)
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

// takeConn returns a connection with a free stream, or nil. The caller holds mu.
func (l *httpLane) takeConn(now time.Time) *httpConn {
	for i := 0; i < len(l.conns); {
		h := l.conns[i]
		if h.isRetired() || i > 0 && h.isClosed() {
			l.conns = slices.Delete(l.conns, i, i+1)
			continue
		}
		room := h.capacity
		if i > 0 && !h.ready.Load() {
			room = 1
		}
		if h.taken < room && l.reserveStream(h, now) {
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

// reserveStream takes a stream of h for a request. It reports false if h takes no further requests. The caller holds mu.
func (l *httpLane) reserveStream(h *httpConn, now time.Time) bool {
	if !h.addRequest() {
		return false
	}
	if l.inUse == 0 {
		l.progress = now
	}
	h.taken++
	l.inUse++
	return true
}

// addConn appends a connection to conns. Its first request dials. The caller holds mu.
func (l *httpLane) addConn() *httpConn {
	h := l.open(max(l.limit, 1))
	h.lane, h.added = l, time.Now()
	l.conns = append(l.conns, h)
	return h
}

// openAnother opens another connection for a request if that is to wait for long, and no other is being opened; otherwise it returns nil. The caller
// holds mu.
func (l *httpLane) openAnother(now time.Time) *httpConn {
	if l.isFull(now) || l.expectedWait(now) < growAfter {
		return nil
	}
	if slices.ContainsFunc(l.conns, func(h *httpConn) bool { return !h.ready.Load() }) {
		return nil
	}
	h := l.addConn()
	l.reserveStream(h, now)
	return h
}

// isFull reports whether no other connection may be opened. The caller holds mu.
func (l *httpLane) isFull(now time.Time) bool {
	return now.Before(l.growAt) || (len(l.conns)+1)*max(l.limit, 1) > maxSockets
}

// expectedWait returns how long one more request would wait for a stream. The caller holds mu.
func (l *httpLane) expectedWait(now time.Time) time.Duration {
	streams := 0
	for _, h := range l.conns {
		streams += h.capacity
	}
	return max(l.took, now.Sub(l.progress)) * time.Duration(len(l.waiting)+1) / time.Duration(max(streams, 1))
}

// isHopeless reports whether a request that waits so long would have no answer in time. The caller holds mu.
func (l *httpLane) isHopeless(w *httpWaiter, now time.Time, wait time.Duration) bool {
	if !l.isFull(now) {
		wait = 0
	}
	return !w.end.IsZero() && w.end.Sub(now) < wait+l.took/2
}

// serveRequests gives free streams to waiting requests, the newest first. The caller holds mu.
func (l *httpLane) serveRequests(now time.Time) {
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
	if len(l.waiting) > 0 && !l.looking {
		l.looking = true
		time.AfterFunc(lookEvery, l.checkWaiting)
	}
}

// checkWaiting ends the wait of requests whose time is nearly over. It opens another connection if the wait is too
// long.
func (l *httpLane) checkWaiting() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.looking = false
	l.waiting = slices.DeleteFunc(l.waiting, func(w *httpWaiter) bool {
		if !l.isHopeless(w, now, 0) {
			return false
		}
		w.conn <- nil
		return true
	})
	l.serveRequests(now)
}

// serveWaiting gives free streams to waiting requests. It is called when a connection has been opened, has ended or has more streams.
func (l *httpLane) serveWaiting() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.serveRequests(time.Now())
}

// releaseStream gives back the stream of a request.
func (l *httpLane) releaseStream(h *httpConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h.taken--
	l.inUse--
	l.serveRequests(time.Now())
}

// recordAnswerTime updates took and progress with the duration of an answer.
func (l *httpLane) recordAnswerTime(took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.progress = time.Now()
	if l.took == 0 {
		l.took = took
	}
	l.took += (took - l.took) / 8
}

// recordFailure is called when a request over h has failed or was canceled. It reports whether h was opened besides others and has answered nothing: the
// server may not want it, and the request may be made over another one. A canceled request counts only after half of the owner's patience: a hedge
// may have been answered before the handshake ended.
func (l *httpLane) recordFailure(h *httpConn, canceled bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if slices.Index(l.conns, h) <= 0 || h.used.Load() || canceled && now.Sub(h.added) < h.stall()/2 {
		return false
	}
	l.growAt = now.Add(growPause)
	h.stopRequests()
	return true
}

// lowerCapacity lowers the capacity of h by one stream, after the server has refused one. It reports false, and lowers nothing, if the capacity
// is one stream. widen sets the capacity of a new connection again.
func (l *httpLane) lowerCapacity(h *httpConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.capacity == 1 {
		return false
	}
	h.capacity--
	return true
}

// resetCapacity sets the capacity of h after a new connection has been opened for it: to the number of streams that its server allows, or to that
// of the lane's first connection if that is less.
func (l *httpLane) resetCapacity(h *httpConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h.capacity = h.initialCapacity()
	if len(l.conns) > 0 && l.conns[0] != h {
		h.capacity = min(h.capacity, l.conns[0].capacity)
	}
}

// allowMoreConns is called when the server speaks HTTP/1.1: new connections are several.
func (l *httpLane) allowMoreConns() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limit = serialConns
}

// oldestConn returns the oldest connection, or nil if there is none.
func (l *httpLane) oldestConn() *httpConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.conns) == 0 {
		return nil
	}
	return l.conns[0]
}

// enterFirst returns the connection that is asked first for a probe, which takes no stream of others, and must call leave.
func (l *httpLane) enterFirst() *httpConn {
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

// closeConns closes the connections. No request must be in flight.
func (l *httpLane) closeConns() {
	l.mu.Lock()
	conns := slices.Clone(l.conns)
	l.mu.Unlock()
	for _, h := range conns {
		h.closeConns()
	}
}
