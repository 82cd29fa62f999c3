package engine

import "time"

// A Change is something that became otherwise with a key.
type Change struct {
	Topic   Topic
	Bad     bool      // hedging paused, the budget exhausted; false: it is well again
	Why     Verdict   // hedging paused: Slow or Paused
	Until   time.Time // that pause lasts, if Paused
	Dropped int       // changes since the last that was told of the topic
}

// A Topic is what a Change is about.
type Topic int

// The topics.
const (
	Braking Topic = iota // the brakes: hedging pauses, and resumes
	Funding              // the budget: it is exhausted, and at least half full again
	topics
)

// ChangeEvery is the least time between two changes of a key that are told and say the same.
const ChangeEvery = 10 * time.Second

// bulletin is what is known and was told of one topic of a key.
type bulletin struct {
	bad, told bool
	changes   int          // since the last that was told
	last      [2]time.Time // that it was well, and bad, was told
}

// update takes what is now, and reports whether that is to be told. What is not
// told for being too early is told later, if it is still so.
func (b *bulletin) update(now time.Time, bad bool) (dropped int, tell bool) {
	if bad != b.bad {
		b.bad = bad
		b.changes++
	}
	last := &b.last[0]
	if bad {
		last = &b.last[1]
	}
	if bad == b.told || !last.IsZero() && now.Sub(*last) < ChangeEvery {
		return 0, false
	}
	dropped = b.changes - 1
	b.told, b.changes, *last = bad, 0, now
	return dropped, true
}

// changes returns what became otherwise since it was last called. The caller holds mu.
func (k *Key) changes(now time.Time) (all [topics]Change, n int) {
	if k.bulletins == nil {
		k.bulletins = new([topics]bulletin)
	}
	paused := now.Before(k.pausedTo)
	if k.broke && k.funded(now) {
		k.broke = false
	}
	for topic, bad := range [topics]bool{Braking: paused || k.slow > SlowLimit, Funding: k.broke} {
		dropped, tell := k.bulletins[topic].update(now, bad)
		if !tell {
			continue
		}
		one := Change{Topic: Topic(topic), Bad: bad, Dropped: dropped}
		if one.Topic == Braking && bad {
			if one.Why = Slow; paused {
				one.Why, one.Until = Paused, k.pausedTo
			}
		}
		all[n] = one
		n++
	}
	return all, n
}

// funded reports whether all that pays for hedges of the key is at least half
// full: a budget that is spent as it comes in is exhausted all the time.
func (k *Key) funded(now time.Time) bool {
	return k.bucket.half() && (k.own == nil || k.own.half()) && k.engine.ceiling.Load().half(now)
}
