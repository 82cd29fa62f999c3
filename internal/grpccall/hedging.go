package grpccall

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge/internal/conns"
	"github.com/gohedge/hedge/internal/grpcattempt"
	"github.com/gohedge/hedge/internal/hedgebalancer"
	"github.com/gohedge/hedge/internal/limit"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/internal/serviceconfig"
	"github.com/gohedge/hedge/observe"
)

// A hedgedCall is the state of one call that unary calls and streams have in common. The types unaryCall and stream embed
// it.
type hedgedCall struct {
	policy.Call

	// Written before the race begins.
	client   *Client
	rule     *methodRule             // settings of the method; kept for the next call, which often has the same method
	throttle *serviceconfig.Throttle // token bucket of retryThrottling; nil if there is none

	selection      conns.Selection          // connection of each attempt
	hedgePicks     hedgebalancer.HedgePicks // backends that the balancer has picked for hedges
	targetExcluded atomic.Bool              // the call sends no more hedges to its target, because a server of the target has pushed back
}

// beginCall begins a call over cc and returns the hedge delays. The result nil means that no hedge can become due. If
// delay is not 0, it replaces the learned delays. The caller must have set the latency key.
func (h *hedgedCall) beginCall(ctx context.Context, cc *grpc.ClientConn, delay time.Duration) []time.Duration {
	h.selection.Init(h.client.options.HedgeConns, cc, h.Key)
	schedule := h.BeginWithOverride(ctx, h.Key, delay, h.rule.override)
	if schedule == nil {
		h.client.Counters.WarmupRequests.Add(1)
		return nil
	}
	return schedule.Delays
}

// admitHedge decides whether the hedge with the given index in the hedge schedule starts, for a call over cc. The hedge
// is denied if canCopy is false, because the request cannot be copied. It is also denied if its connection is not
// ready, or if too little time remains until the deadline.
func (h *hedgedCall) admitHedge(index int, cc *grpc.ClientConn, canCopy bool, deadline grpcattempt.Deadline) bool {
	if h.SkipSurplus(index, h.client.Policy.Config().MaxHedges) {
		return false
	}
	due := conns.DueHedge{TargetPaused: h.isTargetPaused()}
	isFailover := index == race.AfterFailure
	if isFailover {
		due.IsTooLate = func(latency time.Duration) bool { return deadline.IsWithin(cmp.Or(latency, h.minRemainingTime())) }
	}
	switch own := h.client.options.HedgeConns == nil; {
	case !isFailover && deadline.IsWithin(h.minRemainingTime()):
		due.Denial = observe.DeniedDeadline
	case own && due.TargetPaused:
		due.Denial = observe.DeniedPaused
	case !canCopy, own && cc != nil && !h.client.idleConnector.IsReady(cc):
		due.Denial = observe.DeniedNotReady
	}
	return h.selection.Admit(&h.Call, index, due)
}

// minRemainingTime returns the time that must remain until the deadline when a hedge starts. It is the median latency
// of the call's latency key, or 0 if that is unknown.
func (h *hedgedCall) minRemainingTime() time.Duration {
	if p := h.Key.Schedule(); p != nil {
		return p.Median
	}
	return 0
}

// isTargetPaused reports whether pushback or retry throttling prevents hedges of the call to the call's target.
func (h *hedgedCall) isTargetPaused() bool {
	return h.targetExcluded.Load() || !h.throttle.AllowsHedge()
}

// stopHedges prevents further hedges of the call to the server of attempt n. If attempt n uses the target of the call,
// it prevents hedges to all servers of the target.
func (h *hedgedCall) stopHedges(n int) {
	if h.selection.Attempt(n).HasOtherTarget() {
		h.selection.Exclude(h.selection.Attempt(n))
	} else {
		h.targetExcluded.Store(true)
	}
}

// errNotFinal is the error of a failed attempt for the race if another attempt may succeed.
var errNotFinal = errors.New("hedge: another attempt may get a better status")

// classifyAttempt returns the error by which the race decides whether attempt n has succeeded. The attempt ended with
// the status err and the given trailer. The result is nil for a success, and [race.ErrAnswer] for a status with which
// only the primary wins. Any other error means a failure.
//
// It also records pushback, and the health of the connection. The deadline is the timeout of the call.
func (h *hedgedCall) classifyAttempt(a *race.Attempt, n int, err error, trailer metadata.MD, deadline grpcattempt.Deadline) error {
	verdict := h.classifyStatus(a, n, err, trailer, deadline)
	if h.client.options.HedgeConns != nil {
		h.selection.RecordResult(a, &h.Call, n, h.client.isAnswer(err) && !h.client.lacksCredentials(err), verdict == race.ErrRefused || n > 0 && deadline.IsWithin(0))
	}
	return verdict
}

// classifyStatus does the work of classifyAttempt, except that it does not record the health of the connection. It
// returns the error by which the race decides whether attempt n has succeeded.
func (h *hedgedCall) classifyStatus(a *race.Attempt, n int, err error, trailer metadata.MD, deadline grpcattempt.Deadline) error {
	switch {
	case err == nil:
		return nil
	case n > 0 && (isRefusedByLimiter(err, trailer) || err == hedgebalancer.ErrSameBackend): // the latter of a retry; errors.Is would write to a status of the caller's
		return race.ErrRefused
	}
	wait, pushed := grpcattempt.ReadPushback(err, trailer)
	if pushed {
		if !h.selection.Attempt(n).HasOtherTarget() {
			h.Key.RecordPushback(time.Now(), wait)
		}
		if h.rule.hedgingPolicy == nil {
			h.stopHedges(n)
		}
	}
	switch code := status.Code(err); {
	case h.client.options.AnswerCodes[code]:
		return nil
	case h.rule.hedgingPolicy != nil:
		return h.classifyRetryable(a, n, err, trailer, deadline)
	case a.Err() == nil && (!h.client.options.NonFatalCodes[code] || n == 0 && deadline.IsTimeout(err, trailer)):
		return race.ErrAnswer
	case code == codes.Unavailable && !pushed && a.Err() == nil && h.client.options.HedgeConns != nil:
		return &grpcattempt.FailoverError{Elapsed: h.ElapsedSinceBegin(), Timeout: func() time.Duration { return h.selection.FailoverTimeout(h.Hedges, h.P99Latency()) }}
	}
	return errNotFinal
}

// classifyRetryable returns the error that the race gets for a failed attempt of a method with a hedging policy (gRFC
// A6). For a status that the policy lists as non-fatal, it is a [grpcattempt.NonFatalError], which changes the time of
// the next hedge. For another status, it is [race.ErrAnswer]: such a result ends the call only if it is the primary's.
func (h *hedgedCall) classifyRetryable(a *race.Attempt, n int, err error, trailer metadata.MD, deadline grpcattempt.Deadline) error {
	if a.Err() != nil || h.selection.Attempt(n).IsClosed() {
		return errNotFinal
	}
	nonFatal := h.rule.hedgingPolicy.IsNonFatal(status.Code(err))
	after, stop := grpcattempt.NextHedgeDelay(trailer)
	if (nonFatal || stop) && !h.selection.Attempt(n).HasOtherTarget() {
		h.throttle.RecordFailure()
	}
	if stop {
		h.stopHedges(n)
	}
	if !nonFatal || n == 0 && deadline.IsTimeout(err, trailer) {
		return race.ErrAnswer
	}
	failure := &grpcattempt.NonFatalError{Elapsed: h.ElapsedSinceBegin(), After: after}
	usual := h.selection.TypicalRequest()
	hold := after > 0 && (deadline.IsWithin(after) || h.isTargetPaused() && !usual.OtherBackend || h.WouldBeDenied(a, time.Now().Add(after), usual)) // for nothing
	if !stop && !hold {
		failure.Hedges = h.rule.override.Hedges
		h.MarkRescheduled()
	}
	return failure
}

// Discard implements [race.Op]. A discarded attempt holds nothing that must be released, so Discard only counts panics
// of hedges.
func (h *hedgedCall) Discard(_ error, err error) {
	if _, ok := err.(*race.Panic); ok {
		h.client.Counters.HedgePanics.Add(1)
	}
}

// isRefusedByLimiter reports whether a hedge that ended with err and trailer was refused by a Limiter of the server,
// which gives hedges a lower priority.
func isRefusedByLimiter(err error, trailer metadata.MD) bool {
	return status.Code(err) == codes.Unavailable && len(trailer.Get(limit.RefusedHeader)) > 0
}
