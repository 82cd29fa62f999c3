package policy

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/gohedge/hedge/observe"
	"github.com/gohedge/hedge/sketch"
)

// RecordCall records the result r of a call that ended at the time now, so that the key learns from it. It returns the
// estimated time that the winning hedge saved. shadowWon is true if a hedge that shadow mode did not send would have won.
//
// The latency of an abandoned call is only a lower bound. It is recorded only if the call reached its first hedge delay,
// because a shorter bound says too little.
//
// RecordCall makes schedules and reports changes after it has unlocked mu, so that other calls do not wait.
func (k *Key) RecordCall(now time.Time, r Result) (saved time.Duration, shadowWon bool) {
	return k.recordResult(now, &r)
}

// recordResult implements RecordCall. It does not keep r.
func (k *Key) recordResult(now time.Time, r *Result) (saved time.Duration, shadowWon bool) {
	index := sketch.Index(r.Latency)
	k.mu.Lock()
	saved, shadowWon = k.recordCall(now, r, index)
	isDue, report := k.latency.newCalls >= k.latency.dueCalls, k.engine.setup.Changed
	var changes []Change
	if report != nil {
		changes = k.takeChanges(now)
	}
	k.mu.Unlock()
	if k.experiment.isAudited() {
		k.experiment.endCall(now, r)
	}
	if isDue && k.scheduleMu.TryLock() { // otherwise another call makes the schedule
		k.updateSchedule(now)
		k.scheduleMu.Unlock()
	}
	for _, c := range changes {
		report(k.Info, c)
	}
	if k.experiment.isAudited() {
		k.reportVerdict()
	}
	return saved, shadowWon
}

// recordCall stores the result r in the statistics of the key. It is the part of RecordCall that needs mu, which the caller
// must hold. The argument index is the result of sketch.Index for the latency.
func (k *Key) recordCall(now time.Time, r *Result, index int) (saved time.Duration, shadowWon bool) {
	isKnown := r.shouldLearnLatency()
	switch {
	case k.shadow != nil:
		k.shadow.record(now, r, index)
		if shadowWon = k.shadow.wouldHaveWon(r, k.schedule.Load()); shadowWon {
			saved = max(r.Latency-r.PredictedHedgeEnd, 0)
			k.counters.ShadowWins++
			k.safetyChecks.winRate.wins++
			index, isKnown = sketch.Index(r.PredictedHedgeEnd), true // as the caller would have observed
		}
	case r.ReachedFirstDelay && (isKnown || r.hasFailed()) && !k.experiment.isAudited(): // an audit measures the saved time, so it need not be estimated
		saved = k.latency.recordPrimary(r)
	}
	k.counters.Saved += saved
	if r.HedgeWon {
		k.counters.Wins++
		if !r.WonAfterFailure {
			k.safetyChecks.winRate.wins++
		}
	}
	k.updateSafetyChecks(r)
	if isKnown {
		k.latency.window.AddIndex(now, index)
		k.latency.newCalls++
	}
	return saved, shadowWon
}

// reportVerdict reports new results of the host's audit to observers (the audit compares calls with and without hedging). If
// the verdict, whether hedging helps, has changed, it also calls [Setup].Changed.
func (k *Key) reportVerdict() {
	report, change := k.experiment.takeNewResults()
	if report == nil {
		return
	}
	host := k.engine.keyInfo(Name{Host: k.Name.Host})
	k.engine.setup.Notifier.Notify(func(o observe.Observer) { report(o, host) })
	if f := k.engine.setup.Changed; f != nil && change != nil {
		f(host, *change)
	}
}

// takeChanges returns the changes of the key, such as a new pause of hedging, that must be reported now. It marks them as
// reported. The caller must hold mu.
func (k *Key) takeChanges(now time.Time) []Change {
	if k.safetyChecks.budgetExhausted && k.account.IsHalfFull(now, k.engine.limit.Load()) {
		k.safetyChecks.budgetExhausted = false
	}
	return k.safetyChecks.takeChanges(now)
}

// distributionPool holds distributions for reuse by updateSchedule.
var distributionPool = sync.Pool{New: func() any { return new(sketch.Distribution) }}

// updateSchedule makes a new schedule from the recorded latencies, and stores it for the calls that begin afterwards. The
// caller must hold scheduleMu, but not mu, which is locked only to copy the latencies.
func (k *Key) updateSchedule(now time.Time) {
	d := distributionPool.Get().(*sketch.Distribution)
	defer distributionPool.Put(d)
	k.mu.Lock()
	k.latency.window.Distribution(d)
	scale := k.safetyChecks.winRate.scale
	k.latency.newCalls, k.latency.dueCalls = 0, callsUntilNextSchedule(d)
	k.mu.Unlock()

	c := k.engine.Config()
	if s := c.makeSchedule(d, k.account.AdaptSize(c.bucketSizing(), now)*scale/float64(max(k.TypicalCost.Load(), 1))); s != nil {
		k.schedule.Store(s)
	} else {
		k.schedule.Store(c.initialSchedule())
	}
}

// Quantile returns the q-quantile of the latencies that callers observed, for q in [0, 1]. It returns false if no latency is
// known.
func (k *Key) Quantile(q float64) (time.Duration, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.observedWindow().Quantile(q)
}

// observedWindow returns the window of the latencies that callers observed. In shadow mode, schedules are made from another
// window: the latencies that calls would have had with hedges. The caller must hold mu.
func (k *Key) observedWindow() *sketch.Window {
	if k.shadow != nil {
		return &k.shadow.observedWindow
	}
	return &k.latency.window
}

// RecordPause records d, the longest time that a Read of one response body has waited for data. StallThreshold uses it.
func (k *Key) RecordPause(d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.latency.pauses == nil {
		k.latency.pauses = new(pauseHistogram)
	}
	k.latency.pauses.Add(d)
}

// StallThreshold returns the length from which a pause of a response body counts as a stall. It is twice the 95th percentile
// of the longest pauses per body. It is at least 50 ms, and at least the learned first hedge delay.
//
// StallThreshold returns 0 until ten bodies and ten calls are recorded.
func (k *Key) StallThreshold() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stallThreshold()
}

// stallThreshold implements StallThreshold. The caller must hold mu.
func (k *Key) stallThreshold() time.Duration {
	s, d := k.schedule.Load(), k.latency.pauses.StallThreshold()
	if s == nil || d == 0 {
		return 0
	}
	return max(d, s.usualDelay)
}

// reconfigure applies a changed configuration of the engine to the key: it begins or ends shadow mode, and makes a new schedule.
func (k *Key) reconfigure(now time.Time) {
	k.scheduleMu.Lock()
	defer k.scheduleMu.Unlock()
	k.setShadow(k.engine.Config().Shadow)
	k.updateSchedule(now)
}

// setShadow begins or ends shadow mode for the key. When it begins, the latencies that callers have observed are kept, because
// the window of a key without shadow mode holds them. When it ends, they are discarded, and the key keeps its window with the
// latencies that calls would have had with hedges.
func (k *Key) setShadow(on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case !on:
		k.shadow = nil
	case k.shadow == nil:
		k.shadow = new(shadowStats)
		k.shadow.observedWindow.Merge(&k.latency.window)
	}
}

// importWindow adds imported latencies to those of k, and makes a new schedule.
func (k *Key) importWindow(w *sketch.Window, now time.Time) {
	k.scheduleMu.Lock()
	defer k.scheduleMu.Unlock()
	k.mu.Lock()
	k.latency.window.Merge(w)
	if k.shadow != nil {
		k.shadow.observedWindow.Merge(w)
	}
	k.mu.Unlock()
	k.updateSchedule(now)
}

// RandomLatency predicts the latency of a hedge that shadow mode does not send: it returns the latency of a random recorded
// call. It returns 0 if it predicts that the hedge fails, which it does as often as calls fail. It also returns 0 if no call
// is recorded.
//
// It also returns 0 if shadow mode has ended.
func (k *Key) RandomLatency() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.shadow == nil || rand.Float64() < k.shadow.failureShare {
		return 0
	}
	d, _ := k.shadow.observedWindow.Quantile(rand.Float64())
	return d
}
