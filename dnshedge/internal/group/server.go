package group

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/ops"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/sanitize"
	"github.com/gohedge/hedge/observe"
)

const (
	maxAbandoned = 256             // abandoned queries that may run on, per server
	maxLinger    = 2 * time.Second // how long they may
	minStall     = time.Second
	probeTimeout = 2 * time.Second
)

// Target says where a server is, and how it is asked.
type Target struct {
	About     any // what the Client knows the server by
	Scheme    transport.Scheme
	Transport transport.Config // without Owner and Addrs
	Addrs     []netip.Addr     // which are asked in turn; none: Transport.Addr is
	Local     bool             // it is on this machine
}

// Server is a server and what is known of it. It is safe for concurrent use: what has no lock of its own never changes.
type Server struct {
	Name  string // by which the Pool knows it
	About any    // see Target

	pool       *Pool
	transports []transport.Transport // one, or one for each of Target.Addrs
	preferred  atomic.Int32          // of transports, which first queries go over

	purse purse
	rto   rto
	learner
	health
	share share
	zones zones

	used       atomic.Int64 // when last asked, Unix ns
	abandoned  atomic.Int64 // abandoned queries that still run
	queries    atomic.Int64 // sent to it
	hedges     atomic.Int64 // sent to it
	hedgeWins  atomic.Int64
	lateHedges atomic.Int64 // sent to any server because this one was late
}

var _ transport.Owner = (*Server)(nil)

func newServer(p *Pool, name string, t Target) *Server {
	h := &p.conf.Hedging
	s := &Server{Name: name, About: t.About, pool: p}
	s.used.Store(time.Now().UnixNano())
	s.hedging, s.key, s.floor = h, p.conf.Engine.Key(policy.Name{Host: name}), h.MinDelay
	s.purse.init(p.common, h.Share, s.key)
	if t.Local {
		s.floor = h.LocalMin
	}
	s.health.host, s.health.log = name, p.conf.Log
	config := t.Transport
	config.Owner = s
	if len(t.Addrs) == 0 {
		s.transports = append(s.transports, t.Scheme.New(config))
	}
	for i := range t.Addrs {
		config.Addrs = t.Addrs[i : i+1]
		s.transports = append(s.transports, t.Scheme.New(config))
	}
	return s
}

// Close ends all queries.
func (s *Server) Close() {
	for _, t := range s.transports {
		t.Close()
	}
}

// ready reports whether a first query needs no handshake.
func (s *Server) ready() bool { return s.transports[s.preferred.Load()].Ready() }

// ask asks the server, which was asked the same question n times before: each time
// another of its addresses, and if one cannot be reached, at once the next. The
// address that answers is preferred from then on. While it runs, w tells of the connection.
func (s *Server) ask(ctx context.Context, q *wire.Query, n int, w *transport.Way) (*wire.Answer, time.Duration, error) {
	s.used.Store(time.Now().UnixNano())
	count, first := len(s.transports), int(s.preferred.Load())
	var failed error // of the first
	for i := range count {
		at := (first + n + i) % count
		a, setup, err := s.transports[at].Exchange(ctx, q, n/count, w)
		if err == nil {
			s.preferred.CompareAndSwap(int32(first), int32(at))
			return a, setup, nil
		}
		failed = cmp.Or(failed, err)
		if ctx.Err() != nil || errors.Is(err, transport.ErrClosed) || !q.Standard() && !Unsent(err) {
			return nil, 0, err
		}
	}
	if again, _ := Unavailable(failed); again {
		s.health.refused()
	}
	return nil, 0, failed
}

// answeredTo is called for each response to a question of a caller, which is a failure or not.
func (s *Server) answeredTo(q *wire.Query, failure bool) {
	s.zones.answer(q)
	s.responded(q, failure)
}

// miss counts a question, sent then, that has no answer. If the server has answered anything since it is silent about the question's
// zone, that says no more about it.
func (s *Server) miss(q *wire.Query, sent time.Time) {
	if since := s.zones.miss(q, sent, time.Now()); since.IsZero() || !s.AnsweredSince(since) {
		s.missed(sent)
	}
}

// payResend pays for sending q again. If the server is silent about q's zone only, that leaves plenty to other zones.
func (s *Server) payResend(q *wire.Query, first bool) bool {
	silent := s.Silent()
	if !silent && s.zones.silent(q) {
		return s.purse.payPlenty()
	}
	return s.purse.payResend(first, silent)
}

// Wrote counts a query.
func (s *Server) Wrote() {
	s.queries.Add(1)
	s.pool.conf.Count.Wire.Add(1)
	s.wrote()
}

// Answered learns from a response.
func (s *Server) Answered(took, path time.Duration) {
	s.health.answered()
	s.rto.learn(took)
	s.purse.resends.earn()
	s.learner.answered(took, path)
}

// Ignored counts a message.
func (s *Server) Ignored(error) { s.pool.conf.Count.Ignored.Add(1) }

// Retried counts a query.
func (s *Server) Retried() { s.pool.conf.Count.Retries.Add(1) }

// Abandon counts an abandoned query, or reports false if there are too many.
func (s *Server) Abandon() bool {
	if s.abandoned.Add(1) > maxAbandoned {
		s.abandoned.Add(-1)
		return false
	}
	s.pool.conf.Count.Abandoned.Add(1)
	return true
}

// AbandonEnded ends the counting of an abandoned query.
func (s *Server) AbandonEnded() { s.abandoned.Add(-1) }

// Linger is how long abandoned queries run on.
func (s *Server) Linger() time.Duration { return min(maxLinger, s.pool.conf.Timeout) }

// Probe probes the server in the background, unless it was probed a moment ago. Probes find out whether a server is
// down, and whether one is back that callers' queries do not reach because another server answers them. The question q is
// one of a caller that this server may be asked; nil: the probe has only questions that every resolver or this server was asked before.
func (s *Server) Probe(now time.Time, q *wire.Query) {
	if s.beginProbe(now) && !s.pool.conf.Spawn(func(ctx context.Context) {
		failed, err := s.Reach(ctx, q)
		s.endProbe(failed || err != nil)
	}) {
		s.endProbe(true)
	}
}

// sendTrial asks the server a caller's question in the background, unless there was a trial a moment ago. The response counts like one to the
// caller. No probe can tell that a server works if it refuses the root and was asked only for broken names.
func (s *Server) sendTrial(now time.Time, q *wire.Query) {
	if q.Standard() && s.beginTrial(now) {
		s.pool.conf.Spawn(func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, max(probeTimeout, s.rto.timeout(0, true)))
			defer cancel()
			if a, _, err := s.ask(ctx, q, 0, new(transport.Way)); err == nil {
				s.answeredTo(q, a.Outcome == wire.Failure || a.Bogus())
			}
		})
	}
}

// Reach reports whether the server fails all questions of a probe: for the root's servers, which every resolver
// has at hand, a question that it has answered before, and a caller's question q. Not every server is a resolver for
// the root, and a name that it knew may be broken now. If q is nil, a question that it has failed before takes its place.
// If the first query is not answered, there is a second one.
func (s *Server) Reach(ctx context.Context, q *wire.Query) (failed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, max(probeTimeout, s.rto.timeout(0, true)))
	defer cancel()
	questions := s.probes(q)
	for n, one := range questions {
		if n > 0 && err == nil && one == questions[n-1] {
			continue // it was answered
		}
		share, done := Part(ctx, len(questions)-n)
		var a *wire.Answer
		a, _, err = s.ask(share, one, n, new(transport.Way))
		done()
		if err != nil {
			continue
		}
		s.health.answered()
		if failed = a.Outcome == wire.Failure || a.Bogus(); !failed {
			return false, nil
		}
	}
	if failed {
		return true, nil // a response rather than none
	}
	return true, err
}

// validates reports whether the server may be believed that a name is bogus. One that has answered nothing but with failures yet,
// or several names in a row, may have a wrong clock or an old trust anchor: it is asked for the root's servers.
func (s *Server) validates(ctx context.Context) bool {
	if s.Good() && !s.failing() {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, max(probeTimeout, s.rto.timeout(0, true)))
	defer cancel()
	a, _, err := s.ask(ctx, wire.RootServers, 0, new(transport.Way))
	if err != nil || a.Outcome == wire.Failure || a.Bogus() {
		return false
	}
	s.responded(wire.RootServers, false)
	return true
}

// Decides reports whether a failure that the server answers with is the decision of a healthy server, which no other kind of server must
// undo. A filter says REFUSED or SERVFAIL, and a validating server SERVFAIL, and not all of them say why. One that says why has been looked at.
func (s *Server) Decides(failure *wire.Answer) bool {
	if s.Down() || failure.Bogus() {
		return false
	}
	return failure.Rcode() == dns.RcodeServerFailure || s.Good()
}

// probes returns the questions of Reach. A server that has never answered anything but with failures is asked one of them.
func (s *Server) probes(q *wire.Query) []*wire.Query {
	n := s.probed.Add(1)
	if q == nil {
		q = s.failedQuestion(n / 2)
	} else if !q.Standard() {
		q = nil
	}
	if known := s.known.Load(); known != nil {
		return append([]*wire.Query{wire.RootServers, known}, cmp.Or(q, known))
	}
	if q == nil || n%2 == 1 {
		return []*wire.Query{wire.RootServers, wire.RootServers}
	}
	return []*wire.Query{q}
}

// Part returns a context that ends after the n-th part of the time that is left of ctx.
func Part(ctx context.Context, n int) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok || n <= 1 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Until(end)/time.Duration(n))
}

// Stats returns what is known of the server.
func (s *Server) Stats() observe.DNSUpstreamStats {
	known := s.key.Snapshot()
	v := observe.DNSUpstreamStats{
		Upstream: s.Name, Queries: s.queries.Load(), Hedges: s.hedges.Load(), HedgeWins: s.hedgeWins.Load(),
		Silent: s.Silent(), Failing: s.failing(), Down: s.Down(),
		LossDelay: s.lossDelay(), SlowDelay: s.slowDelay(),
		Budget: known.Tokens, Saved: known.Saved, ShadowWins: known.ShadowWins, Denied: known.Denied,
	}
	t := &s.learner
	t.mu.Lock()
	defer t.mu.Unlock()
	v.Loss = t.lost()
	v.SRTT, v.Handshake = time.Duration(t.srtt), time.Duration(t.handshake)
	v.P50, _ = t.answers.Quantile(0.50)
	v.P99, _ = t.answers.Quantile(0.99)
	return v
}

const (
	missesToSilence = 3 // queries in a row without an answer
	failuresToDoubt = 3 // different names in a row that a server fails
	minProbeGap     = 500 * time.Millisecond
	maxProbeGap     = 10 * time.Second
)

// health is whether a server answers, and answers with more than failures. It is safe for concurrent use.
type health struct {
	host string   // as the log has it; never changes
	log  *ops.Log // never changes

	silent   atomic.Bool                // missesToSilence was reached, and no answer came since; stored under mu
	failures atomic.Int64               // names in a row that it failed; stored under mu
	known    atomic.Pointer[wire.Query] // a question that it has answered with more than a failure; nil: there is none
	down     atomic.Bool                // it was in doubt, and failed a probe as well
	probed   atomic.Int64               // how often

	mu          sync.Mutex // guards the fields below
	answeredAt  time.Time  // the last time
	refusals    refusals
	misses      int                          // queries without an answer since then
	failed      [failuresToDoubt]*wire.Query // the questions about names in a row that it failed
	probeGap    time.Duration                // between probes
	probeAt     time.Time                    // of the next probe
	trialAt     time.Time                    // of the next trial
	probing     bool
	probeFailed bool          // and nothing was answered since
	notice      policy.Notice // what was logged
}

// doubtful reports whether the server is silent, or fails all that it is asked. It
// may be slow names or names that nobody can resolve; a probe finds out.
func (h *health) doubtful() bool { return h.Silent() || h.failing() }

func (h *health) failing() bool { return h.failures.Load() >= failuresToDoubt }

// Silent reports whether queries in a row had no answer, and none came since.
func (h *health) Silent() bool { return h.silent.Load() }

// Down reports whether the server was in doubt, and has failed a probe as well.
func (h *health) Down() bool { return h.down.Load() }

// Good reports whether the server has ever answered with more than a failure.
func (h *health) Good() bool { return h.known.Load() != nil }

// AnsweredSince reports whether the server has answered any query after t.
func (h *health) AnsweredSince(t time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.answeredAt.After(t)
}

// answered is called when the server has answered: it is not silent.
func (h *health) answered() {
	now := time.Now()
	defer h.tell(now)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.misses, h.answeredAt, h.probeFailed, h.refusals = 0, now, false, refusals{}
	h.silent.Store(false)
	if !h.failing() {
		h.down.Store(false)
	}
}

// forgetRefusals is how long it is known that a server refuses connections, if nobody asks it.
const forgetRefusals = time.Minute

// refusals are those of connections since the last answer.
type refusals struct{ first, last time.Time } // zero: there are none

// refused is called when the server has refused a connection.
func (h *health) refused() {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Sub(h.refusals.last) > forgetRefusals {
		h.refusals.first = now
	}
	h.refusals.last = now
}

// refusesSince returns when the server began to refuse connections; zero: it does not.
func (h *health) refusesSince() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.refusals.first
}

// responded is called for each response to a message of a caller, which is a failure or not. Failures of one name are one: it
// may be the name's own. A response to a message that is no question says nothing about names, and no probe may repeat the message.
func (h *health) responded(q *wire.Query, failure bool) {
	h.answered()
	if !q.Standard() {
		return
	}
	if !failure {
		if h.known.Load() == nil || h.failures.Load() > 0 || h.down.Load() {
			h.recovered(q)
		}
		return
	}
	h.mu.Lock()
	n := h.failures.Load()
	if n == failuresToDoubt || slices.ContainsFunc(h.failed[:n], func(f *wire.Query) bool { return strings.EqualFold(f.Name, q.Name) }) {
		h.mu.Unlock()
		return
	}
	h.failed[n] = q
	h.failures.Store(n + 1)
	if n+1 == failuresToDoubt {
		h.probeAt = time.Now().Add(h.probeGap)
	}
	h.mu.Unlock()
	h.tell(time.Now())
}

// failedQuestion returns one of the questions that the server has failed, by n; nil: it has answered since.
func (h *health) failedQuestion(n int64) *wire.Query {
	h.mu.Lock()
	defer h.mu.Unlock()
	if failures := h.failures.Load(); failures > 0 {
		return h.failed[n%failures]
	}
	return nil
}

// recovered is called when the server has answered q with more than a failure, for the first time or after failures.
func (h *health) recovered(q *wire.Query) {
	h.mu.Lock()
	h.known.Store(q)
	h.failures.Store(0)
	h.down.Store(false)
	h.probeGap = 0
	h.mu.Unlock()
	h.tell(time.Now())
}

// missed counts a query without an answer. If the server has answered another query
// since this one was sent, only a packet was lost, and it does nothing.
func (h *health) missed(sent time.Time) {
	now := time.Now()
	defer h.tell(now)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.answeredAt.After(sent) {
		return
	}
	if h.misses++; h.misses >= missesToSilence && !h.silent.Load() {
		h.silent.Store(true)
		h.down.Store(h.probeFailed)
		h.probeAt = now.Add(h.probeGap)
	}
}

// beginProbe reports whether the server is to be probed now. The caller then calls endProbe.
func (h *health) beginProbe(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	due := !h.probing && !now.Before(h.probeAt)
	h.probing = h.probing || due
	return due
}

// beginTrial reports whether a trial is due, and schedules the next one. Trials are as far apart as probes.
func (h *health) beginTrial(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Before(h.trialAt) {
		return false
	}
	h.trialAt = now.Add(max(h.probeGap, minProbeGap))
	return true
}

func (h *health) endProbe(failed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.probing = false
	if failed || h.failing() {
		h.probeGap = min(max(2*h.probeGap, minProbeGap), maxProbeGap)
	} else {
		h.probeGap = minProbeGap
	}
	h.probeAt = time.Now().Add(h.probeGap)
	h.probeFailed = failed
	if !failed {
		h.failures.Store(0)
	}
	h.down.Store(h.probeFailed && h.doubtful())
}

// tell logs that the server is silent or fails, or answers again, if that is news.
// The caller must not hold mu when it is called.
func (h *health) tell(now time.Time) {
	if h.log.IsDiscarded() {
		return
	}
	h.mu.Lock()
	doubtful, silent := h.doubtful(), h.Silent()
	dropped, news := h.notice.Update(now, policy.ChangeEvery, doubtful)
	h.mu.Unlock()
	if !news {
		return
	}
	level, message := slog.LevelWarn, "upstream fails"
	switch {
	case silent:
		message = "upstream is silent"
	case !doubtful:
		level, message = slog.LevelInfo, "upstream answers again"
	}
	attrs := []slog.Attr{slog.String("host", sanitize.CleanText(h.host))}
	if dropped > 0 {
		attrs = append(attrs, slog.Int("dropped", dropped))
	}
	h.log.Log(level, message, attrs...)
}
