package limitlab

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/internal/limit"
)

// Unlimited is a limit that is never reached.
var Unlimited = unlimited.most

// A World is a kind of world, at any load.
type World = world

// Kinds are all.
func Kinds() []World { return kinds }

// Shared returns a server whose cores are shared.
func Shared(cores, mean float64) World { return cpu(cores, mean) }

// Pooled returns a server with a pool.
func Pooled(n int, mean float64) World { return connections(n, mean) }

func (w world) Exponential() World            { return w.exponential() }
func (w world) Lognormal(sigma float64) World { return w.lognormal(sigma) }
func (w world) Bimodal() World                { return w.bimodal() }
func (w world) Name() string                  { return w.name }
func (w world) Closed() bool                  { return w.clients > 0 }
func (w world) Infinite() bool                { return w.infinite }
func (w world) Mean() float64                 { return w.mean }
func (w world) Draw(r *rand.Rand) float64     { return w.work(r) }

// Capacity is how many requests per second the server can finish while it is measured.
func (w world) Capacity() float64 {
	if w.change > 0 {
		return w.capacity * w.change
	}
	return w.capacity
}

// Played is what came of a game.
type Played struct {
	Calls    []latency.Call
	Finished float64 // requests per second while it was measured
	Over     int     // requests that were begun although as many were worked on as the limit allowed
	Most     int     // that were worked on at a time
}

// Play plays with a fixed limit.
func (w world) Play(ctx context.Context, load float64, lasts time.Duration, most int) Played {
	return w.with(w.name, "", func(w *world) { w.load = load }).play(ctx, lasts, fixed{most: most})
}

// PlayWith plays with the limiter of a contender, in the time of its caller.
func PlayWith(ctx context.Context, name, contender string, lasts time.Duration) Played {
	for _, c := range contenders {
		if c.name == contender {
			return worldOf(name).play(ctx, lasts, c.start())
		}
	}
	panic(contender)
}

func (w world) play(ctx context.Context, lasts time.Duration, l limiter) Played {
	watched := &watch{limiter: l, from: w.from()}
	g := play(ctx, &w, 1, lasts, watched, nil)
	return Played{g.calls, float64(watched.finished) / lasts.Seconds(), watched.over, g.most}
}

// watch counts what goes through a limiter.
type watch struct {
	limiter
	from                    float64
	working, over, finished int
}

func (w *watch) begin(now float64, working, waiting int) (func(float64, int), bool) {
	limit := w.limit()
	ended, ok := w.limiter.begin(now, working, waiting)
	if !ok {
		return nil, false
	}
	if w.working++; w.working > limit {
		w.over++
	}
	return func(now float64, waiting int) {
		w.working--
		if now >= w.from {
			w.finished++
		}
		if ended != nil {
			ended(now, waiting)
		}
	}, true
}

// Tried returns the lowest 99th percentile of all limits that are tried, each played to its end.
func Tried(ctx context.Context, name string, lasts time.Duration) time.Duration {
	w := worldOf(name)
	lowest := play(ctx, w, 1, lasts, unlimited, nil).p99()
	for n := range highest {
		if limit.New(n).Limit() == n { // its levels are those
			lowest = min(lowest, play(ctx, w, 1, lasts, fixed{most: n}, nil).p99())
		}
	}
	return lowest
}

// A Gradient is a gradient2.
type Gradient struct{ g *gradient2 }

func NewGradient() Gradient { return Gradient{newGradient2().(*gradient2)} }

// Update has a window end, and returns the limit.
func (g Gradient) Update(took float64, most int) float64 {
	g.g.update(took, float64(most))
	return g.g.estimate
}

// Followed returns what is said of a limit with those values, each for a second.
func Followed(limits ...int) Limits {
	var t track
	for i, l := range limits {
		t.note(float64(i), l)
	}
	t.end(float64(len(limits)))
	return *t.limits()
}
