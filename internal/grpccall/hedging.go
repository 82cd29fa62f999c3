package grpccall

import (
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

// hedging is the state that unary calls and streams share.
type hedging struct {
	policy.Call

	// Written before the race begins.
	in       *Client
	rule     *methodRule             // an rpc keeps it for its next call, which often has the same method
	throttle *serviceconfig.Throttle // nil: none

	selection  conns.Selection // of the connection of each attempt
	hedgePicks hedgebalancer.HedgePicks
	barred     atomic.Bool // a server of the target has pushed back: the call gets no more hedges there
}

// beginCall begins a call over cc and returns the delays of its hedges; nil means that no hedge can become due. The key must be set before. A delay that
// is not 0 replaces the learned delays.
func (h *hedging) beginCall(ctx context.Context, cc *grpc.ClientConn, delay time.Duration) []time.Duration {
	h.selection.Init(h.in.options.HedgeConns, cc, h.Key)
	schedule := h.BeginOn(ctx, h.Key, delay, h.rule.terms)
	if schedule == nil {
		h.in.Counters.WarmupRequests.Add(1)
		return nil
	}
	return schedule.Delays
}

// admitHedge decides whether a hedge of a call over cc starts. It denies a hedge that has no request (able is false), whose connection is not ready, or that
// cannot be answered before the deadline.
func (h *hedging) admitHedge(index int, cc *grpc.ClientConn, able bool, deadline grpcattempt.Deadline) bool {
	due := conns.DueHedge{TargetPaused: h.isTargetPaused()}
	switch own := h.in.options.HedgeConns == nil; {
	case deadline.IsWithin(h.minRemainingTime()):
		due.Denial = observe.DeniedDeadline
	case own && due.TargetPaused:
		due.Denial = observe.DeniedPaused
	case !able, own && cc != nil && !h.in.idleConnector.IsReady(cc):
		due.Denial = observe.DeniedNotReady
	}
	return h.selection.Admit(&h.Call, index, due)
}

// minRemainingTime returns the median latency of the key, 0 if it is not known: a hedge with less time until the deadline is not sent.
func (h *hedging) minRemainingTime() time.Duration {
	if p := h.Key.Schedule(); p != nil {
		return p.Median
	}
	return 0
}

// isTargetPaused reports whether pushback or retry throttling of the target denies hedges of the call.
func (h *hedging) isTargetPaused() bool { return h.barred.Load() || !h.throttle.AllowsHedge() }

// stopHedges denies further hedges of the call to the target of attempt n.
func (h *hedging) stopHedges(n int) {
	if h.selection.Attempt(n).IsOtherTarget() {
		h.selection.Exclude(h.selection.Attempt(n))
	} else {
		h.barred.Store(true)
	}
}

var errNotFinal = errors.New("hedge: another attempt may get a better status")

// classifyAttempt returns the error that tells the race what err, the status of attempt n, means: nil is a success, [race.ErrAnswer] an answer that
// ends the call only if the primary has it, and any other error a failure. It records pushback and the health of the connection. The timeout of the
// call ends at the deadline.
func (h *hedging) classifyAttempt(a *race.Attempt, n int, err error, trailer metadata.MD, deadline grpcattempt.Deadline) error {
	verdict := h.classifyStatus(a, n, err, trailer, deadline)
	if h.in.options.HedgeConns != nil {
		h.selection.RecordResult(a, n, h.in.isAnswer(err) && !h.in.lacksCredentials(err), verdict == race.ErrRefused || n > 0 && deadline.IsWithin(0))
	}
	return verdict
}

// classifyStatus is classifyAttempt without the record of the connection.
func (h *hedging) classifyStatus(a *race.Attempt, n int, err error, trailer metadata.MD, deadline grpcattempt.Deadline) error {
	switch {
	case err == nil:
		return nil
	case n > 0 && (isRefusedByLimiter(err, trailer) || err == hedgebalancer.ErrSameBackend): // the latter of a retry; errors.Is would write to a status of the caller's
		return race.ErrRefused
	}
	if wait, pushed := grpcattempt.ReadPushback(err, trailer); pushed {
		if !h.selection.Attempt(n).IsOtherTarget() {
			h.Key.RecordPushback(time.Now(), wait)
		}
		if h.rule.hedging == nil {
			h.stopHedges(n)
		}
	}
	switch code := status.Code(err); {
	case h.in.options.AnswerCodes[code]:
		return nil
	case h.rule.hedging != nil:
		return h.classifyRetryable(a, n, err, trailer, deadline)
	case a.Err() == nil && (!h.in.options.NonFatalCodes[code] || n == 0 && deadline.IsTimeout(err, trailer)):
		return race.ErrAnswer
	}
	return errNotFinal
}

// classifyRetryable returns the error by which the race classifies a failure of attempt n of a method with a hedging policy: the next hedge may start
// earlier or later than its delay (gRFC A6).
func (h *hedging) classifyRetryable(a *race.Attempt, n int, err error, trailer metadata.MD, deadline grpcattempt.Deadline) error {
	if a.Err() != nil || h.selection.Attempt(n).IsClosed() {
		return errNotFinal
	}
	nonFatal := h.rule.hedging.IsNonFatal(status.Code(err))
	after, stop := grpcattempt.NextHedgeDelay(trailer)
	if (nonFatal || stop) && !h.selection.Attempt(n).IsOtherTarget() {
		h.throttle.RecordFailure()
	}
	if stop {
		h.stopHedges(n)
	}
	if !nonFatal || n == 0 && deadline.IsTimeout(err, trailer) {
		return race.ErrAnswer
	}
	failure := &grpcattempt.NonFatal{Elapsed: h.ElapsedSinceBegin(), After: after}
	usual := h.selection.TypicalRequest()
	hold := after > 0 && (deadline.IsWithin(after) || h.isTargetPaused() && !usual.OtherBackend || h.WouldBeDenied(a, time.Now().Add(after), usual)) // for nothing
	if !stop && !hold {
		failure.Hedges = h.rule.terms.Hedges
		h.MarkRescheduled()
	}
	return failure
}

// Discard counts hedges that panicked. There is nothing to release.
func (h *hedging) Discard(_ error, err error) {
	if _, ok := err.(*race.Panic); ok {
		h.in.Counters.HedgePanics.Add(1)
	}
}

// isRefusedByLimiter reports whether a Limiter of the server has refused a hedge that ended with err.
func isRefusedByLimiter(err error, trailer metadata.MD) bool {
	return status.Code(err) == codes.Unavailable && len(trailer.Get(limit.RefusedHeader)) > 0
}
