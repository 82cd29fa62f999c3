package race

// A LoserPolicy decides how attempts end that have lost. It is for protocols in which the cancellation of an attempt has side effects: over HTTP/1.1
// it closes a connection. Its methods are called with the race locked. They must not block, call the race, or call functions of the program.
type LoserPolicy[T any] interface {
	// Lost is called when another attempt has won. If attempt n is running, Lost calls [Attempt.Cancel] and returns nil, or
	// lets the attempt run on. If it has returned, its result is being discarded. The function that Lost returns, if not nil,
	// is called when the result has been discarded.
	Lost(a *Attempt, n int, running bool) (ended func())

	// IsQueued reports whether a hedge only waits for a connection. It is cancelled when the primary fails: other attempts
	// may need the connection.
	IsQueued(a *Attempt) bool

	// Failed is called when the primary, attempt a, has failed with v and err while hedges run. The kept value takes the
	// place of v: v may hold a connection. If wait is false, or once release is called, Run returns the kept value without
	// waiting for hedges. Release may be called once, in another goroutine.
	Failed(a *Attempt, v T, err error, release func()) (kept T, wait bool)
}

// A Guard is the part of [LoserPolicy] that concerns one attempt: it may put off the cancellation of the attempt.
type Guard interface {
	// Cancel calls cancel, which ends the attempt, at once or later. It must not block. Further calls have no effect.
	Cancel(cancel func())
}
