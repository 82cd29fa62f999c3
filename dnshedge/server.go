package dnshedge

import (
	"cmp"
	"context"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/internal/engine"
	"github.com/gohedge/hedge/sketch"
)

const (
	fastMode   = 4   // answers within so many times the quickest are the path's
	minPath    = 8   // samples before the path is known
	everyPlan  = 16  // answers after which the delays are computed anew
	lossSpan   = 256 // queries over which losses are counted, and as many before
	strikeOut  = 3   // queries in a row without an answer, from which on a server is silent
	firstProbe = 500 * time.Millisecond
	lastProbe  = 10 * time.Second
	probeTime  = 2 * time.Second
	maxLinger  = 2 * time.Second
	maxStray   = 256             // abandoned queries per server
	srttFade   = 5 * time.Minute // a silent server's round trip time halves in
	minStall   = time.Second
)

// server is an upstream and what is known of it. It is safe for concurrent use.
type server struct {
	c         *core
	up        Upstream
	name      string
	transport transport
	tcp       *stream // of an UDP upstream
	key       *engine.Key
	bucket    *engine.Bucket
	floor     time.Duration // of the loss delay

	used   atomic.Int64 // when last asked, Unix ns
	noEDNS atomic.Bool
	loss   atomic.Int64 // the loss delay; 0: not known
	slow   atomic.Int64 // the slow delay; 0: not known
	quiet  atomic.Bool  // strikeOut was reached
	stray  atomic.Int64 // abandoned queries that still run

	wire, hedges, wins atomic.Int64 // sent to it
	fired              atomic.Int64 // hedges because it was late

	mu       sync.Mutex    // guards the fields below
	answers  sketch.Window // how long answers took
	path     sketch.Window // how long those took that the server had at hand
	since    int           // answers since the delays were computed
	sent     float64       // queries, of late
	got      float64       // answers to them
	quickest time.Duration
	p99      time.Duration // of path
	srtt     float64       // ns; 0: not known
	srttAt   time.Time
	shake    float64 // ns that a handshake takes, smoothed; 0: not known
	spokeAt  time.Time
	strikes  int
	probeGap time.Duration
	probeAt  time.Time
	probing  bool
}

var _ observer = (*server)(nil)

func newServer(c *core, up Upstream) (*server, error) {
	if err := up.validate(); err != nil {
		return nil, err
	}
	s := &server{c: c, up: up, name: up.String()}
	s.key = c.engine.Key(engine.Name{Host: s.name})
	s.bucket = engine.NewBucket(c.conf.Hedge.share(), budgetBurst)
	s.floor = c.conf.Hedge.MinDelay
	if s.floor == 0 {
		s.floor = defaultMinDelay
		if up.loopback() {
			s.floor = loopbackMinDelay
		}
	}
	o := opener{c.dialer(), up}
	size := cmp.Or(c.conf.UDPSize, defaultUDPSize)
	switch up.network() {
	case "tcp":
		s.transport = newStream(o, s, nil, size, s.noEDNS.Load)
	case "tls":
		s.transport = newStream(o, s, c.tls(up, "dot"), size, s.noEDNS.Load)
	case "https":
		s.transport = newDoH(o, s, c.tls(up, "h2", "http/1.1"), size, s.noEDNS.Load)
	default:
		s.tcp = newStream(o, s, nil, size, s.noEDNS.Load)
		s.transport = &udp{o, s, size, s.noEDNS.Load, s.tcp}
	}
	return s, nil
}

// exchange asks the server. It was asked the same question use times before.
func (s *server) exchange(ctx context.Context, q *query, use int) (reply, error) {
	s.used.Store(time.Now().UnixNano())
	t := s.transport
	if s.tcp != nil && use >= maxDatagrams {
		t = s.tcp
	}
	plain := s.noEDNS.Load()
	r, err := t.exchange(ctx, q, min(use, 1))
	if err == nil && r.msg.Rcode == dns.RcodeFormatError && q.raw == nil && !plain {
		// RFC 6891 §7: a server that does not know EDNS.
		s.noEDNS.Store(true)
		again, err := t.exchange(ctx, q, min(use, 1))
		if err == nil && again.msg.Rcode != dns.RcodeFormatError {
			again.setup += r.setup
			return again, nil
		}
		s.noEDNS.Store(false)
		return r, nil
	}
	if err == nil && r.hasKeepalive {
		t.keepalive(r.keepalive)
	}
	return r, err
}

// lossDelay is how long to wait before a packet is taken for lost.
func (s *server) lossDelay() time.Duration {
	if d := s.loss.Load(); d > 0 {
		return time.Duration(d)
	}
	return max(coldDelay, s.floor)
}

// slowDelay is how long to wait until hedging all answers that are still to come
// fits the budget.
func (s *server) slowDelay() time.Duration {
	if d := s.slow.Load(); d > 0 {
		return time.Duration(d)
	}
	return coldDelay
}

// setupTime is how much longer an answer takes if there is a handshake to do.
func (s *server) setupTime() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shake > 0 {
		return time.Duration(1.5 * s.shake)
	}
	return coldSetup
}

func (s *server) wrote() {
	s.wire.Add(1)
	s.c.count.wire.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent++; s.sent > 2*lossSpan {
		s.sent, s.got = s.sent/2, s.got/2
	}
}

func (s *server) shook(took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shake = smooth(s.shake, took)
}

func smooth(avg float64, d time.Duration) float64 {
	if avg == 0 {
		return float64(d)
	}
	return avg + (float64(d)-avg)/8
}

// answered learns from a response.
func (s *server) answered(took, path time.Duration) {
	s.spoke()
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers.Add(now, took)
	s.got++
	if s.quickest == 0 || took < s.quickest {
		s.quickest = took
	}
	base := s.quickest
	if path > 0 {
		base = path
	}
	switch {
	case took <= max(fastMode*base, 2*time.Millisecond):
		s.learn(now, took)
	case path > 0:
		s.learn(now, path)
	}
	if s.since++; s.since >= everyPlan || s.loss.Load() == 0 || s.slow.Load() == 0 {
		s.since = 0
		s.relearn()
	}
}

// learn adds what the path took. The caller holds mu.
func (s *server) learn(now time.Time, d time.Duration) {
	s.path.Add(now, d)
	s.srtt, s.srttAt = smooth(s.srtt, d), now
}

// relearn computes the delays anew. The caller holds mu.
func (s *server) relearn() {
	s.quickest, _ = s.answers.Quantile(0)
	if s.answers.Len() >= engine.MinSamples {
		s.slow.Store(int64(s.affordable()))
	}
	if s.path.Len() < minPath {
		return
	}
	s.p99, _ = s.path.Quantile(0.99)
	p95, _ := s.path.Quantile(0.95)
	median, _ := s.path.Quantile(0.5)
	// A hundredth that is far beyond the twentieth is not the path's jitter but
	// what hedges are for; and few samples say little about either.
	d := max(min(s.p99, p95+p95/4), median+median/4) + 4*deviation(&s.path, median)
	s.loss.Store(int64(min(max(d, s.floor), max(maxLoss, s.floor))))
}

// affordable returns the slow delay: what remains of the budget after what must
// be spent on lost queries, however long one waits, pays for all answers that
// take longer. The caller holds mu.
func (s *server) affordable() time.Duration {
	h := &s.c.conf.Hedge
	budget := planned * h.share() * s.key.View().Scale
	lost := max(1-s.got/max(s.sent, 1), 0)
	room := max(budget-lost, budget/4)
	d, _ := s.answers.Quantile(max(1-room, cmp.Or(h.Percentile, defaultPercentile)))
	d += d / 100 // the upper edge of a bucket, so that answers in it are not hedged
	return min(d, cmp.Or(h.MaxDelay, defaultMaxDelay))
}

// deviation returns the median absolute deviation.
func deviation(w *sketch.Window, median time.Duration) time.Duration {
	type part struct {
		off   time.Duration
		share float64
	}
	var parts []part
	var above float64
	var last *part
	for edge, over := range w.Tail() {
		// A bucket's share is known when the next, faster one is.
		if last != nil {
			last.share = over - above
		}
		above = over
		parts = append(parts, part{off: (edge - median).Abs()})
		last = &parts[len(parts)-1]
	}
	if last != nil {
		last.share = 1 - above
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.off, b.off) })
	var sum float64
	for _, p := range parts {
		if sum += p.share; sum >= 0.5 {
			return p.off
		}
	}
	return 0
}

func (s *server) ignored(error) { s.c.count.ignored.Add(1) }
func (s *server) retried()      { s.c.count.retries.Add(1) }

func (s *server) abandon() bool {
	if s.stray.Add(1) > maxStray {
		s.stray.Add(-1)
		return false
	}
	s.c.count.abandoned.Add(1)
	return true
}

func (s *server) abandoned() { s.stray.Add(-1) }

func (s *server) linger() time.Duration { return min(maxLinger, s.c.timeout()) }

func (s *server) stall() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(3*s.p99, minStall)
}

// silent reports whether the server has stopped to answer.
func (s *server) silent() bool { return s.quiet.Load() }

// spoke ends a silence.
func (s *server) spoke() {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.strikes, s.probeGap, s.spokeAt = 0, 0, now
	s.quiet.Store(false)
}

// missed counts a query without an answer, unless the server answered another
// since it was sent: then a packet was lost, and not the server.
func (s *server) missed(sent time.Time) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spokeAt.After(sent) {
		return
	}
	if s.strikes++; s.strikes >= strikeOut && !s.quiet.Load() {
		s.quiet.Store(true)
		s.probeGap, s.probeAt = firstProbe, now.Add(firstProbe)
	}
}

// probe asks a silent server for the root's servers if it is time to, in a
// goroutine of its own. A server that answers is silent no more. Probes are for
// servers that no caller's query reaches, because another answers.
func (s *server) probe(now time.Time) {
	if !s.silent() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.probing || now.Before(s.probeAt) {
		return
	}
	s.probing = s.c.spawn(func(ctx context.Context) {
		err := s.hello(ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.probing = false
		if err != nil {
			s.probeGap = min(2*max(s.probeGap, firstProbe), lastProbe)
			s.probeAt = time.Now().Add(s.probeGap)
		}
	})
}

var rootQuery = &query{name: "\x00", typ: dns.TypeNS, class: dns.ClassINET, rd: true, size: dns.MinMsgSize}

// hello asks for the root's servers, which every resolver has at hand.
func (s *server) hello(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	_, err := s.exchange(ctx, rootQuery, 0)
	if err == nil {
		s.spoke()
	}
	return err
}

const lastRank = math.MaxInt32

// rank orders servers: by logarithms of the smoothed round trip time, so that
// small differences do not matter; those not measured yet behind, silent ones last.
func (s *server) rank(now time.Time) int {
	if s.silent() {
		return lastRank
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.srtt == 0 {
		return lastRank - 1
	}
	faded := s.srtt * math.Exp2(-float64(now.Sub(s.srttAt))/float64(srttFade))
	return int(math.Log(max(faded, 1e5)) / math.Log(1.3))
}

// fail wraps an error with the server's name.
func (s *server) fail(q *query, err error) error {
	name, _, _ := dns.UnpackDomainName([]byte(q.name), 0) // was packed or parsed before
	return &Error{Name: name, Type: q.typ, Upstream: s.up, Err: err}
}

// Error is why a question has no answer.
type Error struct {
	Name     string
	Type     uint16
	Upstream Upstream // that was asked first; zero if none was
	Err      error
}

var _ net.Error = (*Error)(nil)

func (e *Error) Error() string {
	s := "dnshedge: " + e.Name + " " + dns.Type(e.Type).String() + ": "
	if e.Upstream.Addr != "" {
		s += "upstream " + e.Upstream.String() + ": "
	}
	return s + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether time ran out.
func (e *Error) Timeout() bool {
	t, ok := e.Err.(interface{ Timeout() bool })
	return ok && t.Timeout()
}

// Temporary reports whether asking again may help, which it always may.
func (e *Error) Temporary() bool { return true }
