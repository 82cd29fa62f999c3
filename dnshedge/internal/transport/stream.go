package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

func init() {
	registerScheme(Scheme{Name: "tcp", RFC: 7766, Port: "53"}, func(c Config) sender {
		return newStream(c, nil)
	})
	registerScheme(Scheme{Name: "tls", RFC: 7858, Port: "853", TLS: true}, func(c Config) sender {
		return newStream(c, c.tlsConfig("dot"))
	})
}

const (
	idleTime = 10 * time.Second // of a connection without queries, unless the server says otherwise
	maxIdle  = 2 * time.Minute  // whatever the server says: routers forget connections
	dialTime = 5 * time.Second  // for a connection and its handshake

	maxRetries = 8                // of one query, because connections ended before its answer
	maxOpen    = 16               // connections of a lane, before a learned limit is ignored
	limitLife  = 10 * time.Minute // of a learned limit

	sharedLanes = probeLane + 1 // for first queries, for repetitions, and for probes
	ownLanes    = 8             // for queries that share no connection
)

// streamTransport asks over TCP (RFC 7766) or TLS (RFC 7858). It has three lanes: for first queries, for repeated
// queries, and for probes, see probePolicy. A lane has one connection, which its queries share, with answers in any
// order. The connection is opened on demand, and closed when it is idle.
//
// Some servers close the connection on a question that they reject. The rejected question is unknown, so all queries in
// flight are asked again one at a time, each in its own lane.
type streamTransport struct {
	Config
	security *tls.Config // nil: none
	lanes    [sharedLanes + ownLanes]streamLane
	own      chan *streamLane // those of lanes that are for one query at a time and have none
	probing  probePolicy

	ctx    context.Context // of the connections
	cancel context.CancelFunc
	wg     sync.WaitGroup // of the goroutines that open connections, read or await abandoned answers
}

var _ sender = (*streamTransport)(nil)

type streamLane struct {
	mu      sync.Mutex   // guards the fields below
	conn    *connection  // nil: none
	opening *openingConn // the last one that is being opened; nil: none is
	open    int          // connections, those included that the lane has let go of or opens
	closed  bool

	// Many servers close a connection after so many queries, whatever is in flight.
	// If that happens to two connections in a row, the next ones get no more queries
	// than the better of them had answered. Once may be a restart.
	cut      int       // answers of the last connection, if it ended with queries in flight; else 0
	limit    int       // queries of a connection; 0: not known
	limitEnd time.Time // when the limit is forgotten
}

// isFull reports whether a connection with that many queries should get no more of them.
func (l *streamLane) isFull(queries int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limit == 0 || queries < l.limit || l.open > maxOpen {
		return false
	}
	if time.Now().After(l.limitEnd) {
		l.limit = 0
	}
	return l.limit > 0
}

// recordEnd counts a connection that has ended, after so many answers. It was cut if
// queries were in flight.
func (l *streamLane) recordEnd(answers int, cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if !cut || answers == 0 {
		l.cut = 0
		return
	}
	if l.cut > 0 {
		l.limit, l.limitEnd = max(l.cut, answers), time.Now().Add(limitLife)
	}
	l.cut = answers
}

// openingConn is a connection that is being opened, for all queries that wait for it.
type openingConn struct {
	began   time.Time
	queries int // that wait for it; guarded by lane.mu
	done    chan struct{}
	conn    *connection
	err     error
}

func newStream(c Config, security *tls.Config) *streamTransport {
	s := &streamTransport{Config: c, security: security}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.own = make(chan *streamLane, ownLanes)
	for i := range ownLanes {
		s.own <- &s.lanes[sharedLanes+i]
	}
	return s
}

func (s *streamTransport) Ready() bool {
	l := &s.lanes[0]
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn != nil
}

func (s *streamTransport) Close() {
	s.cancel()
	for i := range s.lanes {
		l := &s.lanes[i]
		l.mu.Lock()
		l.closed = true
		c := l.conn
		l.mu.Unlock()
		if c != nil {
			c.failQueries(ErrClosed)
		}
	}
	s.wg.Wait()
}

// spawnGoroutine calls f in a goroutine that Close waits for, or reports false if the
// stream is closed.
func (s *streamTransport) spawnGoroutine(f func()) bool {
	l := &s.lanes[0]
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	s.wg.Go(f)
	return true
}

func (s *streamTransport) Exchange(ctx context.Context, q *wire.Query, n int, w *QueryPath) (*wire.Answer, time.Duration, error) {
	if q.IsAlone() {
		return s.exchangeAlone(ctx, q, w)
	}
	a, setup, err := s.exchangeInLane(ctx, q, &s.lanes[s.probing.laneFor(q, n)], w)
	if broken := (*connectionError)(nil); !errors.As(err, &broken) || !broken.others || ctx.Err() != nil {
		return a, setup, err
	}
	s.Owner.RecordRetry()
	return s.exchangeAlone(ctx, q, w)
}

// exchangeAlone is Exchange in a lane that q has for itself.
func (s *streamTransport) exchangeAlone(ctx context.Context, q *wire.Query, w *QueryPath) (*wire.Answer, time.Duration, error) {
	select {
	case l := <-s.own:
		defer func() { s.own <- l }()
		return s.exchangeInLane(ctx, q, l, w)
	case <-ctx.Done():
		return nil, 0, causeOf(ctx)
	}
}

// exchangeInLane is Exchange in a lane.
func (s *streamTransport) exchangeInLane(ctx context.Context, q *wire.Query, l *streamLane, w *QueryPath) (*wire.Answer, time.Duration, error) {
	var setup time.Duration
	for retries := 0; ; {
		a, over, err := s.sendQuery(ctx, q, l, w)
		setup += over.setup
		// A server may close an idle connection at any time (RFC 7766 §6.2.3), and also
		// one that it has answered as many queries over as it wants to. If a probe was under way, that may be
		// what has ended it, and not the query.
		var broken *connectionError
		if errors.As(err, &broken) && ctx.Err() == nil &&
			(over.reused && retries == 0 || (broken.answers > 0 || broken.probed && !isProbe(q)) && retries < maxRetries) {
			s.Owner.RecordRetry()
			retries++
			continue
		}
		return a, setup, err
	}
}

// SendOnce sends q over the connection of first queries, and over another one as long as it was not written.
func (s *streamTransport) SendOnce(ctx context.Context, q *wire.Query, w *QueryPath) (a *wire.Answer, setup time.Duration, written bool, err error) {
	for retries := 0; ; retries++ {
		a, over, err := s.sendQuery(ctx, q, &s.lanes[0], w)
		setup += over.setup
		var broken *connectionError
		if errors.As(err, &broken) && !broken.sent && ctx.Err() == nil && retries < maxRetries {
			continue
		}
		return a, setup, over.connected && (broken == nil || broken.sent), err
	}
}

// A sendState says how a query was sent over a stream.
type sendState struct {
	setup     time.Duration // of connections that were opened for it
	connected bool          // there was a connection
	reused    bool          // it was open before
}

// sendQuery writes q once, to the connection of a lane, and returns its answer.
func (s *streamTransport) sendQuery(ctx context.Context, q *wire.Query, l *streamLane, w *QueryPath) (a *wire.Answer, over sendState, err error) {
	for {
		start := time.Now()
		c, reused, err := s.laneConnection(ctx, l)
		over.connected, over.reused = err == nil, reused
		if err != nil {
			return nil, over, err
		}
		if !reused {
			over.setup += time.Since(start)
		}
		w.lastAnswer.Store(&c.carried)
		b, err := c.sendAndWait(ctx, q)
		if errors.Is(err, errRetired) {
			continue
		}
		if err != nil {
			return nil, over, err
		}
		a, err := wire.ParseAnswer(b, q)
		if err != nil {
			s.Owner.RecordIgnored(err)
			return nil, over, err
		}
		if a.HasKeepalive {
			c.applyKeepalive(a.Keepalive)
		}
		return a, over, nil
	}
}

// laneConnection returns the lane's connection, a new one if there is none. One that is being opened and silent for as long as others
// may be is not waited for.
func (s *streamTransport) laneConnection(ctx context.Context, l *streamLane) (c *connection, reused bool, err error) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, false, ErrClosed
	}
	if c := l.conn; c != nil {
		l.mu.Unlock()
		return c, true, nil
	}
	o := l.opening
	if o == nil || l.open < maxOpen && (l.limit > 0 && o.queries >= l.limit || time.Since(o.began) > s.Owner.StallTimeout()) {
		o = &openingConn{began: time.Now(), done: make(chan struct{})}
		l.opening = o
		l.open++
		s.wg.Go(func() { s.openConnection(l, o) })
	}
	o.queries++
	l.mu.Unlock()
	select {
	case <-o.done:
		return o.conn, false, o.err
	case <-ctx.Done():
		return nil, false, causeOf(ctx)
	}
}

// openConnection opens a lane's connection. It continues after all waiting callers have given up, because the next
// query needs the connection as well.
func (s *streamTransport) openConnection(l *streamLane, o *openingConn) {
	var c net.Conn
	err, start := errGoexit, time.Now()
	defer func() { s.finishOpening(l, o, c, err, time.Since(start)) }()
	ctx, cancel := context.WithTimeout(s.ctx, dialTime)
	defer cancel()
	c, err = s.dialServer(ctx, "tcp")
	if err == nil && s.security != nil {
		t := tls.Client(c, s.security)
		if err = t.HandshakeContext(ctx); err != nil {
			_ = c.Close()
			s.forgetAddress()
		}
		c = t
	}
}

// errGoexit is why there is no connection if the Dialer ends the goroutine.
var errGoexit = errors.New("dnshedge: Dialer ended its goroutine")

// finishOpening ends the opening of a connection, or of an error.
func (s *streamTransport) finishOpening(l *streamLane, o *openingConn, c net.Conn, err error, took time.Duration) {
	defer close(o.done)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.opening == o {
		l.opening = nil
	}
	if err != nil || l.closed {
		l.open--
	}
	switch {
	case err != nil:
		o.err = err
		if s.ctx.Err() != nil {
			o.err = ErrClosed
		}
	case l.closed:
		_ = c.Close()
		o.err = ErrClosed
	default:
		s.Owner.RecordHandshake(took)
		o.conn = newConnection(s, l, c)
		l.conn = o.conn
		s.wg.Go(o.conn.readMessages)
	}
}
