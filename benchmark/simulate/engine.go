package main

import (
	"context"
	"time"
)

// An engine puts strategies through scenarios.
type engine interface {
	name() string
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

// A job is one run of a scenario.
type job struct {
	scenario   scenario
	strategies []string
	seed       uint64
	size       size
	share      int // the job is one of that many, and gets its share of the time there is
	progress   *progress
	timers     *timers
	fake       bool // time, by testing/synctest
}

func engines() []engine {
	return []engine{loopback("http"), loopback("grpc"), dnsEngine{transport: dnsTransports[0]}, recursorEngine{}, virtualEngine{}}
}
