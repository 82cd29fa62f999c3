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
)

// In each of the nine worlds a Client answers at least as many questions as the best of its peers, but for three standard
// deviations, and its last answer comes when Go's does. `go run ./benchmark/simulate -engine faults` has the same worlds
// over kernel sockets, and unbound beside.
func TestAClientIsAsGoodAsAnyResolverInNineWorlds(t *testing.T) {
	for _, world := range faultlab.Worlds {
		t.Run(world, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rows, err := faultlab.Run(t.Context(), faultlab.Config{World: world, Rate: 50, Seed: 1, Memory: true})
				require.NoError(t, err)
				require.Equal(t, faultlab.Go, rows[0].Contender)
				require.Len(t, rows, 4)
				peer := rows[0]
				n, best := float64(len(peer.Calls)), float64(peer.Answered())
				for _, r := range rows {
					t.Logf("%-16s %d of %d, %d denied, the last after %v, %d queries", r.Contender, r.Answered(), len(r.Calls), r.Denied, r.Last, r.Queries)
				}
				for _, r := range rows[1:] {
					assert.GreaterOrEqual(t, float64(r.Answered()), best-3*math.Sqrt(best*(1-best/n)), r.Contender)
					if goIsAsUsual() {
						assert.LessOrEqual(t, r.Last, peer.Last+100*time.Millisecond, r.Contender)
					}
				}
			})
		})
	}
}

// goIsAsUsual reports whether Go's resolver waits for five seconds, twice: in fake time it has this machine's options.
func goIsAsUsual() bool {
	b, _ := os.ReadFile("/etc/resolv.conf")
	return !strings.Contains(string(b), "timeout:") && !strings.Contains(string(b), "attempts:")
}
