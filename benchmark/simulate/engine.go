package main

import (
	"context"
	"maps"
	"slices"
	"time"
)

// An engine is a way to measure strategies, selected by the flag -engine. It has scenarios, and runs strategies in
// these scenarios. Examples are virtual, a simulation in virtual time, and http, which sends requests over loopback
// sockets. The file of an engine contains its scenarios, strategies and table columns.
type engine interface {
	spec() engineSpec
	// supports reports whether the engine can run the strategy in one of its scenarios.
	supports(scenario, strategy) bool
	// runOnce does one run of a scenario and passes the trial of each strategy to keep, which may be called from
	// several goroutines. If ctx ends, runOnce passes the trials that have enough requests.
	runOnce(ctx context.Context, run scenarioRun, keep func(trial)) error
}

// An engineSpec describes an engine: its scenarios, the tolerated lateness of timers, and the columns of its tables.
type engineSpec struct {
	name        string
	description string     // one sentence
	scenarios   []scenario // the first is the default

	runs    int    // unless -runs or -quick says otherwise; 0: one
	refusal string // the reason for the error if the engine supports no selected strategy in any of its scenarios

	// maxTimerDelay is the lateness of timers, at the 99th percentile, from which figures say more about the machine
	// than about the strategies. It is 0 if time is virtual or fake: no machine disturbs these engines.
	maxTimerDelay time.Duration

	population string   // the calls whose latencies are reported; empty: successful requests
	hidden     []string // titles of columns that the engine's tables lack
}

// runsInRealTime reports whether the engine measures in real time, so that a busy machine changes the results. Engines
// in virtual or fake time return false.
func (p engineSpec) runsInRealTime() bool { return p.maxTimerDelay > 0 }

// enginesByPosition has the engines by their positions in lists.
var enginesByPosition = make(map[int]engine)

// registerEngine adds an engine that can be selected. Lists of engines are ordered by position.
func registerEngine(position int, e engine) { enginesByPosition[position] = e }

// engines returns all engines in the order in which lists show them.
func engines() (all []engine) {
	for _, position := range slices.Sorted(maps.Keys(enginesByPosition)) {
		all = append(all, enginesByPosition[position])
	}
	return all
}
