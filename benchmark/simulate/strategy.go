package main

import (
	"context"
	"net/http"
	"slices"

	"google.golang.org/grpc"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// A strategy is a contender: its name, its description, and how the engines run it.
// The files strategy_*.go and the files of engines register strategies; a new one needs no other change.
type strategy struct {
	name  string // on the command line and in every format: a contract
	rank  int    // place in the tables, unique
	title string // the library and how it is set up, for the overview; empty: the overview lacks the strategy
	about string

	// What stands for it where it cannot run itself, in words.
	virtualModel, grpcModel string

	onRequest bool     // runs only if -strategy names it
	scenarios []string // that it is for; nil: all but the labs that do not name it

	// How it runs over HTTP and gRPC, and in virtual time; nil: it does not. Other engines know their strategies by name.
	http    func(*clientSetup) (http.RoundTripper, error)
	grpc    func(*clientSetup) ([]grpc.UnaryClientInterceptor, error)
	virtual func(setting) func() virtual.Policy

	limited          bool // every server with a queue has a Limiter; for worlds with queues only
	givenRate        bool // the client is given the true request rate
	bestStaticHedges int  // hedges per call, at the best static delays, which are found afterwards; 0: for other strategies
}

// A clientFamily makes the clients of a library, which differ by their settings.
type clientFamily interface {
	http(*clientSetup) (http.RoundTripper, error)
	grpc(*clientSetup) ([]grpc.UnaryClientInterceptor, error)
	virtual(setting) func() virtual.Policy
}

// withClients returns the strategy with the clients of a family, over HTTP and gRPC and in virtual time.
func (s strategy) withClients(f clientFamily) strategy {
	s.http, s.grpc, s.virtual = f.http, f.grpc, f.virtual
	return s
}

// A setting describes a run in virtual time to a strategy.
type setting struct {
	ctx      context.Context
	world    virtual.Simulation
	seed     uint64
	estimate float64 // EstimatedRPS, for those that have this option; 0: their default
	extra    float64 // hedges per request that hedge sent; for the best static delays only
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

// registerStrategies adds strategies.
func registerStrategies(all ...strategy) {
	strategies = append(strategies, all...)
	slices.SortFunc(strategies, func(a, b strategy) int { return a.rank - b.rank })
}

func strategyOf(name string) strategy {
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

// inOrder sorts strategy names as the tables do, each once.
func inOrder(names []string) []string {
	return slices.DeleteFunc(strategyNames(), func(n string) bool { return !slices.Contains(names, n) })
}

// isFor reports whether the strategy takes part in the scenario.
func (s strategy) isFor(sc scenario) bool {
	if s.limited && sc.world.Queue == nil {
		return false
	}
	if s.scenarios != nil {
		return slices.Contains(s.scenarios, sc.name)
	}
	return sc.lab == nil || slices.Contains(sc.lab.strategies, s.name)
}

// newLimiter returns a Limiter for a server with a queue, or nil.
func (s strategy) newLimiter() *hedge.Limiter {
	if s.limited {
		return hedge.NewLimiter(1)
	}
	return nil
}

func (s strategy) isBestStatic() bool { return s.bestStaticHedges > 0 }

// fullDescription returns the description of the strategy, and of its models in engines that cannot run it.
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
