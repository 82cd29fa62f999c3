package group

import (
	"cmp"
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/budget"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/observe"
)

const (
	maxAbandoned         = 256             // largest number of abandoned queries to one server that wait for a response at the same time
	maxAbandonedLifetime = 2 * time.Second // longest time that an abandoned query waits
	probeTimeout         = 2 * time.Second // least time that a probe may take
)

// A Target describes how to reach a DNS server: by which transport and at which addresses.
type Target struct {
	Upstream  any // a value of the Client for this server, which this package passes on in Server.Upstream
	Scheme    transport.Scheme
	Transport transport.Config // configuration of the transport; Owner and Addrs must be unset
	Addresses []netip.Addr     // the server's IP addresses, which queries use in turn; empty: Transport has the address
	IsLocal   bool             // the server runs on this machine
}

// A Server is a DNS server of a Pool, with its transports and its learned state: latencies, health, and budgets. It is
// safe for concurrent use. Fields that are neither atomic nor have a lock of their own never change.
type Server struct {
	Name     string // name of the server in the Pool
	Upstream any    // the value of Target.Upstream

	pool               *Pool
	transports         []transport.Transport // one element for each of Target.Addresses, or a single element if Addresses is empty
	preferredTransport atomic.Int32          // index in transports for the first query of each question
	recoversLoss       bool                  // see transport.Scheme; false if there are several addresses, among which queries can choose

	account serverBudgets
	*latencyEstimator
	*health

	lastAsked        atomic.Int64 // time of the last query, in Unix nanoseconds
	runningAbandoned atomic.Int64 // number of abandoned queries that still wait for a response
	queryCount       atomic.Int64 // number of queries sent to this server
	hedgeCount       atomic.Int64 // number of hedges sent to this server
	hedgeWinCount    atomic.Int64 // number of hedges to this server that had the first successful response
	lateHedgeCount   atomic.Int64 // number of hedges sent to any server because this server was late
}

var _ transport.Owner = (*Server)(nil)

// newServer returns a new server of the Pool p with the given name and Target. It opens no connection.
func newServer(p *Pool, name string, t Target) *Server {
	h := &p.conf.Hedging
	s := &Server{
		Name: name, Upstream: t.Upstream, pool: p,
		latencyEstimator: &latencyEstimator{hedging: h, key: p.conf.Engine.Key(policy.Name{Host: name}), minLossDelay: h.MinDelay, minUnansweredDelay: DefaultMinDelay},
		health:           &health{host: name, log: p.conf.Log},
		account:          serverBudgets{sharedBucket: p.sharedBucket, serverBucket: budget.NewBucket(h.Share, Burst)},
		recoversLoss:     t.Scheme.RecoversLoss && len(t.Addresses) <= 1,
	}
	s.account.retransmissions.tokens = Burst
	s.key.AddBuckets(s.account.sharedBucket, s.account.serverBucket)
	s.lastAsked.Store(time.Now().UnixNano())
	if t.IsLocal {
		s.minLossDelay, s.minUnansweredDelay = h.LocalMinDelay, DefaultLocalMinDelay
	}
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

// WasUsedFirst reports whether the state of s is of interest to observers: s was the first server of its group for a
// question that may be hedged. If the hedge delay is fixed, the result is true after any query to s.
func (s *Server) WasUsedFirst() bool {
	return s.key.HasCalls() || s.hedging.FixedDelay > 0 && s.queryCount.Load() > 0
}

// State returns the learned state of the server for observers, such as its hedge delay and the tokens in its hedge
// budget. The delay is 0 if hedging is switched off.
func (s *Server) State() observe.KeyState {
	state := s.key.State()
	state.Delay = max(s.slowDelay(), s.lossDelay())
	state.Share = s.hedging.Share // State has the share of the policy, which is larger
	if d := s.hedging.FixedDelay; d > 0 {
		state.Delay, state.Tokens, state.Share = d, 0, 0 // no budget pays for these hedges
	}
	if s.pool.conf.IsOff() {
		state.Delay = 0
	}
	return state
}

// Close closes the transports of the server. All queries in flight end with an error.
func (s *Server) Close() {
	for _, t := range s.transports {
		t.Close()
	}
}

// queryAddresses sends q to the server's addresses in turn until one responds. setup is the duration of the handshake,
// or 0. earlierQueries is the number of earlier queries to the server for this question. If all addresses fail, err is
// the error of the first.
func (s *Server) queryAddresses(ctx context.Context, q *wire.Query, earlierQueries int, path *transport.QueryPath) (a *wire.Answer, setup time.Duration, err error) {
	s.lastAsked.Store(time.Now().UnixNano())
	count, first := len(s.transports), int(s.preferredTransport.Load())
	var failed error // of the first address
	for i := range count {
		at := (first + earlierQueries + i) % count
		a, setup, err = s.transports[at].Exchange(ctx, q, earlierQueries/count, path)
		if err == nil {
			s.preferredTransport.CompareAndSwap(int32(first), int32(at))
			return a, setup, nil
		}
		failed = cmp.Or(failed, err)
		if ctx.Err() != nil || s.pool.IsClosed() || !q.IsStandard() && !IsUnsent(err) {
			return nil, 0, err
		}
	}
	if _, ok := RetryAfter(failed); ok {
		s.health.recordRejection()
	}
	return nil, 0, failed
}

// recordUnanswered records that the question q, sent at the time sent, had no response. The question does not count
// against the health of the server if the server is silent about a domain that contains the name of q and still
// responds to other questions.
func (s *Server) recordUnanswered(q *wire.Query, sent time.Time) {
	// If the server responds to other questions, the authoritative servers of the domain are dead.
	if since := s.silentZones.recordUnanswered(q, sent, time.Now()); since.IsZero() || !s.HasAnsweredSince(since) {
		s.countUnansweredQuery(sent)
	}
}

// spendForRetransmission spends a token for a retransmission of q to this server. It returns false if the token
// buckets do not permit the retransmission. isFirst must be true for the first retransmission of a question.
func (s *Server) spendForRetransmission(q *wire.Query, isFirst bool) bool {
	isSilent := s.IsSilent()
	if !isSilent && s.silentZones.isSilent(q) {
		return s.account.spendSurplusToken() // half of the tokens remain for other domains
	}
	return s.account.spendForRetransmission(isFirst, isSilent)
}

// RecordQuery implements transport.Owner. It counts a query that a transport has sent to the server.
func (s *Server) RecordQuery() {
	s.queryCount.Add(1)
	s.pool.conf.Counters.Queries.Add(1)
	s.countQuery()
}

// RecordAnswer implements transport.Owner. It records that a response has arrived, took after its query was sent. path
// is the round trip time of the network path as the operating system measured it, or 0 if it is unknown.
func (s *Server) RecordAnswer(took, path time.Duration) {
	s.health.recordAnyResponse()
	s.rto.recordRTT(took)
	s.account.retransmissions.addToken()
	s.latencyEstimator.recordLatency(took, path)
}

// RecordIgnored counts a received message that is not the response to a waiting query. It implements transport.Owner,
// which passes the reason; only the number is kept.
func (s *Server) RecordIgnored(error) { s.pool.conf.Counters.Ignored.Add(1) }

// RecordRetry implements transport.Owner. It counts a query that a transport sends again because its connection had
// been closed.
func (s *Server) RecordRetry() { s.pool.conf.Counters.Retries.Add(1) }

// TryBeginAbandonedQuery reports whether a query whose caller has gone may keep waiting for its response, to measure
// the latency. After a true result, the caller must call EndAbandonedQuery when the query ends. At most 256 queries to
// a server may wait this way (maxAbandoned).
func (s *Server) TryBeginAbandonedQuery() bool {
	if s.runningAbandoned.Add(1) > maxAbandoned {
		s.runningAbandoned.Add(-1)
		return false
	}
	s.pool.conf.Counters.Abandoned.Add(1)
	return true
}

// EndAbandonedQuery records that a query whose caller has gone no longer waits for its response. It must be called once
// for each true result of TryBeginAbandonedQuery.
func (s *Server) EndAbandonedQuery() { s.runningAbandoned.Add(-1) }

// AbandonedQueryLifetime returns how long an abandoned query, whose caller has gone, may wait for its response: two
// seconds, or the Client's Timeout if that is shorter.
func (s *Server) AbandonedQueryLifetime() time.Duration {
	return min(maxAbandonedLifetime, s.pool.conf.Timeout)
}

// Probe sends questions in the background that show whether the server works. It does nothing if a probe is running,
// or the last one is too recent. now is the present time. q is a client's question that the probe may use, or nil.
func (s *Server) Probe(now time.Time, q *wire.Query) {
	if s.tryBeginProbe(now) && !s.pool.conf.Spawn(func(ctx context.Context) {
		failed, err := s.RunProbe(ctx, q)
		s.endProbe(failed || err != nil)
	}) {
		s.endProbe(true)
	}
}

// retryDownServer sends the client's question q in the background to this server, which is down, to find out whether
// it works again. now is the present time. It does nothing if the opcode of q is not QUERY, or the last retry is too
// recent.
func (s *Server) retryDownServer(now time.Time, q *wire.Query) {
	if q.IsStandard() && s.tryBeginRetry(now) { // a working server may refuse the questions of probes
		s.pool.conf.Spawn(func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, max(probeTimeout, s.rto.currentTimeout(0, true)))
			defer cancel()
			if a, _, err := s.queryAddresses(ctx, q, 0, new(transport.QueryPath)); err == nil {
				s.recordResponse(q, a.Outcome == wire.Failure || a.IsBogus())
			}
		})
	}
}

// RunProbe sends questions to the server in turn until it answers one without a failure; failed is then false. q is a
// client's question that the probe may use, or nil. err is nil if the server has sent any response, even a failure.
func (s *Server) RunProbe(ctx context.Context, q *wire.Query) (failed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, max(probeTimeout, s.rto.currentTimeout(0, true)))
	defer cancel()
	end, _ := ctx.Deadline()
	questions := s.probeQuestions(q)
	for n, one := range questions {
		if n > 0 && err == nil && one == questions[n-1] {
			continue // the same question was answered just before
		}
		share, done := context.WithTimeout(ctx, time.Until(end)/time.Duration(len(questions)-n)) // each question has an equal share of the time
		var a *wire.Answer
		a, _, err = s.queryAddresses(share, one, n, new(transport.QueryPath))
		done()
		if err != nil {
			continue
		}
		s.health.recordAnyResponse()
		if failed = a.Outcome == wire.Failure || a.IsBogus(); !failed {
			return false, nil
		}
	}
	if failed {
		return true, nil // the server has responded to some question
	}
	return true, err
}

// canValidate reports whether a DNSSEC validation failure of the server is credible: whether the server answers
// questions without a failure. If no earlier response shows that, canValidate sends it the question for the NS records
// of the root, and waits for the response.
func (s *Server) canValidate(ctx context.Context) bool {
	if s.HasAnswered() && !s.isFailing() { // with a wrong clock or an old trust anchor, every name fails
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, max(probeTimeout, s.rto.currentTimeout(0, true)))
	defer cancel()
	a, _, err := s.queryAddresses(ctx, wire.RootServers, 0, new(transport.QueryPath))
	if err != nil || a.Outcome == wire.Failure || a.IsBogus() {
		return false
	}
	s.recordResponse(wire.RootServers, false)
	return true
}

// IsDeliberateFailure reports whether a failure response seems to be a decision of a working server, for example of a
// filter. The caller must then not query fallback servers. The result is false for a DNSSEC validation failure, or if
// the server is down.
func (s *Server) IsDeliberateFailure(failure *wire.Answer) bool {
	if s.IsDown() || failure.IsBogus() { // canValidate decides about validation failures
		return false
	}
	// Filters often send SERVFAIL without an extended error (RFC 8914).
	return failure.Rcode() == dns.RcodeServerFailure || s.HasAnswered()
}

// probeQuestions returns the questions that the next probe sends, in order. These are the NS records of the root, an
// earlier answered question, q, or several of them. q is a client's question; nil stands for an earlier question with
// a failure.
func (s *Server) probeQuestions(q *wire.Query) []*wire.Query {
	n := s.probeCount.Add(1)
	if q == nil {
		q = s.failedQuestion(n / 2)
	} else if !q.IsStandard() { // for example an UPDATE, which must be sent only once
		q = nil
	}
	// A working server need not resolve the root, and the known name may be broken now.
	if known := s.answeredQuestion.Load(); known != nil {
		return append([]*wire.Query{wire.RootServers, known}, cmp.Or(q, known))
	}
	// The server may reject questions about the root, or fail for the name of q, so probes alternate.
	if q == nil || n%2 == 1 {
		return []*wire.Query{wire.RootServers, wire.RootServers}
	}
	return []*wire.Query{q}
}

// Stats returns the statistics of the server: its counters, learned delays, and present health.
func (s *Server) Stats() observe.DNSUpstreamStats {
	known := s.key.Snapshot()
	v := observe.DNSUpstreamStats{
		Upstream: s.Name, Queries: s.queryCount.Load(), Hedges: s.hedgeCount.Load(), HedgeWins: s.hedgeWinCount.Load(),
		Silent: s.IsSilent(), Failing: s.isFailing(), Down: s.IsDown(),
		LossDelay: s.lossDelay(), SlowDelay: s.slowDelay(),
		Budget: known.Tokens, Saved: known.Saved, ShadowWins: known.ShadowWins, Denied: known.Denied,
	}
	t := s.latencyEstimator
	t.mu.Lock()
	defer t.mu.Unlock()
	v.Loss = t.lossRate()
	v.SRTT, v.Handshake = time.Duration(t.srtt), time.Duration(t.handshakeTime)
	v.P50, _ = t.answerTimes.Quantile(0.50)
	v.P99, _ = t.answerTimes.Quantile(0.99)
	return v
}

// Burst is the capacity, in tokens, of each hedge bucket. It is also the least capacity of a retransmission bucket. A
// query costs one token.
const Burst = 20

// A serverBudgets holds the token buckets that limit hedges, retransmissions and failovers to one server. A failover is
// a query to this server after a failure of another server. A serverBudgets is safe for concurrent use.
type serverBudgets struct {
	sharedBucket    *budget.Bucket       // hedge budget of all servers of the Pool; also limits failovers
	serverBucket    *budget.Bucket       // hedge budget of this server
	retransmissions retransmissionBucket // limits retransmissions that do not use the hedge budget
}

// refillHedgeBuckets adds a fraction of a token to both buckets for hedges, because a query is sent to the server: the
// bucket of all servers, and the bucket of this server. Hedges therefore remain a fixed share of all queries.
func (p *serverBudgets) refillHedgeBuckets() {
	p.sharedBucket.Deposit()
	p.serverBucket.Deposit()
}

// spendForHedge asks the hedge policy to admit a hedge of call, and reports whether it is admitted. index is the
// number of the hedge, from 0. An admitted hedge costs a token of each hedge bucket. call.Denied holds the policy's
// reason for a denial.
func (p *serverBudgets) spendForHedge(call *policy.Call, index int) bool {
	call.Denied = policy.None
	admitted := call.Admit(index)
	switch {
	case admitted:
		p.refillHedgeBuckets() // a hedge is a query too
	case call.Denied == observe.DeniedShadow: // the server's own bucket changes as if the hedge had been sent
		p.sharedBucket.Refund()
		p.serverBucket.Deposit()
	}
	return admitted
}

// spendForRetransmission spends a token for a retransmission to this server. It returns false if no bucket permits it.
// isFirst must be true for the first retransmission of a question. isSilent must be true if the last three queries to
// the server had no response.
func (p *serverBudgets) spendForRetransmission(isFirst, isSilent bool) bool {
	// A silent server may only use the shared hedge bucket, because an outage must not double the load.
	return isFirst && !isSilent && p.retransmissions.spendToken(1) || p.spendForFailover() || !isSilent && p.spendSurplusToken()
}

// spendSurplusToken spends a token of the retransmission bucket if that bucket is at least half full, with ten
// tokens or more. Otherwise, it spends none and returns false.
func (p *serverBudgets) spendSurplusToken() bool { return p.retransmissions.spendToken(Burst / 2) }

// spendForFailover spends a token of the shared hedge bucket for a failover, a query to this server after a failure of
// another server. It returns false if the bucket is empty. Retransmissions may use it as well.
func (p *serverBudgets) spendForFailover() bool { return p.sharedBucket.Spend() }

// refundFailover puts back into the shared hedge bucket a token that spendForFailover spent for a failover.
func (p *serverBudgets) refundFailover() { p.sharedBucket.Refund() }

// retransmissionPeriod is the time over which a retransmissionBucket counts responses. It is longer than most timeouts.
// So the first responses to a burst of queries permit retransmissions of the other queries.
const retransmissionPeriod = 2 * time.Second

// A retransmissionBucket is a token bucket that limits retransmissions to one server. Each response of the server adds
// one token. The capacity is 20, plus the number of responses in the current and the previous period of two seconds.
// It is safe for concurrent use.
type retransmissionBucket struct {
	mu        sync.Mutex // guards the fields below
	tokens    int        // number of tokens in the bucket
	periodEnd time.Time  // end of the current period
	answers   [2]int     // number of responses in the current period, and in the previous period
}

// addToken adds a token, which permits one retransmission, because the server has sent a response.
func (b *retransmissionBucket) addToken() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.updatePeriod()
	b.answers[0]++
	b.tokens++
}

// spendToken spends one token and returns true. If the bucket holds fewer than minTokens tokens, it spends none and
// returns false.
func (b *retransmissionBucket) spendToken(minTokens int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.updatePeriod()
	if b.tokens < minTokens {
		return false
	}
	b.tokens--
	return true
}

// updatePeriod starts the next counting period of two seconds if the current one is over. It then drops the tokens
// that exceed the capacity, which depends on the responses of the period that has ended. The caller must hold mu.
func (b *retransmissionBucket) updatePeriod() {
	now := time.Now()
	if now.Before(b.periodEnd) {
		return
	}
	b.answers[1], b.answers[0] = b.answers[0], 0
	if now.Sub(b.periodEnd) >= retransmissionPeriod {
		b.answers[1] = 0
	}
	b.periodEnd = now.Add(retransmissionPeriod)
	b.tokens = min(b.tokens, Burst+b.answers[1])
}
