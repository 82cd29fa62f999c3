package endpointlab

import (
	"math"
	"slices"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// A scenario determines the endpoints, their faults, and the rate of calls.
type scenario struct {
	lab.Scenario
	rate      float64    // calls per second
	endpoints []endpoint // in the order of preference
}

// An endpoint is one of the simulated servers between which clients choose for each call.
type endpoint struct {
	networkLatency time.Duration // added to every answer
	hasTail        bool          // one answer in twenty takes ten times as long
	faults         []fault
}

// A fault affects a share of the attempts at an endpoint for a part of the run. It multiplies their latency or makes
// them fail. A fault that does neither leaves the attempts without an answer. Times are shares of the run, from 0 to 1.
type fault struct {
	from, to float64
	share    float64 // of the attempts that meet the fault
	period   float64 // after which the fault starts again; 0: it is permanent between from and to
	duration float64 // in each period
	slowdown float64 // factor of the latency; 0: not slowed
	fails    bool    // with errEndpointDown
}

// noAnswerLatency is the latency of an attempt without an answer: longer than any timeout.
const noAnswerLatency = time.Hour

// drawOutcome draws the latency and the error of attempt a. progress is the share of the run that is over, from 0 to 1.
func (e endpoint) drawOutcome(d *virtual.RandomSource, a virtual.Attempt, progress float64) (took time.Duration, err error) {
	model := virtual.LognormalLatency(5*time.Millisecond, 2*time.Millisecond)
	if e.hasTail {
		model = virtual.AddStragglers(model, 0.05, 10)
	}
	took = model(d, a)
	a.N += 8 // random numbers other than those of the latency
	for _, f := range e.faults {
		if progress < f.from || progress >= f.to || f.period > 0 && math.Mod(progress-f.from, f.period) >= f.duration || a.Rand(d).Float64() >= f.share {
			continue
		}
		switch {
		case f.fails:
			return took + e.networkLatency, errEndpointDown
		case f.slowdown > 0:
			took = time.Duration(float64(took) * f.slowdown)
		default:
			took = noAnswerLatency
		}
	}
	return took + e.networkLatency, nil
}

// limitToMiddleHalf returns the fault f for the second and the third quarter of the run.
func limitToMiddleHalf(f fault) fault { f.from, f.to = .25, .75; return f }

func extendToWholeRun(f fault) fault { f.from, f.to = 0, 1; return f }

// newTwoEndpointScenario returns a scenario with a near endpoint that has faults, and a far one without.
func newTwoEndpointScenario(name, description string, faults ...fault) scenario {
	return scenario{lab.Scenario{Name: "endpoints" + name, Description: description}, 100, []endpoint{{faults: faults}, {networkLatency: farLatency}}}
}

func (s scenario) withChange(change func(*scenario)) scenario {
	change(&s)
	return s
}

const farLatency = 80 * time.Millisecond

// scenarios has first the scenarios for which the command simulate states a bound.
var scenarios = []scenario{
	newTwoEndpointScenario("", "nothing is wrong"),
	newTwoEndpointScenario("-slow", "the near one takes five times as long for half of the time", limitToMiddleHalf(fault{share: 1, slowdown: 5})),
	newTwoEndpointScenario("-slower", "the near one takes sixty times as long for half of the time", limitToMiddleHalf(fault{share: 1, slowdown: 60})),
	newTwoEndpointScenario("-down", "the near one fails for half of the time", limitToMiddleHalf(fault{share: 1, fails: true})),
	newTwoEndpointScenario("-silent", "the near one does not answer for half of the time", limitToMiddleHalf(fault{share: 1})),
	newTwoEndpointScenario("-errors", "a tenth of the near one's answers are errors", extendToWholeRun(fault{share: .1, fails: true})),
	newTwoEndpointScenario("-errors-half", "the same for half of the time", limitToMiddleHalf(fault{share: .1, fails: true})),
	newTwoEndpointScenario("-tenth-slow", "a tenth of the near one's answers take 1 s", extendToWholeRun(fault{share: .1, slowdown: 200})),
	newTwoEndpointScenario("-hangs", "a tenth of the near one's calls get no answer", extendToWholeRun(fault{share: .1})),
	newTwoEndpointScenario("-hangs-half", "the same for half of the time", limitToMiddleHalf(fault{share: .1})),

	newTwoEndpointScenario("-tail", "one in twenty of the near one's answers takes ten times as long").withChange(func(s *scenario) { s.endpoints[0].hasTail = true }),
	newTwoEndpointScenario("-flapping", "the near one fails for three seconds, and is well for three, in turn", extendToWholeRun(fault{share: 1, fails: true, period: 6. / 120, duration: 3. / 120})),
	newTwoEndpointScenario("-pauses", "the near one does not answer for one second in ten", extendToWholeRun(fault{share: 1, period: 10. / 120, duration: 1. / 120})),
	newTwoEndpointScenario("-far-down", "the far one fails for half of the time").withChange(func(s *scenario) { s.endpoints[1].faults = []fault{limitToMiddleHalf(fault{share: 1, fails: true})} }),
	newTwoEndpointScenario("-both", "the near one fails for half of the time, and the far one for the last second of it", limitToMiddleHalf(fault{share: 1, fails: true})).withChange(func(s *scenario) {
		s.endpoints[1].faults = []fault{{from: .75 - 1./120, to: .75, share: 1, fails: true}}
	}),
	newTwoEndpointScenario("-rare", "one call a second, and the near one fails for half of the time", limitToMiddleHalf(fault{share: 1, fails: true})).withChange(func(s *scenario) { s.rate = 1 }),
	newTwoEndpointScenario("-rare-silent", "one call a second, and the near one does not answer for half of the time", limitToMiddleHalf(fault{share: 1})).withChange(func(s *scenario) { s.rate = 1 }),
	newTwoEndpointScenario("-reversed", "calls are made for the one that is 80 ms away").withChange(func(s *scenario) { slices.Reverse(s.endpoints) }),
	newTwoEndpointScenario("-three", "a third one is 40 ms away, and fails for the second half of the time in which the near one does", limitToMiddleHalf(fault{share: 1, fails: true})).withChange(func(s *scenario) {
		s.endpoints = slices.Insert(s.endpoints, 1, endpoint{networkLatency: farLatency / 2, faults: []fault{{from: .5, to: .75, share: 1, fails: true}}})
	}),
	newTwoEndpointScenario("-few-errors", "one in fifty of the near one's answers is an error", extendToWholeRun(fault{share: .02, fails: true})),
}

// Scenarios lists all scenarios.
var Scenarios = lab.ScenariosOf(scenarios)
