package hedge

import (
	"encoding/json"
	"strconv"
	"sync/atomic"
	"time"
)

// Stats counts calls. It is safe for concurrent use; the zero value is ready.
type Stats struct {
	TotalRequests   atomic.Int64 // calls
	HedgedRequests  atomic.Int64 // calls for which a hedge was sent
	HedgeWins       atomic.Int64 // hedged calls that a hedge answered
	PrimaryWins     atomic.Int64 // hedged calls that the primary answered
	BudgetExhausted atomic.Int64 // calls whose last refused hedge was refused by the budget
	WarmupRequests  atomic.Int64 // calls without a delay to hedge after, mostly because too little was known

	HedgesSent atomic.Int64 // hedges; a call can have several
	Resumes    atomic.Int64 // hedges for the rest of a body that stalled, see [WithResume]
	ResumeWins atomic.Int64 // of those, the ones that the body went on with
	// AnswersNotTaken counts hedges that had an answer which ends a call only if it is the
	// primary's, such as 404 or NOT_FOUND. See [WithAnswerStatus] and [WithAnswerCodes].
	AnswersNotTaken atomic.Int64

	HeldBack   atomic.Int64 // calls of [Do] that a hedge had answered, and whose first call of the function went on: no wins
	ShadowWins atomic.Int64 // calls that a hedge would have won, see [WithShadow]

	NotHedgeable atomic.Int64 // calls that must not, or cannot, be sent twice
	HedgePanics  atomic.Int64 // attempts lost to a panic without failing their call

	ObserverPanics atomic.Int64 // panics of an [Observer] or a logger, which were recovered
}

// A StatsSnapshot holds the values of [Stats]. Each is exact; as they are read
// one after another, a call that ends meanwhile may be counted in some only. No part
// is larger than its whole, such as HedgeWins than HedgedRequests.
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

// Snapshot returns the present values. That of nil is zero.
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

// HedgeRate returns the share of calls that were hedged, in [0, 1]; 0 if there were none.
func (s *Stats) HedgeRate() float64 { return s.Snapshot().HedgeRate() }

// HedgeRate returns the share of calls that were hedged, in [0, 1]; 0 if there were none.
func (s StatsSnapshot) HedgeRate() float64 {
	if s.TotalRequests == 0 {
		return 0
	}
	return float64(s.HedgedRequests) / float64(s.TotalRequests)
}

// A Snapshot is what a Transport, Interceptor or Hedger knows and has done. In JSON the
// durations of keys are numbers of nanoseconds, with which monitoring can compute; those
// of Config are text, as in a file of settings.
type Snapshot struct {
	Name     string        `json:"name,omitempty"`     // see [WithName]
	Protocol string        `json:"protocol,omitempty"` // as in [KeyInfo]
	Stats    StatsSnapshot `json:"stats"`
	Config   Config        `json:"config"`
	Enabled  bool          `json:"enabled"`
	Shadow   bool          `json:"shadow,omitempty"` // see [WithShadow]
	Keys     []KeySnapshot `json:"keys"`             // by host and route
}

// A KeySnapshot is what is known of one key.
type KeySnapshot struct {
	Host  string `json:"host"`            // or target, or the key that was asked for
	Route string `json:"route,omitempty"` // the method, for gRPC

	Requests int64 `json:"requests"` // calls that may be hedged
	Hedges   int64 `json:"hedges"`
	Wins     int64 `json:"wins"` // by hedges

	// Denied says how often a hedge was due and not sent, by reason. Reasons that
	// never applied are missing.
	Denied map[Reason]int64 `json:"denied"`

	ShadowWins int64         `json:"shadow_wins,omitempty"` // by hedges that were not sent, see [WithShadow]
	Saved      time.Duration `json:"saved"`                 // by the wins of either, estimated as in [RequestResult]; 0 with [WithAudit]

	Samples int             `json:"samples"` // latencies in the window
	P50     time.Duration   `json:"p50"`     // of what callers waited; 0 if nothing is known
	P90     time.Duration   `json:"p90"`
	P99     time.Duration   `json:"p99"`
	Delays  []time.Duration `json:"delays"` // after which the next call will be hedged; empty: it will not be

	Budget      float64   `json:"budget"`       // number of hedges that it would pay for now, to a thousandth
	BudgetScale float64   `json:"budget_scale"` // below 1 while hedges do not win
	PausedUntil time.Time `json:"paused_until"` // because the server asked to wait; a past time: not paused for that

	// PushBackShare is the share of the last answers that pushed back. Above 0.05 no hedge
	// is sent, until it is below 0.025.
	PushBackShare float64 `json:"push_back_share"`

	SlowShare float64 `json:"slow_share"` // of the last calls; no hedges above 0.75

	Stall time.Duration `json:"stall,omitempty"` // after which the rest of a body is asked for, see [WithResume]; 0: not known

	// Unresumed says how many bodies were not resumed, by reason, see [WithResume]; nil: none. That a
	// request for the rest was denied stands in Denied.
	Unresumed map[string]int64 `json:"unresumed,omitempty"`

	Policy string `json:"policy,omitempty"` // where hedging is configured, if not here: a path in a service config, and who gave that

	Audit *Audit `json:"audit,omitempty"` // of the host, see [WithAudit]; nil: there is none

	// Endpoints are those that the calls have a choice of, in order of preference, see [WithEndpoints]. They stand at the key of the
	// first one; the key of another has what calls wait that go there. Nil: no call had a choice.
	Endpoints []EndpointSnapshot `json:"endpoints,omitempty"`
}

// An EndpointSnapshot is what is known of one endpoint.
type EndpointSnapshot struct {
	Endpoint string `json:"endpoint"` // its URL or target, as it was given

	Calls    int64 `json:"calls"` // whose primary went there, of those that had a choice
	Hedges   int64 `json:"hedges"`
	Failures int64 `json:"failures"` // of either

	// Overtaken is how many were too slow: a hedge that started later at another endpoint was quicker, or the caller's deadline passed.
	Overtaken int64 `json:"overtaken"`

	BadShare float64 `json:"bad_share"` // failed or overtaken, of the last outcomes, about 256
	Ejected  bool    `json:"ejected"`   // calls go to other endpoints
	Slower   bool    `json:"slower"`    // it is ejected for calls that were overtaken, and for no failure
}

// UnmarshalJSON reads a Snapshot that another version may have written. It leaves out
// settings that are unknown here, which are an error in a [Config] alone.
func (s *Snapshot) UnmarshalJSON(b []byte) error {
	type plain Snapshot
	text := struct {
		*plain
		Config lenient `json:"config"`
	}{(*plain)(s), lenient(s.Config)}
	if err := json.Unmarshal(b, &text); err != nil {
		return err
	}
	s.Config = Config(text.Config)
	return nil
}

// lenient is a Config that leaves out what is no setting.
type lenient Config

func (l *lenient) UnmarshalJSON(b []byte) error { return (*Config)(l).read(b, false) }

// json returns the Snapshot as a JSON object.
func (s Snapshot) json() string {
	b, err := json.Marshal(s)
	if err != nil { // cannot happen: a Snapshot holds only numbers that JSON allows
		return strconv.Quote(err.Error())
	}
	return string(b)
}
