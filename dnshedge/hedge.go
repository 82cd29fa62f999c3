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
	defaultMinDelay   = 10 * time.Millisecond
	loopbackMinDelay  = 2 * time.Millisecond
	defaultMaxDelay   = 2 * time.Second
)

// Hedge says when a query is sent a second time although the first may still be
// answered. A field that is zero has its default. The zero value suits most programs.
//
// Two delays are learned for each upstream. The loss delay is how long an answer
// takes that the server does not have to look for, plus a margin: if the wait is
// longer, a packet is probably lost. The slow delay is the time after which so few
// answers are still to come that the budget pays for hedging them all. A hedge
// starts after the longer of both: earlier it would be useless, or the budget would
// not pay for it.
//
// A hedge is no retransmission. A query that is still unanswered after its server's
// retransmission timeout (RFC 6298; 200 ms at least, 1 s before anything is known) is
// sent again, hedged or not. For each answer, a server gets one such query that costs
// no budget, and 20 may be saved up; a question's second and later ones come from the
// budget, or from what is saved up while half of that is left. The timeout doubles with
// each, and for all questions while a server is silent. So one that suddenly takes 3 s
// is asked again by the questions of a moment, some 20, and by no more; a server that
// loses half of its queries is asked 1.9 times per question, and one that answers 2 % 1.1 times.
// Over a stream nothing is sent again while other answers arrive, but for half of a question's time, and a second, at most.
//
// HEDGE_DISABLED and HEDGE_MODE hold for DNS as well; see the Operation section of this package's doc.
//
// A question that is asked on behalf of a hedge of package hedge, or under
// hedge.WithoutHedging, is not hedged. If another caller has the same question at the time,
// who allows hedging, its answer serves both.
type Hedge struct {
	// Off turns hedging off. Queries that are lost are still sent again.
	Off bool

	// Shadow sends no hedges, and does all else as usual: it learns, decides and takes
	// from the budget. Observers and Stats tell how many hedges would have been sent
	// (observe.DeniedShadow) and how much time they would have saved, assuming that a hedge
	// takes as long as any other question to the same upstream.
	Shadow bool

	// Fixed hedges once after this time, without a budget. It is there for
	// comparison. Zero: the delays are learned.
	Fixed time.Duration

	// Percentile is a quantile, a fraction in [0, 1): this share of the answers is never hedged because
	// they come early enough. Zero: 0.90.
	Percentile float64

	// MaxHedges is how many hedges one question may have, at most 3. Zero: 2.
	MaxHedges int

	// BudgetPercent bounds the hedges to this share of all queries sent, plus a burst
	// of 20, for each upstream and for the whole Client. Zero: 5. At most 100. NoBudget turns hedging off, as Off does.
	BudgetPercent float64

	// MaxHedgesPerSecond bounds the hedges besides, for servers that bill by the
	// query. Zero: no bound.
	MaxHedgesPerSecond float64

	// MinDelay is the shortest delay. Zero: 10 ms, and 2 ms for servers on this machine.
	MinDelay time.Duration

	// MaxDelay is the longest. Zero: 2 s.
	MaxDelay time.Duration
}

// NoBudget is the BudgetPercent of a [Hedge] that pays for no hedge.
const NoBudget = -1

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
	case h.MinDelay < 0:
		return bad("MinDelay", h.MinDelay, "0 or more")
	case h.MaxDelay < 0 || h.MaxDelay > 0 && h.MaxDelay < h.MinDelay:
		return bad("MaxDelay", h.MaxDelay, "0, or MinDelay or more")
	}
	return nil
}

// isOff reports whether h sends no hedge.
func (h *Hedge) isOff() bool { return h.Off || h.BudgetPercent == NoBudget }

// groupHedging returns the settings with their defaults. Without hedges, the default budget still pays for retransmissions.
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
		MinDelay:      cmp.Or(h.MinDelay, defaultMinDelay),
		LocalMinDelay: cmp.Or(h.MinDelay, loopbackMinDelay),
		MaxDelay:      cmp.Or(h.MaxDelay, defaultMaxDelay),
	}
}
