package hedge

import (
	"encoding/json"
	"strconv"
	"sync/atomic"
	"time"
)

// Stats counts the calls and attempts of a client since its first use. [WithStats] attaches it to a client, and
// several clients may share one. It is safe for concurrent use. The zero value is ready for use.
type Stats struct {
	TotalRequests   atomic.Int64 // all calls
	HedgedRequests  atomic.Int64 // calls for which at least one hedge was sent
	HedgeWins       atomic.Int64 // hedged calls for which the caller got the result of a hedge
	PrimaryWins     atomic.Int64 // hedged calls for which the caller got the result of the primary
	BudgetExhausted atomic.Int64 // calls with denied hedges, if the budget was the reason for the last denial
	WarmupRequests  atomic.Int64 // calls for which no hedge delay was known, mostly because too few calls of their key were measured

	HedgesSent atomic.Int64 // hedges that were sent; a call may have several
	Resumes    atomic.Int64 // hedges that requested the remaining bytes of a body, see [WithResume]
	ResumeWins atomic.Int64 // resumes that won: the body continued with their response
	// AnswersNotTaken counts hedges whose response was not returned to the caller because of its status, for example 404
	// or NOT_FOUND. The same status of the primary would have ended the call. See [WithAnswerStatus] and
	// [WithAnswerCodes].
	AnswersNotTaken atomic.Int64

	HeldBack   atomic.Int64 // calls of [Do] in which a hedge succeeded, but gained nothing because the first call of the function did not return; not counted as wins
	ShadowWins atomic.Int64 // calls in shadow mode in which a hedge would have won, see [WithShadow]

	NotHedgeable atomic.Int64 // calls that could not be hedged, because they are not safe to send twice, or cannot be copied
	HedgePanics  atomic.Int64 // attempts that panicked while their call got its result from another attempt

	ObserverPanics atomic.Int64 // panics of an [Observer] or a logger, which were recovered

	Retries atomic.Int64 // calls that [MarkRetry] has marked as retries; also counted in TotalRequests
}

// A StatsSnapshot holds the values of [Stats] at one time; Stats documents the fields. The counters are read one after
// another, so a call that ends meanwhile may be counted in some of them only. A part never exceeds its whole: HedgeWins
// is at most HedgedRequests.
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
	Retries         int64 `json:"retries"`
}

// Snapshot returns the current values of the counters. It returns the zero StatsSnapshot if s is nil.
func (s *Stats) Snapshot() StatsSnapshot {
	if s == nil {
		return StatsSnapshot{}
	}
	// Counters that a call increments last are read first, so that a part is never larger than its whole.
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
		Retries:         s.Retries.Load(),
	}
	snap.Resumes = s.Resumes.Load()
	snap.HedgesSent = s.HedgesSent.Load()
	snap.HedgedRequests = s.HedgedRequests.Load()
	snap.TotalRequests = s.TotalRequests.Load()
	return snap
}

// HedgeRate returns the share of the calls so far for which at least one hedge was sent, in [0, 1]. It is 0 if there
// are no calls.
func (s *Stats) HedgeRate() float64 { return s.Snapshot().HedgeRate() }

// HedgeRate returns the share of the calls for which at least one hedge was sent, in [0, 1]. It is 0 if there are no
// calls.
func (s StatsSnapshot) HedgeRate() float64 {
	if s.TotalRequests == 0 {
		return 0
	}
	return float64(s.HedgedRequests) / float64(s.TotalRequests)
}

// A Snapshot is the state of a Transport, Interceptor or Hedger at one time: settings, counters and latency keys. It
// can be encoded as JSON. Durations of keys are then numbers of nanoseconds, and durations of Config are strings, as in
// a configuration file.
type Snapshot struct {
	Name     string        `json:"name,omitempty"`     // name of the client, as set by [WithName]
	Protocol string        `json:"protocol,omitempty"` // "http", "grpc" or "func", as in [KeyInfo]
	Stats    StatsSnapshot `json:"stats"`              // counters of all calls
	Config   Config        `json:"config"`             // current settings
	Enabled  bool          `json:"enabled"`            // false while hedging is disabled by SetEnabled or the environment
	Shadow   bool          `json:"shadow,omitempty"`   // true in shadow mode, see [WithShadow]
	Keys     []KeySnapshot `json:"keys"`               // sorted by host and route
}

// A KeySnapshot is the state of one latency key at one time: counters, latencies, hedge delays and budget. Shares are
// in [0, 1].
type KeySnapshot struct {
	Host  string `json:"host"`            // host, gRPC target, or key of [Do]
	Route string `json:"route,omitempty"` // pattern of [WithRoute], or gRPC method

	Requests int64 `json:"requests"` // calls that could be hedged
	Hedges   int64 `json:"hedges"`   // hedges that were sent
	Wins     int64 `json:"wins"`     // calls won by hedges

	// Denied is the number of hedges that were due and not sent, by reason. It has no entry for a reason that never
	// applied.
	Denied map[Reason]int64 `json:"denied"`

	ShadowWins int64         `json:"shadow_wins,omitempty"` // calls that a hedge would have won, see [WithShadow]
	Saved      time.Duration `json:"saved"`                 // time saved by Wins or ShadowWins, estimated as in [RequestResult]; 0 with [WithAudit]

	Samples int             `json:"samples"` // number of recent latencies from which the percentiles are computed
	P50     time.Duration   `json:"p50"`     // median latency as seen by callers; 0: none measured
	P90     time.Duration   `json:"p90"`     // 90th percentile of latency
	P99     time.Duration   `json:"p99"`     // 99th percentile of latency
	Delays  []time.Duration `json:"delays"`  // delays from the start of the next call to its hedges; empty: it will not be hedged

	Budget      float64   `json:"budget"`       // hedges that the budget suffices for now, with a precision of 0.001
	BudgetScale float64   `json:"budget_scale"` // factor by which the budget is multiplied; below 1 while hedges do not win
	PausedUntil time.Time `json:"paused_until"` // end of a pause of hedging that the server asked for; in the past: there is no pause

	// PushBackShare is the share of recent responses in which the server pushed back. Above 0.05, hedging is paused until
	// the share is below 0.025.
	PushBackShare float64 `json:"push_back_share"`

	SlowShare float64 `json:"slow_share"` // share of slow calls among recent calls; hedging is paused while it is above 0.75

	Stall time.Duration `json:"stall,omitempty"` // duration of a Read after which a body counts as stalled, see [WithResume]; 0: unknown

	// Unresumed is the number of stalled bodies that were not resumed, by reason (see [WithResume]). It is nil if there
	// are none. If the range request was denied, the body is counted in Denied instead.
	Unresumed map[string]int64 `json:"unresumed,omitempty"`

	Policy string `json:"policy,omitempty"` // path and source of the gRPC service config whose hedgingPolicy applies; "": none

	Audit *Audit `json:"audit,omitempty"` // result of the audit of the host, see [WithAudit]; nil: the host is not audited

	// Endpoints are the endpoints that the calls can use, in order of preference (see [WithEndpoints]). Only the key of
	// the first endpoint has them. Endpoints is nil if no call had a choice of endpoints. The key of another endpoint has
	// the latencies of calls to that endpoint.
	Endpoints []EndpointSnapshot `json:"endpoints,omitempty"`
}

// An EndpointSnapshot is the state of one endpoint at one time: its calls and failures, and whether it is ejected. See
// [WithEndpoints] and [WithHedgeConns].
type EndpointSnapshot struct {
	Endpoint string `json:"endpoint"` // URL of the endpoint, or target of the connection, as configured

	Calls int64 `json:"calls"` // primaries sent to the endpoint, of calls with a choice of endpoints
	// Hedges is the number of hedges sent to the endpoint.
	Hedges   int64 `json:"hedges"`
	Failures int64 `json:"failures"` // primaries and hedges at the endpoint that failed

	// Overtaken is the number of primaries and hedges at the endpoint that were too slow: a later hedge to another
	// endpoint won, or the caller's deadline passed.
	Overtaken int64 `json:"overtaken"`

	BadShare float64 `json:"bad_share"` // share of failed or overtaken attempts among the last 256 or so, in [0, 1]
	Ejected  bool    `json:"ejected"`   // true while calls go to other endpoints
	Slower   bool    `json:"slower"`    // true if the endpoint is ejected because its attempts were overtaken, and not because they failed
}

// UnmarshalJSON decodes a Snapshot. Unknown settings in its Config are ignored, because another version of this package
// may have written the Snapshot. When a [Config] is decoded on its own, unknown settings are an error.
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

// A lenientConfig is a Config whose JSON decoding ignores unknown settings.
type lenientConfig Config

func (l *lenientConfig) UnmarshalJSON(b []byte) error { return (*Config)(l).decodeSettings(b, false) }

// json returns the JSON encoding of s as a string. If s cannot be encoded, it returns the error as a JSON string.
func (s Snapshot) json() string {
	b, err := json.Marshal(s)
	if err != nil { // cannot happen: a Snapshot holds only numbers that JSON allows
		return strconv.Quote(err.Error())
	}
	return string(b)
}
