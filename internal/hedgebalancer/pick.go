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

// ContextKey is the context key under which the policy finds the *[PrimaryPick] or *[HedgePick] of an attempt.
type ContextKey struct{}

// A PrimaryPick stores which backend the primary of a call uses. The context of the primary holds it under [ContextKey]. If that context also serves
// other calls, without [WithoutPick], it stores the backend of the last of these calls.
type PrimaryPick struct {
	use atomic.Pointer[backendUse] // nil: the primary has no backend yet
}

// HedgePicks stores which backends the hedges of one call use, and which hedges were refused. Hedges are counted from 1. The zero value is ready for
// one call.
type HedgePicks struct {
	mu      sync.Mutex // guards the fields below
	uses    [1 + race.MaxHedges]*backendUse
	refused [1 + race.MaxHedges]bool
}

// NewContext returns the context of a hedge, derived from ctx. The primary is the primary of the same call.
func (p *HedgePicks) NewContext(ctx context.Context, hedge int, primary *PrimaryPick) *HedgePick {
	return &HedgePick{ctx, primary, p, hedge}
}

// releaseDelay is the time between the choice of the winner of a stream and the end of its unused picks. Most losing attempts end earlier, and report
// to the child first.
const releaseDelay = time.Second

// ReleaseUnused ends the unused picks of a stream after a delay. The winner of the stream has been chosen and may run for hours: unused picks do not
// wait for its end. The primary is the primary of the same call.
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

// A HedgePick is the context of a hedge. It returns itself under [ContextKey], so that contexts derived from it identify the hedge. A call that the
// hedge makes is not a hedge, and gets a context [WithoutPick].
type HedgePick struct {
	context.Context
	primary *PrimaryPick // of the same call
	picks   *HedgePicks  // of the same call
	hedge   int
}

// Value returns the HedgePick for [ContextKey], and otherwise the value of the parent context.
func (d *HedgePick) Value(key any) any {
	if key == (ContextKey{}) {
		return d
	}
	return d.Context.Value(key)
}

// IsRefused reports whether the hedge was not sent because the policy had no other backend.
func (d *HedgePick) IsRefused() bool {
	d.picks.mu.Lock()
	defer d.picks.mu.Unlock()
	return d.picks.refused[d.hedge]
}

// usageRank returns 0 if no other attempt of the call uses backend b, 1 if only hedges do, and 2 if the primary does. It also returns the use of the
// backend by the other attempt, or nil.
func (d *HedgePick) usageRank(b *backend) (rank int, at *backendUse) {
	if p := d.primary.use.Load(); p != nil && p.addr == b.addr {
		return 2, p
	}
	d.picks.mu.Lock()
	defer d.picks.mu.Unlock()
	for n, other := range d.picks.uses {
		if n != d.hedge && other != nil && other.addr == b.addr {
			rank, at = 1, other
		}
	}
	return rank, at
}

// recordPick stores the result of the pick for the hedge: u, or a refusal if u is nil. A hedge that gRPC retries is not refused: its first try was
// sent.
func (d *HedgePick) recordPick(u *backendUse) {
	d.picks.mu.Lock()
	defer d.picks.mu.Unlock()
	if u != nil {
		d.picks.uses[d.hedge] = u
	}
	d.picks.refused[d.hedge] = d.picks.uses[d.hedge] == nil
}

// WithoutPick returns a context without a PrimaryPick and HedgePick. Calls that an attempt makes get one, because they are not the attempt.
func WithoutPick(ctx context.Context) context.Context {
	if ctx.Value(ContextKey{}) == nil {
		return ctx
	}
	return noPickContext{ctx}
}

// A noPickContext hides the value of [ContextKey] of its parent.
type noPickContext struct{ context.Context }

func (a noPickContext) Value(key any) any {
	if key == (ContextKey{}) {
		return nil
	}
	return a.Context.Value(key)
}

// errPickUnused ends a pick that no call uses. It has the code of losers. A child that counts the code as a failure cannot serve hedged calls anyway.
var errPickUnused = status.Error(codes.Canceled, "hedge_elsewhere: the backend was not used")

// A backendUse is the use of a backend by an attempt. Unused picks of the same backend end after the attempt: if they ended at once, the child would
// measure a latency of zero.
type backendUse struct {
	*backend
	done func(balancer.DoneInfo) // the child's

	mu          sync.Mutex                // guards the fields below
	finished    bool                      // the attempt has ended, or unused picks no longer wait for it
	unusedPicks []func(balancer.DoneInfo) // Done of picks that wait for the end of the attempt
}

// trackUse returns the use of the backend by the attempt that gets the pick r, and replaces the Done of r. If the child set no Done, all attempts
// share a finished use.
func (b *backend) trackUse(r *balancer.PickResult) *backendUse {
	r.SubConn = b.SubConn
	if r.Done == nil {
		r.Done = b.loadRecorder
		return &b.finishedUse
	}
	u := &backendUse{backend: b, done: r.Done}
	r.Done = u.finish
	return u
}

// finish ends the attempt, and then the unused picks that wait for it. A time-decayed average gives these picks no weight, because they end at the
// same moment.
func (u *backendUse) finish(info balancer.DoneInfo) {
	u.recordLoad(info)
	u.done(info)
	u.releaseUnused()
}

// releaseUnused ends the unused picks that wait for the attempt. Later unused picks do not wait.
func (u *backendUse) releaseUnused() {
	u.mu.Lock()
	unused := u.unusedPicks
	u.finished, u.unusedPicks = true, nil
	u.mu.Unlock()
	for _, done := range unused {
		done(balancer.DoneInfo{Err: errPickUnused})
	}
}

// deferRelease delays done of an unused pick until the attempt ends. It reports false if the attempt has ended or unused picks no longer wait for it.
func (u *backendUse) deferRelease(done func(balancer.DoneInfo)) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.finished {
		u.unusedPicks = append(u.unusedPicks, done)
	}
	return !u.finished
}

// An unusedPick is a pick of the child that no attempt uses.
type unusedPick struct {
	done func(balancer.DoneInfo) // nil: the child set none
	use  *backendUse             // of the same backend by another attempt of the call; nil: no attempt uses it
}

// release ends the pick after the attempt that uses the same backend. Otherwise it ends after the hedge, whose use is own, as an attempt that lost
// would. If neither can delay it, it ends at once. A nil own is a refused hedge.
func (s unusedPick) release(own *backendUse) {
	if s.done == nil || s.use != nil && s.use.deferRelease(s.done) || own != nil && own.deferRelease(s.done) {
		return
	}
	s.done(balancer.DoneInfo{Err: errPickUnused})
}
