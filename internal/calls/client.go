// Package calls holds the state that all calls of one client share, and the steps that calls of every protocol have in common:
// count a call, decide whether it may be hedged, and count its outcome. A client is a Transport, an Interceptor or a Hedger.
package calls

import (
	"cmp"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/ops"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// A Client holds the state that all calls of one Transport, Interceptor or Hedger share. The Client types of the protocols
// embed it. The exported fields must be set before the first call, and must not change after it. A Client is safe for
// concurrent use.
type Client struct {
	Policy   *policy.Engine // learned latencies and budgets of the client
	Counters *Counters      // statistics of the client
	Log      *ops.Log       // reports changes of state to operators

	flags    atomic.Uint32            // sources that switch hedging off, a set of OffSource; and the bit hasExclusions
	settings atomic.Pointer[Settings] // current settings
}

// Counters counts calls and attempts. The public type Stats documents the fields. Both types have the same fields in the same
// order, so that pointers to them can be converted to each other.
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

	Retries atomic.Int64
}

// Settings are the settings that the calls of a client read. Package policy has all other settings.
type Settings struct {
	MaxHedges      int           // maximum number of hedges per call
	MaxReplayBytes int64         // maximum size, in bytes, of a request body that is kept to be sent again by hedges
	Linger         time.Duration // time that losers have to finish; 0: losers are cancelled at once
	AttemptHeader  string        // canonical name of the request header that states the number of a hedge; "": no header is sent

	ExcludesRequest func(method, host string, u *url.URL) bool // reports whether an operator has forbidden hedges of an HTTP request; nil: of none
	ExcludesMethod  func(method string) bool                   // reports whether an operator has forbidden hedges of a gRPC method; nil: of none
}

// Settings returns the current settings. The caller must not modify them.
func (c *Client) Settings() *Settings { return c.settings.Load() }

// SetSettings replaces the settings. They apply to calls that start after SetSettings. It must not be called concurrently.
func (c *Client) SetSettings(s Settings) {
	c.settings.Store(&s)
	if s.ExcludesRequest != nil || s.ExcludesMethod != nil {
		c.flags.Or(hasExclusions)
	} else {
		c.flags.And(^uint32(hasExclusions))
	}
}

// An OffSource is a source that can switch hedging off. Its values are bits.
type OffSource uint32

// Sources that can switch hedging off.
const (
	OffByProgram OffSource = 1 << iota // SetEnabled, or an environment variable at the start
	OffByFile                          // a file with settings

	// hasExclusions is the bit of Client.flags for an ExcludesRequest or ExcludesMethod that is not nil. Calls of most clients
	// need not load the settings to learn that there is none.
	hasExclusions = 1 << 31
)

// Enabled reports whether hedging is switched on. It is on unless a source switches it off.
func (c *Client) Enabled() bool { return c.flags.Load()&^hasExclusions == 0 }

// SetOff stores whether a source switches hedging off, for calls that start after it. Hedging is on if no source switches it
// off. SetOff returns true if that has changed the result of Enabled.
func (c *Client) SetOff(source OffSource, off bool) (changed bool) {
	bit := uint32(source)
	if off {
		return c.flags.Or(bit)&^hasExclusions == 0
	}
	return c.flags.And(^bit)&^hasExclusions == bit
}

// CountCall counts a call that starts now. isRetry is true if its caller has marked it as a retry. CountCall returns the facts that decide whether the call may be hedged and that do not
// depend on the protocol. The caller must add the facts of its protocol, unless SwitchedOff is true.
//
// If Excluded is true, an operator has forbidden hedges of some calls. The caller must then store there whether this call is one
// of them.
func (c *Client) CountCall(isRetry bool) policy.Eligibility {
	c.Counters.TotalRequests.Add(1)
	if isRetry {
		c.Counters.Retries.Add(1)
	}
	flags := c.flags.Load()
	return policy.Eligibility{SwitchedOff: flags&^hasExclusions != 0, Excluded: flags&hasExclusions != 0}
}

// IneligibleReason returns the reason why a call must be sent without hedges, or [policy.None] if it may be hedged. The
// argument f holds the facts about the call, and o the overrides of its caller.
//
// It counts calls that may not be hedged, except while hedging is switched off. It also logs the first nested call.
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

// MarksNesting reports whether the contexts of hedged calls must carry a mark, the target of the call. The mark prevents that
// nested calls to the same target are hedged, too. It is not needed if this client never sends hedges, because nested calls
// may then be hedged.
func (c *Client) MarksNesting() bool {
	p := c.Policy.Config()
	return !p.Shadow && p.MaxHedges != 0 && p.Share != 0
}

// EndCall records the outcome of a call that could be hedged, and updates the counters.
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
