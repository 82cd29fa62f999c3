package reclab

import (
	"strings"

	"github.com/gohedge/hedge/benchmark/internal/lab"
)

// A scenario determines the simulated internet and its faults. If its signing is the zero value, no zone has
// signatures.
type scenario struct {
	lab.Scenario
	signing signing
}

// scenarios share these properties. In broken, one zone in ten has a server that is dead, fails or does not know the
// zone; 1.5 % of the exchanges are lost, and 1 % are 40 to 300 ms late. plain, repeats, bursts and dead are variants of
// broken.
//
// In signed scenarios the root and the zones below it are signed, and a twentieth of the sites are two zones on the same
// servers. They are variants of clean, except those with broken in their names.
var scenarios = []scenario{
	{lab.Scenario{Name: "broken", Description: "5,000 zones, one in ten with a server that is dead or wrong"}, signing{}},
	{lab.Scenario{Name: "clean", Description: "no such servers"}, signing{}},
	{lab.Scenario{Name: "plain", Description: "IPv4 addresses only, of short names"}, signing{}},
	{lab.Scenario{Name: "repeats", Description: "half of the questions were asked before"}, signing{}},
	{lab.Scenario{Name: "bursts", Description: "every server is silent for one second in a hundred"}, signing{}},
	{lab.Scenario{Name: "dead", Description: "all servers are dead but those of the root and below it"}, signing{}},
	{lab.Scenario{Name: "mixed", Description: "clean, and 30 % of the zones below those below the root are signed"}, signing{share: 0.3}},
	{lab.Scenario{Name: "mixed-broken", Description: "mixed and broken, 1.5 % of the servers have expired signatures, and 2 % of the sites are bogus"}, signing{share: 0.3, stale: 0.015, bogus: 0.02}},
	{lab.Scenario{Name: "signed", Description: "clean, and all zones are signed"}, signing{share: 1}},
	{lab.Scenario{Name: "signed-broken", Description: "signed and broken, 1.5 % of the servers have expired signatures, and 2 % of the sites are bogus"}, signing{share: 1, stale: 0.015, bogus: 0.02}},
	{lab.Scenario{Name: "stale", Description: "signed, and a tenth of the servers have expired signatures"}, signing{share: 1, stale: 0.1}},
	{lab.Scenario{Name: "insecure", Description: "mixed, and a fifth of the sites have a DS record of an old algorithm or an unknown digest"}, signing{share: 0.3, weak: 0.2}},
	{lab.Scenario{Name: "flood", Description: "signed, and all names are ones that do not exist, in 20 zones"}, signing{share: 1, focus: randomNames}},
	{lab.Scenario{Name: "keytrap", Description: "signed, and two in five are in 20 zones with 32 keys and signatures of one tag"}, signing{share: 1, focus: keyTraps}},
}

// Scenarios lists all scenarios.
var Scenarios = lab.ScenariosOf(scenarios)

// IsSigned reports whether zones have DNSSEC signatures in the scenario with the given name.
func IsSigned(name string) bool { return signingOf(name).share > 0 }

// signingOf returns the signed zones of the scenario with the given name.
func signingOf(name string) signing {
	sc, _ := lab.FindByName("scenario", scenarios, name)
	return sc.signing
}

// IsTrapped reports whether a question of the scenario keytrap is about a key trap. A key trap is a zone with many keys
// of the same tag, which takes long to validate. index is the number of the question.
func IsTrapped(index int32) bool { return int(index)%trapPattern.period < trapPattern.trapped }

// sites is the number of zones that questions are about.
const sites = 5000

// newPlan returns the plan of the internet for the scenario with the given name.
func newPlan(scenario string, seed uint64) internetPlan {
	return internetPlan{
		seed: seed, sites: sites, dead: scenario == "dead", plain: scenario == "plain", signing: signingOf(scenario),
		clean: scenario == "clean" || IsSigned(scenario) && !strings.HasSuffix(scenario, "-broken"),
	}
}

// newDisturbance returns the loss and delay of packets in the scenario with the given name.
func newDisturbance(scenario string) disturbance {
	d := disturbance{loss: 0.015, jitter: 0.05, spikes: 0.01}
	if scenario == "bursts" {
		d.bursts = 0.01
	}
	return d
}
