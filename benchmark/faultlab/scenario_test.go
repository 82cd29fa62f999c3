package faultlab_test

import (
	"math"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/benchmark/faultlab"
	"github.com/gohedge/hedge/benchmark/internal/lab"
)

// In each scenario a Client answers at least as many queries as the best of its peers, minus three standard deviations,
// and its last answer comes no later than Go's. `go run ./benchmark/simulate -engine faults` runs the same scenarios
// over kernel sockets, and unbound as well.
func TestAClientIsAsGoodAsAnyResolverInNineWorlds(t *testing.T) {
	for _, scenario := range lab.NamesOf(faultlab.Scenarios) {
		t.Run(scenario, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rows, err := faultlab.Run(t.Context(), lab.Config{Scenario: scenario, Rate: 50, Seed: 1, Memory: true})
				require.NoError(t, err)
				require.Equal(t, faultlab.GoResolver, rows[0].Contender)
				require.Len(t, rows, 4)
				peer := rows[0]
				n, best := float64(len(peer.Calls)), float64(peer.Answered())
				for _, r := range rows {
					t.Logf("%-16s %d of %d, %d denied, the last after %v, %d queries", r.Contender, r.Answered(), len(r.Calls), r.Denials, r.LastAnswer, r.Sent)
				}
				for _, r := range rows[1:] {
					assert.GreaterOrEqual(t, float64(r.Answered()), best-3*math.Sqrt(best*(1-best/n)), r.Contender)
					if hasDefaultOptions() {
						assert.LessOrEqual(t, r.LastAnswer, peer.LastAnswer+100*time.Millisecond, r.Contender)
					}
				}
			})
		})
	}
}

// hasDefaultOptions reports whether Go's resolver waits for five seconds, twice. In fake time it has the options of
// this machine.
func hasDefaultOptions() bool {
	b, _ := os.ReadFile("/etc/resolv.conf")
	return !strings.Contains(string(b), "timeout:") && !strings.Contains(string(b), "attempts:")
}
