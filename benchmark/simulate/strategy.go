package main

import (
	"context"
	"net/http"
	"slices"

	"google.golang.org/grpc"

	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// A strategy is a hedging library or policy with fixed settings that the benchmark compares with others. Files register
// strategies; a new one needs no other change.
type strategy struct {
	name        string // on the command line and in every format: a contract
	rank        int    // position in the tables, unique
	title       string // the library and its settings, for the overview; empty: the overview lacks the strategy
	description string

	// Descriptions of the models that stand for the strategy in virtual time and over gRPC; empty: there is no model.
	virtualModel, grpcModel string

	scenarios []string // in which the strategy runs; nil: all that do not restrict their strategies

	// Functions that make clients over HTTP and gRPC, and policies in virtual time; nil: not supported. Other engines find
	// their strategies by name.
	http    func(*clientSetup) (http.RoundTripper, error)
	grpc    func(*clientSetup) ([]grpc.UnaryClientInterceptor, error)
	virtual func(policyConfig) func() virtual.Policy

	limited          bool // every server with a queue has a Limiter; for servers with queues only
	needsRate        bool // the client is given the true request rate
	bestStaticHedges int  // hedges per call after the best static delays; 0: for other strategies
}

// A policyConfig is the input from which a strategy makes its policy for a run in virtual time.
type policyConfig struct {
	ctx        context.Context
	simulation virtual.Simulation
	seed       uint64
	estimate   float64 // the option EstimatedRPS, for strategies with this option; 0: the default of the strategy
	extra      float64 // hedges per request that the strategy hedge sent; for the best static delays only
}

// The strategies that others are compared with.
const (
	libraryStrategy  = "hedge"
	auditedStrategy  = "hedge-audit"
	limitedStrategy  = "hedge-limited"
	baselineStrategy = "none"
)

// strategies in the order of the tables.
var strategies []strategy

func registerStrategies(all ...strategy) {
	strategies = append(strategies, all...)
	slices.SortFunc(strategies, func(a, b strategy) int { return a.rank - b.rank })
}

func findStrategy(name string) strategy {
	return strategies[slices.IndexFunc(strategies, func(s strategy) bool { return s.name == name })]
}

func strategyNames() (names []string) {
	for _, s := range strategies {
		names = append(names, s.name)
	}
	return names
}

// filterStrategies returns the strategies for which keep returns true, with this library first.
func filterStrategies(keep func(strategy) bool) (all []strategy) {
	for _, s := range strategies {
		switch {
		case !keep(s):
		case s.name == libraryStrategy:
			all = slices.Insert(all, 0, s)
		default:
			all = append(all, s)
		}
	}
	return all
}

// sortStrategyNames returns names, which are those of strategies, in the order of the tables and without duplicates.
func sortStrategyNames(names []string) []string {
	return slices.DeleteFunc(strategyNames(), func(n string) bool { return !slices.Contains(names, n) })
}

// runsIn reports whether the strategy runs in scenario sc. A strategy may list its scenarios. Otherwise the scenario may list
// the strategies that it allows.
func (s strategy) runsIn(sc scenario) bool {
	switch {
	case s.limited && sc.simulation.Queue == nil:
		return false
	case s.scenarios != nil:
		return slices.Contains(s.scenarios, sc.name)
	}
	return sc.allowedStrategies == nil || slices.Contains(sc.allowedStrategies, s.name)
}

// hasBestStaticDelays reports whether the strategy hedges after the best constant delays, which no client can know.
// They are computed from the calls of other strategies.
func (s strategy) hasBestStaticDelays() bool { return s.bestStaticHedges > 0 }

// fullDescription returns the description of the strategy. Where a model stands for the strategy, over gRPC or in
// virtual time, it adds the description of the model.
func (s strategy) fullDescription() string {
	text := s.description
	if s.grpcModel != "" {
		text += "; over gRPC: " + s.grpcModel
	}
	if s.virtualModel != "" {
		text += "; in virtual time: " + s.virtualModel
	}
	return text
}
