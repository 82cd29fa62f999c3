package limitlab

import (
	"context"
	"math"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/latency"
)

// highest is the highest limit that is tried.
const highest = 256

// best plays with no limit, and with one limit after another, each 15 % above the last one, and returns the game with the lowest 99th percentile, and its limit.
// Where the capacity changes, the limit does so as well, by as much. The arrivals are those of all contenders: nobody could know these beforehand,
// and so the best is a little better than what an operator would find.
func best(ctx context.Context, w *world, seed uint64, lasts time.Duration) (*game, int) {
	found := play(ctx, w, seed, lasts, unlimited, nil)
	last, at := found.most, found.most
	limit := fixed{}
	for n := 1; n < min(last, highest) && ctx.Err() == nil; n = max(n+1, int(math.Round(1.15*float64(n)))) {
		limit.most = n
		if w.change > 0 {
			limit.before, limit.from = max(1, int(math.Round(float64(n)/w.change))), changesAt
		}
		g := play(ctx, w, seed, lasts, limit, func(g *game) {
			if w.clients == 0 { // there are as many arrivals
				all := len(found.calls)
				g.worst, g.spare = found.p99(), all-1-latency.Rank(.99, all)
			}
		})
		if !g.hopeless() && g.p99() < found.p99() {
			found, at = g, n
		}
	}
	return found, at
}

// p99 is the 99th percentile of those that were measured.
func (g *game) p99() time.Duration { return latency.Quantile(latency.Answered(g.calls), .99) }
