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

// A link is the network path between the clients and one server, with a profile for each direction.
type link struct{ to, from netsim.Profile }

const (
	oneWayDelay = 10 * time.Millisecond
	jitter      = 200 * time.Microsecond
)

var (
	steadyDelay      = netsim.Uniform(oneWayDelay-jitter, oneWayDelay+jitter)
	steadyProfile    = netsim.Profile{Delay: steadyDelay}
	blackHoleProfile = netsim.Profile{BlackHole: true}
)

// scenarios have a round-trip time of 20 ms.
var scenarios = []scenario{
	newEqualLinksScenario("clean", "20 ms to the server", steadyProfile, steadyProfile),
	newEqualLinksScenario("loss2", "2 % lost each way", netsim.Profile{Delay: steadyDelay, Loss: 0.02}, netsim.Profile{Delay: steadyDelay, Loss: 0.02}),
	newEqualLinksScenario("spikes", "5 % of the packets 40 to 140 ms late",
		netsim.Profile{Delay: netsim.Spikes(steadyDelay, 0.05, netsim.Uniform(40*time.Millisecond, 140*time.Millisecond))}, steadyProfile),
	{lab.Scenario{Name: "dead-primary", Description: "the first of two servers is dead"}, [2]link{{blackHoleProfile, blackHoleProfile}, {steadyProfile, steadyProfile}}},
	newEqualLinksScenario("dead", "both are", blackHoleProfile, blackHoleProfile),
}

// Scenarios lists all scenarios.
var Scenarios = lab.ScenariosOf(scenarios)

// newEqualLinksScenario returns a scenario with equal links to both servers: to is for queries, and from for responses.
func newEqualLinksScenario(name, description string, to, from netsim.Profile) scenario {
	return scenario{lab.Scenario{Name: name, Description: description}, [2]link{{to, from}, {to, from}}}
}
