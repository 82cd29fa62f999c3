package audit_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/audit"
	"github.com/gohedge/hedge/observe"
)

// TestEvidenceOfChanceIsRarelyAVerdict draws differences with a random sign, as if hedging changed nothing, and looks for a verdict after
// each of 1,000 pairs.
func TestEvidenceOfChanceIsRarelyAVerdict(t *testing.T) {
	t.Parallel()
	const hosts, pairs = 300, 1000
	for name, size := range map[string]func(rng *rand.Rand, pair int) float64{
		"constant":        func(*rand.Rand, int) float64 { return 0.3 },
		"normal":          func(rng *rand.Rand, _ int) float64 { return rng.NormFloat64() },
		"rare and large":  func(rng *rand.Rand, _ int) float64 { return 0.05 + 5*float64(rng.IntN(12)/11) },
		"growing":         func(_ *rand.Rand, pair int) float64 { return float64(pair) / 100 },
		"heavy tails":     func(rng *rand.Rand, _ int) float64 { return 0.1 / rng.Float64() },
		"day and night":   func(_ *rand.Rand, pair int) float64 { return 0.1 + 2*float64(pair/1000%2) },
		"every third one": func(_ *rand.Rand, pair int) float64 { return float64(pair % 3) },
	} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			found := map[observe.Verdict]int{}
			for range hosts {
				v, _ := audit.TrialVerdict(1, func(pair int) float64 {
					return size(rng, pair) * float64(2*rng.IntN(2)-1)
				}, pairs)
				found[v]++
			}
			t.Logf("on %d, off %d of %d", found[observe.AuditOn], found[observe.AuditOff], hosts)
			assert.LessOrEqual(t, found[observe.AuditOn]+found[observe.AuditOff], hosts*3/100)
		})
	}
}

// TestEvidenceOfLaterTrialsMustBeStronger adds constant differences: a trial of number k needs π²k²/6 times the wealth.
func TestEvidenceOfLaterTrialsMustBeStronger(t *testing.T) {
	t.Parallel()
	for number, pairs := range map[int]int{1: 9, 2: 11, 10: 16} {
		v, after := audit.TrialVerdict(number, func(int) float64 { return 1 }, 100)
		assert.Equal(t, observe.AuditOn, v)
		assert.Equal(t, pairs, after, "trial %d", number)
		v, after = audit.TrialVerdict(number, func(int) float64 { return -1 }, 100)
		assert.Equal(t, observe.AuditOff, v)
		assert.Equal(t, pairs, after, "trial %d", number)
	}
}

// TestEvidenceOfFewFailuresOutweighsManySmallGains has one pair in five with failures, and a small gain in the others.
func TestEvidenceOfFewFailuresOutweighsManySmallGains(t *testing.T) {
	t.Parallel()
	v, _ := audit.TrialVerdict(1, func(pair int) float64 {
		if pair%5 == 4 {
			return -4
		}
		return 0.1
	}, 200)
	assert.Equal(t, observe.AuditOff, v)
}
