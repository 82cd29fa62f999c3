package main

import (
	"math"
	"slices"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/benchmark/storelab"
)

// A row is what one strategy did in one scenario, or in a part of it.
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
	Denied   int // hedges that were due and refused

	// Nil where there is nothing to measure: in virtual time.
	Conns *int
	CPU   *float64 // of client and server together; for recursor, of the resolver
	Sent  *float64 // queries to servers, for recursor and faults; or attempts that servers worked on, in labs with queues

	engineFigures

	spread spreads   // see options.plusMinus
	sample []float64 // the latencies of calls that do not depend on each other, sorted; nil if they do
}

// engineFigures are those of single engines.
type engineFigures struct {
	faultFigures
	budgetFigures
}

// faultFigures are for faults, else nil.
type faultFigures struct {
	Denials *int     // answers that deny the name
	Last    *float64 // from the first request to the last answer
}

// budgetFigures are what budgets are about, else nil.
type budgetFigures struct {
	AskedTwice *float64 // for storage: bytes in percent of those that were read, beyond these
	SentTwice  *float64
	Tokens     *float64 // for endpoints: for 100 requests
}

// A trial is the results of one strategy in one run of a scenario.
type trial struct {
	engine   string
	scenario *scenario
	strategy string
	seed     uint64
	calls    []latency.Call
	refused  int                // hedges, if the calls do not say so
	conns    *int               // opened
	cpu      *float64           // microseconds per request
	partCPU  map[string]float64 // of parts of a scenario, by name
	cost     *cost              // if the calls do not say so
	failures int                // calls that failed, and count with what their callers waited
	sent     *float64           // queries per request
	denials  *int
	last     *float64
	misread  misread
	traffic  []storelab.Traffic // of each call, for storage
	tokens   *float64           // for 100 requests
}

// A misread is what validators got wrong.
type misread struct {
	believed  int // bogus names with an answer
	misjudged int // answers with AD where it must not be, or without
}

// A cost is what hedging cost in a whole trial.
type cost struct {
	extra        float64 // percent
	hedges, wins int
}

// A result is a trial without its calls: rows for the whole and for each part, and curves.
type result struct {
	strategy string
	rows     []row
	curves   curves
	misread  misread // of all runs
}

func (t *trial) result() result {
	res := result{strategy: t.strategy, curves: newCurves(t.calls), misread: t.misread}
	whole := t.row(t.scenario.name, func(latency.Call) bool { return true })
	whole.Denied += t.refused
	whole.Errors += t.failures
	whole.Conns, whole.CPU, whole.Sent, whole.Denials, whole.Last = t.conns, t.cpu, t.sent, t.denials, t.last
	whole.Tokens = t.tokens
	res.rows = append(res.rows, whole)
	for _, p := range t.scenario.parts {
		r := t.row(t.scenario.name+"/"+p.name, p.in)
		if each, ok := t.partCPU[p.name]; ok {
			r.CPU = &each
		}
		res.rows = append(res.rows, r)
	}
	if t.cost != nil {
		for i := range res.rows {
			res.rows[i].Extra, res.rows[i].Hedges, res.rows[i].Wins = round(t.cost.extra), t.cost.hedges, t.cost.wins
		}
	}
	return res
}

func (t *trial) row(name string, in func(latency.Call) bool) row {
	r := row{Engine: t.engine, Scenario: name, Strategy: t.strategy, Seed: t.seed}
	var took []time.Duration
	var sum, squares float64
	changes := t.scenario.changes()
	phases := make([][]float64, len(changes)+1)
	var traffic []storelab.Traffic
	for i, c := range t.calls {
		if !in(c) {
			continue
		}
		if t.traffic != nil {
			traffic = append(traffic, t.traffic[i])
		}
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
		phases[phase] = append(phases[phase], millis(c.Latency))
		sum += millis(c.Latency)
		squares += millis(c.Latency) * millis(c.Latency)
	}
	if r.Requests > 0 {
		r.Extra = round(100 * float64(r.Hedges) / float64(r.Requests))
	}
	if len(traffic) > 0 {
		r.budgetFigures = twice(traffic)
	}
	if n := float64(len(took)); n > 0 {
		slices.Sort(took)
		q := func(q float64) float64 { return round(millis(latency.Quantile(took, q))) }
		r.P50, r.P90, r.P95, r.P99, r.P999, r.Max = q(0.5), q(0.9), q(0.95), q(0.99), q(0.999), q(1)
		r.Mean = round(sum / n)
		r.Stddev = round(math.Sqrt(max(0, squares/n-sum*sum/n/n)))
	}
	sorted := make([]float64, len(took))
	for i, d := range took {
		sorted[i] = millis(d)
	}
	if t.engine == "dns" {
		r.sample = sorted
	} else {
		r.spread = batchSpreads(phases, sorted)
	}
	return r
}

// twice adds what reads have caused.
func twice(traffic []storelab.Traffic) budgetFigures {
	var asked, sent int64
	for _, t := range traffic {
		asked, sent = asked+t.Asked, sent+t.Sent
	}
	percent := func(n int64) *float64 {
		p := round(100 * (float64(n)/(float64(len(traffic))*storelab.Size) - 1))
		return &p
	}
	return budgetFigures{AskedTwice: percent(asked), SentTwice: percent(sent)}
}
