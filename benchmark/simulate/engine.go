package main

import (
	"cmp"
	"context"
	"flag"
	"slices"
	"time"
)

// An engine runs strategies in scenarios. The files that bear its name bring everything that is its own: scenarios, strategies,
// columns, notes and bounds. The command works without these files, and lacks the engine.
type engine interface {
	profile() profile
	// offers reports whether the engine can run the strategy in one of its scenarios.
	offers(scenario, strategy) bool
	// estimate returns roughly how long the jobs take, one after another; 0 if that is unknown.
	estimate([]job) time.Duration
	// run does a job once and passes each trial to keep, which may be called from
	// several goroutines. If ctx ends, run keeps the trials that have enough requests.
	run(ctx context.Context, j job, keep func(trial)) error
}

// flagged is an engine with flags that no other engine has.
type flagged interface {
	engine
	declareFlags(*flag.FlagSet)
	// checkFlags checks the values, also if another engine is chosen.
	checkFlags(fs *flag.FlagSet, chosen bool) error
}

// A profile describes an engine. Zero values are the behaviour of most engines.
type profile struct {
	name      string
	about     string     // one sentence
	scenarios []scenario // the first is the default

	runs    int    // unless -runs or -quick says otherwise; 0: one
	refusal string // the reason if it offers none of the strategies that were named, in all of its scenarios

	// maxTimerDelay is the lateness of timers, at the 99th percentile, from which figures say more about the machine
	// than about the strategies. It is 0 if time is virtual or fake: no machine disturbs these engines.
	maxTimerDelay time.Duration

	population  string   // the calls that latencies are of; empty: successful requests
	independent bool     // the calls do not depend on each other
	hidden      []string // titles of columns that its tables lack
	extraTitles []string // titles of optional columns that its tables have

	bounds func(findings) []string // says which requirements are met; nil: there are none
}

// runsInRealTime reports whether a busy machine changes the results.
func (p profile) runsInRealTime() bool { return p.maxTimerDelay > 0 }

// A registration is an engine that an engine's file has registered.
type registration struct {
	place     int // among the engines, unique
	newEngine func() engine
}

var registrations []registration

// registerEngine adds an engine.
func registerEngine(place int, newEngine func() engine) {
	registrations = append(registrations, registration{place, newEngine})
	slices.SortFunc(registrations, func(a, b registration) int { return cmp.Compare(a.place, b.place) })
}

// newEngines returns new engines of all kinds.
func newEngines() []engine {
	var all []engine
	for _, r := range registrations {
		all = append(all, r.newEngine())
	}
	return all
}

// childProcesses are functions that take over the process if an engine has started it as a helper.
var childProcesses []func()

// registerChild adds a function to childProcesses.
func registerChild(serve func()) { childProcesses = append(childProcesses, serve) }

// serveChild does not return in a process that an engine has started as a helper.
func serveChild() {
	for _, serve := range childProcesses {
		serve()
	}
}
