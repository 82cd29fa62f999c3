package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gohedge/hedge/benchmark/limitlab"
)

// limitEngine has servers work on as many requests at a time as a limit allows, in virtual time.
type limitEngine struct{}

func (limitEngine) name() string                       { return "limit" }
func (limitEngine) runs(sc scenario) bool              { return sc.limit }
func (limitEngine) offers(_ scenario, s strategy) bool { return s.limits }
func (limitEngine) realTime() bool                     { return false }
func (limitEngine) traits() traits                     { return traits{refuses: "not a limit"} }

const (
	quickLasts   = 10 * time.Second
	limitedTakes = 1500 * time.Nanosecond // of this machine's time for a request of a contender, about
	bestTakes    = 4                      // as long as another contender: most limits that are tried are soon known to be worse
	limitSettles = 20 * time.Second       // before that, nothing is measured
)

// limitScenarios are package limitlab's.
var limitScenarios = func() []scenario {
	var all []scenario
	for _, name := range limitlab.Worlds {
		all = append(all, scenario{name: name, about: "a limit for " + limitlab.About[name], limit: true})
	}
	return all
}()

// limitLasts is for how long is measured.
func (j *job) limitLasts() time.Duration {
	switch {
	case j.size.requests > 0:
		return time.Duration(float64(j.size.requests) / limitlab.Rate(j.scenario.name) * float64(time.Second))
	case j.size.quick:
		return quickLasts
	}
	return limitlab.Lasts
}

// limitWork is how many requests all contenders have, about.
func (j *job) limitWork() int {
	contenders := len(j.strategies)
	if slices.Contains(j.strategies, limitlab.Best) {
		contenders += bestTakes - 1
	}
	return int((j.limitLasts()+limitSettles).Seconds()*limitlab.Rate(j.scenario.name)) * contenders
}

func (limitEngine) takes(jobs []job) (total time.Duration) {
	for _, j := range jobs {
		total += time.Duration(j.limitWork()) * limitedTakes
	}
	return total
}

func (limitEngine) run(ctx context.Context, j job, keep func(trial)) error {
	if j.size.rps > 0 {
		return fmt.Errorf("-rps %v: the rate of requests to a server with a limit is that of the scenario", j.size.rps)
	}
	task := j.progress.begin(j.scenario.name, "all in virtual time", j.limitWork())
	began := time.Now()
	rows, err := limitlab.Run(ctx, limitlab.Config{World: j.scenario.name, Contenders: j.strategies, Lasts: j.limitLasts(), Seed: j.seed})
	if err != nil {
		task.drop()
		return err
	}
	for _, r := range rows {
		t := trial{engine: "limit", scenario: j.scenario, strategy: r.Contender, seed: j.seed, calls: r.Calls}
		if l := r.Limit; l != nil {
			lowest, mean, highest, steady := float64(l.Lowest), round(l.Mean), float64(l.Highest), round(100*l.Steady)
			t.limit = limitFigures{&lowest, &mean, &highest, &steady}
		}
		keep(t)
	}
	task.end(time.Since(began))
	return nil
}

// limitSaid is a limit in a table: its mean, and the lowest and the highest one.
func limitSaid(r *row) string {
	switch {
	case r.Engine != "limit":
		return ""
	case r.LimitMean == nil:
		return "–"
	case *r.LimitLowest == *r.LimitHighest:
		return fmt.Sprintf("%.0f", *r.LimitMean)
	}
	return fmt.Sprintf("%.0f (%.0f to %.0f)", *r.LimitMean, *r.LimitLowest, *r.LimitHighest)
}

// A limitBound is up to how many times as long as a reference's the 99th percentile of a limit may be that finds itself.
type limitBound struct {
	most float64
	by   row
}

// limitBound returns that of a scenario: where the server has much to do, it is the best fixed limit's, and where it has not, that without a limit. It
// reports false if the reference has not run.
func (f finding) limitBound() (b limitBound, ok bool) {
	name, most := limitlab.Best, 1.15
	if limitlab.Load[f.scenario.name] <= 50 {
		name, most = limitlab.None, 1.05
	}
	for _, r := range f.rows() {
		if r.Strategy == name && r.P99 > 0 {
			return limitBound{most, r}, true
		}
	}
	return b, false
}

// times is how many times as long as the reference's the 99th percentile is.
func (b limitBound) times(r row) float64 { return r.P99 / b.by.P99 }

// holds reports whether that is within the bound.
func (b limitBound) holds(r row) bool { return b.times(r) <= b.most }

// steady reports whether a limit stays near its mean.
func steady(r row) bool {
	return *r.LimitLowest >= (1-limitlab.Steady)**r.LimitMean && *r.LimitHighest <= (1+limitlab.Steady)**r.LimitMean
}

// limitBounds say what is required of a limit that finds itself, for ours and the others, and in how many scenarios that is so.
func (f findings) limitBounds() (lines []string) {
	for _, s := range f.scenarios {
		b, ok := s.limitBound()
		if !s.scenario.limit || !ok {
			continue
		}
		var p99, steadily []string
		for _, r := range s.rows() {
			if strategyOf(r.Strategy).finds {
				p99 = append(p99, fmt.Sprintf("%s %.2f %s", r.Strategy, b.times(r), verdict(b.holds(r))))
				steadily = append(steadily, fmt.Sprintf("%s %s %s", r.Strategy, limitSaid(&r), verdict(steady(r))))
			}
		}
		if len(p99) > 0 {
			lines = append(lines, fmt.Sprintf("%s: p99 is at most %.2f × %s's: %s; limit within ±%.0f %% of its mean: %s.",
				s.scenario.name, b.most, b.by.Strategy, strings.Join(p99, ", "), 100*limitlab.Steady, strings.Join(steadily, ", ")))
		}
	}
	for _, name := range strategyNames() {
		if s := f.standing(name); s.all.of > 0 {
			lines = append(lines, s.String())
		}
	}
	return lines
}

// A standing is how a limit does in all scenarios.
type standing struct {
	strategy string
	loads    []int
	at       map[int]*score // by load in percent
	all      score
	steady   int // scenarios in which it stays near its mean
}

// A score says in how many scenarios a bound holds, and has the logarithms of how many times as long as the reference's the 99th percentiles are.
type score struct {
	within, of int
	sum        float64
}

func (s *score) add(b limitBound, r row) {
	s.of++
	s.sum += math.Log(b.times(r))
	if b.holds(r) {
		s.within++
	}
}

// mean is the geometric one.
func (s *score) mean() float64 { return math.Exp(s.sum / float64(s.of)) }

func (f findings) standing(strategy string) standing {
	s := standing{strategy: strategy, at: make(map[int]*score)}
	for _, sc := range f.scenarios {
		b, ok := sc.limitBound()
		for _, r := range sc.rows() {
			if !ok || !sc.scenario.limit || r.Strategy != strategy || strategy == limitlab.Best {
				continue
			}
			load := limitlab.Load[sc.scenario.name]
			if s.at[load] == nil {
				s.loads, s.at[load] = append(s.loads, load), new(score)
			}
			s.at[load].add(b, r)
			s.all.add(b, r)
			if r.LimitMean != nil && steady(r) {
				s.steady++
			}
		}
	}
	slices.Sort(s.loads)
	slices.Reverse(s.loads)
	return s
}

func (s standing) String() string {
	var within, means []string
	for _, load := range s.loads {
		at := s.at[load]
		within, means = append(within, fmt.Sprintf("%d of %d at %d %%", at.within, at.of, load)), append(means, fmt.Sprintf("%.2f", at.mean()))
	}
	text := fmt.Sprintf("%s: p99 is within the bound in %d of %d scenarios (%s); geometric mean of p99 ÷ that of the reference: %.2f (%s)",
		s.strategy, s.all.within, s.all.of, strings.Join(within, ", "), s.all.mean(), strings.Join(means, ", "))
	if strategyOf(s.strategy).finds {
		text += fmt.Sprintf("; the limit stays within ±%.0f %% of its mean in %d", 100*limitlab.Steady, s.steady)
	}
	return text + "."
}
