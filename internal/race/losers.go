package race

// A LoserPolicy decides how losers end. It serves protocols in which cancellation has side effects: over HTTP/1.1, it closes a connection.
// The race calls the methods with its lock held. They must not block, call the race, or call functions of the program.
type LoserPolicy[T any] interface {
	// Lost is called for attempt n when another attempt has won. If the attempt is running, Lost either cancels it by [Attempt.Cancel] and
	// returns nil, or lets it run on. If the attempt has returned, its result will be discarded. A function that Lost returns is called
	// after the result was discarded.
	Lost(a *Attempt, n int, running bool) (ended func())

	// IsQueued reports whether a hedge still waits for a connection. When the primary fails, the race cancels such hedges, because other
	// attempts may need the connection.
	IsQueued(a *Attempt) bool

	// Failed is called when the primary, attempt a, has failed with v and err while hedges run. The race uses kept in place of v, because v
	// may hold a connection. If wait is false, Run returns the failure without waiting for hedges. Otherwise, release may be called once,
	// in another goroutine, to end the wait.
	Failed(a *Attempt, v T, err error, release func()) (kept T, wait bool)
}

// A Guard can delay the cancellation of one attempt.
type Guard interface {
	// Cancel calls cancel, which cancels the attempt, at once or later. It must not block. Further calls of Cancel have no effect.
	Cancel(cancel func())
}
