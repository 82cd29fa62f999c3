package endpointlab

import (
	"math"
	"slices"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// A scenario is a list of endpoints with their faults, and the rate of calls.
type scenario struct {
	lab.Scenario
	rate      float64    // calls per second
	endpoints []endpoint // in the order of preference
}

// An endpoint is a simulated server: its distance from the client, its latency and its faults.
type endpoint struct {
	distance time.Duration // added to every answer
	hasTail  bool          // one answer in twenty takes ten times as long
	faults   []fault
}

// A fault slows an endpoint's answers, fails them, or suppresses them, for a part of the run. Its times are shares of
// the run, from 0 to 1. A fault that neither slows nor fails an attempt leaves it without an answer.
type fault struct {
	from, to float64
	share    float64 // of the attempts that meet the fault
	period   float64 // after which the fault starts again; 0: it is permanent between from and to
	duration float64 // in each period
	slowdown float64 // factor of the latency; 0: not slowed
	fails    bool    // with errDown
}

const noAnswer = time.Hour

// drawAnswer draws the duration and the error of attempt a at the endpoint, from the random numbers d. progress is the
// share of the run that is over when the attempt starts, from 0 to 1.
func (e endpoint) drawAnswer(d *virtual.Draws, a virtual.Attempt, progress float64) (took time.Duration, err error) {
	model := virtual.LognormalLatency(5*time.Millisecond, 2*time.Millisecond)
	if e.hasTail {
		model = virtual.WithStragglers(model, 0.05, 10)
	}
	took = model(d, a)
	a.N += 8 // random numbers other than those of the latency
	for _, f := range e.faults {
		if progress < f.from || progress >= f.to || f.period > 0 && math.Mod(progress-f.from, f.period) >= f.duration || a.OwnRandom(d).Float64() >= f.share {
			continue
		}
		switch {
		case f.fails:
			return took + e.distance, errDown
		case f.slowdown > 0:
			took = time.Duration(float64(took) * f.slowdown)
		default:
			took = noAnswer
		}
	}
	return took + e.distance, nil
}

// inMiddleHalf returns fault f for the second and the third quarter of the run.
func inMiddleHalf(f fault) fault { f.from, f.to = .25, .75; return f }

func inWholeRun(f fault) fault { f.from, f.to = 0, 1; return f }

// nearAndFar returns a scenario with two endpoints: a near one, which has the given faults, and one that is 80 ms
// farther away.
func nearAndFar(name, description string, faults ...fault) scenario {
	return scenario{lab.Scenario{Name: "endpoints" + name, Description: description}, 100, []endpoint{{faults: faults}, {distance: farDistance}}}
}

// withChange returns the scenario after the function change has modified it.
func (s scenario) withChange(change func(*scenario)) scenario {
	change(&s)
	return s
}

const farDistance = 80 * time.Millisecond

// scenarios has first the scenarios for which the command simulate states a bound.
var scenarios = []scenario{
	nearAndFar("", "nothing is wrong"),
	nearAndFar("-slow", "the near one takes five times as long for half of the time", inMiddleHalf(fault{share: 1, slowdown: 5})),
	nearAndFar("-slower", "the near one takes sixty times as long for half of the time", inMiddleHalf(fault{share: 1, slowdown: 60})),
	nearAndFar("-down", "the near one fails for half of the time", inMiddleHalf(fault{share: 1, fails: true})),
	nearAndFar("-silent", "the near one does not answer for half of the time", inMiddleHalf(fault{share: 1})),
	nearAndFar("-errors", "a tenth of the near one's answers are errors", inWholeRun(fault{share: .1, fails: true})),
	nearAndFar("-errors-half", "the same for half of the time", inMiddleHalf(fault{share: .1, fails: true})),
	nearAndFar("-tenth-slow", "a tenth of the near one's answers take 1 s", inWholeRun(fault{share: .1, slowdown: 200})),
	nearAndFar("-hangs", "a tenth of the near one's calls get no answer", inWholeRun(fault{share: .1})),
	nearAndFar("-hangs-half", "the same for half of the time", inMiddleHalf(fault{share: .1})),

	nearAndFar("-tail", "one in twenty of the near one's answers takes ten times as long").withChange(func(s *scenario) { s.endpoints[0].hasTail = true }),
	nearAndFar("-flapping", "the near one fails for three seconds, and is well for three, in turn", inWholeRun(fault{share: 1, fails: true, period: 6. / 120, duration: 3. / 120})),
	nearAndFar("-pauses", "the near one does not answer for one second in ten", inWholeRun(fault{share: 1, period: 10. / 120, duration: 1. / 120})),
	nearAndFar("-far-down", "the far one fails for half of the time").withChange(func(s *scenario) { s.endpoints[1].faults = []fault{inMiddleHalf(fault{share: 1, fails: true})} }),
	nearAndFar("-both", "the near one fails for half of the time, and the far one for the last second of it", inMiddleHalf(fault{share: 1, fails: true})).withChange(func(s *scenario) {
		s.endpoints[1].faults = []fault{{from: .75 - 1./120, to: .75, share: 1, fails: true}}
	}),
	nearAndFar("-rare", "one call a second, and the near one fails for half of the time", inMiddleHalf(fault{share: 1, fails: true})).withChange(func(s *scenario) { s.rate = 1 }),
	nearAndFar("-rare-silent", "one call a second, and the near one does not answer for half of the time", inMiddleHalf(fault{share: 1})).withChange(func(s *scenario) { s.rate = 1 }),
	nearAndFar("-reversed", "calls are made for the one that is 80 ms away").withChange(func(s *scenario) { slices.Reverse(s.endpoints) }),
	nearAndFar("-three", "a third one is 40 ms away, and fails for the second half of the time in which the near one does", inMiddleHalf(fault{share: 1, fails: true})).withChange(func(s *scenario) {
		s.endpoints = slices.Insert(s.endpoints, 1, endpoint{distance: farDistance / 2, faults: []fault{{from: .5, to: .75, share: 1, fails: true}}})
	}),
	nearAndFar("-few-errors", "one in fifty of the near one's answers is an error", inWholeRun(fault{share: .02, fails: true})),
}

// Scenarios lists all scenarios.
var Scenarios = lab.ScenariosOf(scenarios)
