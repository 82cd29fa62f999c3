package reclab

import (
	"strings"

	"github.com/gohedge/hedge/benchmark/internal/lab"
)

// A scenario determines a simulated internet, its faults and its signatures, and the questions about it.
type scenario struct {
	lab.Scenario
	signingPlan signingPlan
}

// scenarios share these properties. In broken, one zone in ten has a server that is dead, fails or does not know the
// zone; 1.5 % of the exchanges are lost, and 1 % are 40 to 300 ms late. plain, repeats, bursts and dead are variants of
// broken.
//
// In signed scenarios the root and the zones below it are signed, and a twentieth of the sites are two zones on the
// same servers. They are variants of clean, except those with broken in their names.
var scenarios = []scenario{
	{lab.Scenario{Name: "broken", Description: "5,000 zones, one in ten with a server that is dead or wrong"}, signingPlan{}},
	{lab.Scenario{Name: "clean", Description: "no such servers"}, signingPlan{}},
	{lab.Scenario{Name: "plain", Description: "IPv4 addresses only, of short names"}, signingPlan{}},
	{lab.Scenario{Name: "repeats", Description: "half of the questions were asked before"}, signingPlan{}},
	{lab.Scenario{Name: "bursts", Description: "every server is silent for one second in a hundred"}, signingPlan{}},
	{lab.Scenario{Name: "dead", Description: "all servers are dead but those of the root and below it"}, signingPlan{}},
	{lab.Scenario{Name: "mixed", Description: "clean, and 30 % of the zones below those below the root are signed"}, signingPlan{share: 0.3}},
	{lab.Scenario{Name: "mixed-broken", Description: "mixed and broken, 1.5 % of the servers have expired signatures, and 2 % of the sites are bogus"}, signingPlan{share: 0.3, stale: 0.015, bogus: 0.02}},
	{lab.Scenario{Name: "signed", Description: "clean, and all zones are signed"}, signingPlan{share: 1}},
	{lab.Scenario{Name: "signed-broken", Description: "signed and broken, 1.5 % of the servers have expired signatures, and 2 % of the sites are bogus"}, signingPlan{share: 1, stale: 0.015, bogus: 0.02}},
	{lab.Scenario{Name: "stale", Description: "signed, and a tenth of the servers have expired signatures"}, signingPlan{share: 1, stale: 0.1}},
	{lab.Scenario{Name: "insecure", Description: "mixed, and a fifth of the sites have a DS record of an old algorithm or an unknown digest"}, signingPlan{share: 0.3, weak: 0.2}},
	{lab.Scenario{Name: "flood", Description: "signed, and all names are ones that do not exist, in 20 zones"}, signingPlan{share: 1, queryPattern: randomNames}},
	{lab.Scenario{Name: "keytrap", Description: "signed, and two in five are in 20 zones with 32 keys and signatures of one tag"}, signingPlan{share: 1, queryPattern: keyTraps}},
}

// Scenarios lists all scenarios.
var Scenarios = lab.ScenariosOf(scenarios)

// HasSignedZones reports whether the scenario of that name has zones that are signed with DNSSEC.
func HasSignedZones(scenario string) bool { return signingPlanOf(scenario).share > 0 }

func signingPlanOf(name string) signingPlan {
	sc, _ := lab.FindByName("scenario", scenarios, name)
	return sc.signingPlan
}

// IsKeyTrapQuestion reports whether the question with the given index, in the order of a run of the scenario keytrap, is
// about a key trap: a zone with many keys of one tag, which takes long to validate.
func IsKeyTrapQuestion(index int32) bool {
	return int(index)%keyTrapPattern.period < keyTrapPattern.trapped
}

// siteCount is the number of zones that questions are about.
const siteCount = 5000

func newInternetPlan(scenario string, seed uint64) internetPlan {
	return internetPlan{
		seed: seed, sites: siteCount, dead: scenario == "dead", plain: scenario == "plain", signingPlan: signingPlanOf(scenario),
		clean: scenario == "clean" || HasSignedZones(scenario) && !strings.HasSuffix(scenario, "-broken"),
	}
}

func newImpairment(scenario string) impairment {
	d := impairment{loss: 0.015, jitter: 0.05, spikes: 0.01}
	if scenario == "bursts" {
		d.bursts = 0.01
	}
	return d
}
