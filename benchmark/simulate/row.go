package main

import (
	"math"
	"slices"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/benchmark/internal/latency"
)

// A row has the figures of one strategy in one scenario or in one part of a scenario.
type row struct {
	Engine   string
	Scenario string
	Strategy string
	Seed     uint64
	Requests int
	Errors   int // never counted as latencies
	P50      float64
	P90      float64
	P95      float64
	P99      float64
	P999     float64
	Mean     float64
	Max      float64
	Stddev   float64
	Extra    float64 // hedges per 100 requests
	Hedges   int
	Wins     int // by hedges
	Denied   int // hedges that were due and not allowed

	// Nil where there is nothing to measure: in virtual time.
	Conns *int
	CPU   *float64 // of client and server together; for recursor, of the resolver
	Sent  *float64 // queries to servers, for recursor and faults; or attempts that servers worked on, in scenarios with queues

	engineFigures map[string]*float64 // figures that only one engine has, by the name of the metric

	errorMargins errorMargins // see options.explainErrorMargin
}

// A trial is the measurement of one strategy in one run of a scenario: its calls, and figures such as connections.
type trial struct {
	engine   string
	scenario *scenario
	strategy string
	seed     uint64
	calls    []latency.Call
	denied   int      // hedges, if the calls do not say so
	conns    *int     // opened
	cpu      *float64 // microseconds per request
	counted  *lab.Row // has the queries and hedges of a lab whose calls do not say so
	failures int      // calls that failed, and count with the time that their callers waited
	sent     *float64 // queries per request

	// engineFigures returns the figures of the columns that only this engine has. calls are the indices of the calls to
	// count: those of a part of the scenario, or all calls if part is empty. It is nil for most engines.
	engineFigures func(part string, calls []int) map[string]float64
}

// wholeScenarioFigures returns a function for trial.engineFigures of engines that cannot measure their own figures for
// parts of a scenario. It returns figures for the whole scenario, and nil for its parts.
func wholeScenarioFigures(figures map[string]float64) func(string, []int) map[string]float64 {
	return func(part string, _ []int) map[string]float64 {
		if part == "" {
			return figures
		}
		return nil
	}
}

// A strategyResult is the summary of one strategy's calls: a table row for the whole scenario and for each part of the
// scenario, and the curve for the chart.
type strategyResult struct {
	strategy string
	rows     []row
	curve    []point // latency by percentile
}

func (t *trial) toResult() strategyResult {
	res := strategyResult{strategy: t.strategy, curve: newLatencyCurve(latency.SortedLatencies(t.calls))}
	whole := t.newRow("", func(latency.Call) bool { return true })
	whole.Denied += t.denied
	whole.Errors += t.failures
	whole.Conns, whole.CPU, whole.Sent = t.conns, t.cpu, t.sent
	res.rows = append(res.rows, whole)
	for _, p := range t.scenario.parts {
		res.rows = append(res.rows, t.newRow(p.name, p.contains))
	}
	if c := t.counted; c != nil {
		for i := range res.rows {
			res.rows[i].Extra, res.rows[i].Hedges, res.rows[i].Wins = roundToFourDecimals(100*(c.SentPerCall()-1)), int(c.Hedges), int(c.Wins)
		}
	}
	return res
}

// newRow returns the figures of the calls for which in returns true. part is the name of this part of the scenario, or
// empty for the whole.
func (t *trial) newRow(part string, in func(latency.Call) bool) row {
	r := row{Engine: t.engine, Scenario: t.scenario.name, Strategy: t.strategy, Seed: t.seed}
	if part != "" {
		r.Scenario += "/" + part
	}
	var took []time.Duration
	var all moments
	changes := t.scenario.partBoundaries()
	phases := make([][]float64, len(changes)+1)
	var included []int
	for i, c := range t.calls {
		if !in(c) {
			continue
		}
		included = append(included, i)
		r.Requests++
		r.Hedges += int(c.Hedges)
		r.Denied += int(c.Denied)
		if c.Failed() {
			r.Errors++
			continue
		}
		if c.Winner > 0 {
			r.Wins++
		}
		took = append(took, c.Latency)
		phase := 0
		for phase < len(changes) && c.Start >= changes[phase] {
			phase++
		}
		phases[phase] = append(phases[phase], toMillis(c.Latency))
		all.add(toMillis(c.Latency))
	}
	if r.Requests > 0 {
		r.Extra = roundToFourDecimals(100 * float64(r.Hedges) / float64(r.Requests))
	}
	t.setEngineFigures(&r, part, included)
	if len(took) > 0 {
		slices.Sort(took)
		q := func(q float64) float64 { return roundToFourDecimals(toMillis(latency.Quantile(took, q))) }
		r.P50, r.P90, r.P95, r.P99, r.P999, r.Max = q(0.5), q(0.9), q(0.95), q(0.99), q(0.999), q(1)
		r.Mean = roundToFourDecimals(all.sum / all.n)
		r.Stddev = roundToFourDecimals(math.Sqrt(all.variance()))
	}
	sorted := make([]float64, len(took))
	for i, d := range took {
		sorted[i] = toMillis(d)
	}
	r.errorMargins = batchErrorMargins(phases, sorted)
	return r
}

// setEngineFigures sets the figures in r that only one engine has. part is the row's part of the scenario, or empty for
// the whole. calls are the indices in t.calls of the row's calls.
func (t *trial) setEngineFigures(r *row, part string, calls []int) {
	if t.engineFigures == nil {
		return
	}
	r.engineFigures = make(map[string]*float64)
	for name, x := range t.engineFigures(part, calls) {
		rounded := roundToFourDecimals(x)
		r.engineFigures[name] = &rounded
	}
}
