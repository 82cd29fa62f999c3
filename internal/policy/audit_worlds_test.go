package policy_test

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/internal/race"
	"github.com/gohedge/hedge/observe"
)

// An auditWorld simulates a kind of host. Its fields may be nil or zero.
type auditWorld struct {
	// request draws the latency that all attempts of a request share, before other effects.
	request func(rng *rand.Rand, at time.Duration) time.Duration
	// attempt changes the latency of one attempt, and decides whether it fails.
	attempt func(rng *rand.Rand, took time.Duration) (time.Duration, bool)
	// hedged changes a primary while hedging is on.
	hedged func(rng *rand.Rand, took time.Duration) (time.Duration, bool)
	// failHedged is the share of hedged calls that fail.
	failHedged float64
	deadline   time.Duration // of callers
}

// lognormal returns a latency around the median.
func lognormal(rng *rand.Rand, median time.Duration, sigma float64) time.Duration {
	return time.Duration(float64(median) * math.Exp(sigma*rng.NormFloat64()))
}

// slowRequest is a request that is slow by itself: its hedges take as long as its primary.
func slowRequest(rng *rand.Rand, _ time.Duration) time.Duration { return lognormal(rng, 10*ms, 0.5) }

// steadyRequest is a request whose attempts usually take 10 ms.
func steadyRequest(rng *rand.Rand, _ time.Duration) time.Duration { return lognormal(rng, 10*ms, 0.15) }

// stall returns an effect by which a share of the attempts takes the given time, and then succeeds or fails.
func stall(share float64, long time.Duration, fails bool) func(*rand.Rand, time.Duration) (time.Duration, bool) {
	return func(rng *rand.Rand, took time.Duration) (time.Duration, bool) {
		if rng.Float64() < share {
			return long, fails
		}
		return took, false
	}
}

// wandering returns the requests of a host whose load changes slowly at random.
func wandering(host int) func(*rand.Rand, time.Duration) time.Duration {
	own := rand.New(rand.NewPCG(uint64(host), 9))
	level, next := 0.0, time.Duration(0)
	return func(rng *rand.Rand, at time.Duration) time.Duration {
		for ; next <= at; next += 5 * time.Second {
			level = 0.98*level + 0.1*own.NormFloat64()
		}
		return time.Duration(float64(slowRequest(rng, at)) * math.Exp(level))
	}
}

// auditWorlds are functions, because each host needs new state.
var auditWorlds = map[string]func(int) auditWorld{
	"neutral":                 func(int) auditWorld { return auditWorld{request: slowRequest} },
	"neutral, wandering load": func(host int) auditWorld { return auditWorld{request: wandering(host)} },
	"help: seed benchmark": func(int) auditWorld {
		return auditWorld{attempt: func(rng *rand.Rand, _ time.Duration) (time.Duration, bool) { return seed(rng), false }}
	},
	"help: 3 % fail after 3 s": func(int) auditWorld {
		return auditWorld{request: steadyRequest, attempt: stall(0.03, 3*time.Second, true)}
	},
	"help: 3 % stall for 3 s": func(int) auditWorld {
		return auditWorld{request: steadyRequest, attempt: stall(0.03, 3*time.Second, false), deadline: 10 * time.Second}
	},
	"help: 3 % stall for 30 s": func(int) auditWorld {
		return auditWorld{request: steadyRequest, attempt: stall(0.03, time.Minute, false), deadline: 30 * time.Second}
	},
	"5 % fail after 1 s": func(int) auditWorld {
		return auditWorld{request: steadyRequest, attempt: stall(0.05, time.Second, true)}
	},
	"heavy tail": func(int) auditWorld {
		return auditWorld{attempt: func(rng *rand.Rand, _ time.Duration) (time.Duration, bool) { return lognormal(rng, 10*ms, 1), false }}
	},
	"a tenth fails at once, 2 % stall": func(int) auditWorld {
		return auditWorld{request: steadyRequest, attempt: func(rng *rand.Rand, took time.Duration) (time.Duration, bool) {
			switch x := rng.Float64(); {
			case x < 0.1:
				return 2 * ms, true
			case x < 0.12:
				return 2 * time.Second, false
			default:
				return took, false
			}
		}}
	},
	"help: 0.3 % take 1 s": func(int) auditWorld {
		return auditWorld{
			request: func(rng *rand.Rand, _ time.Duration) time.Duration { return lognormal(rng, 200*time.Microsecond, 0.15) },
			attempt: stall(0.003, time.Second, false),
		}
	},
	"harm: tail × 1.5": func(int) auditWorld {
		return auditWorld{request: slowRequest, hedged: func(_ *rand.Rand, took time.Duration) (time.Duration, bool) {
			if took > 19*ms { // the slowest tenth
				took += took / 2
			}
			return took, false
		}}
	},
	"harm: 8 % of hedged calls fail": func(int) auditWorld { // and some of the others gain
		return auditWorld{request: steadyRequest, failHedged: 0.08, attempt: func(rng *rand.Rand, took time.Duration) (time.Duration, bool) {
			switch x := rng.Float64(); {
			case x < 0.01:
				took *= 4
			case x < 0.095:
				took = took * 5 / 2
			}
			return took, false
		}}
	},
	"harm: 1 % fail": func(int) auditWorld {
		return auditWorld{request: slowRequest, hedged: func(rng *rand.Rand, took time.Duration) (time.Duration, bool) {
			return took, rng.Float64() < 0.01
		}}
	},
	"harm: everything × 1.2": func(int) auditWorld {
		return auditWorld{request: slowRequest, hedged: func(_ *rand.Rand, took time.Duration) (time.Duration, bool) { return took * 6 / 5, false }}
	},
}

// auditRows are the cases: the world, the expected verdict, the calls per second and the time within which the verdict must be found.
var auditRows = []struct {
	world   string
	verdict observe.Verdict // "": any verdict is false
	least   float64         // share of hosts with the verdict
	most    float64         // share of hosts with another one
	lasts   map[float64]time.Duration
}{
	{"neutral", "", 0, 0.05, map[float64]time.Duration{2: 24 * time.Hour, 20: 24 * time.Hour, 900: 2 * time.Hour}},
	{"neutral, wandering load", "", 0, 0.05, map[float64]time.Duration{2: 24 * time.Hour, 20: 24 * time.Hour, 900: 2 * time.Hour}},
	{"help: seed benchmark", observe.AuditOn, 0.8, 0, usualTimes},
	{"help: 3 % fail after 3 s", observe.AuditOn, 0.8, 0, usualTimes},
	{"help: 3 % stall for 3 s", observe.AuditOn, 0.8, 0, usualTimes},
	{"help: 3 % stall for 30 s", observe.AuditOn, 0.8, 0, usualTimes},
	{"help: 0.3 % take 1 s", observe.AuditOn, 0.8, 0, rareTimes},
	{"harm: tail × 1.5", observe.AuditOff, 0.9, 0.01, usualTimes},
	{"harm: 8 % of hedged calls fail", observe.AuditOff, 0.9, 0.01, usualTimes},
	{"harm: 1 % fail", observe.AuditOff, 0.9, 0.01, usualTimes},
	{"harm: everything × 1.2", observe.AuditOff, 0.9, 0.01, rareTimes},
}

var (
	usualTimes = map[float64]time.Duration{2: time.Hour, 20: 25 * time.Minute, 900: 10 * time.Minute}
	rareTimes  = map[float64]time.Duration{2: 8 * time.Hour, 20: 25 * time.Minute, 900: 10 * time.Minute}
)

// A playedHost simulates the calls to a host of a world, in order of time.
type playedHost struct {
	auditWorld
	key    *policy.Key
	rng    *rand.Rand
	at     time.Duration
	next   time.Duration // when the next call begins
	free   *playedCall   // nil: there is none
	events playedEvents
	number int
	ended  func(began, took time.Duration, failed bool) // nil: nothing
	arm    string
}

// A playedCall is one call in flight.
type playedCall struct {
	began    time.Duration
	plan     *policy.Schedule
	request  time.Duration
	primary  time.Duration // when the primary ends
	fails    bool          // the primary
	hedges   int
	won      bool
	reached  bool
	unsent   time.Duration // when a hedge that shadow mode did not send would have answered, since the beginning; 0: none
	answer   time.Duration // when the first answer comes
	dooms    bool          // a hedged call fails
	over     bool
	youngest time.Duration // when the last hedge began
}

// A playedEvent is the end of a call, or the time at which hedge number index is due.
type playedEvent struct {
	at    time.Duration
	call  *playedCall
	index int // -1: the end
	order int
}

type playedEvents []playedEvent

func (e playedEvents) Len() int { return len(e) }
func (e playedEvents) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].order < e[j].order
}
func (e playedEvents) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *playedEvents) Push(x any)   { *e = append(*e, x.(playedEvent)) }
func (e *playedEvents) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// newPlayedHost returns a host of a world for one arm: without hedges, hedged or audited.
func newPlayedHost(world, arm string, number int) *playedHost {
	c := defaults()
	c.HasShortBucket = true
	switch arm {
	case "none":
		c.MaxHedges = 0
	case "audited":
		c.Audit = true
	case "shadow":
		c.Shadow = true
	}
	return &playedHost{
		auditWorld: auditWorlds[world](number), arm: arm, rng: rand.New(rand.NewPCG(uint64(number), 7)),
		key: policy.New(c).Key(policy.Name{Host: fmt.Sprint(world, number)}), at: time.Duration(number) * time.Second, next: time.Duration(number) * time.Second,
	}
}

// play makes calls for a time, at a rate of calls per second.
func (h *playedHost) play(rate float64, lasts time.Duration) {
	for end := h.at + lasts; h.at < end; {
		for len(h.events) > 0 && h.events[0].at <= h.next {
			h.handle(heap.Pop(&h.events).(playedEvent))
		}
		h.at = h.next
		h.next += time.Duration(h.rng.ExpFloat64() / rate * 1e9)
		h.begin()
	}
}

func (h *playedHost) now(at time.Duration) time.Time { return epoch.Add(at) }

// push schedules an event.
func (h *playedHost) push(at time.Duration, c *playedCall, index int) {
	h.number++
	heap.Push(&h.events, playedEvent{at, c, index, h.number})
}

// isOn reports whether hedging is on.
func (h *playedHost) isOn() bool { return h.arm == "hedged" || h.arm == "audited" && !h.key.Resting() }

// draw draws the latency of an attempt, and whether it fails.
func (h *playedHost) draw(request time.Duration) (time.Duration, bool) {
	if h.attempt == nil {
		return request, false
	}
	return h.attempt(h.rng, request)
}

// begin begins a call.
func (h *playedHost) begin() {
	c := h.free
	if h.free = nil; c == nil {
		c = new(playedCall)
	}
	*c = playedCall{began: h.at, plan: h.key.Begin(h.now(h.at)), answer: math.MaxInt64}
	if h.request != nil {
		c.request = h.request(h.rng, h.at)
	}
	took, fails := h.draw(c.request)
	if h.hedged != nil && h.isOn() {
		took, fails = h.hedged(h.rng, took)
	}
	c.primary, c.fails = h.at+took, fails
	if !fails {
		c.answer = c.primary
	}
	if c.plan != nil && len(c.plan.Delays) > 0 && c.plan.Delays[0] < took {
		h.push(h.at+c.plan.Delays[0], c, 0)
		return
	}
	if end := h.endOf(c); end <= h.next && (len(h.events) == 0 || end < h.events[0].at) {
		h.finish(c, end)
		h.free = c
		return
	}
	h.push(h.endOf(c), c, -1)
}

// endOf returns the time at which a call ends, as far as it is known.
func (h *playedHost) endOf(c *playedCall) time.Duration {
	end := c.answer
	if c.answer == math.MaxInt64 || c.answer > c.primary {
		end = c.primary
		if c.fails && c.hedges > 0 {
			end = min(c.answer, max(c.primary, c.youngest+race.HedgeTimeoutAfterFailure(c.plan.UsualLatency, c.primary-c.began)))
		}
		if !c.fails {
			end = min(c.answer, c.primary)
		}
	}
	if c.answer < end {
		end = c.answer
	}
	if h.deadline > 0 {
		end = min(end, c.began+h.deadline)
	}
	return end
}

// handle handles an event.
func (h *playedHost) handle(e playedEvent) {
	c := e.call
	if c.over {
		return
	}
	end := h.endOf(c)
	if e.index < 0 || end <= e.at {
		if end <= e.at {
			h.finish(c, end)
		}
		return
	}
	c.reached = true
	if c.unsent > 0 && e.at-c.began >= c.unsent {
		return // a hedge would have answered
	}
	if reason := h.key.Admit(h.now(e.at), e.index == 0, h.deadlineOf(c), policy.HedgeRequest{}); reason == observe.DeniedShadow {
		if d := h.key.RandomLatency(); d > 0 && (c.unsent == 0 || e.at-c.began+d < c.unsent) {
			c.unsent = e.at - c.began + d
		}
	} else if reason == policy.None {
		c.hedges++
		c.youngest = e.at
		took, fails := h.draw(c.request)
		if h.failHedged > 0 && c.hedges == 1 {
			c.dooms = h.rng.Float64() < h.failHedged
		}
		if !fails && e.at+took < c.answer {
			c.answer, c.won = e.at+took, true
		}
	}
	if next := e.index + 1; next < len(c.plan.Delays) {
		h.push(c.began+c.plan.Delays[next], c, next)
	}
	h.push(h.endOf(c), c, -1)
}

// deadlineOf returns the deadline of a call's caller; zero: there is none.
func (h *playedHost) deadlineOf(c *playedCall) time.Time {
	if h.deadline == 0 {
		return time.Time{}
	}
	return h.now(c.began + h.deadline)
}

// finish ends a call.
func (h *playedHost) finish(c *playedCall, at time.Duration) {
	c.over = true
	for range c.hedges {
		h.key.HedgeEnded()
	}
	took := at - c.began
	gone := h.deadline > 0 && took >= h.deadline
	answered := !gone && at == c.answer && !c.dooms
	h.key.RecordCall(h.now(at), policy.Result{
		Latency: took, Answered: answered, Abandoned: gone, ReachedFirstDelay: c.reached, HasSlowMarker: c.plan != nil, Slow: c.reached,
		HedgeWon: answered && c.won && c.answer != c.primary, Hedges: c.hedges, PredictedHedgeEnd: c.unsent,
	})
	if h.ended != nil {
		h.ended(c.began, took, !answered)
	}
}

// isDecided reports whether a verdict says that hedging helps or harms.
func isDecided(v observe.Verdict) bool { return v == observe.AuditOn || v == observe.AuditOff }

// playToVerdict simulates a host until the audit has a verdict or the time is over, and returns the verdict.
func (h *playedHost) playToVerdict(rate float64, most time.Duration) observe.Verdict {
	for end := h.at + most; h.at < end; {
		h.play(rate, time.Minute)
		if v := h.key.Snapshot().Audit.Verdict; isDecided(v) {
			return v
		}
	}
	return observe.AuditSame
}

// TestAuditVerdictsAreTrue simulates hosts of all worlds, and counts verdicts. With HEDGE_TEST_LONG, it simulates 400 hosts for each world,
// or 40 hosts with 900 calls per second, which takes an hour of one core. HEDGE_TEST_LONG may also be the number of hosts. Parts run alone
// with -run 'TestAuditVerdictsAreTrue/2_calls/rare'.
func TestAuditVerdictsAreTrue(t *testing.T) {
	doubles.SkipSimulation(t)
	isLong := os.Getenv("HEDGE_TEST_LONG") != ""
	most, err := strconv.Atoi(os.Getenv("HEDGE_TEST_LONG"))
	if err != nil || most == 1 {
		most = 400
	}
	for _, rate := range []float64{2, 20, 900} {
		for _, row := range auditRows {
			hosts, lasts, luck := most, row.lasts[rate], 0.0
			if rate == 900 {
				hosts = min(hosts, 40)
			}
			if !isLong {
				if hosts, luck = 20, 0.1; rate == 900 || lasts > 8*time.Hour {
					continue
				}
			}
			t.Run(fmt.Sprintf("%v calls/%s", rate, row.world), func(t *testing.T) {
				found := make(map[observe.Verdict]int)
				var after time.Duration
				for i := range hosts {
					h := newPlayedHost(row.world, "audited", i)
					began := h.at
					if v := h.playToVerdict(rate, lasts); isDecided(v) {
						found[v]++
						after += h.at - began
					}
				}
				decided := found[observe.AuditOn] + found[observe.AuditOff]
				t.Logf("of %d hosts after %v: on %d, off %d; after %v on average", hosts, lasts, found[observe.AuditOn], found[observe.AuditOff],
					(after / time.Duration(max(decided, 1))).Round(time.Minute))
				assert.LessOrEqual(t, float64(decided-found[row.verdict]), row.most*float64(hosts))
				assert.GreaterOrEqual(t, float64(found[row.verdict]), (row.least-luck)*float64(hosts))
			})
		}
	}
}

// waits are the times for which callers waited. A failure counts as a minute.
type waits struct {
	all []time.Duration
	sum time.Duration
}

func (w *waits) add(took time.Duration, failed bool) {
	if failed {
		took = time.Minute
	}
	w.all = append(w.all, took)
	w.sum += took
}

func (w *waits) mean() float64 { return float64(w.sum) / float64(len(w.all)) }

func (w *waits) p99() time.Duration {
	slices.Sort(w.all)
	return w.all[len(w.all)*99/100]
}

// TestAuditedCallersAreNotWorse compares the times for which callers wait after the verdict with the better one of hedging and no hedging.
// After the verdict, an audit still has one control or treatment slot in 128.
func TestAuditedCallersAreNotWorse(t *testing.T) {
	doubles.SkipSimulation(t)
	hosts, lasts, isLong := 2, time.Hour, os.Getenv("HEDGE_TEST_LONG") != ""
	if isLong {
		hosts, lasts = 20, 4*time.Hour
	}
	for i, row := range auditRows {
		if !isLong && i%3 != 0 {
			continue
		}
		t.Run(row.world, func(t *testing.T) {
			all := make(map[string]*waits)
			for _, arm := range []string{"none", "hedged", "audited"} {
				w := new(waits)
				all[arm] = w
				for i := range hosts {
					h := newPlayedHost(row.world, arm, i)
					h.play(20, time.Hour)
					h.ended = func(_, took time.Duration, failed bool) { w.add(took, failed) }
					h.play(20, lasts)
				}
			}
			none, hedged, audited := all["none"], all["hedged"], all["audited"]
			t.Logf("p99: none %v, hedged %v, audited %v; mean, a failure as a minute: %.3f, %.3f, %.3f ms", none.p99(), hedged.p99(), audited.p99(),
				none.mean()/1e6, hedged.mean()/1e6, audited.mean()/1e6)
			assert.LessOrEqual(t, float64(audited.p99()), 1.05*float64(min(none.p99(), hedged.p99())))
			better, worse := min(none.mean(), hedged.mean()), max(none.mean(), hedged.mean())
			assert.LessOrEqual(t, audited.mean(), max(1.05*better, better+0.05*(worse-better)))
		})
	}
}

// TestShadowModePredictsWinsAndSavedTime compares wins and saved time in shadow mode with the results of hedging.
func TestShadowModePredictsWinsAndSavedTime(t *testing.T) {
	doubles.SkipSimulation(t)
	t.Parallel()
	const rate, lasts = 50, time.Hour
	for _, world := range []string{
		"help: seed benchmark", "help: 3 % fail after 3 s", "help: 3 % stall for 3 s", "help: 3 % stall for 30 s", "help: 0.3 % take 1 s",
		"5 % fail after 1 s", "heavy tail", "a tenth fails at once, 2 % stall",
	} {
		t.Run(world, func(t *testing.T) {
			wait, keys := make(map[string]float64), make(map[string]policy.Snapshot)
			for _, arm := range []string{"none", "hedged", "shadow"} {
				h := newPlayedHost(world, arm, 1)
				var sum time.Duration
				calls := 0
				h.ended = func(_, took time.Duration, _ bool) { sum, calls = sum+took, calls+1 }
				h.play(rate, lasts)
				wait[arm], keys[arm] = sum.Seconds()/float64(calls), h.key.Snapshot()
			}
			hedged, shadow := keys["hedged"], keys["shadow"]
			saved, foretold := wait["none"]-wait["hedged"], shadow.Saved.Seconds()/float64(shadow.Requests)
			wins, wouldWin := float64(hedged.Wins)/float64(hedged.Requests), float64(shadow.ShadowWins)/float64(shadow.Requests)
			t.Logf("wins of 1000 calls %.2f, foretold %.2f; saved of a call %.3f ms, foretold %.3f ms", 1000*wins, 1000*wouldWin, 1000*saved, 1000*foretold)
			assert.InEpsilon(t, wins, wouldWin, 0.2)
			assert.InEpsilon(t, saved, foretold, 0.2)
		})
	}
}
