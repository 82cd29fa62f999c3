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
	late      time.Duration // see timers.p99
}

// A finding is the results of all strategies in one scenario.
type finding struct {
	scenario scenario
	results  []result
}

// rows returns all rows: a scenario's whole for each strategy, then its parts.
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

// shown returns the rows for tables for people. A part may be later than all that was run; then its rows are left out.
func (f finding) shown() []row {
	return slices.DeleteFunc(f.rows(), func(r row) bool { return r.Requests == 0 && r.Scenario != f.scenario.name })
}

// requests says how many requests each strategy made.
func (f finding) requests() string {
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
