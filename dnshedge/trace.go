package dnshedge

import (
	"context"
	"errors"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/group"
	"github.com/gohedge/hedge/dnshedge/internal/wire"
	"github.com/gohedge/hedge/internal/ops"
	"github.com/gohedge/hedge/observe"
)

// Trace is a set of functions that a Client calls when attempts start and end, and when questions and lookups end. Each
// may be nil. They must be safe for concurrent use, and must not block. Panics are recovered and counted in
// Stats.ObserverPanics.
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
	// Lookup is called when a question of a caller has ended, in any way, including that its context has ended. The
	// context is the caller's. With Resolver, a lookup of a host has a question for each address family, and the context
	// lacks the caller's values after the caller's context has ended.
	Lookup func(context.Context, observe.DNSLookup)
}

// AttemptInfo describes one attempt: a query that is sent to one server. Functions of Trace receive it.
type AttemptInfo struct {
	Name     string   // name in the question, with the final dot
	Type     uint16   // record type in the question
	Upstream Upstream // server to which the query is sent
	Attempt  int      // 0 for the primary, and then counted up; several queries of the last attempt may run at a time
	Hedge    bool     // the attempt is a hedge
}

// Source is the part of a Client that gave an answer: a server, the cache, or local data.
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
	Name     string   // name in the question, with the final dot
	Type     uint16   // record type in the question
	Source   Source   // FromServer also for an error of the servers, and for an Exchanger
	Upstream Upstream // server that answered, or was queried first if Err is set; zero if no server was queried
	Attempts int      // number of attempts; 0 if the source is not a server
	HedgeWon bool     // a hedge gave the answer
	Err      error    // set if there is no answer
}

// A tracer calls the functions of Client.Trace, and logs their panics. It is nil if the Client has no Trace.
type tracer struct {
	Trace // a copy, because the program may change its Trace while attempts run
	log   *ops.Log
}

// callGuarded calls f, a function of the user's Trace. If f panics, it recovers and logs the panic.
func (t *tracer) callGuarded(f func()) {
	defer func() {
		if p := recover(); p != nil {
			t.log.LogPanic("Trace", p)
		}
	}()
	f()
}

// AttemptStarted calls Trace.Attempt before an attempt sends the question q to a server. n is the number of the
// attempt, 0 for the primary. to is the server, and hedge is true if the attempt is a hedge. It implements
// group.AttemptTracer.
func (t *tracer) AttemptStarted(ctx context.Context, q *wire.Query, to *group.Server, n int, hedge bool) {
	if t.Attempt != nil {
		t.callGuarded(func() { t.Attempt(ctx, newAttemptInfo(q, to, n, hedge)) })
	}
}

// AttemptEnded calls Trace.Done when an attempt to answer the question q has ended. n is the number of the attempt, 0
// for the primary. to is its server, and took is its duration. It implements group.AttemptTracer.
func (t *tracer) AttemptEnded(ctx context.Context, q *wire.Query, to *group.Server, n int, hedge bool, took time.Duration, err error) {
	if t.Done != nil {
		t.callGuarded(func() { t.Done(ctx, newAttemptInfo(q, to, n, hedge), took, toStatusError(to, err)) })
	}
}

// newAttemptInfo describes an attempt for functions of Trace. n is the number of the attempt, 0 for the primary. to is
// the server to which the attempt sends q, and hedge is true if the attempt is a hedge.
func newAttemptInfo(q *wire.Query, to *group.Server, n int, hedge bool) AttemptInfo {
	return AttemptInfo{Name: q.PresentationName(), Type: q.Type, Upstream: upstreamOf(to), Attempt: n, Hedge: hedge}
}

// reportAnswer calls Trace.Answer with r, the servers' result for the question q, and returns r. t may be nil.
func (t *tracer) reportAnswer(ctx context.Context, q *wire.Query, r *result) *result {
	if t != nil && t.Answer != nil {
		i := AnswerInfo{Name: q.PresentationName(), Type: q.Type, Source: FromServer, Attempts: r.attempts, HedgeWon: r.isHedged, Err: r.err}
		if r.from != nil {
			i.Upstream = upstreamOf(r.from)
		}
		t.callGuarded(func() { t.Answer(ctx, i) })
	}
	return r
}

// reportLocalAnswer calls Trace.Answer for a question q that was answered without a query. source is the cache, or
// local data such as the hosts file. err is the cached error if there is no answer. t may be nil.
func (t *tracer) reportLocalAnswer(ctx context.Context, q *wire.Query, source Source, err error) {
	if t != nil && t.Answer != nil {
		t.callGuarded(func() { t.Answer(ctx, AnswerInfo{Name: q.PresentationName(), Type: q.Type, Source: source, Err: err}) })
	}
}

// hasLookupTrace reports whether Trace.Lookup is set, so that callers must measure the duration of lookups. t may be
// nil.
func (t *tracer) hasLookupTrace() bool { return t != nil && t.Lookup != nil }

// reportLookup calls Trace.Lookup for the question q, which has ended with the answer a, or with err if that is not
// nil. start is the time at which the caller asked. Trace.Lookup must be set.
func (t *tracer) reportLookup(ctx context.Context, q *wire.Query, start time.Time, a *wire.Answer, err error) {
	l := observe.DNSLookup{Name: q.PresentationName(), Type: q.Type, Duration: time.Since(start), ErrorType: lookupErrorType(a, err)}
	t.callGuarded(func() { t.Lookup(ctx, l) })
}

// lookupErrorType returns the class of a lookup's error, as text for DNSLookup.ErrorType: for example "host_not_found"
// for NXDOMAIN. It is empty for an answer without an error. a is the answer, and is not used if err is set.
func lookupErrorType(a *wire.Answer, err error) string {
	switch {
	case errors.Is(err, context.Canceled):
		return "canceled"
	case err != nil || a.Rcode() == dns.RcodeServerFailure:
		return "try_again"
	case a.Rcode() == dns.RcodeSuccess:
		return ""
	case a.Rcode() == dns.RcodeNameError:
		return "host_not_found"
	}
	return "no_recovery"
}
