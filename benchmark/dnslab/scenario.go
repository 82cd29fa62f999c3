package dnslab

import (
	"time"

	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/internal/netsim"
)

// A scenario determines the delay and loss of packets on the links between the clients and each of the two DNS servers.
type scenario struct {
	lab.Scenario
	links [2]link
}

// A link is the simulated network path between the clients and one server. Each direction has a profile of delay and
// loss.
type link struct{ to, from netsim.Profile }

const (
	oneWayDelay = 10 * time.Millisecond
	jitter      = 200 * time.Microsecond
)

var (
	steadyDelay      = uniformDelay(oneWayDelay)
	steadyProfile    = netsim.Profile{Delay: steadyDelay}
	blackHoleProfile = netsim.Profile{BlackHole: true}
)

// uniformDelay returns a uniform distribution of packet delays around d.
func uniformDelay(d time.Duration) netsim.Dist { return netsim.Uniform(d-jitter, d+jitter) }

// scenarios have a round-trip time of 20 ms, except uniform.
var scenarios = []scenario{
	newEqualLinksScenario("clean", "20 ms to the server", steadyProfile, steadyProfile),
	newLossyScenario("loss1", "1 % of the packets lost each way", 0.01),
	newLossyScenario("loss2", "2 % lost each way", 0.02),
	newLossyScenario("loss3", "3 % lost each way", 0.03),
	newEqualLinksScenario("spikes", "5 % of the packets 40 to 140 ms late",
		netsim.Profile{Delay: netsim.Spikes(steadyDelay, 0.05, netsim.Uniform(40*time.Millisecond, 140*time.Millisecond))}, steadyProfile),
	newEqualLinksScenario("uniform", "200 ms to the server", netsim.Profile{Delay: uniformDelay(100 * time.Millisecond)}, netsim.Profile{Delay: uniformDelay(100 * time.Millisecond)}),
	{lab.Scenario{Name: "dead-primary", Description: "the first of two servers is dead"}, [2]link{{blackHoleProfile, blackHoleProfile}, {steadyProfile, steadyProfile}}},
	newEqualLinksScenario("dead", "both are", blackHoleProfile, blackHoleProfile),
	newEqualLinksScenario("burst", "2 % lost each way, in bursts", burstLossProfile, burstLossProfile),
}

// burstLossProfile loses 2 % of the packets, in bursts of five on average.
var burstLossProfile = netsim.Profile{Delay: steadyDelay, Burst: &netsim.Burst{GoodToBad: 0.005, BadToGood: 0.2, LossBad: 0.8}}

// Scenarios lists all scenarios.
var Scenarios = lab.ScenariosOf(scenarios)

// newEqualLinksScenario returns a scenario in which both servers have the same link. to is the profile of the direction
// to the servers, and from is that of the opposite direction.
func newEqualLinksScenario(name, description string, to, from netsim.Profile) scenario {
	return scenario{lab.Scenario{Name: name, Description: description}, [2]link{{to, from}, {to, from}}}
}

// newLossyScenario returns a scenario in which a share of the packets is lost in each direction, on the links to both
// servers. share is from 0 to 1.
func newLossyScenario(name, description string, share float64) scenario {
	lossy := netsim.Profile{Delay: steadyDelay, Loss: share}
	return newEqualLinksScenario(name, description, lossy, lossy)
}
