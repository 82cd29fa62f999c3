package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// overviewRuns are the engines that simulate runs if the flags select neither an engine nor a scenario.
var overviewRuns = []struct{ engine, heading string }{
	{"virtual", "In virtual time, the same on every machine:"},
	{"http", "HTTP/1.1 over loopback sockets:"},
}

// overviewOptions returns the options of the two runs that simulate makes if no flag selects an engine or a scenario:
// the first scenario of the engines virtual and http. By default, it selects strategies with an overview title.
func (o options) overviewOptions() (runs []options) {
	if o.strategies == nil {
		o.strategies = slices.DeleteFunc(strategyNames(), func(n string) bool { return findStrategy(n).title == "" })
	}
	for _, r := range overviewRuns {
		o.engine = engines()[slices.Index(engineNames(), r.engine)]
		o.scenarios = o.engine.spec().scenarios[:1]
		runs = append(runs, o)
	}
	return runs
}

// runEngines runs the selected engine, or virtual and http by default. If ctx ends, it returns the results so far.
func runEngines(ctx context.Context, o options, p *progressDisplay) (all []engineResults, err error) {
	runs := []options{o}
	if o.overview {
		runs = o.overviewOptions()
	}
	for _, run := range runs {
		found, err := runScenarios(ctx, run, p)
		all = append(all, found)
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

// printResults writes all results to stdout in the selected format. If the machine was too busy and the format is JSON, which
// has no notes, it also writes a warning to stderr.
func printResults(stdout, stderr io.Writer, o options, all []engineResults) error {
	if o.overview {
		return printOverview(stdout, all)
	}
	for _, found := range all {
		if err := found.writeResults(stdout, o.format); err != nil {
			return err
		}
		if o.format == "json" && found.hadLateTimers() {
			fmt.Fprintln(stderr, "simulate:", found.options.engine.spec().busyWarning(found.timerDelay))
		}
	}
	return nil
}

// printOverview writes one table with the results of all runs, and a sentence that compares this library with others.
// The sentence is about the last run that is valid: timers that fire too late make a run invalid.
func printOverview(w io.Writer, runs []engineResults) error {
	table := textTable{titles: []string{"ms", "p50", "p99", "p99.9", "extra requests", "connections"}}
	titles := make(map[string]string)
	var last engineResults
	var comparison string
	for i, run := range runs {
		if len(run.scenarios) == 0 {
			continue
		}
		last = run
		if len(table.rows) > 0 {
			table.addRow()
		}
		table.addRow(overviewRuns[i].heading, "", "", "", "", "")
		for _, r := range run.scenarios[0].tableRows() {
			titles[r.Strategy] = cmp.Or(findStrategy(r.Strategy).title, r.Strategy)
			table.addRow(append([]string{titles[r.Strategy]}, overviewCells(r)...)...)
		}
		if sentence := run.scenarios[0].compareWithPeers(titles); sentence != "" && !run.hadLateTimers() {
			comparison = overviewRuns[i].heading + " " + sentence + "\n"
		}
	}
	if len(titles) == 0 {
		return nil
	}
	s := last.scenarios[0]
	_, err := fmt.Fprintf(w, "%s %s\n%s\n%s%s\n", toSentence(s.scenario.description), toSentence(s.describeRequests()), table.formatAligned(), comparison,
		strings.Join(last.tableNotes(), "\n"))
	return err
}

// defaultOutDir returns the default value of the flag -out: the folder benchmark/out of the repository that contains
// the working directory, as a path relative to the working directory.
func defaultOutDir() string {
	const out, command = "benchmark/out", "benchmark/simulate"
	up := "."
	for range 10 {
		if info, err := os.Stat(filepath.Join(up, command)); err == nil && info.IsDir() {
			return filepath.Join(up, out)
		}
		up = filepath.Join("..", up)
	}
	return out
}
