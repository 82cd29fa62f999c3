package virtual

import (
	"math"
	"strconv"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/bhope"
	"github.com/gohedge/hedge/internal/policy"
)

// StaticDelays is a Policy that hedges every call after the same delays, without a budget. No delays mean no hedges.
type StaticDelays []time.Duration

func (s StaticDelays) ScheduleHedges(time.Duration, int) []time.Duration { return s }
func (StaticDelays) AdmitHedge(time.Duration, int, int) bool             { return true }
func (StaticDelays) RecordResult(time.Duration, int, CallResult)         {}

// A LibraryPolicy is the hedging policy of this library as a Policy of simulations.
type LibraryPolicy struct {
	engine *policy.Engine
	keys   []*policy.Key // by host
}

func NewLibraryPolicy(c policy.Config) *LibraryPolicy { return &LibraryPolicy{engine: policy.New(c)} }

// epoch is the start of all episodes. It is not the zero time, which the engine treats as no time.
var epoch = time.Unix(1_000_000_000, 0)

func (p *LibraryPolicy) hostKey(host int) *policy.Key {
	for len(p.keys) <= host {
		p.keys = append(p.keys, p.engine.Key(policy.Name{Host: strconv.Itoa(len(p.keys))}))
	}
	return p.keys[host]
}

func (p *LibraryPolicy) ScheduleHedges(now time.Duration, host int) []time.Duration {
	if schedule := p.hostKey(host).Begin(epoch.Add(now)); schedule != nil {
		return schedule.Delays
	}
	return nil
}

func (p *LibraryPolicy) AdmitHedge(now time.Duration, host, index int) bool {
	return p.hostKey(host).Admit(epoch.Add(now), index == 0, time.Time{}, policy.HedgeRequest{}) == policy.None
}

// RecordResult records the result r of a call, from which the policy learns, and the end of the call's hedges, because
// the policy limits the hedges in flight.
func (p *LibraryPolicy) RecordResult(now time.Duration, host int, r CallResult) {
	k := p.hostKey(host)
	for range len(r.Starts) - 1 {
		k.HedgeEnded()
	}
	k.RecordCall(epoch.Add(now), policy.Result{
		Latency:           r.Latency,
		Answered:          r.Winner >= 0,
		Abandoned:         r.Winner < 0 && !r.PushedBack,
		ReachedFirstDelay: r.ReachedFirstDelay,
		HasSlowMarker:     r.HasDelay,
		Slow:              r.ReachedFirstDelay,
		HedgeWon:          r.Winner > 0,
	})
}

func (p *LibraryPolicy) RecordPushback(now time.Duration, host int) {
	p.hostKey(host).RecordPushback(epoch.Add(now), 0)
}

// A BhopePolicy is the hedging policy of another Go library, github.com/bhope/hedge, as a Policy of simulations.
type BhopePolicy struct{ policy *bhope.Policy }

// NewBhopePolicy returns a policy whose hedge budget is a tenth of estimatedRPS, the expected requests per second.
func NewBhopePolicy(estimatedRPS float64) *BhopePolicy {
	return &BhopePolicy{policy: bhope.New(estimatedRPS)}
}

func (p *BhopePolicy) ScheduleHedges(now time.Duration, host int) []time.Duration {
	return []time.Duration{p.policy.StartRequest(now, strconv.Itoa(host))}
}

func (p *BhopePolicy) AdmitHedge(now time.Duration, _, _ int) bool { return p.policy.AdmitHedge(now) }

// RecordResult records the latency of the winner, or the time until the call failed.
func (p *BhopePolicy) RecordResult(now time.Duration, host int, r CallResult) {
	if !r.PushedBack {
		p.policy.RecordLatency(now, strconv.Itoa(host), r.Latency)
	}
}

// A FailsafePolicy is a model of the hedge policy of failsafe-go 0.9.8 with one hedge per call. The hedge delay is a
// moving quantile of the attempts' latencies. A budget limits the hedges in flight. All hosts share the policy.
type FailsafePolicy struct {
	quantile movingQuantile
	calls    int // in flight
	hedges   int // in flight
}

const (
	failsafeBudgetShare = 0.20 // of the attempts in flight: the default of failsafe-go
	failsafeMinHedges   = 3    // hedges in flight that are always allowed: the default of failsafe-go

	// The parameters of the quantile, which have no defaults. These values suit a budget of a tenth of the calls.
	FailsafeQuantile  = 0.90
	FailsafeAge       = 1000
	FailsafeThreshold = 20
)

// ScheduleHedges returns one hedge delay, the moving quantile of latencies, or none until that has enough samples.
func (f *FailsafePolicy) ScheduleHedges(time.Duration, int) []time.Duration {
	f.calls++
	if f.quantile.count < FailsafeThreshold {
		return nil
	}
	return []time.Duration{max(0, time.Duration(f.quantile.value))}
}

// AdmitHedge reports whether the budget allows one more hedge in flight, and counts it.
func (f *FailsafePolicy) AdmitHedge(time.Duration, int, int) bool {
	if f.hedges >= failsafeMinHedges && float64(f.hedges) > failsafeBudgetShare*float64(f.calls+f.hedges) {
		return false
	}
	f.hedges++
	return true
}

// RecordResult records the latency of every attempt. That of a loser is the time until its cancellation.
func (f *FailsafePolicy) RecordResult(_ time.Duration, _ int, r CallResult) {
	f.calls--
	f.hedges -= len(r.Starts) - 1
	for _, start := range r.Starts {
		f.quantile.addSample(float64(r.Latency - start))
	}
}

// A movingQuantile estimates a quantile of a sequence without storing its samples (Jambon's windowless moving
// percentile). Each sample moves the estimate up or down, by steps whose sizes balance at the quantile.
type movingQuantile struct {
	count                 int
	value, mean, variance float64
}

func (q *movingQuantile) addSample(x float64) {
	const weight, step = 2.0 / (FailsafeAge + 1), 0.01
	if q.count++; q.count == 1 {
		q.value, q.mean = x, x
		return
	}
	old := q.mean
	q.mean += weight * (x - old)
	q.variance += weight * ((x-old)*(x-q.mean) - q.variance)
	switch d := step * math.Sqrt(q.variance); {
	case x < q.value:
		q.value -= d / FailsafeQuantile
	case x > q.value:
		q.value += d / (1 - FailsafeQuantile)
	}
}
