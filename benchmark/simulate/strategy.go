package main

import (
	"slices"
	"time"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/engine"
)

// A strategy is a contender.
type strategy struct {
	name    string
	about   string
	model   string // what stands for it in virtual time, if not itself
	grpc    string // what stands for it over gRPC, if not itself
	hedges  int    // of ours, if not the default; of the oracle
	standby bool   // runs only if asked for
	engine  string // the only one that has it, if it is for one
	variant bool   // only the scenarios that name it have it
}

// hedgedhttp speaks HTTP only.
const fixedOverGRPC = "the same delay on the race of this library"

// strategies in the order of the tables. The names are a contract.
var strategies = []strategy{
	{name: "none", about: "no hedging"},
	{name: "static-10ms", about: "hedgedhttp: one hedge after 10 ms, no budget", model: "a fixed delay without a budget", grpc: fixedOverGRPC},
	{name: "static-50ms", about: "hedgedhttp: one hedge after 50 ms, no budget", model: "a fixed delay without a budget", grpc: fixedOverGRPC},
	{
		name: "failsafe-10ms", about: "failsafe-go: one hedge after 10 ms, at most 20 % of what is in flight",
		model: "a model of failsafe-go 0.9.8",
	}, {
		name: "failsafe-quantile", about: "failsafe-go: one hedge after its moving 0.90 quantile, at most 20 % of what is in flight",
		model: "a model of failsafe-go 0.9.8",
	},
	{name: "published", about: "the published adaptive policy with its defaults, written anew from its description"},
	{name: "published-told", about: "the same, told the true request rate"},
	{name: "single", about: "this library without hedging; a query is sent again after a second", engine: "dns"},
	{name: "fixed-10ms", about: "a hedge for every query after 10 ms, no budget", engine: "dns"},
	{name: "hedge", about: "this library, no option set", hedges: -1},
	{name: "hedge-1", about: "this library with one hedge per call", hedges: 1},
	{name: "hedge-2", about: "this library with two hedges per call, which is the default", hedges: 2, standby: true},
	{name: "hedge-3", about: "this library with three hedges per call", hedges: 3, standby: true},
	{name: "hedge-first-byte-10", about: "this library with WithFirstByte", hedges: -1, engine: "http", variant: true},
	{name: "hedge-first-byte", about: "the same and a budget of 11.5 %: what it costs to hedge a slow tenth, and the slow tenth of its hedges", hedges: -1, engine: "http", variant: true},
	{name: "hedge-one-pool", about: "this library with its hedges on the connections of the primaries", hedges: -1, engine: "http", variant: true},
	{name: "hedge-conn", about: "this library with WithHedgeConn", hedges: -1, engine: "grpc", variant: true},
	{name: "hedge-warm", about: "this library, after Transport.Warm", hedges: -1, engine: "http", variant: true},
	{name: "hedge-replicas-2s", about: "this library with WithReplicas", hedges: -1, engine: "http", variant: true},
	{name: "hedge-replicas", about: "the same and ten seconds' worth of budget saved up, for pauses", hedges: -1, engine: "http", variant: true},
	{name: "oracle-1", about: "the best static delay at the load of hedge, found afterwards", hedges: 1},
	{name: "oracle-2", about: "the best static pair of delays at the load of hedge, found afterwards", hedges: 2},
	{name: "miekg", about: "the plain client of github.com/miekg/dns", engine: "dns"},
	{name: "net-resolver", about: "Go's own resolver", engine: "dns"},
	{name: "unbound", about: "unbound, forwarding, if it is installed", engine: "dns"},
}

const (
	oracle1 = "oracle-1"
	oracle2 = "oracle-2"
	ours    = "hedge"
	bare    = "none"
)

func strategyOf(name string) strategy {
	i := slices.IndexFunc(strategies, func(s strategy) bool { return s.name == name })
	return strategies[i]
}

func (s strategy) isOurs() bool   { return s.name == ours || len(s.name) > 6 && s.name[:6] == "hedge-" }
func (s strategy) isOracle() bool { return s.name == oracle1 || s.name == oracle2 }

// order sorts strategy names as the tables do.
func order(names []string) []string {
	var all []string
	for _, s := range strategies {
		if slices.Contains(names, s.name) {
			all = append(all, s.name)
		}
	}
	return all
}

// engineConfig is what the library's adapters give its engine, for the simulator to drive it by itself.
func engineConfig(maxHedges int, estimatedRPS float64) engine.Config {
	c := hedge.DefaultConfig()
	if maxHedges >= 0 {
		c.MaxHedges = maxHedges
	}
	if estimatedRPS > 0 {
		c.EstimatedRPS = estimatedRPS
	}
	return engine.Config{
		Percentile: c.Percentile, MaxHedges: c.MaxHedges, Share: c.BudgetPercent / 100, EstimatedRPS: c.EstimatedRPS,
		Burst: c.Burst, MinDelay: c.MinDelay, MaxDelay: c.MaxDelay, InitialDelay: c.InitialDelay,
		MaxPerSecond: c.MaxHedgesPerSecond, MaxKeys: c.MaxKeys, Short: true,
	}
}

// oracleGoal is the quantile that the oracle of the given number of hedges makes small.
func oracleGoal(hedges int) float64 {
	if hedges == 1 {
		return 0.99
	}
	return 0.999
}

// fixed returns the delay in the name of a strategy that has one.
func (s strategy) fixed() time.Duration {
	switch s.name {
	case "static-10ms", "failsafe-10ms":
		return 10 * ms
	case "static-50ms":
		return 50 * ms
	}
	return 0
}

// whole is what the strategy is, and what stands for it where it cannot be itself.
func (s strategy) whole() string {
	text := s.about
	if s.grpc != "" {
		text += "; over gRPC: " + s.grpc
	}
	if s.model != "" {
		text += "; in virtual time: " + s.model
	}
	return text
}
