package race

import "time"

// A Turn is the error of an attempt that has failed and lets the hedges go on: the next one starts when
// the Turn says instead of when its delay does, and those after it keep their distances. A primary that fails with any
// other error is the last to have started.
type Turn struct {
	Hedges int           // so many of the delays are those of hedges; the others do not move
	Took   time.Duration // since the race began
	After  time.Duration // when the next hedge starts, from now on; 0: at once
}

func (*Turn) Error() string { return "hedge: the next hedge is due" }

// turns are what failures have done to the times of hedges.
type turns struct {
	hedges int           // see [Turn]; 0: nothing yet
	shift  time.Duration // of their delays
	open   bool          // the primary has failed with a Turn: hedges may still start
	next   bool          // the timer is set for a hedge that a Turn has moved
	stale  int           // so often it was about to call fire for a time that had moved
}

// isTurn reports whether an attempt that returned err lets hedges start.
func isTurn(err error) bool {
	_, ok := err.(*Turn)
	return ok
}

// moved returns when the delay with the given index passes, after the start, if that would be after d.
func (t *turns) moved(index int, d time.Duration) time.Duration {
	if index < t.hedges {
		return d + t.shift
	}
	return d
}
