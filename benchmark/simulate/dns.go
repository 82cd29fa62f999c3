package main

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/benchmark/dnslab"
	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// dnsEngine asks DNS servers over a simulated network.
type dnsEngine struct {
	transport     string
	workers, busy int // as dnslab's
}

// dnsTransports are package dnslab's, UDP first.
var dnsTransports = []string{"udp", "tls", "https"}

func (dnsEngine) name() string          { return "dns" }
func (dnsEngine) runs(sc scenario) bool { return sc.dns }

func (d dnsEngine) offers(_ scenario, s strategy) bool {
	return s.dns && (d.transport == dnsTransports[0] || !slices.Contains(dnslab.OverUDP, s.name))
}

func (dnsEngine) realTime() bool { return true }

// takes cannot know: the time depends on how many packets are lost. run says it after a while.
func (dnsEngine) takes([]job) time.Duration { return 0 }

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

func (d dnsEngine) run(ctx context.Context, j job, keep func(trial)) error {
	samples := j.size.requests
	if samples == 0 {
		samples = dnslab.Samples
		if j.size.quick {
			samples = quickSamples
		}
	}
	var strategies []string // nil if all were meant: those that cannot run here are left out
	for _, s := range dnslab.Strategies {
		found := false
		for _, name := range j.strategies {
			found = found || s == name
		}
		if found {
			strategies = append(strategies, s)
		}
	}
	if len(strategies) == len(dnslab.Strategies) {
		strategies = nil
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
		Workers: d.workers, Busy: d.busy,
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
		if r.Scenario != j.scenario.name {
			continue // a part, which comes from the calls here
		}
		t := trial{
			engine: "dns", scenario: j.scenario, strategy: r.Strategy, seed: j.seed, refused: int(r.Denied),
			cost: &cost{extra: 100 * r.Extra(), hedges: int(r.Hedges), wins: int(r.Wins)},
		}
		conns := int(r.Conns)
		t.conns = &conns
		for i, c := range r.Calls {
			call := virtual.Call{Start: c.Start, Latency: c.Took, Index: int32(i)}
			if c.Failed {
				call.Winner = -1
			}
			t.calls = append(t.calls, call)
		}
		keep(t)
	}
	task.end(time.Since(began))
	return err
}
