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

// Hedge configures when a Client sends hedges, and how many. A hedge is a second query for a question that is still
// unanswered. A field that is zero has its default. The zero value suits most programs.
//
//   - The hedge delay is learned for each upstream. It is the time after which a packet is probably lost, or longer if
//     the hedge budget would not suffice for all questions that are then unanswered.
//   - A query without an answer is sent again (retransmission, RFC 6298), even if hedging is off. The timeout is 1 s
//     before the first measurement, and 200 ms at least. Each retransmission doubles it for all questions, until the
//     server answers.
//   - A retransmission spends a credit of the server, or a token of the hedge budget. A server starts with 20 credits
//     and earns one for each answer.
//   - A question is not hedged if its context is that of a hedge, or is from hedge.WithoutHedging. It may share the
//     exchange of another caller, which may be hedged.
//   - The environment variables HEDGE_DISABLED and HEDGE_MODE apply to DNS as well.
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
