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

// A Client holds the state that the calls of one Transport, Interceptor or Hedger share. The clients of the call packages embed it. Its
// exported fields must be set before the first call and not changed. It is safe for concurrent use.
type Client struct {
	Policy   *policy.Engine
	Counters *Counters
	Log      *ops.Log

	disabled atomic.Bool
	settings atomic.Pointer[Settings]
}

// Counters count calls and attempts. The public type Stats documents the fields. A pointer to one of the two types can be converted to a
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

// Settings are the settings that calls read. Package policy has the other settings.
type Settings struct {
	MaxHedges      int
	MaxReplayBytes int64         // size of the largest request body that is kept for hedges
	Linger         time.Duration // time that losers have to finish; 0: losers are cancelled at once
	AttemptHeader  string        // canonical name of the header with the number of a hedge; "": no header is sent
}

// Settings returns the current settings. The caller must not change them.
func (c *Client) Settings() *Settings { return c.settings.Load() }

// SetSettings replaces the settings. They apply to calls that start later.
func (c *Client) SetSettings(s Settings) { c.settings.Store(&s) }

// Enabled reports whether hedging is switched on.
func (c *Client) Enabled() bool { return !c.disabled.Load() }

// SetEnabled switches hedging on or off for calls that start later, and reports whether that is a change. Hedging is on at first.
func (c *Client) SetEnabled(on bool) (changed bool) { return c.disabled.Swap(!on) == on }

// CountCall counts a call. It returns an Eligibility with the facts that apply to every protocol, to which the caller adds its own. If
// SwitchedOff is true, the caller can omit them.
func (c *Client) CountCall() policy.Eligibility {
	c.Counters.TotalRequests.Add(1)
	return policy.Eligibility{SwitchedOff: c.disabled.Load()}
}

// IneligibleReason returns the reason why a call is sent only once, or [policy.None] if it may be hedged. It counts calls that may not be
// hedged, unless hedging is switched off, and logs the first nested call.
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

// NestingMark returns the [race.CallTarget] for the context of the call, by which nested calls recognise that it is hedged. It returns zero
// if the client never sends a hedge, so nested calls may be hedged.
func (c *Client) NestingMark(call race.CallTarget) race.CallTarget {
	if p := c.Policy.Config(); p.Shadow || p.MaxHedges == 0 || p.Share == 0 {
		return race.CallTarget{}
	}
	return call
}

// EndCall records the outcome of a call that was eligible for hedging, and updates the counters.
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
