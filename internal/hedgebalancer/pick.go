package hedgebalancer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge/internal/race"
)

// A ContextKey is the key of the context value by which the policy recognises attempts. The value is the *[PrimaryPick]
// of a primary, or the *[HedgePick] of a hedge.
type ContextKey struct{}

// A PrimaryPick stores the backend that a call's primary uses, so that hedges avoid that backend. The primary's context
// must have it as the value of [ContextKey].
//
// Another call with the same context would replace the stored backend. The contexts of other calls must therefore be
// created by [WithoutPick].
type PrimaryPick struct {
	use atomic.Pointer[backendUse] // nil: no backend was picked yet
}

// A HedgePicks stores which backends the hedges of one call use, and which hedges were refused. Hedges are numbered
// from 1. The zero value is ready to use. It is safe for concurrent use.
type HedgePicks struct {
	mu      sync.Mutex                      // guards the fields below
	uses    [1 + race.MaxHedges]*backendUse // backends of hedges, by number of the hedge; nil if the hedge has none
	refused [1 + race.MaxHedges]bool        // the hedge was not sent because there was no other backend; by number of the hedge
}

// NewContext returns a HedgePick, which is the context for the attempt with the given number, from 1. The policy recognises
// the hedge by it. It is a child of ctx. The argument primary must be the PrimaryPick of the same call.
func (p *HedgePicks) NewContext(ctx context.Context, hedge int, primary *PrimaryPick) *HedgePick {
	return &HedgePick{ctx, primary, p, hedge}
}

// releaseDelay is the time after which ReleaseUnused reports unused picks to the child policy as ended. Most losers end
// earlier, so that the child gets the results of their picks first.
const releaseDelay = time.Second

// ReleaseUnused reports to the child policy that the unused picks of a stream's hedges have ended, see unusedPick. It
// does so one second later, without waiting for the end of the attempts.
//
// It must be called when the winner is chosen, because the winner's stream may last for hours. The argument primary
// must be the PrimaryPick of the same call.
func (p *HedgePicks) ReleaseUnused(primary *PrimaryPick) {
	p.mu.Lock()
	uses, refused := p.uses, p.refused
	p.mu.Unlock()
	if uses == [len(uses)]*backendUse{} && refused == [len(refused)]bool{} {
		return // no hedge has asked for a backend
	}
	uses[0] = primary.use.Load() // hedges are counted from 1
	time.AfterFunc(releaseDelay, func() {
		for _, u := range uses {
			if u != nil {
				u.releaseUnused()
			}
		}
	})
}

// A HedgePick is the context of a hedge. Its value under [ContextKey] is itself, so that the policy recognises the
// hedge. If the hedge makes other calls, their contexts must be created by [WithoutPick].
type HedgePick struct {
	context.Context
	primary *PrimaryPick // the backend of the primary of the same call
	picks   *HedgePicks  // the backends of all hedges of the same call
	// number of the hedge, from 1
	hedge int
}

// Value returns d for [ContextKey] and [race.AttemptContextKey], and the value of the parent context for other keys.
func (d *HedgePick) Value(key any) any {
	switch key {
	case ContextKey{}, race.AttemptContextKey{}:
		return d
	}
	return d.Context.Value(key)
}

// IsRefused reports whether the hedge was not sent because there was no backend that the primary does not use.
func (d *HedgePick) IsRefused() bool {
	d.picks.mu.Lock()
	defer d.picks.mu.Unlock()
	return d.picks.refused[d.hedge]
}

// usageRank returns which other attempts of the call use backend b: 0 if none uses it, 1 if only hedges use it, and 2
// if the primary uses it. It also returns the use of b by one of these attempts, or nil if there is none.
func (d *HedgePick) usageRank(b *backend) (rank int, use *backendUse) {
	if p := d.primary.use.Load(); p != nil && p.addr == b.addr {
		return 2, p
	}
	d.picks.mu.Lock()
	defer d.picks.mu.Unlock()
	for n, other := range d.picks.uses {
		if n != d.hedge && other != nil && other.addr == b.addr {
			rank, use = 1, other
		}
	}
	return rank, use
}

// recordPick records that the hedge uses the backend of u. If u is nil, it records that the hedge was refused. If gRPC
// retries a hedge and the retry is refused, the hedge does not count as refused, because it was sent before.
func (d *HedgePick) recordPick(u *backendUse) {
	d.picks.mu.Lock()
	defer d.picks.mu.Unlock()
	if u != nil {
		d.picks.uses[d.hedge] = u
	}
	d.picks.refused[d.hedge] = d.picks.uses[d.hedge] == nil
}

// recordedUse returns the use that recordPick has recorded last for the hedge, or nil if there is none.
func (d *HedgePick) recordedUse() *backendUse {
	d.picks.mu.Lock()
	defer d.picks.mu.Unlock()
	return d.picks.uses[d.hedge]
}

// WithoutPick returns a context that hides the PrimaryPick or HedgePick in ctx. It must be used for other calls that an
// attempt makes, because these calls are not attempts.
func WithoutPick(ctx context.Context) context.Context {
	if ctx.Value(ContextKey{}) == nil {
		return ctx
	}
	return noPickContext{ctx}
}

// A noPickContext is a context that has no value for [ContextKey]. It has the other values of its parent.
type noPickContext struct{ context.Context }

// Value returns nil for [ContextKey], and the value of the parent context for other keys.
func (a noPickContext) Value(key any) any {
	if key == (ContextKey{}) {
		return nil
	}
	return a.Context.Value(key)
}

// errPickUnused is the result that the child policy gets for a pick that no attempt uses. Its code is CANCELLED, as for
// losers. A child that counts it as a failure would also count losers.
var errPickUnused = status.Error(codes.Canceled, "hedge_elsewhere: the backend was not used")

// A backendUse is the use of a backend by one attempt. It also holds unused picks of the same backend, see unusedPick.
// They are reported to the child policy as ended when the attempt ends. If they ended earlier, a child policy that
// measures latency would measure zero for them.
type backendUse struct {
	*backend
	done func(balancer.DoneInfo) // Done function of the child policy

	mu          sync.Mutex                // guards the fields below
	finished    bool                      // unused picks no longer wait for the attempt, because it has ended or releaseUnused was called
	unusedPicks []func(balancer.DoneInfo) // Done functions of unused picks that wait for the end of the attempt
}

// trackUse prepares the pick r of backend b for an attempt, and returns the backendUse of the attempt. It replaces the
// Done function of r in order to observe the end of the attempt.
//
// If the child has set no Done function, no unused picks need to be reported. In that case trackUse returns a shared
// backendUse that has finished.
func (b *backend) trackUse(r *balancer.PickResult) *backendUse {
	r.SubConn = b.SubConn
	if r.Done == nil {
		r.Done = b.loadRecorder
		return &b.finishedUse
	}
	u := &backendUse{backend: b, done: r.Done}
	r.Done = u.recordAttemptEnd
	return u
}

// recordAttemptEnd is the Done function of the attempt's pick, which gRPC calls at the end of the attempt. It reports the end to
// the child, and then the end of the unused picks that wait for it. All end at the same time, so that a time-weighted
// average of latencies ignores the unused picks.
func (u *backendUse) recordAttemptEnd(info balancer.DoneInfo) {
	u.recordLoad(info)
	u.done(info)
	u.releaseUnused()
}

// withoutLosers returns a Done function for an RPC with the context ctx. It calls counted, the Done function of outlier
// detection, unless the RPC was cut off. In that case, it reports the end to the child only. The function counted must do
// the same and count the result. The argument hedge is the context of the hedge that makes the RPC; it is nil for a
// primary.
func (u *backendUse) withoutLosers(ctx, hedge context.Context, counted func(balancer.DoneInfo)) func(balancer.DoneInfo) {
	return func(info balancer.DoneInfo) {
		switch {
		case !isCutOff(ctx, hedge, info):
			counted(info)
		case u.done != nil:
			u.recordAttemptEnd(info)
		default: // the shared use of a child that sets no Done function
			u.recordLoad(info)
		}
	}
}

// isCutOff reports whether an RPC with the context ctx ended before its backend has shown whether it works: another attempt
// has won, or the RPC belongs to a hedge that has ended. The argument hedge is the context of that hedge, or nil. The
// argument info describes the end.
//
// The primary of a call that the caller ends is not cut off in this sense. Without hedging it counts as a failure, too.
// Nor is an RPC whose own deadline passes while its hedge continues, such as one try of a retry interceptor.
func isCutOff(ctx, hedge context.Context, info balancer.DoneInfo) bool {
	if code := status.Code(info.Err); code != codes.Canceled && code != codes.DeadlineExceeded {
		return false
	}
	if hedge != nil && !info.BytesReceived {
		return HasEnded(hedge)
	}
	return context.Cause(ctx) == race.ErrLost
}

// DeadlineTolerance allows for different clocks. A server may end an attempt this long before the client's deadline passes.
const DeadlineTolerance = time.Millisecond

// HasEnded reports whether ctx, the context of an attempt, has ended, or will reach its deadline within [DeadlineTolerance].
func HasEnded(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && time.Until(deadline) < DeadlineTolerance
}

// releaseUnused reports to the child that the unused picks have ended that wait for the attempt. Later unused picks do
// not wait for the attempt.
func (u *backendUse) releaseUnused() {
	u.mu.Lock()
	unused := u.unusedPicks
	u.finished, u.unusedPicks = true, nil
	u.mu.Unlock()
	for _, done := range unused {
		done(balancer.DoneInfo{Err: errPickUnused})
	}
}

// deferRelease makes an unused pick, whose Done function is done, end together with the attempt. It returns false and
// does nothing if unused picks no longer wait for the attempt.
func (u *backendUse) deferRelease(done func(balancer.DoneInfo)) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.finished {
		u.unusedPicks = append(u.unusedPicks, done)
	}
	return !u.finished
}

// An unusedPick is a pick that the child policy made for a hedge, and that the hedge does not use. A better backend was
// found, or the hedge was refused. The end of the pick must be reported to the child by its Done function.
type unusedPick struct {
	done func(balancer.DoneInfo) // Done function of the child policy; nil if it has set none
	use  *backendUse             // use of the same backend by another attempt of the call; nil if there is none
}

// reportEnd reports the unused pick to the child as ended. It does so when the attempt that uses the same backend ends,
// or otherwise when the hedge ends. If there is no attempt to wait for, it does so at once.
//
// The argument own is the use of the chosen backend by the hedge; it is nil if the hedge was refused.
func (s unusedPick) reportEnd(own *backendUse) {
	if s.done == nil || s.use != nil && s.use.deferRelease(s.done) || own != nil && own.deferRelease(s.done) {
		return
	}
	s.done(balancer.DoneInfo{Err: errPickUnused})
}
