package debug

import (
	"cmp"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/sanitize"
)

// Limiter makes a Source of a server's Limiter. It panics if l is nil.
func Limiter(l *hedge.Limiter) Source {
	if l == nil {
		panic("debug: Limiter: Limiter is nil")
	}
	return limiter{l}
}

type limiter struct{ of *hedge.Limiter }

// Snapshot returns what Limiters have in common with others. The page shows their own.
func (l limiter) Snapshot() hedge.Snapshot {
	return hedge.Snapshot{Name: l.of.Snapshot().Name, Protocol: "limiter", Enabled: true}
}

type limiterView struct {
	Title  string
	Totals []total
}

func renderLimiter(s hedge.LimiterSnapshot) limiterView {
	came := s.Worked + s.Left + s.Refused
	return limiterView{
		Title: sanitize.CleanText(cmp.Or(s.Name, "limiter")),
		Totals: []total{
			{"working", "working", count(s.Working), "of " + count(int64(s.Limit)) + " at a time"},
			{"waiting", "waiting", count(s.Waiting), "in the queue"},
			{"worked", "worked on", count(s.Worked), of(s.Worked, came, "of the requests")},
			{"left", "left", count(s.Left), of(s.Left, came, "gone before their turn")},
			{"refused", "refused", count(s.Refused), of(s.Refused, came, "hedges turned away")},
		},
	}
}
