package main

import (
	"context"
	"fmt"
	"time"

	"github.com/gohedge/hedge/benchmark/endpointlab"
)

// endpointsEngine sends calls to endpoints that answer alike, in fake time.
type endpointsEngine struct{}

func (endpointsEngine) name() string                       { return "endpoints" }
func (endpointsEngine) runs(sc scenario) bool              { return sc.endpoints }
func (endpointsEngine) offers(_ scenario, s strategy) bool { return s.endpoints }
func (endpointsEngine) realTime() bool                     { return false }
func (endpointsEngine) traits() traits                     { return traits{refuses: "not a way to choose an endpoint"} }

const (
	quickCalls = 8000
	callTakes  = 12 * time.Microsecond // of this machine's time, about
)

// endpointScenarios are package endpointlab's.
var endpointScenarios = func() []scenario {
	var all []scenario
	for _, name := range endpointlab.Worlds {
		all = append(all, scenario{name: name, about: "a near endpoint, and one 80 ms away: " + endpointlab.About[name], endpoints: true})
	}
	return all
}()

// toEndpoints is how many calls each contender makes.
func (j *job) toEndpoints() int {
	switch {
	case j.size.requests > 0:
		return j.size.requests
	case j.size.quick:
		return quickCalls
	}
	return endpointlab.Calls
}

func (endpointsEngine) takes(jobs []job) (total time.Duration) {
	for _, j := range jobs {
		total += time.Duration(j.toEndpoints()*len(j.strategies)) * callTakes
	}
	return total
}

func (endpointsEngine) run(ctx context.Context, j job, keep func(trial)) error {
	if j.size.rps > 0 {
		return fmt.Errorf("-rps %v: the rate of calls to endpoints is that of the scenario", j.size.rps)
	}
	task := j.progress.begin(j.scenario.name, "all in fake time", j.toEndpoints()*len(j.strategies))
	began := time.Now()
	rows, err := endpointlab.RunFake(ctx, endpointlab.Config{World: j.scenario.name, Contenders: j.strategies, Calls: j.toEndpoints(), Seed: j.seed})
	if err != nil {
		task.drop()
		return err
	}
	for _, r := range rows {
		tokens := round(100 * float64(r.Tokens) / float64(len(r.Calls)))
		keep(trial{engine: "endpoints", scenario: j.scenario, strategy: r.Contender, seed: j.seed, calls: r.Calls, failures: r.Failures, tokens: &tokens})
	}
	task.end(time.Since(began))
	return nil
}

// asGood is up to how many times as long the 99th percentile of endpoints may be as that of the best choice that does not change.
const asGood = 1.1

// endpointBounds say what is required of WithEndpoints: a 99th percentile, with failures as the longest calls, that is about as good as that of the best choice made
// beforehand which fails no more calls, for tokens of the budget.
func (f findings) endpointBounds() (lines []string) {
	for _, s := range f.scenarios {
		if !s.scenario.endpoints {
			continue
		}
		for _, res := range s.results {
			r := res.rows[0]
			if !strategyOf(r.Strategy).chooses {
				continue
			}
			most := 100 * (endpointlab.Share + float64(endpointlab.Burst(r.Scenario, r.Strategy))/float64(r.Requests))
			best := row{}
			for _, other := range s.rows() {
				if !strategyOf(other.Strategy).chooses && other.Errors <= r.Errors && (best.Strategy == "" || other.P99 < best.P99) {
					best = other
				}
			}
			line := fmt.Sprintf("%s: %s spends %.2f tokens for 100 calls, at most %.2f with one burst of each endpoint: %s",
				r.Scenario, r.Strategy, *r.Tokens, most, verdict(*r.Tokens <= most))
			if best.Strategy != "" {
				is := r.P99 / best.P99
				line += fmt.Sprintf("; p99 is %.2f × %s's, at most %.2f ×: %s", is, best.Strategy, asGood, verdict(is <= asGood))
			}
			lines = append(lines, line+".")
		}
	}
	return lines
}
