package main

import (
	"cmp"
	"context"
	"flag"
	"slices"
	"time"
)

// An engine is a mode of simulate, which the flag -engine selects: it has scenarios, and runs strategies in them.
// Examples are virtual, a simulation in virtual time, and http, which sends requests over loopback sockets.
//
// The file of an engine contains its scenarios, strategies, table columns and requirements. The command also works
// without the file, and then lacks the engine.
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

// An engineWithFlags is an engine that declares and checks command-line flags of its own.
type engineWithFlags interface {
	engine
	declareFlags(*flag.FlagSet)
	// checkFlags checks the values, also if another engine is chosen.
	checkFlags(fs *flag.FlagSet, chosen bool) error
}

// A profile describes an engine, a mode of simulate: its name, its description, its scenarios, and its default number
// of runs. It also has the tolerated lateness of timers, the columns of the engine's tables, and the function that
// checks requirements. Zero values are the behaviour of most engines.
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

	// checkBounds returns report lines that say which requirements the results meet; nil: there are none.
	checkBounds func(engineResults) []string
}

// runsInRealTime reports whether the engine measures in real time, so that a busy machine changes its results. Engines
// in virtual or fake time return false.
func (p profile) runsInRealTime() bool { return p.maxTimerDelay > 0 }

// A registration is an entry in the list of engines: the constructor of an engine, and the engine's position in the
// list.
type registration struct {
	place     int // among the engines, unique
	newEngine func() engine
}

var registrations []registration

// registerEngine adds an engine to simulate. place is its unique position among all engines, in ascending order.
// newEngine returns a new engine whose flags have their default values.
func registerEngine(place int, newEngine func() engine) {
	registrations = append(registrations, registration{place, newEngine})
	slices.SortFunc(registrations, func(a, b registration) int { return cmp.Compare(a.place, b.place) })
}

func newEngines() []engine {
	var all []engine
	for _, r := range registrations {
		all = append(all, r.newEngine())
	}
	return all
}

// childProcesses are functions that take over the process if an engine has started it as a helper.
var childProcesses []func()

// registerChild registers a function for serveChild to call. If an engine has started this process as its helper, serve
// does the helper's work and exits. Otherwise it returns at once.
func registerChild(serve func()) { childProcesses = append(childProcesses, serve) }

// serveChild does the work of a helper process if an engine has started this process as one, and does not return then.
// In the process of a user it returns at once.
func serveChild() {
	for _, serve := range childProcesses {
		serve()
	}
}
