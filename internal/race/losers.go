package race

// A LoserPolicy decides whether attempts that have lost are cancelled or may finish. It serves protocols in which
// cancellation has side effects: over HTTP/1.1, cancellation closes a connection.
//
// The race holds its lock during the calls, so the methods must not block, use the race, or call functions of the program.
type LoserPolicy[T any] interface {
	// Lost is called for attempt n when another attempt has won. If running is true, Lost must either cancel the attempt with
	// [Attempt.Cancel] and return nil, or let it continue. If running is false, the attempt has returned, and the race will
	// discard its result.
	//
	// The race calls the function ended, if it is not nil, after it has discarded the result.
	Lost(a *Attempt, n int, running bool) (ended func())

	// IsQueued reports whether the hedge a is still waiting for a connection. When the primary fails, the race cancels such
	// hedges, because other attempts may need the connections.
	IsQueued(a *Attempt) bool

	// Failed is called when the primary, attempt a, has failed with v and err while hedges run. The race uses kept in place of
	// v, because v may hold a connection.
	//
	// If wait is false, Run returns the failure without waiting for the hedges. If wait is true, the policy may later call
	// release, in another goroutine and at most once, to end the wait.
	Failed(a *Attempt, v T, err error, release func()) (kept T, wait bool)
}

// A Guard can delay the cancellation of one attempt, while that would harm other requests.
type Guard interface {
	// Cancel must call the function cancel, which cancels the attempt, now or later. Cancel must not block. Further calls of
	// Cancel have no effect.
	Cancel(cancel func())
}
