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
	maxAbandoned         = 256             // abandoned queries of one server that may wait for their answer at a time
	maxAbandonedLifetime = 2 * time.Second // how long an abandoned query may wait
	minStallTimeout      = time.Second
	probeTimeout         = 2 * time.Second
)

// A Target describes a DNS server: its addresses and the transport to it.
type Target struct {
	Upstream  any // the Client's value for the server; this package does not use it
	Scheme    transport.Scheme
	Transport transport.Config // configuration of the transport, without Owner and Addrs
	Addresses []netip.Addr     // the server's addresses, used in turn; none: Transport dials its own address
	IsLocal   bool             // the server runs on this machine
}

// A Server is a DNS server with its learned state. It is safe for concurrent use: fields without a lock of their own
// never change.
type Server struct {
	Name     string // its name in the Pool
	Upstream any    // Target.Upstream

	pool               *Pool
	transports         []transport.Transport // one, or one for each of Target.Addresses
	preferredTransport atomic.Int32          // index in transports for the first query of a question

	account serverAccount
	rto     rtoEstimator
	latencyEstimator
	health
	answerRate  answerRate
	silentZones silentZones

	lastAsked        atomic.Int64 // time of the last query, in Unix ns
	runningAbandoned atomic.Int64 // abandoned queries that still wait for their answer
	queryCount       atomic.Int64 // queries sent to this server
	hedgeCount       atomic.Int64 // hedges sent to this server
	hedgeWinCount    atomic.Int64 // hedges to this server that won
	lateHedgeCount   atomic.Int64 // hedges sent to any server because this one had not answered in time
}

var _ transport.Owner = (*Server)(nil)

// newServer returns a server of the Pool for the target. It opens no connection.
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

// Close closes the server's transports, which ends all queries in flight.
func (s *Server) Close() {
	for _, t := range s.transports {
		t.Close()
	}
}

// isReady reports whether a query over the preferred transport needs no handshake.
func (s *Server) isReady() bool { return s.transports[s.preferredTransport.Load()].Ready() }

// queryAddresses sends q to the server. n is the number of times that the same question was sent to it before: each
// time another address comes first. If an address cannot be reached, the next one is used at once.
//
// The address that answers becomes the preferred one. w records the connection in use. The error is that of the first
// address.
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
		if ctx.Err() != nil || errors.Is(err, transport.ErrClosed) || !q.IsStandard() && !IsUnsent(err) {
			return nil, 0, err
		}
	}
	if again, _ := IsUnavailable(failed); again {
		s.health.recordRefusal()
	}
	return nil, 0, failed
}

// recordResponse records a response to a caller's question. failure reports whether the response is a failure or bogus.
func (s *Server) recordResponse(q *wire.Query, failure bool) {
	s.silentZones.recordAnswer(q)
	s.countResponse(q, failure)
}

// recordMiss records that the query of a question, sent at the given time, had no answer. The miss does not count
// against the server if only the question's domain is silent: the server has answered other questions since that
// silence began.
func (s *Server) recordMiss(q *wire.Query, sent time.Time) {
	if since := s.silentZones.recordMiss(q, sent, time.Now()); since.IsZero() || !s.AnsweredSince(since) {
		s.countMiss(sent)
	}
}

// payRetransmission spends tokens for a retransmission of q, and reports false if the server's account lacks them. If
// the server is silent about q's domain and not in general, only surplus tokens are spent, so that retransmissions for
// other domains remain possible. first is for the first retransmission of a question.
func (s *Server) payRetransmission(q *wire.Query, first bool) bool {
	silent := s.IsSilent()
	if !silent && s.silentZones.isSilent(q) {
		return s.account.payFromSurplus()
	}
	return s.account.payRetransmission(first, silent)
}

// RecordQuery counts a query that was sent to the server.
func (s *Server) RecordQuery() {
	s.queryCount.Add(1)
	s.pool.conf.Counters.Queries.Add(1)
	s.countQuery()
}

// RecordAnswer records the arrival of a response: its latency, and the round trip time of the network path, or 0 if
// that was not measured.
func (s *Server) RecordAnswer(took, path time.Duration) {
	s.health.recordAnswer()
	s.rto.recordRTT(took)
	s.account.retransmissions.earnToken()
	s.latencyEstimator.recordLatency(took, path)
}

// RecordIgnored counts a received message that answered no query.
func (s *Server) RecordIgnored(error) { s.pool.conf.Counters.Ignored.Add(1) }

// RecordRetry counts a query that is repeated because its connection had been closed.
func (s *Server) RecordRetry() { s.pool.conf.Counters.Retries.Add(1) }

// BeginAbandoned counts a query that keeps waiting for its answer although its caller has left. It reports false, and
// counts nothing, if maxAbandoned queries already do.
func (s *Server) BeginAbandoned() bool {
	if s.runningAbandoned.Add(1) > maxAbandoned {
		s.runningAbandoned.Add(-1)
		return false
	}
	s.pool.conf.Counters.Abandoned.Add(1)
	return true
}

// EndAbandoned must be called when a query ends for which BeginAbandoned returned true.
func (s *Server) EndAbandoned() { s.runningAbandoned.Add(-1) }

// AbandonedLifetime returns how long an abandoned query may wait for its answer.
func (s *Server) AbandonedLifetime() time.Duration {
	return min(maxAbandonedLifetime, s.pool.conf.Timeout)
}

// Probe starts a probe of the server in the background (see RunProbe), unless one is running or the last one was a
// moment ago. A probe finds out whether a doubtful server is down, and whether a server that gets no queries works
// again.
//
// q is a caller's question that may be sent to this server. If q is nil, the probe only uses questions that the server
// was asked before, and the root's NS.
func (s *Server) Probe(now time.Time, q *wire.Query) {
	if s.beginProbe(now) && !s.pool.conf.Spawn(func(ctx context.Context) {
		failed, err := s.RunProbe(ctx, q)
		s.endProbe(failed || err != nil)
	}) {
		s.endProbe(true)
	}
}

// sendTrial sends a caller's question to the server in the background, unless the last trial was a moment ago. The
// response counts like that to a caller. Trials are for servers that refuse questions about the root and were asked
// only for broken names: no probe can show that these work.
func (s *Server) sendTrial(now time.Time, q *wire.Query) {
	if q.IsStandard() && s.beginTrial(now) {
		s.pool.conf.Spawn(func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, max(probeTimeout, s.rto.currentTimeout(0, true)))
			defer cancel()
			if a, _, err := s.queryAddresses(ctx, q, 0, new(transport.QueryPath)); err == nil {
				s.recordResponse(q, a.Outcome == wire.Failure || a.IsBogus())
			}
		})
	}
}

// RunProbe sends probe questions to the server until one is answered without a failure, and reports whether all failed.
// The questions are the NS of the root, a question that the server has answered before, and q. If q is nil, a question
// that the server failed before takes its place.
//
// Several questions are needed because a server need not resolve the root, and a name that it once resolved may be
// broken now. The error is nil if the server has responded to any question.
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
		if failed = a.Outcome == wire.Failure || a.IsBogus(); !failed {
			return false, nil
		}
	}
	if failed {
		return true, nil // a response rather than none
	}
	return true, err
}

// canValidate reports whether the server's verdict that a name is bogus can be trusted. A wrong clock or an old trust
// anchor makes all names bogus. So a server that is failing, or that has only ever answered with failures, is first
// asked for the NS of the root.
func (s *Server) canValidate(ctx context.Context) bool {
	if s.HasAnswered() && !s.isFailing() {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, max(probeTimeout, s.rto.currentTimeout(0, true)))
	defer cancel()
	a, _, err := s.queryAddresses(ctx, wire.RootServers, 0, new(transport.QueryPath))
	if err != nil || a.Outcome == wire.Failure || a.IsBogus() {
		return false
	}
	s.countResponse(wire.RootServers, false)
	return true
}

// IsDeliberateFailure reports whether a failure response is a deliberate decision of a healthy server, so that no server of
// another kind may be asked instead. Filters respond with REFUSED or SERVFAIL, and validating servers with SERVFAIL,
// often without an extended error.
//
// A failure that an extended error attributes to DNSSEC is no decision here: it only counts as a failure if the server
// cannot validate, see canValidate.
func (s *Server) IsDeliberateFailure(failure *wire.Answer) bool {
	if s.IsDown() || failure.IsBogus() {
		return false
	}
	return failure.Rcode() == dns.RcodeServerFailure || s.HasAnswered()
}

// probeQuestions returns the questions for the next RunProbe. A server that has only ever answered with failures gets a
// single kind of question per probe: q and the NS of the root in turn.
func (s *Server) probeQuestions(q *wire.Query) []*wire.Query {
	n := s.probeCount.Add(1)
	if q == nil {
		q = s.failedQuestion(n / 2)
	} else if !q.IsStandard() {
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

// SplitDeadline returns a context that ends after 1/n of the time that is left until the deadline of ctx. Without a
// deadline, or if n is at most 1, it returns ctx.
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
	maxMisses   = 3                      // queries without an answer, one after the other, after which a server is silent
	maxFailures = 3                      // different names with a failure, one after the other, after which a server is failing
	minProbeGap = 500 * time.Millisecond // shortest time between two probes
	maxProbeGap = 10 * time.Second       // longest time between two probes
)

// health records whether a server answers, and whether its answers are more than failures. It is safe for concurrent
// use.
//
// A server is silent after maxMisses unanswered queries, and failing after failures for maxFailures names. It is
// doubtful if it is silent or failing, and down if it is doubtful and has failed a probe.
type health struct {
	host string   // the server's name in log messages; never changes
	log  *ops.Log // never changes

	isSilent         atomic.Bool                // maxMisses was reached, and no answer came since; stored under mu
	failureCount     atomic.Int64               // different names that had a failure since the last success; stored under mu
	answeredQuestion atomic.Pointer[wire.Query] // a question that was answered without a failure; nil: none
	isDown           atomic.Bool                // the server is doubtful and has failed a probe; stored under mu
	probeCount       atomic.Int64               // number of probes

	mu              sync.Mutex // guards the fields below
	lastAnswer      time.Time  // time of the last answer
	refusals        refusals
	misses          int                      // unanswered queries since the last answer
	failedQuestions [maxFailures]*wire.Query // questions about the names that failureCount counts
	probeGap        time.Duration            // time between two probes
	nextProbe       time.Time                // earliest time of the next probe
	nextTrial       time.Time                // earliest time of the next trial
	isProbing       bool                     // a probe is running
	hasFailedProbe  bool                     // the last probe failed, and no answer came since
	notice          policy.ReportThrottle    // decides which changes are logged
}

// isDoubtful reports whether the server is silent or failing. The cause may be the names that were asked; a probe finds
// out.
func (h *health) isDoubtful() bool { return h.IsSilent() || h.isFailing() }

// isFailing reports whether the server has responded with failures for maxFailures different names since its last
// success.
func (h *health) isFailing() bool { return h.failureCount.Load() >= maxFailures }

// IsSilent reports whether the last maxMisses queries to the server, or more, had no answer.
func (h *health) IsSilent() bool { return h.isSilent.Load() }

// IsDown reports whether the server is silent or failing and has failed a probe as well.
func (h *health) IsDown() bool { return h.isDown.Load() }

// HasAnswered reports whether the server has ever responded with an answer that was no failure.
func (h *health) HasAnswered() bool { return h.answeredQuestion.Load() != nil }

// AnsweredSince reports whether any response of the server arrived after t.
func (h *health) AnsweredSince(t time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lastAnswer.After(t)
}

// recordAnswer records that a response, of any kind, has arrived: the server is not silent.
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

// refusalLifetime is the time between two refused connections after which the second one starts a new series.
const refusalLifetime = time.Minute

// refusals holds the times of the first and the last of a series of refused connections. Both are zero if none was
// refused since the last answer.
type refusals struct{ first, last time.Time } // zero: there are none

// recordRefusal records that the server has refused a connection.
func (h *health) recordRefusal() {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Sub(h.refusals.last) > refusalLifetime {
		h.refusals.first = now
	}
	h.refusals.last = now
}

// refusingSince returns the time at which the server began to refuse connections, or zero if it has answered since.
func (h *health) refusingSince() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.refusals.first
}

// countResponse records a response to a caller's message. failure reports whether it is a failure or bogus. Several
// failures for one name count once, because that name may be broken. A response to a message that is no question only
// shows that the server is not silent.
func (h *health) countResponse(q *wire.Query, failure bool) {
	h.recordAnswer()
	if !q.IsStandard() {
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

// failedQuestion returns one of the questions that failed since the last success, chosen by n. It returns nil if there
// are none.
func (h *health) failedQuestion(n int64) *wire.Query {
	h.mu.Lock()
	defer h.mu.Unlock()
	if failures := h.failureCount.Load(); failures > 0 {
		return h.failedQuestions[n%failures]
	}
	return nil
}

// recordRecovery records that the server has answered q without a failure, for the first time or after failures.
func (h *health) recordRecovery(q *wire.Query) {
	h.mu.Lock()
	h.answeredQuestion.Store(q)
	h.failureCount.Store(0)
	h.isDown.Store(false)
	h.probeGap = 0
	h.mu.Unlock()
	h.logChange(time.Now())
}

// countMiss counts a query, sent at the given time, that had no answer. It does nothing if the server has answered
// another query since that time: then only a packet was lost.
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

// beginProbe reports whether a probe is due and none is running. If it reports true, the caller must probe the server
// and call endProbe.
func (h *health) beginProbe(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	due := !h.isProbing && !now.Before(h.nextProbe)
	h.isProbing = h.isProbing || due
	return due
}

// beginTrial reports whether a trial is due, and if so, schedules the next one. The time between trials is that between
// probes.
func (h *health) beginTrial(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Before(h.nextTrial) {
		return false
	}
	h.nextTrial = now.Add(max(h.probeGap, minProbeGap))
	return true
}

// endProbe records the result of a probe that beginProbe allowed. The time to the next probe doubles, up to
// maxProbeGap, while probes or questions fail.
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

// logChange logs a change between doubtful and healthy, if it was not logged yet. The caller must not hold mu.
func (h *health) logChange(now time.Time) {
	if h.log.IsDiscarded() {
		return
	}
	h.mu.Lock()
	doubtful, silent := h.isDoubtful(), h.IsSilent()
	dropped, news := h.notice.Update(now, policy.MinChangeInterval, doubtful)
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
