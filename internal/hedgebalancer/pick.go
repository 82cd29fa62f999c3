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

// Key is the key by which the context of an attempt leads to its *[Trail] or *[Detour].
type Key struct{}

// A Trail is where a call's primary went. The primary's context leads to it, by [Key]. If that
// context is used for other calls as well, which are not made [Apart], it is where the last of them went.
type Trail struct {
	primary atomic.Pointer[use] // nil: not known
}

// Detours are where the hedges of a call went, and those that were refused. The zero value is
// ready for one call.
type Detours struct {
	mu      sync.Mutex // guards the fields below
	went    [1 + race.MaxHedges]*use
	refused [1 + race.MaxHedges]bool
}

// For returns the context of hedge n of a call, made from ctx. The trail is that of the call's primary.
func (all *Detours) For(ctx context.Context, n int, t *Trail) *Detour {
	return &Detour{ctx, t, all, n}
}

// settles is how long after it is known which attempt a stream is picks wait for its end. Most streams have ended by then, and what
// their attempts say comes first.
const settles = time.Second

// Settle is called when it is known which attempt of the call, of which the primary's trail is t, a stream is. It can go on
// for hours, and picks do not wait for its end as long.
func (all *Detours) Settle(t *Trail) {
	all.mu.Lock()
	went, refused := all.went, all.refused
	all.mu.Unlock()
	if went == [len(went)]*use{} && refused == [len(refused)]bool{} {
		return // no hedge has asked for a backend
	}
	went[0] = t.primary.Load() // no hedge has that number
	time.AfterFunc(settles, func() {
		for _, u := range went {
			if u != nil {
				u.settle()
			}
		}
	})
}

// A Detour is the context of hedge n. By [Key], it leads to itself: so the hedge is known by its context, whatever what is
// below makes of its method. What is called on behalf of the hedge is no hedge, and is made [Apart].
type Detour struct {
	context.Context
	trail *Trail // the primary's
	all   *Detours
	n     int
}

// Value finds the Detour, and else what the context it was made from holds.
func (d *Detour) Value(key any) any {
	if key == (Key{}) {
		return d
	}
	return d.Context.Value(key)
}

// Refused reports whether the hedge was not sent, because the policy had no other backend.
func (d *Detour) Refused() bool {
	d.all.mu.Lock()
	defer d.all.mu.Unlock()
	return d.all.refused[d.n]
}

// rank says how good backend b is for the hedge: 0 if no other attempt of the call went
// there, 1 if only hedges did, 2 if the primary did. It returns the attempt that went there, too; nil if there is none.
func (d *Detour) rank(b *backend) (rank int, at *use) {
	if p := d.trail.primary.Load(); p != nil && p.addr == b.addr {
		return 2, p
	}
	d.all.mu.Lock()
	defer d.all.mu.Unlock()
	for n, other := range d.all.went {
		if n != d.n && other != nil && other.addr == b.addr {
			rank, at = 1, other
		}
	}
	return rank, at
}

// ends takes note of how the pick for the hedge ended: with u, or refused if that is nil. A
// hedge that gRPC retries, and that is refused then, had been sent.
func (d *Detour) ends(u *use) {
	d.all.mu.Lock()
	defer d.all.mu.Unlock()
	if u != nil {
		d.all.went[d.n] = u
	}
	d.all.refused[d.n] = d.all.went[d.n] == nil
}

// Apart returns a context for a call that is made within an attempt, and is not that attempt: it
// leads to no Trail and no Detour.
func Apart(ctx context.Context) context.Context {
	if ctx.Value(Key{}) == nil {
		return ctx
	}
	return apart{ctx}
}

type apart struct{ context.Context }

func (a apart) Value(key any) any {
	if key == (Key{}) {
		return nil
	}
	return a.Context.Value(key)
}

// errUnused is how a pick ends that is not used. It is what losers end with, so that a policy to
// which this is a failure is none for hedges anyway.
var errUnused = status.Error(codes.Canceled, "hedge_elsewhere: the backend was not used")

// A use is that of a backend by an attempt. Picks of the same backend that are not used end after it: at once, they
// would tell the child that its backend answers in no time. Those that wait for a long stream do not wait for its end, see [Detours.Settle].
type use struct {
	*backend
	done func(balancer.DoneInfo) // the child's

	mu     sync.Mutex                // guards the fields below
	over   bool                      // or settled
	unused []func(balancer.DoneInfo) // of picks
}

// use returns the use of the backend by the attempt that gets the pick r, whose Done it replaces. Where the child has none,
// nobody learns anything: all attempts share a use that is over.
func (b *backend) use(r *balancer.PickResult) *use {
	r.SubConn = b.SubConn
	if r.Done == nil {
		r.Done = b.hears
		return &b.untold
	}
	u := &use{backend: b, done: r.Done}
	r.Done = u.end
	return u
}

// end ends the attempt, and then the picks that were waiting for it: an average that decays in time
// gives them no weight, because they come at the same moment.
func (u *use) end(info balancer.DoneInfo) {
	u.hear(info)
	u.done(info)
	u.settle()
}

// settle ends the picks that wait for the attempt. No other is kept.
func (u *use) settle() {
	u.mu.Lock()
	unused := u.unused
	u.over, u.unused = true, nil
	u.mu.Unlock()
	for _, done := range unused {
		done(balancer.DoneInfo{Err: errUnused})
	}
}

// keep has a pick that is not used end after the attempt. It reports false if that is over, or settled.
func (u *use) keep(done func(balancer.DoneInfo)) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.over {
		u.unused = append(u.unused, done)
	}
	return !u.over
}

// A spare is a pick for a hedge that is not used.
type spare struct {
	done func(balancer.DoneInfo) // nil: none
	at   *use                    // the attempt of the call that has its backend; nil: none
}

// end ends the pick after the attempt that has its backend. If that is over, or none has it, it does so after the hedge itself,
// as that would have if it had lost there. The hedge's use is own; nil if it was refused.
func (s spare) end(own *use) {
	if s.done == nil || s.at != nil && s.at.keep(s.done) || own != nil && own.keep(s.done) {
		return
	}
	s.done(balancer.DoneInfo{Err: errUnused})
}
