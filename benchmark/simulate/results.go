package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"
	"unicode"
	"unicode/utf8"
)

// The engineResults are the results of the scenarios that one engine ran, for example by requests over HTTP.
type engineResults struct {
	options    options
	scenarios  []scenarioResults
	timerDelay time.Duration // the 99th percentile of the lateness of timers; 0 if time is not real
}

// The scenarioResults are the results of all strategies in one scenario.
type scenarioResults struct {
	scenario scenario
	results  []strategyResult
}

// rows returns the table rows of all scenarios: those for each whole scenario, and then those for its parts.
func (f engineResults) rows() (all []row) {
	for _, s := range f.scenarios {
		all = append(all, s.rows()...)
	}
	return all
}

// rows returns the table rows for the whole scenario, and then those for its parts.
func (f scenarioResults) rows() (all []row) {
	for i := range 1 + len(f.scenario.parts) {
		for _, r := range f.results {
			all = append(all, r.rows[i])
		}
	}
	return all
}

// findResult returns the result of the strategy with the given name. If the strategy did not run, the result is empty.
func (f scenarioResults) findResult(strategy string) strategyResult {
	i := slices.IndexFunc(f.results, func(r strategyResult) bool { return r.strategy == strategy })
	if i < 0 {
		return strategyResult{}
	}
	return f.results[i]
}

func (f scenarioResults) strategies() (names []string) {
	for _, r := range f.results {
		names = append(names, r.strategy)
	}
	return names
}

// collectStrategies returns the strategies that have a row in any of the given results, with this library first.
func collectStrategies(all ...engineResults) []strategy {
	return filterStrategies(func(s strategy) bool {
		return slices.ContainsFunc(all, func(f engineResults) bool {
			return slices.ContainsFunc(f.rows(), func(r row) bool { return r.Strategy == s.name })
		})
	})
}

// tableRows returns the rows of the scenario for tables that people read, with this library first in the whole scenario
// and in each part. It leaves out parts without requests, which occur in short runs.
func (f scenarioResults) tableRows() []row {
	f.results = slices.Clone(f.results)
	if i := slices.Index(f.strategies(), libraryStrategy); i > 0 {
		ours := f.results[i]
		copy(f.results[1:], f.results[:i])
		f.results[0] = ours
	}
	return slices.DeleteFunc(f.rows(), func(r row) bool { return r.Requests == 0 && r.Scenario != f.scenario.name })
}

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

// compareWithPeers returns a comparison of this library with the strategy without hedging and with the best peer, if
// any: the other library with the lowest p99.9. All figures are for all parts of the scenario. The text is empty if
// this library or the strategy without hedging did not run. names maps names of strategies to titles, and may be nil.
func (f scenarioResults) compareWithPeers(names map[string]string) string {
	var us, without, peer *row
	for _, r := range f.results {
		whole := &r.rows[0]
		switch libraryName(r.strategy) {
		case libraryName(libraryStrategy):
			if r.strategy == libraryStrategy {
				us = whole
			}
		case baselineStrategy:
			without = whole
		case bestStaticLibrary:
		default:
			if peer == nil || whole.P999 < peer.P999 {
				peer = whole
			}
		}
	}
	if us == nil || without == nil {
		return ""
	}
	text := fmt.Sprintf("With hedge, p99 is %s ms (without hedging %s ms) and p99.9 is %s ms (%s ms), for %s",
		formatMillis(us.P99), formatMillis(without.P99), formatMillis(us.P999), formatMillis(without.P999), describeCost(*us))
	if peer != nil {
		text += fmt.Sprintf(". The lowest p99.9 of the other libraries is %s ms, of %s, for %s", formatMillis(peer.P999), cmp.Or(names[peer.Strategy], peer.Strategy), describeCost(*peer))
	}
	return text + "."
}

func describeCost(r row) string {
	cost := formatPercent(r.Extra) + " extra requests"
	if r.Conns != nil {
		cost += " and " + formatThousands(*r.Conns) + " connections"
	}
	return cost
}

// tableNotes returns lines to print below the tables, which explain the figures and say whether the machine was too busy.
func (f engineResults) tableNotes() []string {
	engine := f.options.engine.spec()
	notes := []string{"Latencies in milliseconds, " + cmp.Or(engine.population, "of successful requests") + ". " + toSentence(f.options.explainErrorMargin())}
	if f.timerDelay == 0 || !engine.runsInRealTime() {
		return notes
	}
	if f.hadLateTimers() {
		return append(notes, engine.busyWarning(f.timerDelay))
	}
	return append(notes, fmt.Sprintf("The machine was quiet enough: 99 %% of its timers were at most %s ms late (limit: %s ms).",
		formatMillis(toMillis(f.timerDelay)), formatMillis(toMillis(engine.maxTimerDelay))))
}

// explainErrorMargin returns the phrase that explains ± below tables: a range of several runs, or an estimate from one run.
func (o options) explainErrorMargin() string {
	if o.runs > 1 {
		return fmt.Sprintf("medians of %d runs, ± half their range", o.runs)
	}
	return "± is half of a 95 % interval, from how much ten consecutive parts of the run differ, and never less than for independent calls"
}

// hadLateTimers reports whether the machine's timers fired so late that the measured figures are invalid.
func (f engineResults) hadLateTimers() bool {
	engine := f.options.engine.spec()
	return engine.runsInRealTime() && f.timerDelay > engine.maxTimerDelay
}

func (p engineSpec) busyWarning(late time.Duration) string {
	return fmt.Sprintf("THIS MACHINE IS TOO BUSY: 1 %% of its timers are more than %s ms late (limit: %s ms). "+
		"Figures in real time mean nothing then. Wait until it is quiet, or use -engine virtual, which no machine disturbs.",
		formatMillis(toMillis(late)), formatMillis(toMillis(p.maxTimerDelay)))
}

// toSentence returns s with a capital letter and a full stop.
func toSentence(s string) string {
	first, n := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(first)) + s[n:] + "."
}
