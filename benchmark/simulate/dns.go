package main

import (
	"context"
	"flag"
	"slices"
	"time"

	"github.com/gohedge/hedge/benchmark/dnslab"
	"github.com/gohedge/hedge/benchmark/internal/lab"
)

func init() {
	registerEngine(40, func() engine { return &dnsEngine{transport: dnsTransports[0]} })
	registerStrategies(
		strategy{name: "single", rank: 80, description: "this library without hedging; a lost query is sent again"},
		strategy{name: "miekg", rank: 230, description: "the plain client of github.com/miekg/dns"},
	)
}

// dnsEngine is the engine dns of simulate. DNS clients and forwarders query DNS servers over a simulated network,
// through kernel sockets in network namespaces. It needs root on Linux. Forwarders are processes of their own.
//
// Extra requests are all queries beyond one for each lookup, so they include retransmissions.
type dnsEngine struct {
	transport string
}

// dnsTransports has the names of the transports in package dnslab, UDP first.
var dnsTransports = []string{"udp", "tls", "https"}

func (d *dnsEngine) spec() engineSpec {
	return engineSpec{
		name: "dns", description: "asks DNS servers through kernel sockets, over a simulated network (root, Linux)",
		scenarios: dnsScenarios, refusal: "not offered for DNS over " + d.transport,
		maxTimerDelay: maxTimerDelay,
	}
}

func (d *dnsEngine) declareFlags(fs *flag.FlagSet) {
	fs.StringVar(&d.transport, "transport", dnsTransports[0], "transport of dns: "+joinWithOr(dnsTransports))
}

func (d *dnsEngine) checkFlags(fs *flag.FlagSet, chosen bool) error {
	switch {
	case !slices.Contains(dnsTransports, d.transport):
		return newChoiceError("transport", d.transport, dnsTransports)
	case !chosen:
		return checkUnusedFlags(fs, "dns", "transport")
	}
	return nil
}

func (d *dnsEngine) supports(_ scenario, s strategy) bool {
	return dnslab.SupportsTransport(s.name, d.transport)
}

const quickLookups = 505

// dnsScenarios has the scenarios of package dnslab, for the engine dns.
var dnsScenarios = func() []scenario {
	var all []scenario
	for _, s := range dnslab.Scenarios {
		sc := scenario{name: s.Name, description: "DNS: " + s.Description}
		if s.Name == "dead-primary" {
			sc.parts = []scenarioPart{newPeriodPart("after", time.Second, forever)}
		}
		all = append(all, sc)
	}
	return all
}()

func (d *dnsEngine) runJob(ctx context.Context, j job, keep func(trial)) error {
	lookups := j.requestCount(dnslab.DefaultLookups, quickLookups)
	return runLab(ctx, j, "all in turn", lookups, keep, func(count func(int)) ([]lab.Row, error) {
		return dnslab.Run(ctx, dnslab.Config{
			Scenario: j.scenario.name, Transport: d.transport, Contenders: j.selectContenders(dnslab.Contenders), Lookups: lookups, Seed: j.seed,
			Peers: j.peers, Reporter: lab.Reporter{Progress: count, Skipped: j.printSkipped},
		})
	}, func(r lab.Row) trial {
		conns := int(r.Connections)
		t := j.newTrial("dns", r.Contender, r.Calls)
		t.refused, t.conns = int(r.Denied), &conns
		t.cost = &hedgeCost{extra: 100 * (r.SentPerCall() - 1), hedges: int(r.Hedges), wins: int(r.Wins)}
		return t
	})
}
