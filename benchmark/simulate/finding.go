package main

import (
	"fmt"
	"slices"
	"time"
)

// findings are the results of all scenarios.
type findings struct {
	options   options
	scenarios []finding
	late      time.Duration // the 99th percentile of the lateness of timers; 0 if time is not real
}

// A finding is the results of all strategies in one scenario.
type finding struct {
	scenario scenario
	results  []result
}

// rows returns the rows of all scenarios: the whole scenario of each strategy, then its parts.
func (f findings) rows() []row {
	var all []row
	for _, s := range f.scenarios {
		all = append(all, s.rows()...)
	}
	return all
}

func (f finding) rows() []row {
	var all []row
	for i := range 1 + len(f.scenario.parts) {
		for _, r := range f.results {
			all = append(all, r.rows[i])
		}
	}
	return all
}

// find returns the result of a strategy, or an empty one.
func (f finding) find(strategy string) result {
	i := slices.IndexFunc(f.results, func(r result) bool { return r.strategy == strategy })
	if i < 0 {
		return result{}
	}
	return f.results[i]
}

// strategies returns the names of the strategies that ran.
func (f finding) strategies() (names []string) {
	for _, r := range f.results {
		names = append(names, r.strategy)
	}
	return names
}

// tableRows returns the rows for tables that people read: this library first in the whole scenario and in each part. A part that
// begins after the end of a short run has no rows.
func (f finding) tableRows() []row {
	rows := slices.DeleteFunc(f.rows(), func(r row) bool { return r.Requests == 0 && r.Scenario != f.scenario.name })
	for i, r := range rows {
		if r.Strategy != ours {
			continue
		}
		first := slices.IndexFunc(rows, func(other row) bool { return other.Scenario == r.Scenario })
		copy(rows[first+1:], rows[first:i])
		rows[first] = r
	}
	return rows
}

// describeRequests returns how many requests each strategy made.
func (f finding) describeRequests() string {
	var all []int
	for _, r := range f.results {
		all = append(all, r.rows[0].Requests)
	}
	if len(all) == 0 {
		return "no requests"
	}
	if least, most := slices.Min(all), slices.Max(all); least != most {
		return fmt.Sprintf("%s to %s requests for each strategy", thousands(least), thousands(most))
	}
	return thousands(all[0]) + " requests for each strategy"
}
