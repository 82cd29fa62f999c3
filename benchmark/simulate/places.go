package main

import (
	"context"
	"fmt"
	"time"

	"github.com/gohedge/hedge/benchmark/placelab"
)

// placesEngine sends calls to places that answer alike, in fake time.
type placesEngine struct{}

func (placesEngine) name() string                       { return "places" }
func (placesEngine) runs(sc scenario) bool              { return sc.places }
func (placesEngine) offers(_ scenario, s strategy) bool { return s.places }
func (placesEngine) realTime() bool                     { return false }
func (placesEngine) traits() traits                     { return traits{refuses: "not a way to choose a place"} }

const (
	quickCalls = 8000
	callTakes  = 12 * time.Microsecond // of this machine's time, about
)

// placeScenarios are package placelab's.
var placeScenarios = func() []scenario {
	var all []scenario
	for _, name := range placelab.Worlds {
		all = append(all, scenario{name: name, about: "a near place, and one 80 ms away: " + placelab.About[name], places: true})
	}
	return all
}()

// toPlaces is how many calls each contender makes.
func (j *job) toPlaces() int {
	switch {
	case j.size.requests > 0:
		return j.size.requests
	case j.size.quick:
		return quickCalls
	}
	return placelab.Calls
}

func (placesEngine) takes(jobs []job) (total time.Duration) {
	for _, j := range jobs {
		total += time.Duration(j.toPlaces()*len(j.strategies)) * callTakes
	}
	return total
}

func (placesEngine) run(ctx context.Context, j job, keep func(trial)) error {
	if j.size.rps > 0 {
		return fmt.Errorf("-rps %v: the rate of calls to places is that of the scenario", j.size.rps)
	}
	task := j.progress.begin(j.scenario.name, "all in fake time", j.toPlaces()*len(j.strategies))
	began := time.Now()
	rows, err := placelab.RunFake(ctx, placelab.Config{World: j.scenario.name, Contenders: j.strategies, Calls: j.toPlaces(), Seed: j.seed})
	if err != nil {
		task.drop()
		return err
	}
	for _, r := range rows {
		tokens := round(100 * float64(r.Tokens) / float64(len(r.Calls)))
		keep(trial{engine: "places", scenario: j.scenario, strategy: r.Contender, seed: j.seed, calls: r.Calls, failures: r.Failures, tokens: &tokens})
	}
	task.end(time.Since(began))
	return nil
}

// asGood is up to how many times as long the 99th percentile of places may be as that of the best choice that does not change.
const asGood = 1.1

// placeBounds say what is required of WithPlaces: a 99th percentile, with failures as the longest calls, that is about as good as that of the best choice made
// beforehand which fails no more calls, for tokens of the budget.
func (f findings) placeBounds() (lines []string) {
	for _, s := range f.scenarios {
		if !s.scenario.places {
			continue
		}
		for _, res := range s.results {
			r := res.rows[0]
			if !strategyOf(r.Strategy).chooses {
				continue
			}
			most := 100 * (placelab.Share + float64(placelab.Burst(r.Scenario, r.Strategy))/float64(r.Requests))
			best := row{}
			for _, other := range s.rows() {
				if !strategyOf(other.Strategy).chooses && other.Errors <= r.Errors && (best.Strategy == "" || other.P99 < best.P99) {
					best = other
				}
			}
			line := fmt.Sprintf("%s: %s spends %.2f tokens for 100 calls, at most %.2f with one burst of each place: %s",
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
