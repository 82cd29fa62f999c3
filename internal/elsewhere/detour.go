package elsewhere

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/gohedge/hedge/internal/race"
)

// Key is the key by which the context of an attempt leads to its *[Trail] or *[Detour].
type Key struct{}

// A Trail is where a call's primary went. The primary's context leads to it, by [Key]. If that
// context is used for other calls as well, it is where the last of them went.
type Trail struct {
	primary atomic.Pointer[backend] // nil: not known
}

// Detours are where the hedges of a call went, and those that were refused. The zero value is
// ready for one call.
type Detours struct {
	mu      sync.Mutex // guards the fields below
	went    [1 + race.MaxHedges]*backend
	refused [1 + race.MaxHedges]bool
}

// For returns the context of hedge n of a call of a method, made from ctx. The trail is that of
// the call's primary.
func (all *Detours) For(ctx context.Context, n int, method string, t *Trail) *Detour {
	return &Detour{ctx, t, method, all, n}
}

// A Detour is the context of hedge n. By [Key], it leads to itself.
type Detour struct {
	context.Context
	trail  *Trail // the primary's
	method string // of the call; what is called on behalf of the hedge has another
	all    *Detours
	n      int
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
// there, 1 if only hedges did, 2 if the primary did.
func (d *Detour) rank(b *backend) int {
	if p := d.trail.primary.Load(); p != nil && p.addr == b.addr {
		return 2
	}
	d.all.mu.Lock()
	defer d.all.mu.Unlock()
	for n, other := range d.all.went {
		if n != d.n && other != nil && other.addr == b.addr {
			return 1
		}
	}
	return 0
}

// ends takes note of how the pick for the hedge ended: with b, or refused if that is nil. A
// hedge that gRPC retries, and that is refused then, had been sent.
func (d *Detour) ends(b *backend) {
	d.all.mu.Lock()
	defer d.all.mu.Unlock()
	if b != nil {
		d.all.went[d.n] = b
	}
	d.all.refused[d.n] = d.all.went[d.n] == nil
}
