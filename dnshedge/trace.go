package dnshedge

import (
	"context"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/group"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
)

// Trace is a set of functions that a Client calls on events. Each may be nil. They are called from several goroutines
// at once and must not block. A panic in a function is recovered and counted in Stats.ObserverPanics.
type Trace struct {
	// Attempt is called before a query is sent. The context is the caller's, or the Client's own if callers share the
	// exchange.
	Attempt func(context.Context, AttemptInfo)
	// Done is called when an attempt has ended, with its duration. The error is nil if the server responded, with any
	// response code. A losing attempt ends with the error of its cancelled context. If its response still arrives, Done
	// is not called again.
	Done func(context.Context, AttemptInfo, time.Duration, error)
	// Answer is called with the answer to a question, or with its error.
	Answer func(context.Context, AnswerInfo)
}

// AttemptInfo describes one attempt: a query that is sent to one server. Functions of Trace receive it.
type AttemptInfo struct {
	Name     string
	Type     uint16
	Upstream Upstream
	Attempt  int // 0 for the primary, and then counted up
	Hedge    bool
}

// Source says which part of a Client gave an answer: a server, the cache, or local data.
type Source string

// The sources of answers.
const (
	FromServer Source = "server"
	FromCache  Source = "cache"
	FromStale  Source = "stale" // the cache, with an answer that had expired
	FromLocal  Source = "local" // this machine: the hosts file, or a special-use name
)

// AnswerInfo describes the answer to a question, or the error if the question was not answered. Trace.Answer receives
// it.
type AnswerInfo struct {
	Name     string
	Type     uint16
	Source   Source
	Upstream Upstream // server that answered; zero if the source is not a server
	Attempts int      // number of attempts; 0 if the source is not a server
	HedgeWon bool
	Err      error // set if there is no answer
}

// recoverPanics returns a copy of t whose functions recover panics of t's functions, and pass the value of each panic
// to panicked. It returns nil if t is nil.
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

// A traceAdapter converts the events of package group to calls of the functions of a Trace.
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
	return AttemptInfo{Name: q.PresentationName(), Type: q.Type, Upstream: upstreamOf(to), Attempt: n, Hedge: hedge}
}

// reportAnswer calls t.Answer with the result r of q, and returns r. t may be nil.
func (t *Trace) reportAnswer(ctx context.Context, q *wire.Query, r *result) *result {
	if t != nil && t.Answer != nil {
		i := AnswerInfo{Name: q.PresentationName(), Type: q.Type, Source: FromServer, Attempts: r.attempts, HedgeWon: r.isHedged, Err: r.err}
		if r.from != nil {
			i.Upstream = upstreamOf(r.from)
		}
		t.Answer(ctx, i)
	}
	return r
}

// reportLocalAnswer calls t.Answer for an answer, or an error, for which no server was asked. t may be nil.
func (t *Trace) reportLocalAnswer(ctx context.Context, q *wire.Query, from Source, err error) {
	if t != nil && t.Answer != nil {
		t.Answer(ctx, AnswerInfo{Name: q.PresentationName(), Type: q.Type, Source: from, Err: err})
	}
}
