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

// ContextKey is the context key of the *[PrimaryPick] or *[HedgePick] of an attempt.
type ContextKey struct{}

// A PrimaryPick stores the backend that a call's primary uses. The context of the primary has it under [ContextKey]. If
// the same context is used for other calls, without [WithoutPick], it stores the backend of the last call.
type PrimaryPick struct {
	use atomic.Pointer[backendUse] // nil: no backend was picked yet
}

// A HedgePicks stores the backends that the hedges of one call use, and the hedges that were refused. Hedges are
// numbered from 1. The zero value is ready for one call.
type HedgePicks struct {
	mu      sync.Mutex // guards the fields below
	uses    [1 + race.MaxHedges]*backendUse
	refused [1 + race.MaxHedges]bool
}

// NewContext returns a context, derived from ctx, for the hedge with the given number. The argument primary belongs to
// the primary of the same call.
func (p *HedgePicks) NewContext(ctx context.Context, hedge int, primary *PrimaryPick) *HedgePick {
	return &HedgePick{ctx, primary, p, hedge}
}

// releaseDelay is the time after which ReleaseUnused ends the unused picks. Most losers end earlier, so that the child
// gets the results of their picks first.
const releaseDelay = time.Second

// ReleaseUnused ends the unused picks of a stream after releaseDelay. It is called when the winner is chosen, because
// the winner's stream may last for hours. The argument primary belongs to the primary of the same call.
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
// hedge. A call that the hedge itself makes needs a context by [WithoutPick].
type HedgePick struct {
	context.Context
	primary *PrimaryPick // of the same call
	picks   *HedgePicks  // of the same call
	// number of the hedge
	hedge int
}

// Value returns d for [ContextKey], and otherwise the value of the parent context.
func (d *HedgePick) Value(key any) any {
	if key == (ContextKey{}) {
		return d
	}
	return d.Context.Value(key)
}

// IsRefused reports whether the hedge was not sent because there was no other backend.
func (d *HedgePick) IsRefused() bool {
	d.picks.mu.Lock()
	defer d.picks.mu.Unlock()
	return d.picks.refused[d.hedge]
}

// usageRank reports how other attempts of the call use backend b: 0 if none does, 1 if only hedges do, and 2 if the
// primary does. It also returns the use by one of them, or nil.
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

// recordPick records that the hedge uses the backend of u, or that it was refused if u is nil. A hedge that gRPC
// retries does not count as refused, because its first try was sent.
func (d *HedgePick) recordPick(u *backendUse) {
	d.picks.mu.Lock()
	defer d.picks.mu.Unlock()
	if u != nil {
		d.picks.uses[d.hedge] = u
	}
	d.picks.refused[d.hedge] = d.picks.uses[d.hedge] == nil
}

// WithoutPick returns a context without PrimaryPick and HedgePick. It is for calls that an attempt makes, which are not
// attempts themselves.
func WithoutPick(ctx context.Context) context.Context {
	if ctx.Value(ContextKey{}) == nil {
		return ctx
	}
	return noPickContext{ctx}
}

// A noPickContext is a context that hides the value of [ContextKey] in its parent.
type noPickContext struct{ context.Context }

func (a noPickContext) Value(key any) any {
	if key == (ContextKey{}) {
		return nil
	}
	return a.Context.Value(key)
}

// errPickUnused is the result of a pick that no attempt uses. Its code is CANCELLED, which losers have too: a child
// that counts it as a failure would also count losers.
var errPickUnused = status.Error(codes.Canceled, "hedge_elsewhere: the backend was not used")

// A backendUse is the use of a backend by one attempt. Unused picks of the same backend end when the attempt ends:
// otherwise, a child that measures latency would measure zero for them.
type backendUse struct {
	*backend
	done func(balancer.DoneInfo) // the child's Done

	mu          sync.Mutex                // guards the fields below
	finished    bool                      // the attempt has ended, or ReleaseUnused no longer lets picks wait for it
	unusedPicks []func(balancer.DoneInfo) // Done functions of picks that wait for the end of the attempt
}

// trackUse returns the use of the backend by an attempt with the pick r, and replaces the Done of r. If the child has
// set no Done, it returns a shared use that has finished.
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

// finish is the Done of the attempt's pick. It also ends the waiting unused picks. They end at the same time as the
// attempt, so that a time-weighted average of latencies ignores them.
func (u *backendUse) finish(info balancer.DoneInfo) {
	u.recordLoad(info)
	u.done(info)
	u.releaseUnused()
}

// releaseUnused ends the unused picks that wait for the attempt. Later unused picks do not wait for it.
func (u *backendUse) releaseUnused() {
	u.mu.Lock()
	unused := u.unusedPicks
	u.finished, u.unusedPicks = true, nil
	u.mu.Unlock()
	for _, done := range unused {
		done(balancer.DoneInfo{Err: errPickUnused})
	}
}

// deferRelease delays the call of done, the Done of an unused pick, until the attempt ends. It returns false and does
// nothing if unused picks no longer wait for the attempt.
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
	done func(balancer.DoneInfo) // nil: the child has set none
	use  *backendUse             // use of the same backend by another attempt of the call; nil: none
}

// release ends the pick when the attempt with the same backend ends, or else when the hedge ends, or else at once. The
// argument own is the use of the hedge; it is nil for a refused hedge.
func (s unusedPick) release(own *backendUse) {
	if s.done == nil || s.use != nil && s.use.deferRelease(s.done) || own != nil && own.deferRelease(s.done) {
		return
	}
	s.done(balancer.DoneInfo{Err: errPickUnused})
}
