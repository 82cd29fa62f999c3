package dnshedge

import (
	"context"
	"slices"
	"strings"
	"time"
)

// Stats is what a Client did since it was made.
type Stats struct {
	Queries   int64 // questions asked of the Client
	Hits      int64 // answered from the cache
	Stale     int64 // answered by what had expired
	Shared    int64 // answered by another caller's exchange
	Refreshes int64 // asked for before the answer expired
	Failures  int64 // exchanges without any answer

	Wire       int64 // queries sent to servers, of all kinds
	Hedges     int64 // of them, those sent because an answer was late
	HedgeWins  int64 // hedges that gave the answer
	Denied     int64 // hedges that the budget, a brake or a stall of this process did not allow
	Resends    int64 // queries sent because nothing came for a second
	ResendWins int64
	Failovers  int64 // queries sent because another server could not answer
	Fallbacks  int64 // questions put to a fallback server
	Retries    int64 // queries sent again because a connection had been closed
	Abandoned  int64 // queries that ran on without a caller
	Ignored    int64 // messages that answered no query: strangers', damaged, forged

	Upstreams []UpstreamStats // by name
}

// UpstreamStats is what is known of one server.
type UpstreamStats struct {
	Upstream  Upstream
	Queries   int64 // sent to it
	Hedges    int64 // of them
	HedgeWins int64
	Silent    bool // three queries in a row had no answer

	SRTT      time.Duration // smoothed round trip time; 0: not known
	LossDelay time.Duration // after which a packet is taken for lost
	SlowDelay time.Duration // after which the budget pays for all hedges
	Handshake time.Duration // smoothed; 0: none was needed
	P50, P99  time.Duration // of the answers, recently; 0: none
}

// Stats returns what the Client did. The zero Stats is that of a Client whose
// fields are invalid.
func (c *Client) Stats() Stats {
	core, err := c.init()
	if err != nil {
		return Stats{}
	}
	n := &core.count
	s := Stats{
		Queries: n.queries.Load(), Hits: n.hits.Load(), Stale: n.stale.Load(), Shared: n.shared.Load(),
		Refreshes: n.refreshes.Load(), Failures: n.failures.Load(),
		Wire: n.wire.Load(), Hedges: n.hedges.Load(), HedgeWins: n.hedgeWins.Load(), Denied: n.denied.Load(),
		Resends: n.resends.Load(), ResendWins: n.resendWins.Load(), Failovers: n.failovers.Load(), Fallbacks: n.fallbacks.Load(),
		Retries: n.retries.Load(), Abandoned: n.abandoned.Load(), Ignored: n.ignored.Load(),
	}
	core.mu.Lock()
	defer core.mu.Unlock()
	for _, v := range core.servers {
		s.Upstreams = append(s.Upstreams, v.stats())
	}
	slices.SortFunc(s.Upstreams, func(a, b UpstreamStats) int {
		return strings.Compare(a.Upstream.String(), b.Upstream.String())
	})
	return s
}

func (s *server) stats() UpstreamStats {
	v := UpstreamStats{
		Upstream: s.up, Queries: s.wire.Load(), Hedges: s.hedges.Load(), HedgeWins: s.wins.Load(),
		Silent: s.silent(), LossDelay: s.lossDelay(),
	}
	v.SlowDelay = s.slowDelay()
	s.mu.Lock()
	defer s.mu.Unlock()
	v.SRTT, v.Handshake = time.Duration(s.srtt), time.Duration(s.shake)
	v.P50, _ = s.answers.Quantile(0.50)
	v.P99, _ = s.answers.Quantile(0.99)
	return v
}

// Trace is told what a Client does. Its functions may be nil; they are called
// from several goroutines at once and must not block.
type Trace struct {
	// Attempt is called before a query is sent. The context is the caller's, or
	// the Client's own if callers share the exchange.
	Attempt func(context.Context, AttemptInfo)
	// Done is called when an attempt has ended for the Client: with the time it
	// took and no error if it was answered, whatever the response code, or
	// with the error. A loser's is a context's cancellation; its answer may still
	// be learned from, but nobody is told of it.
	Done func(context.Context, AttemptInfo, time.Duration, error)
	// Answer is called for every question that is answered.
	Answer func(context.Context, AnswerInfo)
}

// AttemptInfo is what a Trace is told of an attempt.
type AttemptInfo struct {
	Name     string
	Type     uint16
	Upstream Upstream
	Attempt  int // 0 is the primary
	Hedge    bool
}

// Source is where an answer came from.
type Source string

// The sources of answers.
const (
	FromServer Source = "server"
	FromCache  Source = "cache"
	FromStale  Source = "stale" // the cache, though the answer had expired
)

// AnswerInfo is what a Trace is told of an answer.
type AnswerInfo struct {
	Name     string
	Type     uint16
	Source   Source
	Upstream Upstream // that gave the answer; zero if the source is a cache
	Attempts int      // 0 if the source is a cache
	HedgeWon bool
	Err      error // instead of an answer
}

func (c *core) trace(ctx context.Context, q *query, s *server, n int, k kind) {
	if t := c.conf.Trace; t != nil && t.Attempt != nil {
		t.Attempt(ctx, q.attempt(s, n, k))
	}
}

func (c *core) traceDone(ctx context.Context, q *query, s *server, n int, k kind, took time.Duration, err error) {
	if t := c.conf.Trace; t != nil && t.Done != nil {
		t.Done(ctx, q.attempt(s, n, k), took, err)
	}
}

func (q *query) attempt(s *server, n int, k kind) AttemptInfo {
	return AttemptInfo{Name: q.text(), Type: q.typ, Upstream: s.up, Attempt: n, Hedge: k == hedged}
}

func (c *core) traceAnswer(ctx context.Context, q *query, f found, from Source) {
	if t := c.conf.Trace; t != nil && t.Answer != nil {
		i := AnswerInfo{Name: q.text(), Type: q.typ, Source: from, Attempts: f.tries, HedgeWon: f.won.kind == hedged, Err: f.err}
		if f.won.from != nil {
			i.Upstream = f.won.from.up
		}
		t.Answer(ctx, i)
	}
}

func (c *core) traceHit(ctx context.Context, q *query, e *entry, from Source) {
	if t := c.conf.Trace; t != nil && t.Answer != nil {
		t.Answer(ctx, AnswerInfo{Name: q.text(), Type: q.typ, Source: from, Err: e.err})
	}
}
