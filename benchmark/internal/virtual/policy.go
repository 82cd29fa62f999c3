package virtual

import (
	"math"
	"strconv"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/published"
	"github.com/gohedge/hedge/internal/policy"
)

// None hedges nothing.
type None struct{}

// Begin never plans a hedge.
func (None) Begin(time.Duration, int) []time.Duration { return nil }

// Admit is never asked.
func (None) Admit(time.Duration, int, int) bool { return false }

// End learns nothing.
func (None) Done(time.Duration, int, End) {}

// Static hedges every call at the same times, without a budget.
type Static []time.Duration

// Begin returns the times.
func (s Static) Begin(time.Duration, int) []time.Duration { return s }

// Admit always hedges.
func (Static) Admit(time.Duration, int, int) bool { return true }

// End learns nothing.
func (Static) Done(time.Duration, int, End) {}

// Ours is this library's engine itself, driven by the simulation's clock.
type Ours struct {
	engine *policy.Engine
	keys   []*policy.Key // by host
}

// NewOurs returns the engine under the given configuration.
func NewOurs(c policy.Config) *Ours { return &Ours{engine: policy.New(c)} }

// epoch is when episodes begin. It is not zero, as a zero time means none to the engine.
var epoch = time.Unix(1_000_000_000, 0)

func (o *Ours) key(host int) *policy.Key {
	for len(o.keys) <= host {
		o.keys = append(o.keys, o.engine.Key(policy.Name{Host: strconv.Itoa(len(o.keys))}))
	}
	return o.keys[host]
}

// Views returns what is known of each host.
func (o *Ours) Views() []policy.Snapshot { return o.engine.Snapshots() }

// Begin returns the key's plan.
func (o *Ours) Begin(now time.Duration, host int) []time.Duration {
	if p := o.key(host).Begin(epoch.Add(now)); p != nil {
		return p.Delays
	}
	return nil
}

// Admit asks the key.
func (o *Ours) Admit(now time.Duration, host, index int) bool {
	return o.key(host).Admit(epoch.Add(now), index == 0, time.Time{}, policy.HedgeRequest{}) == policy.None
}

// End records the call. Losers are cancelled at once, so that no hedge is in flight any more.
func (o *Ours) Done(now time.Duration, host int, e End) {
	k := o.key(host)
	for range len(e.Starts) - 1 {
		k.HedgeEnded()
	}
	k.RecordCall(epoch.Add(now), policy.Result{
		Latency:           e.Latency,
		Answered:          e.Winner >= 0,
		Abandoned:         e.Winner < 0 && !e.Refused,
		ReachedFirstDelay: e.Reached,
		HasSlowMarker:     e.Planned,
		Slow:              e.Reached,
		HedgeWon:          e.Winner > 0,
	})
}

// PushedBack tells the key.
func (o *Ours) PushedBack(now time.Duration, host int) { o.key(host).RecordPushback(epoch.Add(now), 0) }

// Published is the published adaptive policy, see package published.
type Published struct{ policy *published.Policy }

// NewPublished returns the policy that expects the given requests per second.
func NewPublished(estimatedRPS float64) *Published {
	return &Published{policy: published.New(estimatedRPS)}
}

// Begin returns its delay.
func (p *Published) Begin(now time.Duration, host int) []time.Duration {
	return []time.Duration{p.policy.Delay(now, strconv.Itoa(host))}
}

// Admit asks its bucket.
func (p *Published) Admit(now time.Duration, _, _ int) bool { return p.policy.Admit(now) }

// End records the winner's latency, or the time until the caller gave up.
func (p *Published) Done(now time.Duration, host int, e End) {
	if !e.Refused {
		p.policy.Learn(now, strconv.Itoa(host), e.Latency)
	}
}

// Failsafe is a model of the hedge policy of failsafe-go 0.9.8 with one hedge: a
// fixed delay, or a moving quantile of what attempts took, and a budget of
// hedges in flight. All hosts share it.
type Failsafe struct {
	// Delay is the fixed delay; 0: the moving quantile.
	Delay time.Duration

	quantile movingQuantile
	calls    int // in flight
	hedges   int // in flight
}

const (
	failsafeShare = 0.20 // of what is in flight, its default
	failsafeFloor = 3    // hedges in flight that are always allowed, its default

	// The three parameters of its quantile have no defaults. These suit a budget
	// of a tenth.
	FailsafeQuantile  = 0.90
	FailsafeAge       = 1000
	FailsafeThreshold = 20
)

// Begin returns the delay; none before the quantile has its first samples.
func (f *Failsafe) Begin(time.Duration, int) []time.Duration {
	f.calls++
	switch {
	case f.Delay > 0:
		return []time.Duration{f.Delay}
	case f.quantile.count < FailsafeThreshold:
		return nil
	}
	return []time.Duration{max(0, time.Duration(f.quantile.value))}
}

// Admit asks the budget.
func (f *Failsafe) Admit(time.Duration, int, int) bool {
	if f.hedges >= failsafeFloor && float64(f.hedges) > failsafeShare*float64(f.calls+f.hedges) {
		return false
	}
	f.hedges++
	return true
}

// End records what every attempt took; for a cancelled one, the time until then.
func (f *Failsafe) Done(_ time.Duration, _ int, e End) {
	f.calls--
	f.hedges -= len(e.Starts) - 1
	for _, start := range e.Starts {
		f.quantile.add(float64(e.Latency - start))
	}
}

// movingQuantile is Jambon's windowless moving percentile: a value that steps
// up or down with each sample, in such steps that it rests at the quantile.
type movingQuantile struct {
	count                 int
	value, mean, variance float64
}

func (q *movingQuantile) add(x float64) {
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
