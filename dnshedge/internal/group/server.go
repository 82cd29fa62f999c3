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
	maxAbandoned         = 256             // abandoned queries that may run on, per server
	maxAbandonedLifetime = 2 * time.Second // how long they may
	minStallTimeout      = time.Second
	probeTimeout         = 2 * time.Second
)

// Target says where a server is, and how it is asked.
type Target struct {
	Upstream  any // what the Client knows the server by
	Scheme    transport.Scheme
	Transport transport.Config // without Owner and Addrs
	Addresses []netip.Addr     // which are asked in turn; none: Transport.Addr is
	IsLocal   bool             // it is on this machine
}

// Server is a DNS server and its state. It is safe for concurrent use: fields without a lock of their own never change.
type Server struct {
	Name     string // by which the Pool knows it
	Upstream any    // see Target

	pool               *Pool
	transports         []transport.Transport // one, or one for each of Target.Addrs
	preferredTransport atomic.Int32          // of transports, which first queries go over

	account serverAccount
	rto     rtoEstimator
	latencyEstimator
	health
	answerRate  answerRate
	silentZones silentZones

	lastAsked        atomic.Int64 // when last asked, Unix ns
	runningAbandoned atomic.Int64 // abandoned queries that still run
	queryCount       atomic.Int64 // sent to it
	hedgeCount       atomic.Int64 // sent to it
	hedgeWinCount    atomic.Int64
	hedgesWhenLate   atomic.Int64 // sent to any server because this one was late
}

var _ transport.Owner = (*Server)(nil)

func newServer(p *Pool, name string, t Target) *Server {
	h := &p.conf.Hedging
	s := &Server{Name: name, Upstream: t.Upstream, pool: p}
	s.lastAsked.Store(time.Now().UnixNano())
	s.hedging, s.key, s.minLossDelay = h, p.conf.Engine.Key(policy.Name{Host: name}), h.MinDelay
	s.account.init(p.sharedBucket, h.Share, s.key)
	if t.IsLocal {
		s.minLossDelay = h.LocalMinDelay
	}
	s.health.host, s.health.log = name, p.conf.Log
	config := t.Transport
	config.Owner = s
	if len(t.Addresses) == 0 {
		s.transports = append(s.transports, t.Scheme.New(config))
	}
	for i := range t.Addresses {
		config.Addrs = t.Addresses[i : i+1]
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

// isReady reports whether a first query needs no handshake.
func (s *Server) isReady() bool { return s.transports[s.preferredTransport.Load()].Ready() }

// queryAddresses asks the server, which was asked the same question n times before: each time
// another of its addresses, and if one cannot be reached, at once the next. The
// address that answers is preferred from then on. While it runs, w tells of the connection.
func (s *Server) queryAddresses(ctx context.Context, q *wire.Query, n int, w *transport.QueryPath) (*wire.Answer, time.Duration, error) {
	s.lastAsked.Store(time.Now().UnixNano())
	count, first := len(s.transports), int(s.preferredTransport.Load())
	var failed error // of the first
	for i := range count {
		at := (first + n + i) % count
		a, setup, err := s.transports[at].Exchange(ctx, q, n/count, w)
		if err == nil {
			s.preferredTransport.CompareAndSwap(int32(first), int32(at))
			return a, setup, nil
		}
		failed = cmp.Or(failed, err)
		if ctx.Err() != nil || errors.Is(err, transport.ErrClosed) || !q.Standard() && !IsUnsent(err) {
			return nil, 0, err
		}
	}
	if again, _ := IsUnavailable(failed); again {
		s.health.recordRefusal()
	}
	return nil, 0, failed
}

// recordResponse is called for each response to a question of a caller, which is a failure or not.
func (s *Server) recordResponse(q *wire.Query, failure bool) {
	s.silentZones.recordAnswer(q)
	s.countResponse(q, failure)
}

// recordMiss counts a question, sent then, that has no answer. If the server has answered anything since it is silent about the question's
// zone, that says no more about it.
func (s *Server) recordMiss(q *wire.Query, sent time.Time) {
	if since := s.silentZones.recordMiss(q, sent, time.Now()); since.IsZero() || !s.AnsweredSince(since) {
		s.countMiss(sent)
	}
}

// payRetransmission pays for sending q again. If the server is silent about q's zone only, that leaves plenty to other zones.
func (s *Server) payRetransmission(q *wire.Query, first bool) bool {
	silent := s.IsSilent()
	if !silent && s.silentZones.isSilent(q) {
		return s.account.payFromSurplus()
	}
	return s.account.payRetransmission(first, silent)
}

// RecordQuery counts a query.
func (s *Server) RecordQuery() {
	s.queryCount.Add(1)
	s.pool.conf.Counters.Queries.Add(1)
	s.countQuery()
}

// RecordAnswer learns from a response.
func (s *Server) RecordAnswer(took, path time.Duration) {
	s.health.recordAnswer()
	s.rto.recordRTT(took)
	s.account.retransmissions.earnToken()
	s.latencyEstimator.recordLatency(took, path)
}

// RecordIgnored counts a message.
func (s *Server) RecordIgnored(error) { s.pool.conf.Counters.Ignored.Add(1) }

// RecordRetry counts a query.
func (s *Server) RecordRetry() { s.pool.conf.Counters.Retries.Add(1) }

// BeginAbandoned counts an abandoned query, or reports false if there are too many.
func (s *Server) BeginAbandoned() bool {
	if s.runningAbandoned.Add(1) > maxAbandoned {
		s.runningAbandoned.Add(-1)
		return false
	}
	s.pool.conf.Counters.Abandoned.Add(1)
	return true
}

// EndAbandoned ends the counting of an abandoned query.
func (s *Server) EndAbandoned() { s.runningAbandoned.Add(-1) }

// AbandonedLifetime is how long abandoned queries run on.
func (s *Server) AbandonedLifetime() time.Duration {
	return min(maxAbandonedLifetime, s.pool.conf.Timeout)
}

// Probe probes the server in the background, unless it was probed a moment ago. Probes find out whether a server is
// down, and whether one is back that callers' queries do not reach because another server answers them. The question q is
// one of a caller that this server may be asked; nil: the probe has only questions that every resolver or this server was asked before.
func (s *Server) Probe(now time.Time, q *wire.Query) {
	if s.beginProbe(now) && !s.pool.conf.Spawn(func(ctx context.Context) {
		failed, err := s.RunProbe(ctx, q)
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
			ctx, cancel := context.WithTimeout(ctx, max(probeTimeout, s.rto.currentTimeout(0, true)))
			defer cancel()
			if a, _, err := s.queryAddresses(ctx, q, 0, new(transport.QueryPath)); err == nil {
				s.recordResponse(q, a.Outcome == wire.Failure || a.Bogus())
			}
		})
	}
}

// RunProbe reports whether the server fails all questions of a probe: for the root's servers, which every resolver
// has at hand, a question that it has answered before, and a caller's question q. Not every server is a resolver for
// the root, and a name that it knew may be broken now. If q is nil, a question that it has failed before takes its place.
// If the first query is not answered, there is a second one.
func (s *Server) RunProbe(ctx context.Context, q *wire.Query) (failed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, max(probeTimeout, s.rto.currentTimeout(0, true)))
	defer cancel()
	questions := s.probeQuestions(q)
	for n, one := range questions {
		if n > 0 && err == nil && one == questions[n-1] {
			continue // it was answered
		}
		share, done := SplitDeadline(ctx, len(questions)-n)
		var a *wire.Answer
		a, _, err = s.queryAddresses(share, one, n, new(transport.QueryPath))
		done()
		if err != nil {
			continue
		}
		s.health.recordAnswer()
		if failed = a.Outcome == wire.Failure || a.Bogus(); !failed {
			return false, nil
		}
	}
	if failed {
		return true, nil // a response rather than none
	}
	return true, err
}

// canValidate reports whether the server may be believed that a name is bogus. One that has answered nothing but with failures yet,
// or several names in a row, may have a wrong clock or an old trust anchor: it is asked for the root's servers.
func (s *Server) canValidate(ctx context.Context) bool {
	if s.HasAnswered() && !s.isFailing() {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, max(probeTimeout, s.rto.currentTimeout(0, true)))
	defer cancel()
	a, _, err := s.queryAddresses(ctx, wire.RootServers, 0, new(transport.QueryPath))
	if err != nil || a.Outcome == wire.Failure || a.Bogus() {
		return false
	}
	s.countResponse(wire.RootServers, false)
	return true
}

// IsDecision reports whether a failure that the server answers with is the decision of a healthy server, which no other kind of server must
// undo. A filter says REFUSED or SERVFAIL, and a validating server SERVFAIL, and not all of them say why. One that says why has been looked at.
func (s *Server) IsDecision(failure *wire.Answer) bool {
	if s.IsDown() || failure.Bogus() {
		return false
	}
	return failure.Rcode() == dns.RcodeServerFailure || s.HasAnswered()
}

// probeQuestions returns the questions of Reach. A server that has never answered anything but with failures is asked one of them.
func (s *Server) probeQuestions(q *wire.Query) []*wire.Query {
	n := s.probeCount.Add(1)
	if q == nil {
		q = s.failedQuestion(n / 2)
	} else if !q.Standard() {
		q = nil
	}
	if known := s.answeredQuestion.Load(); known != nil {
		return append([]*wire.Query{wire.RootServers, known}, cmp.Or(q, known))
	}
	if q == nil || n%2 == 1 {
		return []*wire.Query{wire.RootServers, wire.RootServers}
	}
	return []*wire.Query{q}
}

// SplitDeadline returns a context that ends after the n-th part of the time that is left of ctx.
func SplitDeadline(ctx context.Context, n int) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok || n <= 1 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Until(end)/time.Duration(n))
}

// Stats returns the statistics of the server.
func (s *Server) Stats() observe.DNSUpstreamStats {
	known := s.key.Snapshot()
	v := observe.DNSUpstreamStats{
		Upstream: s.Name, Queries: s.queryCount.Load(), Hedges: s.hedgeCount.Load(), HedgeWins: s.hedgeWinCount.Load(),
		Silent: s.IsSilent(), Failing: s.isFailing(), Down: s.IsDown(),
		LossDelay: s.lossDelay(), SlowDelay: s.slowDelay(),
		Budget: known.Tokens, Saved: known.Saved, ShadowWins: known.ShadowWins, Denied: known.Denied,
	}
	t := &s.latencyEstimator
	t.mu.Lock()
	defer t.mu.Unlock()
	v.Loss = t.lossRate()
	v.SRTT, v.Handshake = time.Duration(t.srtt), time.Duration(t.handshakeTime)
	v.P50, _ = t.answerTimes.Quantile(0.50)
	v.P99, _ = t.answerTimes.Quantile(0.99)
	return v
}

const (
	maxMisses   = 3 // queries in a row without an answer
	maxFailures = 3 // different names in a row that a server fails
	minProbeGap = 500 * time.Millisecond
	maxProbeGap = 10 * time.Second
)

// health is whether a server answers, and answers with more than failures. It is safe for concurrent use.
type health struct {
	host string   // as the log has it; never changes
	log  *ops.Log // never changes

	isSilent         atomic.Bool                // maxMisses was reached, and no answer came since; stored under mu
	failureCount     atomic.Int64               // names in a row that it failed; stored under mu
	answeredQuestion atomic.Pointer[wire.Query] // a question that it has answered with more than a failure; nil: there is none
	isDown           atomic.Bool                // it was in doubt, and failed a probe as well
	probeCount       atomic.Int64               // how often

	mu              sync.Mutex // guards the fields below
	lastAnswer      time.Time  // the last time
	refusals        refusals
	misses          int                      // queries without an answer since then
	failedQuestions [maxFailures]*wire.Query // the questions about names in a row that it failed
	probeGap        time.Duration            // between probes
	nextProbe       time.Time                // of the next probe
	nextTrial       time.Time                // of the next trial
	isProbing       bool
	hasFailedProbe  bool          // and nothing was answered since
	notice          policy.Notice // what was logged
}

// isDoubtful reports whether the server is silent or fails all queries. The names may be slow or unresolvable; a probe
// finds out.
func (h *health) isDoubtful() bool { return h.IsSilent() || h.isFailing() }

func (h *health) isFailing() bool { return h.failureCount.Load() >= maxFailures }

// IsSilent reports whether queries in a row had no answer, and none came since.
func (h *health) IsSilent() bool { return h.isSilent.Load() }

// IsDown reports whether the server was in doubt, and has failed a probe as well.
func (h *health) IsDown() bool { return h.isDown.Load() }

// HasAnswered reports whether the server has ever answered with more than a failure.
func (h *health) HasAnswered() bool { return h.answeredQuestion.Load() != nil }

// AnsweredSince reports whether the server has answered any query after t.
func (h *health) AnsweredSince(t time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lastAnswer.After(t)
}

// recordAnswer is called when the server has answered: it is not silent.
func (h *health) recordAnswer() {
	now := time.Now()
	defer h.logChange(now)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.misses, h.lastAnswer, h.hasFailedProbe, h.refusals = 0, now, false, refusals{}
	h.isSilent.Store(false)
	if !h.isFailing() {
		h.isDown.Store(false)
	}
}

// refusalLifetime is how long a refused connection counts, if no query follows.
const refusalLifetime = time.Minute

// refusals are the times of the refused connections since the last answer.
type refusals struct{ first, last time.Time } // zero: there are none

// recordRefusal is called when the server has refused a connection.
func (h *health) recordRefusal() {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Sub(h.refusals.last) > refusalLifetime {
		h.refusals.first = now
	}
	h.refusals.last = now
}

// refusingSince returns when the server began to refuse connections; zero: it does not.
func (h *health) refusingSince() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.refusals.first
}

// countResponse is called for each response to a message of a caller, which is a failure or not. Failures of one name are one: it
// may be the name's own. A response to a message that is no question says nothing about names, and no probe may repeat the message.
func (h *health) countResponse(q *wire.Query, failure bool) {
	h.recordAnswer()
	if !q.Standard() {
		return
	}
	if !failure {
		if h.answeredQuestion.Load() == nil || h.failureCount.Load() > 0 || h.isDown.Load() {
			h.recordRecovery(q)
		}
		return
	}
	h.mu.Lock()
	n := h.failureCount.Load()
	if n == maxFailures || slices.ContainsFunc(h.failedQuestions[:n], func(f *wire.Query) bool { return strings.EqualFold(f.Name, q.Name) }) {
		h.mu.Unlock()
		return
	}
	h.failedQuestions[n] = q
	h.failureCount.Store(n + 1)
	if n+1 == maxFailures {
		h.nextProbe = time.Now().Add(h.probeGap)
	}
	h.mu.Unlock()
	h.logChange(time.Now())
}

// failedQuestion returns one of the questions that the server has failed, by n; nil: it has answered since.
func (h *health) failedQuestion(n int64) *wire.Query {
	h.mu.Lock()
	defer h.mu.Unlock()
	if failures := h.failureCount.Load(); failures > 0 {
		return h.failedQuestions[n%failures]
	}
	return nil
}

// recordRecovery is called when the server has answered q with more than a failure, for the first time or after failures.
func (h *health) recordRecovery(q *wire.Query) {
	h.mu.Lock()
	h.answeredQuestion.Store(q)
	h.failureCount.Store(0)
	h.isDown.Store(false)
	h.probeGap = 0
	h.mu.Unlock()
	h.logChange(time.Now())
}

// countMiss counts a query without an answer. If the server has answered another query
// since this one was sent, only a packet was lost, and it does nothing.
func (h *health) countMiss(sent time.Time) {
	now := time.Now()
	defer h.logChange(now)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lastAnswer.After(sent) {
		return
	}
	if h.misses++; h.misses >= maxMisses && !h.isSilent.Load() {
		h.isSilent.Store(true)
		h.isDown.Store(h.hasFailedProbe)
		h.nextProbe = now.Add(h.probeGap)
	}
}

// beginProbe reports whether the server is to be probed now. The caller then calls endProbe.
func (h *health) beginProbe(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	due := !h.isProbing && !now.Before(h.nextProbe)
	h.isProbing = h.isProbing || due
	return due
}

// beginTrial reports whether a trial is due, and schedules the next one. Trials are as far apart as probes.
func (h *health) beginTrial(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Before(h.nextTrial) {
		return false
	}
	h.nextTrial = now.Add(max(h.probeGap, minProbeGap))
	return true
}

func (h *health) endProbe(failed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.isProbing = false
	if failed || h.isFailing() {
		h.probeGap = min(max(2*h.probeGap, minProbeGap), maxProbeGap)
	} else {
		h.probeGap = minProbeGap
	}
	h.nextProbe = time.Now().Add(h.probeGap)
	h.hasFailedProbe = failed
	if !failed {
		h.failureCount.Store(0)
	}
	h.isDown.Store(h.hasFailedProbe && h.isDoubtful())
}

// logChange logs that the server is silent or fails, or answers again, if that is news.
// The caller must not hold mu when it is called.
func (h *health) logChange(now time.Time) {
	if h.log.IsDiscarded() {
		return
	}
	h.mu.Lock()
	doubtful, silent := h.isDoubtful(), h.IsSilent()
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
