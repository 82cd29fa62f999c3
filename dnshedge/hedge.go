package dnshedge

import (
	"cmp"
	"fmt"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/group"
)

const (
	defaultPercentile = 0.90
	defaultHedges     = 2
	defaultBudget     = 5 // percent
	defaultMaxDelay   = 2 * time.Second
)

// Hedge configures when a Client sends hedges, and how many. A hedge is a second query for a question whose first query
// may still be answered. A field that is zero has its default. The zero value suits most programs.
//
// Two delays are learned for each upstream. The loss delay is the usual time of an answer that the server has in its
// cache, plus a margin: after that a packet is probably lost. The slow delay is the shortest delay at which the budget
// suffices to hedge every question that is still unanswered.
//
// A hedge starts after the longer delay. Earlier it would be useless, or the budget would be too small.
//
// A hedge is not a retransmission. A query without an answer is sent again after the server's retransmission timeout
// (RFC 6298), with or without hedging. The timeout is 1 s before the first measurement, and 200 ms at least. While the
// server answers no question, each retransmission doubles the timeout for all questions.
//
// Each answer of a server is a credit for one retransmission to that server. A server starts with 20 credits, and keeps
// at most 20, plus one for each answer of the last seconds. The first retransmission of a question spends a credit.
// Later ones spend a token of the hedge budget, or a credit if at least ten remain.
//
// Retransmissions to a server that has stopped answering spend only tokens. A server whose answers suddenly take 3 s
// gets about 20 retransmissions in all. On average, a server that loses half of the queries is asked 1.9 times per
// question, and a server that answers 2 % of them 1.1 times.
//
// Over a stream, a query is not retransmitted while other answers arrive. This lasts for at most 1 s, half of the
// question's remaining time, or the retransmission timeout, whichever is longest.
//
// Over a Protocol of another package, which recovers lost packets itself, nothing is retransmitted to the server of the
// question's last query, unless that server has several addresses.
//
// The environment variables HEDGE_DISABLED and HEDGE_MODE apply to DNS as well; see the Operation section of the
// package documentation.
//
// A question is not hedged if its context is that of a hedge of package hedge, or was returned by hedge.WithoutHedging.
// It may share the answer of a hedged exchange if another caller has the same question at the time.
type Hedge struct {
	// Off turns hedging off. Lost queries are still retransmitted.
	Off bool

	// Shadow turns on shadow mode: the Client learns, decides and spends budget as usual, but sends no hedge. Observers
	// and Stats count the hedges that would have been sent (observe.DeniedShadow), and the time they would have saved.
	// The estimate assumes that a hedge takes as long as any other question to the same upstream.
	Shadow bool

	// Fixed is a fixed hedge delay, for comparisons. One hedge is sent after this delay, without a budget. Zero: the
	// delay is learned.
	Fixed time.Duration

	// Percentile is a fraction in [0, 1). This share of the questions is not hedged, because their answers come early
	// enough. Zero: 0.90.
	Percentile float64

	// MaxHedges limits the hedges of one question, to 3 at most. Zero: 2.
	MaxHedges int

	// BudgetPercent limits the hedges to this percentage of all queries sent, plus a burst of 20, for each upstream and
	// for the whole Client. Zero: 5. At most 100. NoBudget turns hedging off, as Off does.
	BudgetPercent float64

	// MaxHedgesPerSecond is an additional limit on hedges, for servers that charge for each query. Zero: no limit.
	MaxHedgesPerSecond float64

	// MinDelay is the shortest hedge delay. Zero: 10 ms, or 2 ms for servers on this machine. NoMinDelay: no minimum.
	MinDelay time.Duration

	// MaxDelay is the longest hedge delay. Zero: 2 s.
	MaxDelay time.Duration
}

// NoBudget is the BudgetPercent that turns hedging off.
const NoBudget = -1

// NoMinDelay is the MinDelay with which hedge delays have no minimum.
const NoMinDelay time.Duration = -1

func (h *Hedge) validate() error {
	bad := func(field string, v any, want string) error {
		return fmt.Errorf("dnshedge: Hedge.%s is %v; want %s", field, v, want)
	}
	switch {
	case h.Fixed < 0:
		return bad("Fixed", h.Fixed, "0 or more")
	case !(h.Percentile >= 0 && h.Percentile < 1):
		return bad("Percentile", h.Percentile, "0 or more and less than 1")
	case h.MaxHedges < 0 || h.MaxHedges > group.MaxHedges:
		return bad("MaxHedges", h.MaxHedges, fmt.Sprintf("0 to %d", group.MaxHedges))
	case h.BudgetPercent != NoBudget && !(h.BudgetPercent >= 0 && h.BudgetPercent <= 100):
		return bad("BudgetPercent", h.BudgetPercent, "0 to 100, or NoBudget")
	case !(h.MaxHedgesPerSecond >= 0):
		return bad("MaxHedgesPerSecond", h.MaxHedgesPerSecond, "0 or more")
	case h.MinDelay < 0 && h.MinDelay != NoMinDelay:
		return bad("MinDelay", h.MinDelay, "0 or more, or NoMinDelay")
	case h.MaxDelay < 0 || h.MaxDelay > 0 && h.MaxDelay < h.MinDelay:
		return bad("MaxDelay", h.MaxDelay, "0, or MinDelay or more")
	}
	return nil
}

// groupHedging converts the settings to those of package group, with the defaults for fields that are zero. If
// BudgetPercent is NoBudget, which turns hedging off, the result has the default budget, because retransmissions need a
// budget as well.
func (h *Hedge) groupHedging() group.Hedging {
	budgetPercent := h.BudgetPercent
	if budgetPercent <= 0 {
		budgetPercent = defaultBudget
	}
	return group.Hedging{
		FixedDelay:    h.Fixed,
		Percentile:    cmp.Or(h.Percentile, defaultPercentile),
		MaxHedges:     cmp.Or(h.MaxHedges, defaultHedges),
		Share:         budgetPercent / 100,
		MaxPerSecond:  h.MaxHedgesPerSecond,
		MinDelay:      durationOrDefault(h.MinDelay, group.DefaultMinDelay),
		LocalMinDelay: durationOrDefault(h.MinDelay, group.DefaultLocalMinDelay),
		MaxDelay:      cmp.Or(h.MaxDelay, defaultMaxDelay),
	}
}
