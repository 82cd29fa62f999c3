package audit

import "time"

// HeardAt says when there was evidence last.
func (a *Audit) HeardAt(t time.Time) { a.heard = t.UnixNano() }

// TailsFrom returns the index at which the histograms begin, if there are some.
func (a *Audit) TailsFrom() (base int, ok bool) { return a.base, a.tails != nil }

// Evidence is what pairs say.
type Evidence struct{ evidence }

// Add adds a pair.
func (e *Evidence) Add(d, calls float64) { e.add(d, calls) }

// Decided reports whether the pairs are enough for a verdict, in the first trial.
func (e *Evidence) Decided() bool {
	_, ok := e.decided()
	return ok
}

// Score is how sure it is that hedging harms, as a standard normal deviate.
func (e *Evidence) Score() float64 { return e.score() }
