package dnshedge

import (
	"context"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/group"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// Trace has functions that a Client calls on its events. They may be nil. They are called from several goroutines at
// once and must not block. A panic of one is counted in Stats.ObserverPanics.
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

// AttemptInfo describes an attempt for a Trace.
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

// AnswerInfo describes an answer for a Trace.
type AnswerInfo struct {
	Name     string
	Type     uint16
	Source   Source
	Upstream Upstream // that gave the answer; zero if the source is a cache
	Attempts int      // 0 if the source is a cache
	HedgeWon bool
	Err      error // instead of an answer
}

// recoverPanics returns a Trace that calls the functions of t and recovers their panics. It calls panicked with the
// value of a panic. It returns nil if t is nil.
func (t *Trace) recoverPanics(panicked func(value any)) *Trace {
	if t == nil {
		return nil
	}
	recovered := func() { // to be deferred itself
		if p := recover(); p != nil {
			panicked(p)
		}
	}
	g := new(Trace)
	if f := t.Attempt; f != nil {
		g.Attempt = func(ctx context.Context, i AttemptInfo) {
			defer recovered()
			f(ctx, i)
		}
	}
	if f := t.Done; f != nil {
		g.Done = func(ctx context.Context, i AttemptInfo, took time.Duration, err error) {
			defer recovered()
			f(ctx, i, took, err)
		}
	}
	if f := t.Answer; f != nil {
		g.Answer = func(ctx context.Context, i AnswerInfo) {
			defer recovered()
			f(ctx, i)
		}
	}
	return g
}

// traceAdapter is a Trace in the words of package group.
type traceAdapter struct{ *Trace }

func (t traceAdapter) AttemptStarted(ctx context.Context, q *wire.Query, to *group.Server, n int, hedge bool) {
	if t.Trace.Attempt != nil {
		t.Trace.Attempt(ctx, attemptInfo(q, to, n, hedge))
	}
}

func (t traceAdapter) AttemptEnded(ctx context.Context, q *wire.Query, to *group.Server, n int, hedge bool, took time.Duration, err error) {
	if t.Trace.Done != nil {
		t.Trace.Done(ctx, attemptInfo(q, to, n, hedge), took, explainError(to, err))
	}
}

func attemptInfo(q *wire.Query, to *group.Server, n int, hedge bool) AttemptInfo {
	return AttemptInfo{Name: q.Text(), Type: q.Type, Upstream: upstreamOf(to), Attempt: n, Hedge: hedge}
}

// reportAnswer returns r, of which the Trace is told, if there is one.
func (t *Trace) reportAnswer(ctx context.Context, q *wire.Query, r *result) *result {
	if t != nil && t.Answer != nil {
		i := AnswerInfo{Name: q.Text(), Type: q.Type, Source: FromServer, Attempts: r.attempts, HedgeWon: r.isHedged, Err: r.err}
		if r.from != nil {
			i.Upstream = upstreamOf(r.from)
		}
		t.Answer(ctx, i)
	}
	return r
}

// reportLocalAnswer tells the Trace, if there is one, of an answer that no server was asked for.
func (t *Trace) reportLocalAnswer(ctx context.Context, q *wire.Query, from Source, err error) {
	if t != nil && t.Answer != nil {
		t.Answer(ctx, AnswerInfo{Name: q.Text(), Type: q.Type, Source: from, Err: err})
	}
}
