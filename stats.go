package hedge

import (
	"encoding/json"
	"strconv"
	"sync/atomic"
	"time"
)

// Stats counts calls and attempts. It is safe for concurrent use. The zero value is ready for use.
type Stats struct {
	TotalRequests   atomic.Int64 // all calls
	HedgedRequests  atomic.Int64 // calls for which at least one hedge was sent
	HedgeWins       atomic.Int64 // hedged calls that were answered by a hedge
	PrimaryWins     atomic.Int64 // hedged calls that were answered by the primary
	BudgetExhausted atomic.Int64 // calls whose last denied hedge was denied because of the budget
	WarmupRequests  atomic.Int64 // calls without a hedge delay, mostly because too few calls were measured

	HedgesSent atomic.Int64 // hedges; a call may have several
	Resumes    atomic.Int64 // hedges for the remaining bytes of a stalled body, see [WithResume]
	ResumeWins atomic.Int64 // resumes whose response the body continued with
	// AnswersNotTaken counts hedges whose status would have ended the call if the primary had returned it, such as 404
	// or NOT_FOUND. See [WithAnswerStatus] and [WithAnswerCodes].
	AnswersNotTaken atomic.Int64

	HeldBack   atomic.Int64 // calls of [Do] in which a hedge succeeded, but the first call of the function did not return; not counted as wins
	ShadowWins atomic.Int64 // calls that a hedge would have won in shadow mode, see [WithShadow]

	NotHedgeable atomic.Int64 // calls that must not, or cannot, be sent twice
	HedgePanics  atomic.Int64 // attempts that panicked without failing their call

	ObserverPanics atomic.Int64 // recovered panics of an [Observer] or a logger
}

// A StatsSnapshot holds the values of [Stats] at one time. The counters are read one after another, so a call that ends
// meanwhile may be counted in some of them only. A part never exceeds its whole, such as HedgeWins and HedgedRequests.
type StatsSnapshot struct {
	TotalRequests   int64 `json:"total_requests"`
	HedgedRequests  int64 `json:"hedged_requests"`
	HedgeWins       int64 `json:"hedge_wins"`
	PrimaryWins     int64 `json:"primary_wins"`
	BudgetExhausted int64 `json:"budget_exhausted"`
	WarmupRequests  int64 `json:"warmup_requests"`
	HedgesSent      int64 `json:"hedges_sent"`
	Resumes         int64 `json:"resumes"`
	ResumeWins      int64 `json:"resume_wins"`
	AnswersNotTaken int64 `json:"answers_not_taken"`
	HeldBack        int64 `json:"held_back"`
	ShadowWins      int64 `json:"shadow_wins"`
	NotHedgeable    int64 `json:"not_hedgeable"`
	HedgePanics     int64 `json:"hedge_panics"`
	ObserverPanics  int64 `json:"observer_panics"`
}

// Snapshot returns the current values. It returns the zero value if s is nil.
func (s *Stats) Snapshot() StatsSnapshot {
	if s == nil {
		return StatsSnapshot{}
	}
	// What is counted last is read first: no part is then larger than its whole.
	snap := StatsSnapshot{
		HedgeWins:       s.HedgeWins.Load(),
		ResumeWins:      s.ResumeWins.Load(),
		AnswersNotTaken: s.AnswersNotTaken.Load(),
		PrimaryWins:     s.PrimaryWins.Load(),
		BudgetExhausted: s.BudgetExhausted.Load(),
		WarmupRequests:  s.WarmupRequests.Load(),
		HeldBack:        s.HeldBack.Load(),
		ShadowWins:      s.ShadowWins.Load(),
		NotHedgeable:    s.NotHedgeable.Load(),
		HedgePanics:     s.HedgePanics.Load(),
		ObserverPanics:  s.ObserverPanics.Load(),
	}
	snap.Resumes = s.Resumes.Load()
	snap.HedgesSent = s.HedgesSent.Load()
	snap.HedgedRequests = s.HedgedRequests.Load()
	snap.TotalRequests = s.TotalRequests.Load()
	return snap
}

// HedgeRate returns the share of hedged calls among all calls, in [0, 1]; 0 if there are no calls.
func (s *Stats) HedgeRate() float64 { return s.Snapshot().HedgeRate() }

// HedgeRate returns the share of hedged calls among all calls, in [0, 1]; 0 if there are no calls.
func (s StatsSnapshot) HedgeRate() float64 {
	if s.TotalRequests == 0 {
		return 0
	}
	return float64(s.HedgedRequests) / float64(s.TotalRequests)
}

// A Snapshot is the state of a Transport, Interceptor or Hedger at one time: settings, counters and keys. In JSON,
// durations of keys are numbers of nanoseconds, and durations of Config are strings, as in a configuration file.
type Snapshot struct {
	Name     string        `json:"name,omitempty"`     // as set by [WithName]
	Protocol string        `json:"protocol,omitempty"` // as in [KeyInfo]
	Stats    StatsSnapshot `json:"stats"`
	Config   Config        `json:"config"`
	Enabled  bool          `json:"enabled"`
	Shadow   bool          `json:"shadow,omitempty"` // shadow mode, see [WithShadow]
	Keys     []KeySnapshot `json:"keys"`             // sorted by host and route
}

// A KeySnapshot is the state of one latency key: counters, latencies, hedge delays and budget.
type KeySnapshot struct {
	Host  string `json:"host"`            // host, gRPC target, or key of [Do]
	Route string `json:"route,omitempty"` // pattern of [WithRoute], or gRPC method

	Requests int64 `json:"requests"` // calls that may be hedged
	Hedges   int64 `json:"hedges"`
	Wins     int64 `json:"wins"` // calls won by hedges

	// Denied is the number of hedges that were due and not sent, by reason. Reasons that never applied are missing.
	Denied map[Reason]int64 `json:"denied"`

	ShadowWins int64         `json:"shadow_wins,omitempty"` // calls that a hedge would have won, see [WithShadow]
	Saved      time.Duration `json:"saved"`                 // time saved by Wins or ShadowWins, estimated as in [RequestResult]; 0 with [WithAudit]

	Samples int             `json:"samples"` // latencies in the window
	P50     time.Duration   `json:"p50"`     // of latencies as seen by callers; 0: none measured
	P90     time.Duration   `json:"p90"`
	P99     time.Duration   `json:"p99"`
	Delays  []time.Duration `json:"delays"` // hedge delays of the next call; empty: it will not be hedged

	Budget      float64   `json:"budget"`       // hedges that the budget can pay for now, with a precision of 0.001
	BudgetScale float64   `json:"budget_scale"` // factor on the budget; below 1 while hedges do not win
	PausedUntil time.Time `json:"paused_until"` // end of a pause that the server asked for; in the past: no such pause

	// PushBackShare is the share of recent responses that pushed back. Above 0.05, hedging is paused until the share is
	// below 0.025.
	PushBackShare float64 `json:"push_back_share"`

	SlowShare float64 `json:"slow_share"` // share of slow calls among recent calls; above 0.75, hedging is paused

	Stall time.Duration `json:"stall,omitempty"` // wait after which a body has stalled, see [WithResume]; 0: not known

	// Unresumed is the number of stalled bodies that were not resumed, by reason (see [WithResume]); nil: none. A
	// denied range request is counted in Denied instead.
	Unresumed map[string]int64 `json:"unresumed,omitempty"`

	Policy string `json:"policy,omitempty"` // path and source of the service config whose hedgingPolicy applies; "": none

	Audit *Audit `json:"audit,omitempty"` // of the host, see [WithAudit]; nil: there is none

	// Endpoints are the endpoints that the calls can use, in order of preference (see [WithEndpoints]). Only the key of
	// the first endpoint has them; nil: no call had a choice. The key of another endpoint has the latencies of calls
	// that go there.
	Endpoints []EndpointSnapshot `json:"endpoints,omitempty"`
}

// An EndpointSnapshot is the state of one endpoint: its calls, failures, and whether it is ejected.
type EndpointSnapshot struct {
	Endpoint string `json:"endpoint"` // URL or target, as configured

	Calls int64 `json:"calls"` // calls with a choice of endpoints whose primary went there
	// hedges that went there
	Hedges   int64 `json:"hedges"`
	Failures int64 `json:"failures"` // failed primaries and hedges

	// Overtaken is the number of attempts that were too slow: a later hedge to another endpoint won, or the caller's
	// deadline passed.
	Overtaken int64 `json:"overtaken"`

	BadShare float64 `json:"bad_share"` // share of failed or overtaken attempts among about the last 256
	Ejected  bool    `json:"ejected"`   // calls go to other endpoints
	Slower   bool    `json:"slower"`    // ejected because attempts were overtaken, not because they failed
}

// UnmarshalJSON reads a Snapshot, which another version may have written: unknown settings in its Config are ignored.
// For a [Config] on its own, they are an error.
func (s *Snapshot) UnmarshalJSON(b []byte) error {
	type plain Snapshot
	text := struct {
		*plain
		Config lenientConfig `json:"config"`
	}{(*plain)(s), lenientConfig(s.Config)}
	if err := json.Unmarshal(b, &text); err != nil {
		return err
	}
	s.Config = Config(text.Config)
	return nil
}

// A lenientConfig is a Config that ignores unknown settings when it is decoded.
type lenientConfig Config

func (l *lenientConfig) UnmarshalJSON(b []byte) error { return (*Config)(l).decodeSettings(b, false) }

// json returns the Snapshot as a JSON object.
func (s Snapshot) json() string {
	b, err := json.Marshal(s)
	if err != nil { // cannot happen: a Snapshot holds only numbers that JSON allows
		return strconv.Quote(err.Error())
	}
	return string(b)
}
