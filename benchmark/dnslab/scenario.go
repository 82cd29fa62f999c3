package dnslab

import (
	"time"

	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/internal/netsim"
)

// A scenario is a condition of the network: the delay and loss of packets on the links between the clients and both DNS
// servers.
type scenario struct {
	lab.Scenario
	links [2]link
}

// A link is the simulated network path between the clients and one server. Each direction has its own profile of delay
// and loss.
type link struct{ to, from netsim.Profile }

const (
	oneWayDelay = 10 * time.Millisecond
	jitter      = 200 * time.Microsecond
)

var (
	steadyDelay = delayAround(oneWayDelay)
	steady      = netsim.Profile{Delay: steadyDelay}
	blackHole   = netsim.Profile{BlackHole: true}
)

// delayAround returns a uniform distribution of packet delays around d.
func delayAround(d time.Duration) netsim.Dist { return netsim.Uniform(d-jitter, d+jitter) }

// scenarios have a round-trip time of 20 ms, except uniform.
var scenarios = []scenario{
	equalLinks("clean", "20 ms to the server", steady, steady),
	lossyLinks("loss1", "1 % of the packets lost each way", 0.01),
	lossyLinks("loss2", "2 % lost each way", 0.02),
	lossyLinks("loss3", "3 % lost each way", 0.03),
	equalLinks("spikes", "5 % of the packets 40 to 140 ms late",
		netsim.Profile{Delay: netsim.Spikes(steadyDelay, 0.05, netsim.Uniform(40*time.Millisecond, 140*time.Millisecond))}, steady),
	equalLinks("uniform", "200 ms to the server", netsim.Profile{Delay: delayAround(100 * time.Millisecond)}, netsim.Profile{Delay: delayAround(100 * time.Millisecond)}),
	{lab.Scenario{Name: "dead-primary", Description: "the first of two servers is dead"}, [2]link{{blackHole, blackHole}, {steady, steady}}},
	equalLinks("dead", "both are", blackHole, blackHole),
	equalLinks("burst", "2 % lost each way, in bursts", lossBursts, lossBursts),
}

// lossBursts loses 2 % of the packets, in bursts of five on average.
var lossBursts = netsim.Profile{Delay: steadyDelay, Burst: &netsim.Burst{GoodToBad: 0.005, BadToGood: 0.2, LossBad: 0.8}}

// Scenarios lists all scenarios.
var Scenarios = lab.ScenariosOf(scenarios)

// equalLinks returns a scenario in which both servers have the same link. to is the profile of the way to the servers,
// and from is that of the way back.
func equalLinks(name, description string, to, from netsim.Profile) scenario {
	return scenario{lab.Scenario{Name: name, Description: description}, [2]link{{to, from}, {to, from}}}
}

// lossyLinks returns a scenario in which a share of the packets is lost in each direction, on the links to both
// servers.
func lossyLinks(name, description string, share float64) scenario {
	lossy := netsim.Profile{Delay: steadyDelay, Loss: share}
	return equalLinks(name, description, lossy, lossy)
}
