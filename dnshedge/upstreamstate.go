package dnshedge

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/rtt"
	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/budget"
	"github.com/gohedge/hedge/internal/engine"
	"github.com/gohedge/hedge/sketch"
)

const (
	pathFactor       = 4   // answers within so many times the fastest measure the path
	minPathSamples   = 8   // before the path is known
	answersPerUpdate = 16  // after so many answers the delays are computed anew
	lossWindow       = 256 // queries over which losses are counted, and as many before

	missesToSilence = 3 // queries in a row without an answer
	failuresToDoubt = 3 // responses in a row that are failures
	minProbeGap     = 500 * time.Millisecond
	maxProbeGap     = 10 * time.Second
	probeTimeout    = 2 * time.Second

	maxAbandoned = 256             // abandoned queries that may run on, per server
	maxLinger    = 2 * time.Second // how long they may
	minStall     = time.Second
	measuredFor  = 5 * time.Minute // after which a server's round trip time is measured anew
	toMeasure    = 8               // queries to a group, after which it is worth while to know all its servers
)

// upstreamState is an upstream and what is known of it. It is safe for concurrent use.
type upstreamState struct {
	c          *core
	up         Upstream
	name       string
	transports []transport.Transport // one, or one for each of Addrs
	preferred  atomic.Int32          // of transports, which first queries go over
	key        *engine.Key
	bucket     *budget.Bucket // of hedges
	resends    resendBucket   // of resends that cost no budget
	rto        rto
	stream     bool          // TCP carries queries again that are lost
	floor      time.Duration // of the loss delay

	used      atomic.Int64 // when last asked, Unix ns
	loss      atomic.Int64 // the loss delay; 0: not known
	slow      atomic.Int64 // the slow delay; 0: not known
	silent    atomic.Bool  // missesToSilence was reached, and no answer came since
	failures  atomic.Int64 // responses in a row that were failures
	good      atomic.Bool  // there was one that was none
	down      atomic.Bool  // it was in doubt, and failed a probe as well
	abandoned atomic.Int64 // abandoned queries that still run

	callers int       // who ask it by its address; guarded by core.mu
	alone   bool      // it was asked by its address only; guarded by core.mu
	wanted  time.Time // when a question last came that may be put to it, if not alone; guarded by core.mu

	queries    atomic.Int64 // sent to it
	hedges     atomic.Int64 // sent to it
	hedgeWins  atomic.Int64
	lateHedges atomic.Int64 // sent to any server because this one was late

	mu          sync.Mutex    // guards the fields below; core.mu is locked before it, never after
	answers     sketch.Window // how long answers took
	path        sketch.Window // how long answers took that the server did not have to look for
	newAnswers  int           // answers since the delays were computed
	sent        float64       // queries, of late
	got         float64       // answers to them
	fastest     time.Duration
	p99         time.Duration // of path
	srtt        float64       // ns; 0: not known
	handshake   float64       // ns that a handshake takes, smoothed; 0: not known
	answeredAt  time.Time     // the last time
	misses      int           // queries without an answer since then
	probeGap    time.Duration // between probes
	probeAt     time.Time     // of the next probe
	probing     bool
	probeFailed bool          // and nothing was answered since
	notice      engine.Notice // what was logged of its state
}

var _ transport.Owner = (*upstreamState)(nil)

func newUpstreamState(c *core, up Upstream) (*upstreamState, error) {
	if err := up.validate(); err != nil {
		return nil, err
	}
	s := &upstreamState{c: c, up: up, name: up.key()}
	s.key = c.engine.Key(engine.Name{Host: s.name})
	s.bucket = budget.NewBucket(c.conf.Hedge.share(), budgetBurst)
	s.key.AlsoPaidBy(c.bucket, s.bucket)
	s.resends.tokens = budgetBurst
	s.floor = c.conf.Hedge.MinDelay
	if s.floor == 0 {
		s.floor = defaultMinDelay
		if up.loopback() {
			s.floor = loopbackMinDelay
		}
	}
	scheme, _ := up.scheme()
	s.stream = scheme.Name != defaultNet
	config := transport.Config{
		Owner: s, Dialer: c.dialer(up), Addr: up.Addr, Path: up.path(), Post: up.Post, TLS: c.tls(up),
		Size: cmp.Or(c.conf.UDPSize, wire.DefaultUDPSize),
	}
	if len(up.Addrs) == 0 {
		s.transports = append(s.transports, scheme.New(config))
	}
	for i := range up.Addrs {
		config.Addrs = up.Addrs[i : i+1]
		s.transports = append(s.transports, scheme.New(config))
	}
	return s, nil
}

// close ends all queries.
func (s *upstreamState) close() {
	for _, t := range s.transports {
		t.Close()
	}
}

// ready reports whether a first query needs no handshake.
func (s *upstreamState) ready() bool { return s.transports[s.preferred.Load()].Ready() }

// send asks the server, which was asked the same question n times before: each time
// another of its addresses, and if one cannot be reached, at once the next. The
// address that answers is preferred from then on.
func (s *upstreamState) send(ctx context.Context, q *wire.Query, n int) (*wire.Answer, time.Duration, error) {
	count, first := len(s.transports), int(s.preferred.Load())
	var failed error // of the first
	for i := range count {
		at := (first + n + i) % count
		a, setup, err := s.transports[at].Exchange(ctx, q, n/count)
		if err == nil {
			s.preferred.CompareAndSwap(int32(first), int32(at))
			return a, setup, nil
		}
		failed = cmp.Or(failed, err)
		if ctx.Err() != nil || errors.Is(err, transport.ErrClosed) || !q.Standard() {
			return nil, 0, err
		}
	}
	return nil, 0, failed
}

// exchange asks the server, which was asked the same question n times before.
func (s *upstreamState) exchange(ctx context.Context, q *wire.Query, n int) (*wire.Answer, time.Duration, error) {
	s.used.Store(time.Now().UnixNano())
	a, setup, err := s.send(ctx, q, n)
	if err != nil {
		var code transport.StatusError
		if errors.As(err, &code) {
			err = &StatusError{s.up, int(code)}
		}
		return nil, 0, err
	}
	return a, setup, nil
}

// lossDelay is how long to wait before a packet is considered lost.
func (s *upstreamState) lossDelay() time.Duration {
	if d := s.loss.Load(); d > 0 {
		return time.Duration(d)
	}
	return max(coldDelay, s.floor)
}

// slowDelay is how long to wait until the budget pays for hedging all answers that
// are still to come.
func (s *upstreamState) slowDelay() time.Duration {
	if d := s.slow.Load(); d > 0 {
		return time.Duration(d)
	}
	return coldDelay
}

// setupTime is how much longer an answer takes if a handshake comes first.
func (s *upstreamState) setupTime() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handshake > 0 {
		return time.Duration(1.5 * s.handshake)
	}
	return coldSetup
}

// Wrote counts a query.
func (s *upstreamState) Wrote() {
	s.queries.Add(1)
	s.c.count.wire.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent++; s.sent > 2*lossWindow {
		s.sent, s.got = s.sent/2, s.got/2
	}
}

// Handshake learns how long a handshake takes.
func (s *upstreamState) Handshake(took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handshake = rtt.Smooth(s.handshake, took)
}

// Answered learns from a response.
func (s *upstreamState) Answered(took, path time.Duration) {
	s.endSilence()
	s.rto.learn(took)
	s.resends.Earn()
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers.Add(now, took)
	s.got++
	if s.fastest == 0 || took < s.fastest {
		s.fastest = took
	}
	base := s.fastest
	if path > 0 {
		base = path
	}
	switch {
	case took <= max(pathFactor*base, 2*time.Millisecond):
		s.addPath(now, took)
	case path > 0:
		s.addPath(now, path)
	}
	if s.newAnswers++; s.newAnswers >= answersPerUpdate || s.loss.Load() == 0 || s.slow.Load() == 0 {
		s.newAnswers = 0
		s.updateDelays()
	}
}

// addPath adds a measurement of the path. The caller holds mu.
func (s *upstreamState) addPath(now time.Time, d time.Duration) {
	s.path.Add(now, d)
	s.srtt = rtt.Smooth(s.srtt, d)
}

// updateDelays computes the delays anew. The caller holds mu.
func (s *upstreamState) updateDelays() {
	s.fastest, _ = s.answers.Quantile(0)
	if s.answers.Len() >= engine.MinSamples {
		s.slow.Store(int64(s.affordableDelay()))
	}
	if s.path.Len() < minPathSamples {
		return
	}
	s.p99, _ = s.path.Quantile(0.99)
	p95, _ := s.path.Quantile(0.95)
	median, _ := s.path.Quantile(0.5)
	// A p99 far above the p95 is no jitter of the path but the latency that hedges are
	// there to avoid. With few samples both are uncertain, and the median has a say.
	d := max(min(s.p99, p95+p95/4), median+median/4) + 4*deviation(&s.path, median)
	s.loss.Store(int64(min(max(d, s.floor), max(maxLoss, s.floor))))
}

// affordableDelay returns the slow delay. Lost queries must be hedged however long
// the delay is; the rest of the budget pays for hedging the answers that take longer
// than the delay. The caller holds mu.
func (s *upstreamState) affordableDelay() time.Duration {
	h := &s.c.conf.Hedge
	budget := planMargin * h.share() * s.key.View().Scale
	lost := s.lost()
	room := max(budget-lost, budget/4)
	d, _ := s.answers.Quantile(max(1-room, cmp.Or(h.Percentile, defaultPercentile)))
	d += d / 100 // the upper edge of a bucket, so that answers in it are not hedged
	return min(d, cmp.Or(h.MaxDelay, defaultMaxDelay))
}

// lost returns the share of the queries of late without an answer. The caller holds mu.
func (s *upstreamState) lost() float64 { return max(1-s.got/max(s.sent, 1), 0) }

// deviation returns the median absolute deviation of the window's samples.
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

// Ignored counts a message.
func (s *upstreamState) Ignored(error) { s.c.count.ignored.Add(1) }

// Retried counts a query.
func (s *upstreamState) Retried() { s.c.count.retries.Add(1) }

// Abandon counts an abandoned query, or reports false if there are too many.
func (s *upstreamState) Abandon() bool {
	if s.abandoned.Add(1) > maxAbandoned {
		s.abandoned.Add(-1)
		return false
	}
	s.c.count.abandoned.Add(1)
	return true
}

// AbandonEnded ends the counting of an abandoned query.
func (s *upstreamState) AbandonEnded() { s.abandoned.Add(-1) }

// Linger is how long abandoned queries run on.
func (s *upstreamState) Linger() time.Duration { return min(maxLinger, s.c.timeout()) }

// Stall is how long a connection may be silent while queries wait.
func (s *upstreamState) Stall() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(3*s.p99, minStall)
}

// endSilence is called when the server has answered.
func (s *upstreamState) endSilence() {
	now := time.Now()
	defer s.logState(now)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.misses, s.answeredAt, s.probeFailed = 0, now, false
	s.silent.Store(false)
	if s.failures.Load() < failuresToDoubt {
		s.down.Store(false)
	}
}

// responded is called for each response to a question, which is a failure or not.
func (s *upstreamState) responded(failure bool) {
	s.endSilence()
	if !failure {
		s.failures.Store(0)
		s.good.Store(true)
		s.down.Store(false)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.probeGap = 0
		return
	}
	if s.failures.Add(1) == failuresToDoubt {
		defer s.logState(time.Now())
		s.mu.Lock()
		defer s.mu.Unlock()
		s.probeAt = time.Now().Add(s.probeGap)
	}
}

// doubtful reports whether the server is silent, or fails all that it is asked. It
// may be slow names or names that nobody can resolve; a probe finds out.
func (s *upstreamState) doubtful() bool {
	return s.silent.Load() || s.failures.Load() >= failuresToDoubt
}

// answeredSince reports whether the server has answered any query after t.
func (s *upstreamState) answeredSince(t time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answeredAt.After(t)
}

// missed counts a query without an answer. If the server has answered another query
// since this one was sent, only a packet was lost, and it does nothing.
func (s *upstreamState) missed(sent time.Time) {
	now := time.Now()
	defer s.logState(now)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answeredAt.After(sent) {
		return
	}
	if s.misses++; s.misses >= missesToSilence && !s.silent.Load() {
		s.silent.Store(true)
		s.down.Store(s.probeFailed)
		s.probeAt = now.Add(s.probeGap)
	}
}

// probeIfDue probes a doubtful server, if it is time to. Probes find out whether a
// server is down, and whether one is back that callers' queries do not reach because
// another server answers them.
func (s *upstreamState) probeIfDue(now time.Time) {
	if s.doubtful() {
		s.startProbe(now)
	}
}

// startProbe probes the server in the background, unless it was probed a moment ago.
func (s *upstreamState) startProbe(now time.Time) {
	s.mu.Lock()
	due := !s.probing && !now.Before(s.probeAt)
	s.probing = s.probing || due
	s.mu.Unlock()
	// The Client's lock comes before the server's, and so spawn is called without it.
	if due && !s.c.spawn(func(ctx context.Context) {
		failed, err := s.probe(ctx)
		s.probed(failed || err != nil)
	}) {
		s.probed(true)
	}
}

// probed ends a probe.
func (s *upstreamState) probed(failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.probing = false
	if failed || s.failures.Load() >= failuresToDoubt {
		s.probeGap = min(max(2*s.probeGap, minProbeGap), maxProbeGap)
	} else {
		s.probeGap = minProbeGap
	}
	s.probeAt = time.Now().Add(s.probeGap)
	s.probeFailed = failed
	if !failed {
		s.failures.Store(0)
	}
	s.down.Store(s.probeFailed && s.doubtful())
}

// probe asks for the root's servers, which every resolver has at hand, twice if the
// first query is not answered, and reports whether the answer is a failure.
func (s *upstreamState) probe(ctx context.Context) (failed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, max(probeTimeout, s.rto.timeout(0, true)))
	defer cancel()
	for n := range 2 {
		share, done := part(ctx, 2-n)
		var a *wire.Answer
		a, _, err = s.exchange(share, wire.RootServers, n)
		done()
		if err == nil {
			s.endSilence()
			return a.Outcome == wire.Failure, nil
		}
	}
	return true, err
}

const lastRank = math.MaxInt32

// rank orders servers by the logarithm of the smoothed round trip time, so that
// small differences do not matter. Servers without one come after them, and doubtful
// servers last.
func (s *upstreamState) rank() int {
	if s.doubtful() {
		return lastRank
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.srtt == 0 {
		return lastRank - 1
	}
	return int(math.Log(max(s.srtt, 1e5)) / math.Log(1.3))
}

// measure probes the servers of a group that were not heard of for long, or never: one
// may be faster than those that are asked, and no caller shall wait to find that out.
func measure(group []*upstreamState, now time.Time) {
	if len(group) < 2 {
		return
	}
	var queries int64
	for _, s := range group {
		queries += s.queries.Load()
	}
	for _, s := range group {
		if queries >= toMeasure && !s.answeredSince(now.Add(-measuredFor)) {
			s.startProbe(now)
		}
	}
}

// fail returns the error of a question that the server did not answer.
func (s *upstreamState) fail(q *wire.Query, err error) error {
	return &Error{Name: q.Text(), Type: q.Type, Upstream: s.up, Err: err}
}
