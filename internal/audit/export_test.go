package audit

import "time"

// HeardAt says when there was evidence last.
func (a *Audit) HeardAt(t time.Time) { a.heard = t.UnixNano() }

// TailsFrom returns the index at which the histograms begin, if there are some.
func (a *Audit) TailsFrom() (base int, ok bool) { return a.base, a.tails != nil }
