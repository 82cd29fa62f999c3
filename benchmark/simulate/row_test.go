package main

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/benchmark/internal/latency"
)

func TestMedianOfRuns(t *testing.T) {
	run := func(p99 float64, hedges int) strategyResult {
		conns := hedges
		return strategyResult{strategy: "hedge", rows: []row{{Seed: 1, P99: p99, Hedges: hedges, Conns: &conns}}}
	}
	got := joinRuns([]strategyResult{run(10, 1), run(30, 3), run(12, 2)}).rows[0]
	assert.Equal(t, 12.0, got.P99)
	assert.Equal(t, 10.0, got.errorMargins.p99)
	assert.Equal(t, 2, got.Hedges)
	assert.Equal(t, 2, *got.Conns)
	assert.Nil(t, got.CPU)
}

func TestRowCountsFailuresApart(t *testing.T) {
	tr := trial{engine: "virtual", scenario: &scenario{name: "x"}, strategy: "none", calls: []latency.Call{
		{Latency: 10 * ms}, {Latency: 20 * ms, Winner: 1, Hedges: 1}, {Latency: time.Hour, Winner: -1, Hedges: 2, Denied: 1},
	}}
	r := tr.toResult().rows[0]
	assert.Equal(t, row{
		Engine: "virtual", Scenario: "x", Strategy: "none", Requests: 3, Errors: 1,
		P50: 10, P90: 20, P95: 20, P99: 20, P999: 20, Mean: 15, Max: 20, Stddev: 5, Extra: 100, Hedges: 3, Wins: 1, Denied: 1,
	}, r)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (r *row) UnmarshalJSON(b []byte) error {
	var values map[string]json.RawMessage
	if err := json.Unmarshal(b, &values); err != nil {
		return err
	}
	given := func(name string) bool { return string(values[name]) != "null" }
	if given("conns_opened") {
		r.Conns = new(int)
	}
	if given("cpu_us_per_request") {
		r.CPU = new(float64)
	}
	if given("sent_per_request") {
		r.Sent = new(float64)
	}
	r.engineFigures = make(map[string]*float64)
	for _, m := range metrics {
		if m.isEngineSpecific && given(m.name) {
			r.engineFigures[m.name] = new(float64)
		}
	}
	for _, m := range metrics {
		if !given(m.name) {
			continue
		}
		if err := json.Unmarshal(values[m.name], m.field(r)); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return nil
}
