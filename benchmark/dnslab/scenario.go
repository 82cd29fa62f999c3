package dnslab

import (
	"fmt"
	"strings"
	"time"

	"github.com/gohedge/hedge/internal/netsim"
)

// Scenarios are the networks that can be simulated. Their round trip time is 20 ms,
// and that of uniform 200 ms.
var Scenarios = []string{"clean", "loss1", "loss2", "loss3", "spikes", "uniform", "dead-primary", "dead", "burst"}

const (
	oneWay = 10 * time.Millisecond
	jitter = 200 * time.Microsecond
)

// links returns the profiles of the links to and from each of the two servers.
func links(scenario string) (a, b [2]netsim.Profile, err error) {
	steady := netsim.Profile{Delay: netsim.Uniform(oneWay-jitter, oneWay+jitter)}
	both := func(there, back netsim.Profile) ([2]netsim.Profile, [2]netsim.Profile, error) {
		return [2]netsim.Profile{there, back}, [2]netsim.Profile{there, back}, nil
	}
	lossy := func(p float64) netsim.Profile { return netsim.Profile{Delay: steady.Delay, Loss: p} }
	switch scenario {
	case "clean":
		return both(steady, steady)
	case "loss1":
		return both(lossy(0.01), lossy(0.01))
	case "loss2":
		return both(lossy(0.02), lossy(0.02))
	case "loss3":
		return both(lossy(0.03), lossy(0.03))
	case "spikes":
		spikes := netsim.Spikes(steady.Delay, 0.05, netsim.Uniform(40*time.Millisecond, 140*time.Millisecond))
		return both(netsim.Profile{Delay: spikes}, steady)
	case "uniform":
		slow := netsim.Profile{Delay: netsim.Uniform(100*time.Millisecond-jitter, 100*time.Millisecond+jitter)}
		return both(slow, slow)
	case "burst": // 2 % lost, in bursts of five
		burst := netsim.Profile{Delay: steady.Delay, Burst: &netsim.Burst{GoodToBad: 0.005, BadToGood: 0.2, LossBad: 0.8}}
		return both(burst, burst)
	case "dead-primary":
		dead := netsim.Profile{BlackHole: true}
		return [2]netsim.Profile{dead, dead}, [2]netsim.Profile{steady, steady}, nil
	case "dead":
		return both(netsim.Profile{BlackHole: true}, netsim.Profile{BlackHole: true})
	}
	return a, b, fmt.Errorf("dnslab: scenario %q; want one of %s", scenario, strings.Join(Scenarios, ", "))
}
