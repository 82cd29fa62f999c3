package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/benchmark/dnslab"
)

// dnsEngine asks DNS servers over a simulated network.
type dnsEngine struct {
	transport string
	workers   int // as dnslab's
}

// dnsTransports are package dnslab's, UDP first.
var dnsTransports = []string{"udp", "tls", "https"}

func (*dnsEngine) name() string          { return "dns" }
func (*dnsEngine) runs(sc scenario) bool { return sc.dns }

func (d *dnsEngine) flags(fs *flag.FlagSet) {
	fs.StringVar(&d.transport, "transport", dnsTransports[0], "what dns asks over: "+list(dnsTransports))
	fs.IntVar(&d.workers, "workers", 0, "`number` of questions that dns keeps in flight, to two equal servers (default: the strategies take turns at each question)")
}

func (d *dnsEngine) check(fs *flag.FlagSet, chosen bool) error {
	switch {
	case !slices.Contains(dnsTransports, d.transport):
		return wrong("transport", d.transport, dnsTransports)
	case !chosen:
		return foreign(fs, "dns", "transport", "workers")
	case d.workers < 0 || d.workers > 10_000:
		return fmt.Errorf("-workers %d: must be between 0 and 10000", d.workers)
	}
	return nil
}

func (d *dnsEngine) traits() traits {
	return traits{refuses: "not offered for DNS over " + d.transport}
}

func (d *dnsEngine) offers(_ scenario, s strategy) bool {
	return s.dns && (d.transport == dnsTransports[0] || !slices.Contains(dnslab.OverUDP, s.name))
}

func (*dnsEngine) realTime() bool { return true }

// takes cannot know: the time depends on how many packets are lost. run says it after a while.
func (*dnsEngine) takes([]job) time.Duration { return 0 }

const quickSamples = 505

// dnsScenarios are package dnslab's.
var dnsScenarios = func() []scenario {
	about := map[string]string{
		"clean": "20 ms to the server", "loss1": "1 % of the packets lost each way", "loss2": "2 % lost each way",
		"loss3": "3 % lost each way", "spikes": "5 % of the packets 40 to 140 ms late", "uniform": "200 ms to the server",
		"dead-primary": "the first of two servers is dead", "dead": "both are", "burst": "2 % lost each way, in bursts",
	}
	var all []scenario
	for _, name := range dnslab.Scenarios {
		sc := scenario{name: name, about: "DNS: " + about[name], dns: true}
		if name == "dead-primary" {
			sc.parts = []part{within("after", time.Second, forever)}
		}
		all = append(all, sc)
	}
	return all
}()

func (d *dnsEngine) run(ctx context.Context, j job, keep func(trial)) error {
	samples := j.size.requests
	if samples == 0 {
		samples = dnslab.Samples
		if j.size.quick {
			samples = quickSamples
		}
	}
	strategies := slices.DeleteFunc(slices.Clone(dnslab.Strategies), func(name string) bool { return !slices.Contains(j.strategies, name) })
	if len(strategies) == len(dnslab.Strategies) {
		strategies = nil // those that cannot run here are left out
	}
	task := j.progress.begin(j.scenario.name, "all in turn", samples)
	var done atomic.Int64
	began := time.Now()
	total := int64(samples * len(j.strategies))
	const soon = 0.05 // of all
	var said sync.Once
	defer j.timers.watch()()
	rows, err := dnslab.Run(ctx, dnslab.Config{
		Scenario: j.scenario.name, Transport: d.transport, Strategies: strategies, Samples: samples, Seed: j.seed,
		Workers: d.workers,
		Progress: func(n int) {
			now := done.Add(int64(n))
			task.set(int(now))
			if float64(now) > soon*float64(total) {
				said.Do(func() {
					j.progress.say("dns %s: %s", j.scenario.name, about(time.Since(began)*time.Duration(total)/time.Duration(now)))
				})
			}
		},
	})
	if err != nil && ctx.Err() == nil {
		task.drop()
		return err
	}
	for _, r := range rows {
		conns := int(r.Conns)
		keep(trial{
			engine: "dns", scenario: j.scenario, strategy: r.Strategy, seed: j.seed, calls: r.Calls, refused: int(r.Denied), conns: &conns,
			cost: &cost{extra: 100 * r.Extra(), hedges: int(r.Hedges), wins: int(r.Wins)},
		})
	}
	task.end(time.Since(began))
	return err
}
