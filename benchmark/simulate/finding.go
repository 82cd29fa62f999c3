package main

import (
	"fmt"
	"slices"
	"time"
)

// engineResults are the results of one engine in all scenarios that ran, with the options of the run and the lateness of
// timers.
type engineResults struct {
	options   options
	scenarios []scenarioResults
	late      time.Duration // the 99th percentile of the lateness of timers; 0 if time is not real
}

// scenarioResults are the results of all strategies in one scenario.
type scenarioResults struct {
	scenario scenario
	results  []result
}

// rows returns the table rows of all scenarios. In each scenario, the rows of all strategies for the whole scenario
// come first, then their rows for each part.
func (f engineResults) rows() []row {
	var all []row
	for _, s := range f.scenarios {
		all = append(all, s.rows()...)
	}
	return all
}

// rows returns the table rows of the scenario: the rows of all strategies for the whole scenario, then their rows for
// each part.
func (f scenarioResults) rows() []row {
	var all []row
	for i := range 1 + len(f.scenario.parts) {
		for _, r := range f.results {
			all = append(all, r.rows[i])
		}
	}
	return all
}

// find returns the result of the strategy with the given name, or an empty result if it did not run.
func (f scenarioResults) find(strategy string) result {
	i := slices.IndexFunc(f.results, func(r result) bool { return r.strategy == strategy })
	if i < 0 {
		return result{}
	}
	return f.results[i]
}

// strategies returns the names of the strategies that ran in the scenario.
func (f scenarioResults) strategies() (names []string) {
	for _, r := range f.results {
		names = append(names, r.strategy)
	}
	return names
}

// tableRows returns the rows of the scenario for tables that people read, with this library first in the whole scenario
// and in each part. It leaves out parts without requests, which begin after the end of a short run.
func (f scenarioResults) tableRows() []row {
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

// describeRequests returns a phrase about the number of requests of each strategy in the scenario.
func (f scenarioResults) describeRequests() string {
	var all []int
	for _, r := range f.results {
		all = append(all, r.rows[0].Requests)
	}
	if len(all) == 0 {
		return "no requests"
	}
	if least, most := slices.Min(all), slices.Max(all); least != most {
		return fmt.Sprintf("%s to %s requests for each strategy", formatThousands(least), formatThousands(most))
	}
	return formatThousands(all[0]) + " requests for each strategy"
}
