package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/benchmark/faultlab"
)

// faultsEngine asks resolvers whose servers have a fault, all at the same time.
type faultsEngine struct{}

func (faultsEngine) name() string                       { return "faults" }
func (faultsEngine) runs(sc scenario) bool              { return sc.faults }
func (faultsEngine) offers(_ scenario, s strategy) bool { return s.faults }
func (faultsEngine) realTime() bool                     { return true }
func (faultsEngine) traits() traits                     { return traits{refuses: "not a resolver that is given servers"} }

const quickRate = 20. // questions a second

// faultScenarios are package faultlab's.
var faultScenarios = func() []scenario {
	var all []scenario
	for _, name := range faultlab.Worlds {
		all = append(all, scenario{name: name, about: "DNS: " + faultlab.About[name], faults: true})
	}
	return all
}()

// faultRate is how many questions are asked a second. The time in which they are asked is the world's.
func (j *job) faultRate() float64 {
	switch {
	case j.size.requests > 0:
		return float64(j.size.requests) / faultlab.Lasts(j.scenario.name).Seconds()
	case j.size.rps > 0:
		return j.size.rps
	case j.size.quick:
		return quickRate
	}
	return faultlab.Rate
}

// takes is what the jobs take if a resolver waits for its last answer as long as it may.
func (faultsEngine) takes(jobs []job) (total time.Duration) {
	for _, j := range jobs {
		total += faultlab.Lasts(j.scenario.name) + faultlab.Patience
	}
	return total
}

func (faultsEngine) run(ctx context.Context, j job, keep func(trial)) error {
	strategies := slices.DeleteFunc(slices.Clone(faultlab.Contenders), func(name string) bool { return !slices.Contains(j.strategies, name) })
	if len(strategies) == len(faultlab.Contenders) {
		strategies = nil // those that cannot run here are left out
	}
	rate := j.faultRate()
	task := j.progress.begin(j.scenario.name, "all at once", int(rate*faultlab.Lasts(j.scenario.name).Seconds())*len(j.strategies))
	var done atomic.Int64
	began := time.Now()
	defer j.timers.watch()()
	rows, err := faultlab.Run(ctx, faultlab.Config{
		World: j.scenario.name, Contenders: strategies, Rate: rate, Seed: j.seed,
		Skipped:  func(why string) { j.progress.say("left out: %s", why) },
		Progress: func(n int) { task.set(int(done.Add(int64(n)))) },
	})
	if err != nil && ctx.Err() == nil {
		task.drop()
		return err
	}
	for _, r := range rows {
		if len(r.Calls) == 0 {
			continue
		}
		sent := round(float64(r.Queries) / float64(r.Asked))
		last := round(millis(r.Last))
		keep(trial{
			engine: "faults", scenario: j.scenario, strategy: r.Contender, seed: j.seed, calls: r.Calls,
			cost: &cost{extra: 100 * (sent - 1)}, sent: &sent, denials: &r.Denied, last: &last,
		})
	}
	task.end(time.Since(began))
	return err
}

// lastLate is how much later than Go's resolver's our last answer may come, in milliseconds.
const lastLate = 100

// faultBounds say what is required of ours in each world, and whether it does it: as many answers as the best other
// contender's but for three standard deviations, and the last of them when Go's comes.
func (f findings) faultBounds() (lines []string) {
	for _, s := range f.scenarios {
		if !s.scenario.faults {
			continue
		}
		best, goes := row{}, row{}
		for _, r := range s.rows() {
			if !isOurs(r.Strategy) && r.Requests-r.Errors > best.Requests-best.Errors {
				best = r
			}
			if r.Strategy == faultlab.Go {
				goes = r
			}
		}
		for _, r := range s.rows() {
			if !isOurs(r.Strategy) || best.Strategy == "" {
				continue
			}
			n := float64(best.Requests - best.Errors)
			least := n - 3*math.Sqrt(n*(1-n/float64(best.Requests)))
			line := fmt.Sprintf("%s: %s answers %d, at least %s's %.0f − 3 σ: %s", s.scenario.name, r.Strategy, r.Requests-r.Errors, best.Strategy, n,
				verdict(float64(r.Requests-r.Errors) >= least))
			if goes.Last != nil {
				line += fmt.Sprintf("; the last after %.2f s, at most %.2f s: %s", *r.Last/1000, (*goes.Last+lastLate)/1000, verdict(*r.Last <= *goes.Last+lastLate))
			}
			lines = append(lines, line+".")
		}
	}
	return lines
}

func isOurs(strategy string) bool { return strings.HasPrefix(strategy, ours) }
