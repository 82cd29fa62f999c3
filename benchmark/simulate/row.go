package main

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// A row is what one strategy did in one scenario, or in a part of it.
type row struct {
	Engine   string  `json:"engine"`
	Scenario string  `json:"scenario"`
	Strategy string  `json:"strategy"`
	Seed     uint64  `json:"seed"`
	Requests int     `json:"requests"`
	Errors   int     `json:"errors"` // never counted as latencies
	P50      float64 `json:"p50_ms"`
	P90      float64 `json:"p90_ms"`
	P95      float64 `json:"p95_ms"`
	P99      float64 `json:"p99_ms"`
	P999     float64 `json:"p999_ms"`
	Mean     float64 `json:"mean_ms"`
	Max      float64 `json:"max_ms"`
	Stddev   float64 `json:"stddev_ms"`
	Extra    float64 `json:"extra_pct"` // hedges per 100 requests
	Hedges   int     `json:"hedges"`
	Wins     int     `json:"wins"`   // by hedges
	Denied   int     `json:"denied"` // hedges that were due and refused

	// Nil where there is nothing to measure: in virtual time.
	Conns *int     `json:"conns_opened"`
	CPU   *float64 `json:"cpu_us_per_request"` // of client and server together; for recursor, of the resolver
	Sent  *float64 `json:"sent_per_request"`   // queries to servers; for recursor only

	spread spreads   // see options.plusMinus
	sample []float64 // the latencies of calls that do not depend on each other, sorted; nil if they do
}

// A column of the machine-readable formats. Names and order are a contract.
type column struct {
	name  string
	value func(*row) any
}

var columns = []column{
	{"engine", func(r *row) any { return r.Engine }},
	{"scenario", func(r *row) any { return r.Scenario }},
	{"strategy", func(r *row) any { return r.Strategy }},
	{"seed", func(r *row) any { return r.Seed }},
	{"requests", func(r *row) any { return r.Requests }},
	{"errors", func(r *row) any { return r.Errors }},
	{"p50_ms", func(r *row) any { return r.P50 }},
	{"p90_ms", func(r *row) any { return r.P90 }},
	{"p95_ms", func(r *row) any { return r.P95 }},
	{"p99_ms", func(r *row) any { return r.P99 }},
	{"p999_ms", func(r *row) any { return r.P999 }},
	{"mean_ms", func(r *row) any { return r.Mean }},
	{"max_ms", func(r *row) any { return r.Max }},
	{"stddev_ms", func(r *row) any { return r.Stddev }},
	{"extra_pct", func(r *row) any { return r.Extra }},
	{"hedges", func(r *row) any { return r.Hedges }},
	{"wins", func(r *row) any { return r.Wins }},
	{"denied", func(r *row) any { return r.Denied }},
	{"conns_opened", func(r *row) any { return deref(r.Conns) }},
	{"cpu_us_per_request", func(r *row) any { return deref(r.CPU) }},
	{"sent_per_request", func(r *row) any { return deref(r.Sent) }},
}

func deref[T any](p *T) any {
	if p == nil {
		return nil
	}
	return *p
}

// A trial is the results of one strategy in one run of a scenario.
type trial struct {
	engine   string
	scenario scenario
	strategy string
	seed     uint64
	calls    []virtual.Call
	refused  int      // hedges, if the calls do not say so
	conns    *int     // opened
	cpu      *float64 // microseconds per request
	cost     *cost    // if the calls do not say so
	failures int      // calls that failed, and count with what their callers waited
	sent     *float64 // queries per request
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
}

func (t *trial) result() result {
	res := result{strategy: t.strategy, curves: newCurves(t.calls)}
	whole := t.row(t.scenario.name, func(virtual.Call) bool { return true })
	whole.Denied += t.refused
	whole.Errors += t.failures
	whole.Conns, whole.CPU, whole.Sent = t.conns, t.cpu, t.sent
	res.rows = append(res.rows, whole)
	for _, p := range t.scenario.parts {
		res.rows = append(res.rows, t.row(t.scenario.name+"/"+p.name, p.in))
	}
	if t.cost != nil {
		for i := range res.rows {
			res.rows[i].Extra, res.rows[i].Hedges, res.rows[i].Wins = round(t.cost.extra), t.cost.hedges, t.cost.wins
		}
	}
	return res
}

func (t *trial) row(name string, in func(virtual.Call) bool) row {
	r := row{Engine: t.engine, Scenario: name, Strategy: t.strategy, Seed: t.seed}
	var took []time.Duration
	var sum, squares float64
	changes := t.scenario.changes()
	phases := make([][]float64, len(changes)+1)
	for _, c := range t.calls {
		if !in(c) {
			continue
		}
		r.Requests++
		r.Hedges += int(c.Hedges)
		r.Denied += int(c.Denied)
		if c.Winner < 0 {
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
	if n := float64(len(took)); n > 0 {
		slices.Sort(took)
		q := func(q float64) float64 { return round(millis(virtual.Quantile(took, q))) }
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

func millis(d time.Duration) float64 { return float64(d) / 1e6 }

// round keeps four decimals: a tenth of a microsecond.
func round(x float64) float64 { return math.Round(x*1e4) / 1e4 }

// median joins the results of several runs: each figure is the median of theirs
// (the lower one, of an even number), and its spread half of their range. The
// curves are the first run's. A single run stays as it is.
func median(runs []result) result {
	joined := result{strategy: runs[0].strategy, curves: runs[0].curves}
	for i := range runs[0].rows {
		r := runs[0].rows[i]
		within := r.spread
		reals := func(field func(*row) *float64) (spread float64) {
			all := collect(runs, i, field)
			*field(&r) = all[(len(all)-1)/2]
			return (all[len(all)-1] - all[0]) / 2
		}
		reals(func(r *row) *float64 { return &r.P50 })
		reals(func(r *row) *float64 { return &r.P90 })
		reals(func(r *row) *float64 { return &r.P95 })
		reals(func(r *row) *float64 { return &r.Mean })
		reals(func(r *row) *float64 { return &r.Max })
		reals(func(r *row) *float64 { return &r.Stddev })
		reals(func(r *row) *float64 { return &r.Extra })
		r.spread = spreads{}
		r.spread.p99 = reals(func(r *row) *float64 { return &r.P99 })
		r.spread.p999 = reals(func(r *row) *float64 { return &r.P999 })
		if len(runs) == 1 {
			r.spread = within
		}
		if r.sample != nil {
			var all []float64
			for _, run := range runs {
				all = append(all, run.rows[i].sample...)
			}
			slices.Sort(all)
			r.spread = bootstrap(all)
		}
		if r.CPU != nil {
			r.CPU = new(float64)
			reals(func(r *row) *float64 { return r.CPU })
		}
		if r.Sent != nil {
			r.Sent = new(float64)
			reals(func(r *row) *float64 { return r.Sent })
		}
		whole := func(field func(*row) *int) {
			all := collect(runs, i, field)
			*field(&r) = all[(len(all)-1)/2]
		}
		whole(func(r *row) *int { return &r.Requests })
		whole(func(r *row) *int { return &r.Errors })
		whole(func(r *row) *int { return &r.Hedges })
		whole(func(r *row) *int { return &r.Wins })
		whole(func(r *row) *int { return &r.Denied })
		if r.Conns != nil {
			r.Conns = new(int)
			whole(func(r *row) *int { return r.Conns })
		}
		joined.rows = append(joined.rows, r)
	}
	return joined
}

// collect returns one field of the i-th row of each run, sorted.
func collect[T cmp.Ordered](runs []result, i int, field func(*row) *T) []T {
	var all []T
	for _, run := range runs {
		all = append(all, *field(&run.rows[i]))
	}
	slices.Sort(all)
	return all
}
