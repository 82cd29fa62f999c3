package main

import (
	"context"
	"flag"
	"time"
)

// An engine puts strategies through scenarios.
type engine interface {
	name() string
	traits() traits
	// runs reports whether the engine knows the scenario.
	runs(scenario) bool
	// offers reports whether the strategy can be put through it.
	offers(scenario, strategy) bool
	// realTime reports whether a busy machine changes the results.
	realTime() bool
	// takes returns about how long the jobs take, one after another; 0 if that is not known yet.
	takes([]job) time.Duration
	// run does a job once and gives each trial to keep, which may be called from
	// several goroutines. If ctx ends, it keeps the trials that have enough requests.
	run(ctx context.Context, j job, keep func(trial)) error
}

// flagged is an engine with flags that no other engine has.
type flagged interface {
	engine
	// flags declares them.
	flags(*flag.FlagSet)
	// check looks at them, also if another engine is chosen.
	check(fs *flag.FlagSet, chosen bool) error
}

// traits are how an engine differs from others. The zero value does not.
type traits struct {
	runs    int    // unless -runs or -quick says otherwise; 0: one
	refuses string // why it offers none of the strategies that were named, if that is so in all of its scenarios
}

// A job is one run of a scenario.
type job struct {
	scenario   *scenario
	strategies []string
	seed       uint64
	size       size
	share      int // the job is one of that many, and gets its share of the time there is
	progress   *progress
	timers     *timers
	fake       bool // time, by testing/synctest
}
