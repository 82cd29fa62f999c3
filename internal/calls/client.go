// Package calls holds the state that the calls of one client share, and the steps that calls of every protocol have in common: a call is counted,
// its eligibility for hedging is decided, and its outcome is counted. A client is a Transport, an Interceptor or a Hedger.
package calls

import (
	"cmp"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/ops"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// A Client holds the state that the calls of one Transport, Interceptor or Hedger share. The clients of the call packages contain it. Its exported
// fields are set before the first call and not replaced. It is safe for concurrent use.
type Client struct {
	Policy   *policy.Engine
	Counters *Counters
	Log      *ops.Log

	disabled atomic.Bool
	settings atomic.Pointer[Settings]
}

// Counters count calls and attempts. The fields are those of the public type Stats, which documents them: a pointer to one type converts to a
// pointer to the other.
type Counters struct {
	TotalRequests   atomic.Int64
	HedgedRequests  atomic.Int64
	HedgeWins       atomic.Int64
	PrimaryWins     atomic.Int64
	BudgetExhausted atomic.Int64
	WarmupRequests  atomic.Int64

	HedgesSent      atomic.Int64
	Resumes         atomic.Int64
	ResumeWins      atomic.Int64
	AnswersNotTaken atomic.Int64

	HeldBack   atomic.Int64
	ShadowWins atomic.Int64

	NotHedgeable atomic.Int64
	HedgePanics  atomic.Int64

	ObserverPanics atomic.Int64
}

// Settings are the settings that calls read. Package policy has the others.
type Settings struct {
	MaxHedges      int
	MaxReplayBytes int64         // size of the largest request body that is kept for hedges
	Linger         time.Duration // during which the loser of a call may finish; 0: it is cancelled at once
	AttemptHeader  string        // header with the number of a hedge, in canonical form; "": none
}

// Settings returns the current settings. The caller must not change them.
func (c *Client) Settings() *Settings { return c.settings.Load() }

// SetSettings replaces the settings for calls that start from now on.
func (c *Client) SetSettings(s Settings) { c.settings.Store(&s) }

// Enabled reports whether hedging is switched on.
func (c *Client) Enabled() bool { return !c.disabled.Load() }

// SetEnabled switches hedging on or off for calls that start from now on, and reports whether that is a change. Hedging is on at first.
func (c *Client) SetEnabled(on bool) (changed bool) { return c.disabled.Swap(!on) == on }

// CountCall counts a call and returns the facts about its eligibility that hold for every protocol. If hedging is switched off, the caller need not
// add others.
func (c *Client) CountCall() policy.Eligibility {
	c.Counters.TotalRequests.Add(1)
	return policy.Eligibility{SwitchedOff: c.disabled.Load()}
}

// IneligibleReason returns the reason for which a call is sent once, or [policy.None] if hedges may be sent. It counts calls that are not eligible,
// unless hedging is switched off.
func (c *Client) IneligibleReason(o race.Overrides, f policy.Eligibility) observe.Reason {
	reason := f.Reason(o)
	if reason != policy.None && !f.SwitchedOff {
		c.Counters.NotHedgeable.Add(1)
	}
	if f.IsNested && reason == observe.DeniedNested {
		c.Log.WarnOfNestedHedging(cmp.Or(o.Parent.Method, o.Parent.Target))
	}
	return reason
}

// NestingMark returns the mark by which hedging below recognises that a call is hedged already: the call itself, or the zero value if this client
// never sends a hedge.
func (c *Client) NestingMark(call race.CallTarget) race.CallTarget {
	if p := c.Policy.Config(); p.Shadow || p.MaxHedges == 0 || p.Share == 0 {
		return race.CallTarget{}
	}
	return call
}

// EndCall records and counts the outcome of a call that was eligible for hedging.
func (c *Client) EndCall(call *policy.Call, o policy.Outcome) {
	if call.End(o) {
		c.Counters.ShadowWins.Add(1)
	}
	if o.HeldBack {
		c.Counters.HeldBack.Add(1)
	}
	if sent := call.SentHedges(); sent > 0 {
		c.Counters.HedgedRequests.Add(1)
		c.Counters.HedgesSent.Add(int64(sent))
		if o.AnswersNotTaken > 0 {
			c.Counters.AnswersNotTaken.Add(int64(o.AnswersNotTaken))
		}
		switch {
		case o.HeldBack:
		case o.Winner > 0:
			c.Counters.HedgeWins.Add(1)
		case o.Winner == 0:
			c.Counters.PrimaryWins.Add(1)
		}
	}
	if call.Denied == observe.DeniedBudget {
		c.Counters.BudgetExhausted.Add(1)
	}
}
