package group

import (
	"cmp"
	"context"
	"errors"
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

// queryAddresses sends q to the addresses of the server, one after the other, until one of them responds. That address
// becomes the preferred one. It returns the response and the duration of the handshake, or 0 if the query needed none.
// w records which connection the query uses.
//
// n is the number of times that the question was sent to the server before. The first address to try is the n-th after
// the preferred one, in the circular order of Target.Addresses.
//
// If all addresses fail, the error is that of the first one. If ctx ends or the server is closed, no further address is
// tried, and the error is that of the last one. The same applies if the opcode of q is not QUERY and the failed address
// may have received q.
func (s *Server) queryAddresses(ctx context.Context, q *wire.Query, n int, w *transport.QueryPath) (*wire.Answer, time.Duration, error) {
	s.lastAsked.Store(time.Now().UnixNano())
	count, first := len(s.transports), int(s.preferredTransport.Load())
	var failed error // of the first address
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
	if _, ok := RetryAfter(failed); ok {
		s.health.recordRejection()
	}
	return nil, 0, failed
}

// recordUnanswered records that the question q, sent at the time sent, had no response. The question does not count
// against the health of the server if the server is silent about a domain that contains the name of q, and has
// responded to another query since that silence began.
func (s *Server) recordUnanswered(q *wire.Query, sent time.Time) {
	if since := s.silentZones.recordUnanswered(q, sent, time.Now()); since.IsZero() || !s.HasAnsweredSince(since) {
		s.countUnansweredQuery(sent)
	}
}

// spendForRetransmission spends a token for a retransmission of q to this server. It returns false if the budgets of
// the server do not permit the retransmission. first must be true for the first retransmission of a question.
//
// If the server is silent only about the domain of q, the token must come from its retransmission bucket. That bucket
// must be at least half full, so that retransmissions for other domains remain possible.
func (s *Server) spendForRetransmission(q *wire.Query, first bool) bool {
	silent := s.IsSilent()
	if !silent && s.silentZones.isSilent(q) {
		return s.account.spendSurplusToken()
	}
	return s.account.spendForRetransmission(first, silent)
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

// TryBeginAbandonedQuery reports whether a query whose caller has gone may keep waiting for its response, which shows
// the latency of the server. After a true result, the query counts as waiting, and the caller must call
// EndAbandonedQuery when the query ends. It returns false if 256 abandoned queries to this server (maxAbandoned)
// already wait.
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

// Probe starts a probe of the server in the background: questions that show whether the server works (see
// probeQuestions). It does nothing if a probe is running, or if the last one was too recent. The least time between two
// probes is half a second to ten seconds (see endProbe). now is the present time.
//
// A probe finds out whether a silent or failing server is down, and whether a server without queries works again. q is
// a client's question that the probe may send to this server, or nil.
func (s *Server) Probe(now time.Time, q *wire.Query) {
	if s.tryBeginProbe(now) && !s.pool.conf.Spawn(func(ctx context.Context) {
		failed, err := s.RunProbe(ctx, q)
		s.endProbe(failed || err != nil)
	}) {
		s.endProbe(true)
	}
}

// retryDownServer sends the client's question q to this server, although the server is down, to find out whether it
// works again. The query runs in the background, and its response is recorded like any other response. It does nothing
// if the opcode of q is not QUERY, or if the last retry is too recent (see tryBeginRetry).
//
// Probes do not suffice, because a working server may refuse the questions of a probe.
func (s *Server) retryDownServer(now time.Time, q *wire.Query) {
	if q.IsStandard() && s.tryBeginRetry(now) {
		s.pool.conf.Spawn(func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, max(probeTimeout, s.rto.currentTimeout(0, true)))
			defer cancel()
			if a, _, err := s.queryAddresses(ctx, q, 0, new(transport.QueryPath)); err == nil {
				s.recordResponse(q, a.Outcome == wire.Failure || a.IsBogus())
			}
		})
	}
}

// RunProbe sends probe questions to the server, one after the other, until the server answers one of them without a
// failure (see probeQuestions). q is a client's question that the probe may send, or nil. A probe takes at most two
// seconds (probeTimeout), or the retransmission timeout if that is longer.
//
// failed is false if the server has answered a question without a failure. err is nil if the server has sent any
// response, even a failure.
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

// canValidate reports whether a DNSSEC validation failure of the server is credible. A server with a wrong clock or an
// old trust anchor reports this failure for every name.
//
// The result is true if the server has answered a question without a failure and is not failing. To any other server,
// canValidate sends the question for the NS records of the root, and returns true if the server answers it without a
// failure.
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
	s.recordResponse(wire.RootServers, false)
	return true
}

// IsDeliberateFailure reports whether a failure response of the server seems to be a decision of a working server, for
// example of a filter. The caller must then not query fallback servers, which would decide otherwise.
//
// The result is false if the server is down, or if the response is a DNSSEC validation failure, for which canValidate
// decides. In all other cases, the result is true for SERVFAIL, which filters often send without an extended error (RFC
// 8914). For another code, for example REFUSED, it is true if the server has ever answered without a failure.
func (s *Server) IsDeliberateFailure(failure *wire.Answer) bool {
	if s.IsDown() || failure.IsBogus() {
		return false
	}
	return failure.Rcode() == dns.RcodeServerFailure || s.HasAnswered()
}

// probeQuestions returns the questions that the next probe sends, in order. q is a client's question that the probe may
// use, unless its opcode is not QUERY. If q is nil, a question that the server has failed to answer replaces it, if
// there is one.
//
// If the server has answered a question before, the probe asks for the NS records of the root, then that question, then
// q. A working server need not resolve the root, and the earlier name may be broken now.
//
// Any other server may reject questions about the root, or may fail for the name of q. Successive probes of that server
// alternate between q and the question for the NS records of the root.
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

// spendForHedge asks the hedge policy to admit a hedge of call, and returns whether the policy does. n is the index of
// the hedge in the exchange, from 0. The hedge costs a token of the shared hedge bucket, and a token of the server's
// own hedge bucket. If the policy gives a reason for a denial, call.Denied holds it.
//
// In shadow mode, no hedge is admitted. If nothing else prevents the hedge, only the server's own bucket changes, as if
// the hedge had been sent.
func (p *serverBudgets) spendForHedge(call *policy.Call, n int) bool {
	call.Denied = policy.None
	admitted := call.Admit(n)
	switch {
	case admitted:
		p.refillHedgeBuckets() // a hedge is a query too
	case call.Denied == observe.DeniedShadow:
		p.sharedBucket.Refund()
		p.serverBucket.Deposit()
	}
	return admitted
}

// spendForRetransmission spends a token for a retransmission to this server. It returns false if no bucket permits it.
// first must be true for the first retransmission of a question, and silent must be true if the server is silent.
//
// A first retransmission uses the retransmission bucket of the server. If that bucket is empty, and for later
// retransmissions, the shared hedge bucket is used. If the shared bucket is empty, the retransmission bucket is used if
// it is at least half full.
//
// A retransmission to a silent server only uses the shared hedge bucket, because an outage must not double the load.
func (p *serverBudgets) spendForRetransmission(first, silent bool) bool {
	return first && !silent && p.retransmissions.spendToken(1) || p.spendForFailover() || !silent && p.spendSurplusToken()
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

// A retransmissionBucket is a token bucket that limits retransmissions to one server. It starts with 20 tokens
// (Burst), and each response of the server adds one token.
//
// Its capacity is 20 tokens, plus one for each response in the current and the previous period of two seconds. More
// traffic needs a larger capacity, because more packets are lost at the same time. It is safe for concurrent use.
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
