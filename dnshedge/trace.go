package dnshedge

import (
	"context"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// Trace is told what a Client does. Its functions may be nil; they are called
// from several goroutines at once and must not block.
type Trace struct {
	// Attempt is called before a query is sent. The context is the caller's, or
	// the Client's own if callers share the exchange.
	Attempt func(context.Context, AttemptInfo)
	// Done is called when an attempt has ended for the Client, with its duration. The
	// error is nil if the attempt was answered, whatever the response code. An attempt
	// that lost has a context's cancellation as its error; the Client may still learn
	// from its answer, but Trace is not told of that.
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
	FromLocal  Source = "local" // this machine: the hosts file, or a special-use name
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

func (c *core) traceAttempt(ctx context.Context, q *wire.Query, s *upstreamState, n int, k kind) {
	if t := c.conf.Trace; t != nil && t.Attempt != nil {
		t.Attempt(ctx, attemptInfo(q, s, n, k))
	}
}

func (c *core) traceDone(ctx context.Context, q *wire.Query, s *upstreamState, n int, k kind, took time.Duration, err error) {
	if t := c.conf.Trace; t != nil && t.Done != nil {
		t.Done(ctx, attemptInfo(q, s, n, k), took, err)
	}
}

func attemptInfo(q *wire.Query, s *upstreamState, n int, k kind) AttemptInfo {
	return AttemptInfo{Name: q.Text(), Type: q.Type, Upstream: s.up, Attempt: n, Hedge: k == hedged}
}

// traceResult returns r, of which the Trace is told.
func (c *core) traceResult(ctx context.Context, q *wire.Query, r *result) *result {
	if t := c.conf.Trace; t != nil && t.Answer != nil {
		i := AnswerInfo{Name: q.Text(), Type: q.Type, Source: FromServer, Attempts: r.tries, HedgeWon: r.kind == hedged, Err: r.err}
		if r.from != nil {
			i.Upstream = r.from.up
		}
		t.Answer(ctx, i)
	}
	return r
}

func (c *core) traceHit(ctx context.Context, q *wire.Query, from Source, err error) {
	if t := c.conf.Trace; t != nil && t.Answer != nil {
		t.Answer(ctx, AnswerInfo{Name: q.Text(), Type: q.Type, Source: from, Err: err})
	}
}
