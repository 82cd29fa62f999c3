package main

import (
	"context"
	"net/http"
	"slices"

	"google.golang.org/grpc"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// A strategy is a hedging library or policy with fixed settings that the benchmark compares with others. It has a name,
// a description, and functions that make its clients over HTTP, over gRPC and in virtual time.
//
// The files strategy_*.go and the files of engines register strategies. A new strategy needs no other change.
type strategy struct {
	name  string // on the command line and in every format: a contract
	rank  int    // place in the tables, unique
	title string // the library and how it is set up, for the overview; empty: the overview lacks the strategy
	about string

	// What stands for it where it cannot run itself, in words.
	virtualModel, grpcModel string

	scenarios []string // that it is for; nil: all that do not restrict their strategies

	// How it runs over HTTP and gRPC, and in virtual time; nil: it does not. Other engines know their strategies by name.
	http    func(*clientSetup) (http.RoundTripper, error)
	grpc    func(*clientSetup) ([]grpc.UnaryClientInterceptor, error)
	virtual func(virtualSetup) func() virtual.Policy

	limited          bool // every server with a queue has a Limiter; for servers with queues only
	givenRate        bool // the client is given the true request rate
	bestStaticHedges int  // hedges per call, at the best static delays, which are found afterwards; 0: for other strategies
}

// A clientFamily makes the clients of one hedging library. Its values are the settings of the library.
type clientFamily interface {
	newTransport(*clientSetup) (http.RoundTripper, error)
	newInterceptors(*clientSetup) ([]grpc.UnaryClientInterceptor, error)
	policyConstructor(virtualSetup) func() virtual.Policy
}

// withClients returns s with the clients that the family f makes over HTTP, over gRPC and in virtual time.
func (s strategy) withClients(f clientFamily) strategy {
	s.http, s.grpc, s.virtual = f.newTransport, f.newInterceptors, f.policyConstructor
	return s
}

// A virtualSetup is the input of a strategy for a run in virtual time. It has the simulated traffic and server, the seed,
// and rates that the strategy may use.
type virtualSetup struct {
	ctx        context.Context
	simulation virtual.Simulation
	seed       uint64
	estimate   float64 // EstimatedRPS, for those that have this option; 0: their default
	extra      float64 // hedges per request that hedge sent; for the best static delays only
}

// The strategies that others are compared with.
const (
	ours     = "hedge"
	audited  = "hedge-audit"
	limited  = "hedge-limited"
	baseline = "none"
)

// strategies in the order of the tables.
var strategies []strategy

// registerStrategies adds strategies to the list that -strategy selects from, in the order of their ranks.
func registerStrategies(all ...strategy) {
	strategies = append(strategies, all...)
	slices.SortFunc(strategies, func(a, b strategy) int { return a.rank - b.rank })
}

func findStrategy(name string) strategy {
	i := slices.IndexFunc(strategies, func(s strategy) bool { return s.name == name })
	return strategies[i]
}

func strategyNames() []string {
	var names []string
	for _, s := range strategies {
		names = append(names, s.name)
	}
	return names
}

// filterStrategies returns the strategies for which keep returns true, in the order of the tables, with this library first.
func filterStrategies(keep func(strategy) bool) (all []strategy) {
	for _, s := range strategies {
		switch {
		case !keep(s):
		case s.name == ours:
			all = slices.Insert(all, 0, s)
		default:
			all = append(all, s)
		}
	}
	return all
}

// sortStrategyNames returns names of strategies in the order of the tables, each once.
func sortStrategyNames(names []string) []string {
	return slices.DeleteFunc(strategyNames(), func(n string) bool { return !slices.Contains(names, n) })
}

// isFor reports whether the strategy takes part in scenario sc. Strategies and scenarios may restrict each other by
// name, and strategies with Limiters need a server with queues.
func (s strategy) isFor(sc scenario) bool {
	switch {
	case s.limited && sc.simulation.Queue == nil:
		return false
	case s.scenarios != nil:
		return slices.Contains(s.scenarios, sc.name)
	}
	return sc.only == nil || slices.Contains(sc.only, s.name)
}

// newLimiter returns a hedge.Limiter for one server if the strategy protects servers by Limiters, and otherwise nil.
func (s strategy) newLimiter() *hedge.Limiter {
	if s.limited {
		return hedge.NewLimiter(1)
	}
	return nil
}

// isBestStatic reports whether the strategy hedges after the best static delays, which the benchmark computes from the
// calls of other strategies.
func (s strategy) isBestStatic() bool { return s.bestStaticHedges > 0 }

// fullDescription returns the description of the strategy, with the models that stand for it over gRPC and in virtual
// time.
func (s strategy) fullDescription() string {
	text := s.about
	if s.grpcModel != "" {
		text += "; over gRPC: " + s.grpcModel
	}
	if s.virtualModel != "" {
		text += "; in virtual time: " + s.virtualModel
	}
	return text
}
