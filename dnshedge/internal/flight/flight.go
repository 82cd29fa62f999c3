// Package flight lets callers that need the same result share one running operation (single flight).
//
// A [Group] has the running operations of one kind by key. A caller joins the operation with its key, or starts one,
// and then waits for [Flight.Done]. A caller that waits no longer is removed. When the last caller is removed before
// the end, the operation can be canceled.
//
// The package has no lock. Before a caller joins, its users check more than the key, for example that no two operations
// wait for each other. So each user has a mutex, which guards its Groups and their Flights.
package flight

import "context"

// A Flight is the shared part of a running operation whose result several callers wait for (single flight): its key,
// its number of callers, and a channel that is closed at its end. Each operation type embeds a Flight and adds its own
// results. K is the type of the Group's keys.
type Flight[K comparable] struct {
	Key K // must not be changed
	// Cancel is called when the last caller has left before the end, with the cause that it gives. It must not lock the
	// user's mutex. If it is nil, the operation then continues.
	Cancel context.CancelCauseFunc
	// Done is made when the first caller is added, and does not change afterwards. The user closes it when it has removed
	// the operation from its Group and set the result.
	Done chan struct{}
	// IsShared is set when a second caller is added. It does not change after Done is closed.
	IsShared bool

	callers int // number of callers that were added and not removed
}

// embeddedFlight returns f. An operation type that embeds a Flight gets this method, by which a Group finds the Flight
// in the operation.
func (f *Flight[K]) embeddedFlight() *Flight[K] { return f }

// AddCaller counts one more caller that waits for the result of the operation. The user's mutex must be locked.
func (f *Flight[K]) AddCaller() {
	if f.IsShared = f.Done != nil; !f.IsShared {
		f.Done = make(chan struct{})
	}
	f.callers++
}

// An Operation is a running operation that a Group can hold. The type must be a pointer to a struct that embeds a
// Flight[K].
type Operation[K comparable] interface {
	comparable
	embeddedFlight() *Flight[K]
}

// A Group maps keys to the running operations of one kind, so that a caller can join the operation with its key. Its
// user reads and adds elements as in any map. The user's mutex must be locked whenever a Group is used.
type Group[K comparable, F Operation[K]] map[K]F

// RemoveOperation removes the operation f from the Group, so that later callers start a new one. It does nothing if f
// was removed before. It reports whether any caller waits for f.
func (g Group[K, F]) RemoveOperation(f F) (hasCallers bool) {
	s := f.embeddedFlight()
	if g[s.Key] == f {
		delete(g, s.Key)
	}
	return s.callers > 0
}

// RemoveCaller removes one caller from those that wait for the operation f. cause is the reason. It is nil for a caller
// that has the result, and for the caller that executes f itself. In these cases, f continues.
//
// Any other cause means that the caller gives up. If no other caller waits and f has a function Cancel, f is removed
// from the Group and canceled with that cause. Later callers then start a new operation.
func (g Group[K, F]) RemoveCaller(f F, cause error) {
	s := f.embeddedFlight()
	if s.callers--; s.callers == 0 && cause != nil && s.Cancel != nil {
		g.RemoveOperation(f)
		s.Cancel(cause)
	}
}
