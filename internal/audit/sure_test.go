package audit_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/audit"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/observe"
	"github.com/gohedge/hedge/sketch"
)

// A load says how slow a call of a host is, as a logarithm, whatever is hedged. It is made for one host.
type load func(rng *rand.Rand) func(at time.Duration) float64

// loads are kinds of load for which hedging changes nothing.
var loads = map[string]load{
	"steady": func(rng *rand.Rand) func(time.Duration) float64 {
		return func(time.Duration) float64 { return rng.NormFloat64() / 2 }
	},
	"heavy tails": func(rng *rand.Rand) func(time.Duration) float64 {
		return func(time.Duration) float64 { return rng.ExpFloat64() } // Pareto's distribution, of exponent 1
	},
	"wanders": func(rng *rand.Rand) func(time.Duration) float64 {
		level, next := 0.0, time.Duration(0)
		return func(at time.Duration) float64 {
			for ; next <= at; next += 5 * time.Second {
				level = 0.98*level + 0.1*rng.NormFloat64()
			}
			return level + rng.NormFloat64()/2
		}
	},
	"a job each minute": func(rng *rand.Rand) func(time.Duration) float64 {
		return func(at time.Duration) float64 {
			busy := 0.0
			if at%time.Minute < 20*time.Second {
				busy = 1
			}
			return busy + rng.NormFloat64()/2
		}
	},
	"steps, day and night": func(rng *rand.Rand) func(time.Duration) float64 {
		step, next := 0.0, time.Duration(0)
		return func(at time.Duration) float64 {
			if at >= next {
				step, next = 0.7*rng.Float64(), at+time.Duration(rng.ExpFloat64()*float64(30*time.Minute))
			}
			return step - 0.7*math.Cos(2*math.Pi*at.Hours()/24) + rng.NormFloat64()/2
		}
	},
}

// aDay plays a day of a host that has 1.5 calls a second, and returns the hours in which there was a verdict of on or off.
func aDay(seed uint64, kind load) (judged [24]bool, last observe.Verdict) {
	rng := rand.New(rand.NewPCG(seed, 1))
	slow := kind(rng)
	a := audit.New(audit.Settings{}, fmt.Sprint(seed))
	for at := time.Duration(0); at < 24*time.Hour; at += time.Duration(rng.ExpFloat64() * float64(time.Second) / 1.5) {
		now := epoch.Add(at)
		if t := now.UnixNano(); a.Due(t) {
			a.Turn(t, now)
		}
		if !a.Dark() && rng.Uint32()%16 == 0 {
			a.Hedged(1)
		}
		a.Done(now.UnixNano(), sketch.Index(time.Duration(float64(5*ms)*math.Exp(slow(at)))))
		if v := a.Verdict(); v == observe.AuditOn || v == observe.AuditOff {
			judged[int(at.Hours())] = true
		}
	}
	return judged, a.Verdict()
}

// TestVerdictsAreAsSureAsTheySay plays a day of hosts for which hedging changes nothing: 2,000 of them, and a tenth with the
// race detector.
func TestVerdictsAreAsSureAsTheySay(t *testing.T) {
	t.Parallel()
	hosts := 400
	if testing.Short() || doubles.RaceEnabled {
		hosts = 40
	}
	var mu sync.Mutex
	var everywhere int
	var all sync.WaitGroup
	for name, kind := range loads {
		all.Go(func() {
			var hours [24]int
			var ever, same int
			for seed := range hosts {
				judged, last := aDay(uint64(seed), kind)
				for hour, found := range judged {
					if found {
						hours[hour]++
					}
				}
				if slices.Contains(judged[:], true) {
					ever++
				}
				if last == observe.AuditSame {
					same++
				}
			}
			mu.Lock()
			defer mu.Unlock()
			everywhere += ever
			t.Logf("%-20s false verdicts: in the first hour %d, in the worst %d, in the last %d, ever %d; no difference found in the end %d, of %d hosts",
				name, hours[0], slices.Max(hours[:]), hours[23], ever, same, hosts)
			assert.LessOrEqual(t, slices.Max(hours[:]), max(hosts/20, 4), name)
			assert.GreaterOrEqual(t, same, hosts*3/4, name)
		})
	}
	all.Wait()
	assert.LessOrEqual(t, everywhere, hosts*len(loads)/20)
}

// TestTimeToAVerdict compares with a test of Student's at each pair, by which one host of four was judged falsely within half an
// hour: the price of certainty is some more pairs. Differences are normal; an effect is in their standard deviations.
func TestTimeToAVerdict(t *testing.T) {
	t.Parallel()
	const hosts = 2001
	for _, effect := range []float64{10, 4, 3, 2, 1.5, 1, 0.7, 0.5} {
		rng := rand.New(rand.NewPCG(5, uint64(100*effect)))
		var sure, before []int
		for range hosts {
			var e audit.Evidence
			s, b := 0, 0
			for pair := 1; s == 0 || b == 0; pair++ {
				e.Add(effect+rng.NormFloat64(), 100)
				if s == 0 && e.Decided() {
					s = pair
				}
				if score := math.Abs(e.Score()); b == 0 && pair >= 3 && (score >= 2.33 || pair >= 8 && score >= 2) {
					b = pair
				}
			}
			sure, before = append(sure, s), append(before, b)
		}
		slices.Sort(sure)
		slices.Sort(before)
		ratio := float64(sure[hosts/2]) / float64(before[hosts/2])
		t.Logf("effect %4.1f: pairs to a verdict, median %d, before %d: %.2f times", effect, sure[hosts/2], before[hosts/2], ratio)
		if effect >= 2 {
			assert.LessOrEqual(t, ratio, 1.4, "effect %v", effect)
		} else {
			assert.LessOrEqual(t, ratio, 2.6, "effect %v", effect)
		}
	}
}
