// Package flight lets callers that need the same result share one running operation (single flight).
//
// A [Group] has the running operations of one kind by key. A caller joins the operation with its key, or starts one,
// and then waits for [Flight.Done]. A caller that waits no longer is removed. When the last caller is removed before
// the end, the operation can be canceled.
//
// The package has no lock. The owner of a Group, a struct of another package, has a mutex that guards the Group and its
// Flights. The owner keeps the mutex locked while it checks more than the key before a caller joins, for example that
// no two operations wait for each other.
package flight

import "context"

// A Flight counts the callers that wait for the result of one running operation (single flight). Its channel Done is
// closed when the operation ends. Each operation type embeds a Flight and adds its own results. K is the type of the
// operation's key.
type Flight[K comparable] struct {
	Key K // must not be changed
	// Cancel is called when RemoveCaller removes the last caller with a cause, and gets this cause. It must not
	// lock the mutex of the Group's owner, which is locked during the call. If Cancel is nil, the operation continues
	// without callers.
	Cancel context.CancelCauseFunc
	// Done is made when the first caller is added, and does not change afterwards. The Group's owner closes it after it
	// has removed the operation from the Group and set the result.
	Done chan struct{}
	// IsShared is set when a second caller is added. It does not change after Done is closed.
	IsShared bool

	callers int // number of callers that were added and not removed
}

// embeddedFlight returns f. An operation type that embeds a Flight gets this method, by which a Group finds the Flight
// in the operation.
func (f *Flight[K]) embeddedFlight() *Flight[K] { return f }

// AddCaller counts one more caller that waits for the result of the operation. The mutex that guards the Group must be
// locked.
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

// A Group maps keys to the running operations of one kind, so that a caller can join the operation with its key. The
// struct that contains it uses it like any map, and must lock a mutex during each use.
type Group[K comparable, F Operation[K]] map[K]F

// RemoveOperation removes the operation f, if the Group contains it, so that later callers start a new operation.
// hasCallers reports whether f still has callers. The mutex that guards the Group must be locked.
func (g Group[K, F]) RemoveOperation(f F) (hasCallers bool) {
	s := f.embeddedFlight()
	if g[s.Key] == f {
		delete(g, s.Key)
	}
	return s.callers > 0
}

// RemoveCaller removes one caller of the operation f. cause is the error with which the caller gives up; nil otherwise.
// If the last caller gives up and f.Cancel is set, RemoveCaller removes f and calls f.Cancel. The mutex that guards the
// Group must be locked.
func (g Group[K, F]) RemoveCaller(f F, cause error) {
	s := f.embeddedFlight()
	if s.callers--; s.callers == 0 && cause != nil && s.Cancel != nil {
		g.RemoveOperation(f)
		s.Cancel(cause)
	}
}
