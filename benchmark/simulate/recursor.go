package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/benchmark/reclab"
)

func init() {
	registerHelperProcess(reclab.ServeResolver)
	registerEngine(60, func() engine { return recursorEngine{} })
	registerStrategies(
		strategy{name: "hedge-off", rank: 104, description: "this library's resolver without hedging; a lost query goes to another server"},
		strategy{name: "hedge-novalidate", rank: 105, description: "this library's resolver, which checks no signatures"},
		strategy{name: "unbound-stock", rank: 252, description: "unbound with its defaults, which drops answers after 1.9 s, if it is installed"},
		strategy{name: "unbound-validate", rank: 253, description: "unbound, which checks signatures, if it is installed"},
		strategy{name: "named-validate", rank: 255, description: "BIND, which checks signatures, if it is installed"},
	)
}

// recursorEngine is the engine recursor of simulate. It queries recursive DNS resolvers for names in a simulated
// internet with thousands of servers. It queries all installed resolvers at the same time, through kernel sockets in
// network namespaces. It needs root on Linux.
//
// Resolvers start with the addresses of the root servers. A failure counts as a latency of ten seconds. Questions do
// not count if the machine stalls for a tenth of a second within the next two seconds.
//
// Where zones are signed, an answer of a validating resolver fails if its AD flag is wrong. For a name without a valid
// signature, any answer but SERVFAIL fails.
type recursorEngine struct{}

func (recursorEngine) spec() engineSpec {
	return engineSpec{
		name: "recursor", description: "asks resolvers for names in an internet of thousands of simulated servers (root, Linux)",
		scenarios: recursorScenarios, refusal: "not a resolver, or not one for this scenario", runs: recursorRuns,
		maxTimerDelay: maxTimerDelayOfRecursor, population: "with 10 s for failures", hidden: []string{"extra requests", "wins"}, checkBounds: checkRecursor,
	}
}

// maxTimerDelayOfRecursor is twice that of other engines, because answers take ten times as long.
const maxTimerDelayOfRecursor = 2 * maxTimerDelay

// supports reports whether the resolver that strategy s names is compared in scenario sc.
func (recursorEngine) supports(sc scenario, s strategy) bool {
	return slices.Contains(reclab.ContendersOf(sc.name), s.name)
}

const (
	recursorRuns     = 3                // unless -runs or -quick says otherwise
	resolverOverhead = 12 * time.Second // from the start of the programs to the first question, and from the last one to its answer

	quickQuestions = 300
	deadQuestions  = 1000 // in the scenario of that name, where each takes seconds
)

// trapsPart is the name of a part of the scenario keytrap: the questions about key traps.
const trapsPart = "traps"

// recursorScenarios has the scenarios of package reclab, for the engine recursor.
var recursorScenarios = func() []scenario {
	var all []scenario
	for _, s := range reclab.Scenarios {
		sc := scenario{name: s.Name, description: "names that nobody has asked for: " + s.Description, excludedFromAll: reclab.IsSigned(s.Name)}
		if s.Name == "keytrap" {
			trapped := func(c latency.Call) bool { return reclab.IsKeyTrapQuestion(c.Index) }
			sc.parts = []scenarioPart{{name: trapsPart, contains: trapped}, {name: "others", contains: func(c latency.Call) bool { return !trapped(c) }}}
		}
		all = append(all, sc)
	}
	return all
}()

// questionCountAndRate returns the number n of questions that each resolver gets in job j, and the rate of questions
// per second.
func questionCountAndRate(j job) (n int, rate float64) {
	n, rate = j.size.requests, j.size.rps
	switch {
	case n > 0:
	case j.size.quick:
		n = quickQuestions
	case j.scenario.name == "dead":
		n = deadQuestions
	default:
		n = reclab.DefaultQuestions
	}
	if rate == 0 {
		rate = reclab.DefaultRate
	}
	return n, rate
}

func (recursorEngine) estimateDuration(jobs []job) (total time.Duration) {
	for _, j := range jobs {
		n, rate := questionCountAndRate(j)
		total += resolverOverhead + time.Duration(float64(n)/rate*float64(time.Second))
	}
	return total
}

func (recursorEngine) runJob(ctx context.Context, j job, keep func(trial)) error {
	n, rate := questionCountAndRate(j)
	return runLab(ctx, j, "all at once", n*len(j.strategies), keep, func(count func(int)) ([]reclab.Row, error) {
		rows, err := reclab.Run(ctx, reclab.Config{
			Scenario: j.scenario.name, Contenders: j.selectContenders(reclab.ContendersOf(j.scenario.name)), Questions: n, Rate: rate, Seed: j.seed,
			Peers: j.peers, Skipped: j.printSkipped, Progress: count,
		})
		if len(rows) > 0 && rows[0].Stalled > 0 {
			j.progress.printLine("%d questions are left out: this machine stood still when they were asked, or soon after", rows[0].Stalled)
		}
		return rows, err
	}, func(r reclab.Row) trial {
		sent := roundToFourDecimals(r.SentPerCall())
		t := j.newTrial("recursor", r.Contender, r.Calls)
		t.refused, t.failures, t.sent = int(r.Denied), r.Failures, &sent
		t.counts = map[string]int{bogusAnswers: r.Bogus, wrongAD: r.WrongAD}
		t.cost = &hedgeCost{extra: 100 * (sent - 1), hedges: int(r.Hedges), wins: int(r.Wins)}
		if r.CPU > 0 {
			each := float64(r.CPU.Microseconds()) / float64(r.Asked)
			t.cpu = &each
		}
		if r.TrapCPU > 0 {
			t.cpuByPart = map[string]float64{trapsPart: float64(r.TrapCPU.Microseconds())}
		}
		return t
	})
}

var recursorBounds = func() []bound {
	p50 := func(r row) float64 { return r.P50 }
	p99 := func(r row) float64 { return r.P99 }
	p999 := func(r row) float64 { return r.P999 }
	sent := func(r row) float64 { return *r.Sent }
	cpu := func(r row) float64 {
		if r.CPU == nil {
			return 0
		}
		return *r.CPU
	}
	return []bound{
		{"broken", "p50", "unbound", 0.8, p50},
		{"broken", "p99", "unbound", 0.45, p99},
		{"broken", "p99.9", "unbound", 0.35, p999},
		{"broken", "sent", "unbound", 1.1, sent},
		{"clean", "p50", "unbound", 0.8, p50},
		{"clean", "p99", "unbound", 0.72, p99},
		{"clean", "sent", "unbound", 1.3, sent},
		{"dead", "sent", "hedge-off", 1.15, sent},

		{"mixed", "p50", hedgeNotValidating, 1.08, p50},
		{"mixed", "p99", hedgeNotValidating, 1.12, p99},
		{"mixed", "sent", hedgeNotValidating, 1.18, sent},
		{"signed", "p50", hedgeNotValidating, 1.12, p50},
		{"signed", "p99", hedgeNotValidating, 1.15, p99},
		{"signed", "sent", hedgeNotValidating, 1.48, sent},
		{"signed", "p50", unboundValidating, 0.6, p50},
		{"signed", "p99", unboundValidating, 0.5, p99},
		{"signed", "sent", unboundValidating, 1.05, sent},
		{"signed", "CPU", hedgeNotValidating, 1.7, cpu},
		{"signed", "CPU", unboundValidating, 1.3, cpu},
		{"signed-broken", "p99", unboundValidating, 0.35, p99},
		{"signed-broken", "sent", unboundValidating, 1.05, sent},
		{"mixed-broken", "p99", unboundValidating, 0.35, p99},
		{"mixed-broken", "sent", unboundValidating, 1.05, sent},
		{"keytrap/others", "p99", hedgeNotValidating, 1.2, p99},
		{"keytrap/" + trapsPart, "CPU in µs", "", 10_000, cpu},
	}
}()

// The strategies with which this library's resolver is compared where zones are signed: unbound, which validates, and
// the same resolver without validation.
const (
	unboundValidating  = "unbound-validate"
	hedgeNotValidating = "hedge-novalidate"
)

// maxSentRatio limits the resolvers that are compared with this library's at p99: they send at most this many times as
// many queries.
const maxSentRatio = 1.3

// Mistakes of validating resolvers, in the counts of a result.
const (
	bogusAnswers = "bogus answers" // for names of which no signature is right
	wrongAD      = "wrong AD"      // answers with a wrong AD flag
)

// checkRecursor returns report lines that say whether the resolver of this library meets its requirements in the
// results f: the bounds of recursorBounds, and no more failures than the best other resolver.
func checkRecursor(f engineResults) (lines []string) {
	for _, s := range f.scenarios {
		wholes := make([]row, len(s.results))
		for i, r := range s.results {
			wholes[i] = r.rows[0]
		}
		i := slices.IndexFunc(wholes, func(r row) bool { return r.Strategy == libraryStrategy })
		if i < 0 {
			continue
		}
		us := wholes[i]
		lines = append(lines, s.compareWithBounds(libraryStrategy, recursorBounds)...)
		if s.scenario.name == "broken" || s.scenario.name == "clean" {
			var faster []string
			for _, r := range wholes {
				if r.Strategy != libraryStrategy && *r.Sent <= maxSentRatio**us.Sent && r.P99 < us.P99 {
					faster = append(faster, r.Strategy)
				}
			}
			if len(faster) == 0 {
				faster = []string{"nobody"}
			}
			lines = append(lines, fmt.Sprintf("%s: of those that send at most %.1f × as much, %s is faster at p99, nobody may be: %s.",
				s.scenario.name, maxSentRatio, strings.Join(faster, " and "), formatVerdict(faster[0] == "nobody")))
		}
		lines = append(lines, checkValidation(s)...)
		best, name := 0, ""
		for _, r := range wholes {
			if r.Strategy != libraryStrategy && r.Strategy != "hedge-off" && (name == "" || r.Errors < best) {
				best, name = r.Errors, r.Strategy
			}
		}
		if name != "" {
			lines = append(lines, fmt.Sprintf("%s: %d failures, at most %s's %d: %s.", s.scenario.name, us.Errors, name, best, formatVerdict(us.Errors <= best)))
		}
	}
	return lines
}

// checkValidation returns report lines with the mistakes of each validating resolver in a scenario with signed zones:
// answers for names without a valid signature, and wrong AD flags. In other scenarios it returns nil.
func checkValidation(f scenarioResults) (lines []string) {
	if !reclab.IsSigned(f.scenario.name) {
		return nil
	}
	for _, r := range f.results {
		if !reclab.IsValidating(r.strategy) {
			continue
		}
		bogus, wrong := r.counts[bogusAnswers], r.counts[wrongAD]
		lines = append(lines, fmt.Sprintf("%s: %s answers %d bogus names, and AD is wrong in %d answers, in none it may be: %s.",
			f.scenario.name, r.strategy, bogus, wrong, formatVerdict(bogus+wrong == 0)))
	}
	return lines
}
