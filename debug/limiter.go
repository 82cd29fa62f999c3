package debug

import (
	"cmp"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/sanitize"
)

// Limiter returns a [Source] that shows the Limiter of a server on the page. It panics if l is nil.
func Limiter(l *hedge.Limiter) Source {
	if l == nil {
		panic("debug: Limiter: Limiter is nil")
	}
	return limiterSource{l}
}

// A limiterSource is the Source that Limiter returns.
type limiterSource struct{ limiter *hedge.Limiter }

// Snapshot implements [Source]. It returns only the name; the page shows the LimiterSnapshot instead.
func (l limiterSource) Snapshot() hedge.Snapshot {
	return hedge.Snapshot{Name: l.limiter.Snapshot().Name, Protocol: "limiter", Enabled: true}
}

// A limiterView is the section of the page for one Limiter, with formatted numbers.
type limiterView struct {
	Title  string
	Totals []labeledValue
}

// renderLimiter returns the section for the snapshot s of a Limiter.
func renderLimiter(s hedge.LimiterSnapshot) limiterView {
	came := s.Worked + s.Left + s.Refused
	return limiterView{
		Title: sanitize.CleanText(cmp.Or(s.Name, "limiter")),
		Totals: []labeledValue{
			{"working", "working", formatCount(s.Working), "of " + formatCount(int64(s.Limit)) + " at a time"},
			{"waiting", "waiting", formatCount(s.Waiting), "in the queue"},
			{"worked", "worked on", formatCount(s.Worked), formatShareOf(s.Worked, came, "of the requests")},
			{"left", "left", formatCount(s.Left), formatShareOf(s.Left, came, "gone before their turn")},
			{"refused", "refused", formatCount(s.Refused), formatShareOf(s.Refused, came, "hedges turned away")},
		},
	}
}
