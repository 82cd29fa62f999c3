package dnshedge

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	idleTime   = 10 * time.Second // of a connection without queries, unless the server says less
	dialTime   = 5 * time.Second  // for a connection and its handshake
	drainTime  = 5 * time.Second  // for what is still in flight on a retired connection
	maxPending = 1 << 15          // queries in flight on a connection; the IDs that are drawn at random stay easy to find
)

var (
	errBusy   = fmt.Errorf("dnshedge: %d queries in flight on one connection", maxPending)
	errFrame  = errors.New("dnshedge: frame shorter than a header")
	errIdle   = errors.New("dnshedge: connection was idle")
	errForged = errors.New("dnshedge: message that no query asked for")
)

// stream asks over TCP (RFC 7766) or TLS (RFC 7858): one connection per lane,
// which all queries share, with answers in any order. A lane's connection is
// opened when it is first needed and closed when it has been idle.
type stream struct {
	opener
	obs   observer
	tls   *tls.Config // nil: TCP
	bare  func() bool
	size  int
	idle  atomic.Int64 // time.Duration
	lanes [2]lane

	ctx    context.Context // of the connections that are being opened
	cancel context.CancelFunc
	wg     sync.WaitGroup // of them, and of all readers
}

var _ transport = (*stream)(nil)

type lane struct {
	mu      sync.Mutex // guards the fields below
	pipe    *pipe      // nil: none
	opening *opening   // nil: nobody dials
	closed  bool
}

// opening is a connection that is being opened, for all who wait for it.
type opening struct {
	done chan struct{}
	pipe *pipe
	err  error
}

func newStream(o opener, obs observer, config *tls.Config, size int, bare func() bool) *stream {
	s := &stream{opener: o, obs: obs, tls: config, size: size, bare: bare}
	s.idle.Store(int64(idleTime))
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

func (s *stream) keepalive(d time.Duration) { s.idle.Store(int64(min(d, idleTime))) }

func (s *stream) ready() bool {
	l := &s.lanes[0]
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pipe != nil
}

func (s *stream) close() {
	s.cancel()
	for i := range s.lanes {
		l := &s.lanes[i]
		l.mu.Lock()
		l.closed = true
		p := l.pipe
		l.mu.Unlock()
		if p != nil {
			p.fail(errClosed)
		}
	}
	s.wg.Wait()
}

// spawn calls f in a goroutine that close waits for, or reports false if the
// stream is closed.
func (s *stream) spawn(f func()) bool {
	l := &s.lanes[0]
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	s.wg.Go(f)
	return true
}

func (s *stream) exchange(ctx context.Context, q *query, n int) (reply, error) {
	var setup time.Duration
	for again := false; ; again = true {
		start := time.Now()
		p, reused, err := s.pipe(ctx, &s.lanes[n])
		if err != nil {
			return reply{}, err
		}
		if !reused {
			setup += time.Since(start)
		}
		wire, err := p.ask(ctx, q)
		// A server may close an idle connection at any time (RFC 7766 §6.2.3).
		var broken *connError
		if err != nil && reused && !again && errors.As(err, &broken) && ctx.Err() == nil {
			s.obs.retried()
			continue
		}
		if err != nil {
			return reply{}, err
		}
		ans, err := newAnswer(wire, q)
		if err != nil {
			s.obs.ignored(err)
		}
		return reply{answer: ans, setup: setup}, err
	}
}

// pipe returns the lane's connection, a new one if there is none.
func (s *stream) pipe(ctx context.Context, l *lane) (p *pipe, reused bool, err error) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, false, errClosed
	}
	if p := l.pipe; p != nil {
		l.mu.Unlock()
		return p, true, nil
	}
	o := l.opening
	if o == nil {
		o = &opening{done: make(chan struct{})}
		l.opening = o
		s.wg.Go(func() { s.connect(l, o) })
	}
	l.mu.Unlock()
	select {
	case <-o.done:
		return o.pipe, false, o.err
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
}

// connect opens a lane's connection. It does not end with those who wait: the
// next query has it then.
func (s *stream) connect(l *lane, o *opening) {
	defer close(o.done)
	ctx, cancel := context.WithTimeout(s.ctx, dialTime)
	defer cancel()
	start := time.Now()
	c, err := s.open(ctx, "tcp")
	if err == nil && s.tls != nil {
		t := tls.Client(c, s.tls)
		if err = t.HandshakeContext(ctx); err != nil {
			_ = c.Close()
		}
		c = t
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.opening = nil
	switch {
	case err != nil:
		o.err = err
		if s.ctx.Err() != nil {
			o.err = errClosed
		}
	case l.closed:
		_ = c.Close()
		o.err = errClosed
	default:
		s.obs.shook(time.Since(start))
		o.pipe = newPipe(s, l, c)
		l.pipe = o.pipe
		s.wg.Go(o.pipe.read)
	}
}

// pipe is one connection.
type pipe struct {
	s     *stream
	lane  *lane
	conn  net.Conn
	tcp   net.Conn      // below TLS
	write chan struct{} // capacity 1: held by who writes
	dead  chan struct{} // closed when the connection is

	mu      sync.Mutex // guards the fields below
	err     error      // why the connection is dead
	waiting map[uint16]*waiter
	live    int         // of waiting, those not abandoned
	silence *time.Timer // since queries wait and nothing comes
	rest    *time.Timer // since no query waits
	retired bool
}

// waiter is a query in flight. It stays after its caller has gone, so that its
// ID is not given to another (RFC 7766 §6.2.1).
type waiter struct {
	q      *query
	sent   time.Time
	answer chan []byte // capacity 1, so that the reader never waits
	gone   bool        // guarded by pipe.mu
	counts bool        // as abandoned
}

func newPipe(s *stream, l *lane, c net.Conn) *pipe {
	p := &pipe{s: s, lane: l, conn: c, tcp: c, write: make(chan struct{}, 1), dead: make(chan struct{}), waiting: make(map[uint16]*waiter)}
	if t, ok := c.(*tls.Conn); ok {
		p.tcp = t.NetConn()
	}
	p.rest = time.AfterFunc(time.Duration(s.idle.Load()), p.idle)
	return p
}

func (p *pipe) ask(ctx context.Context, q *query) ([]byte, error) {
	w := &waiter{q: q, answer: make(chan []byte, 1)}
	id, err := p.register(w)
	if err != nil {
		return nil, err
	}
	select {
	case p.write <- struct{}{}:
	case <-p.dead:
		return nil, p.reason()
	case <-ctx.Done():
		p.forget(id)
		return nil, context.Cause(ctx)
	}
	frame := make([]byte, 2, 512)
	frame = q.append(frame, id, shape{size: p.s.size, plain: p.s.bare(), keepalive: true, pad: p.s.tls != nil})
	binary.BigEndian.PutUint16(frame, uint16(len(frame)-2))
	// A connection whose peer does not read is as good as dead.
	_ = p.conn.SetWriteDeadline(time.Now().Add(p.s.obs.stall()))
	p.s.obs.wrote()
	_, err = p.conn.Write(frame)
	<-p.write
	if err != nil {
		p.fail(err)
		return nil, p.reason()
	}
	select {
	case b := <-w.answer:
		return b, nil
	case <-ctx.Done():
		p.abandon(w)
		return nil, context.Cause(ctx)
	case <-p.dead:
		select {
		case b := <-w.answer:
			return b, nil
		default:
			return nil, p.reason()
		}
	}
}

// register finds an ID for a query that is about to be written.
func (p *pipe) register(w *waiter) (uint16, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return 0, &connError{p.err}
	}
	if len(p.waiting) >= maxPending {
		return 0, errBusy
	}
	id := randomID()
	for p.waiting[id] != nil {
		id = randomID()
	}
	w.sent = time.Now()
	p.waiting[id] = w
	p.live++
	p.rest.Stop()
	if p.silence == nil {
		p.silence = time.AfterFunc(p.s.obs.stall(), p.retire)
	} else if p.live == 1 {
		p.silence.Reset(p.s.obs.stall())
	}
	return id, nil
}

// forget takes back an ID that was never written.
func (p *pipe) forget(id uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.waiting[id]; w != nil && p.err == nil {
		delete(p.waiting, id)
		p.leave()
	}
}

// leave counts a live waiter less. The caller holds mu.
func (p *pipe) leave() {
	if p.live--; p.live == 0 {
		p.silence.Stop()
		p.rest.Reset(time.Duration(p.s.idle.Load()))
	}
}

func (p *pipe) abandon(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil || w.gone || len(w.answer) > 0 {
		return
	}
	w.gone = true
	w.counts = p.s.obs.abandon()
	if w.counts {
		time.AfterFunc(p.s.obs.linger(), func() { p.settle(w) })
	}
	// The silence is not over because nobody waits for its end.
	if p.live--; p.live == 0 {
		p.rest.Reset(time.Duration(p.s.idle.Load()))
	}
}

// settle ends the counting of an abandoned query, whether or not its answer came.
func (p *pipe) settle(w *waiter) {
	p.mu.Lock()
	counts := w.counts
	w.counts = false
	p.mu.Unlock()
	if counts {
		p.s.obs.abandoned()
	}
}

// read takes what the server sends, until the connection ends.
func (p *pipe) read() {
	in := bufio.NewReaderSize(p.conn, 4096)
	for {
		var head [2]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			p.fail(err)
			return
		}
		n := int(binary.BigEndian.Uint16(head[:]))
		if n < headerLen {
			p.s.obs.ignored(errFrame)
			p.fail(errFrame)
			return
		}
		frame := make([]byte, n)
		if _, err := io.ReadFull(in, frame); err != nil {
			p.fail(err)
			return
		}
		if err := p.deliver(frame); err != nil {
			p.s.obs.ignored(err)
		}
	}
}

func (p *pipe) deliver(frame []byte) error {
	now := time.Now()
	id := binary.BigEndian.Uint16(frame)
	p.mu.Lock()
	w := p.waiting[id]
	if w == nil {
		p.mu.Unlock()
		return errForged
	}
	if err := w.q.check(frame, id); err != nil {
		p.mu.Unlock()
		return err
	}
	delete(p.waiting, id)
	w.answer <- frame
	if !w.gone {
		p.leave()
	}
	switch {
	case p.live > 0:
		p.silence.Reset(p.s.obs.stall())
	default:
		p.silence.Stop()
	}
	drained := p.retired && p.live == 0
	p.mu.Unlock()
	p.settle(w)
	p.s.obs.answered(now.Sub(w.sent), pathTime(p.tcp))
	if drained {
		p.fail(errIdle)
	}
	return nil
}

// idle closes a connection that nobody uses.
func (p *pipe) idle() {
	p.mu.Lock()
	busy := p.live > 0
	p.mu.Unlock()
	if !busy {
		p.fail(errIdle)
	}
}

// retire takes no more queries for a connection that has fallen silent. Those
// in flight have some time left.
func (p *pipe) retire() {
	p.mu.Lock()
	if p.err != nil || p.retired {
		p.mu.Unlock()
		return
	}
	p.retired = true
	drained := p.live == 0
	p.rest.Stop()
	p.mu.Unlock()
	p.detach()
	if drained {
		p.fail(errIdle)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.silence.Stop()
		p.silence = time.AfterFunc(drainTime, func() { p.fail(errIdle) })
	}
}

// detach lets the lane have another connection.
func (p *pipe) detach() {
	p.lane.mu.Lock()
	defer p.lane.mu.Unlock()
	if p.lane.pipe == p {
		p.lane.pipe = nil
	}
}

// fail closes the connection; those who wait are told why.
func (p *pipe) fail(err error) {
	p.detach()
	p.mu.Lock()
	if p.err != nil {
		p.mu.Unlock()
		return
	}
	p.err = err
	var gone []*waiter
	for _, w := range p.waiting {
		if w.counts {
			gone = append(gone, w)
		}
	}
	p.rest.Stop()
	if p.silence != nil {
		p.silence.Stop()
	}
	close(p.dead)
	p.mu.Unlock()
	_ = p.conn.Close()
	for _, w := range gone {
		p.settle(w)
	}
}

func (p *pipe) reason() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &connError{p.err}
}
