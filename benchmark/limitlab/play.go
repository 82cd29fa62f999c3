package limitlab

import (
	"container/heap"
	"context"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/latency"
)

// A game is a world with a limiter in it: requests wait in a line, first come first served, until the limiter lets the server begin them.
type game struct {
	*world
	server  server
	limiter limiter
	until   float64 // when it ends

	gaps, works *rand.Rand // arrivals are the same whatever the limiter does, unless clients wait for their answers

	now      float64
	rate     float64 // of arrivals
	arrival  float64 // the next one
	thinking dues    // clients, as their next requests
	changed  bool
	line     []*request
	working  int
	most     int // that were worked on at a time while it was measured

	calls  []latency.Call // those that are measured
	limits track

	// Who looks for the best has no use for a run whose 99th percentile is worse than one that is known.
	worst  time.Duration // that one; 0: there is none
	spare  int           // how many calls may be slower
	slower int           // how many are
}

// play returns the game after it has ended, at the latest when ctx does.
func play(ctx context.Context, w *world, seed uint64, lasts time.Duration, l limiter, worth func(*game)) *game {
	g := &game{
		world: w, server: w.server(), limiter: l, until: w.from() + lasts.Seconds(),
		gaps: rand.New(rand.NewPCG(seed, 1)), works: rand.New(rand.NewPCG(seed, 2)), rate: w.rate(), arrival: 0,
	}
	if worth != nil {
		worth(g)
	}
	if w.clients > 0 {
		g.arrival = math.Inf(1)
		for range w.clients {
			g.think(new(request))
		}
	}
	for n := 0; g.step() && (n%1024 > 0 || ctx.Err() == nil); n++ {
		if g.hopeless() {
			break
		}
	}
	g.end()
	return g
}

// step does what happens next. It reports false at the end.
func (g *game) step() bool {
	at, happens := g.arrival, g.arrive
	if len(g.thinking) > 0 && g.thinking[0].due < at {
		at, happens = g.thinking[0].due, g.ask
	}
	if due, ok := g.server.next(); ok && due < at {
		at, happens = due, g.work
	}
	if g.change > 0 && !g.changed && changesAt < at {
		at, happens = changesAt, g.turn
	}
	if at > g.until {
		return false
	}
	g.now = max(g.now, at)
	happens()
	g.admit()
	if g.now >= g.from() {
		g.most = max(g.most, g.working)
		g.limits.note(g.now, g.limiter.limit())
	}
	return true
}

// hopeless reports whether it is known before the end that the game is worse than the one that it is to beat.
func (g *game) hopeless() bool { return g.worst > 0 && g.slower > g.spare }

// arrive has requests arrive from who does not wait for answers.
func (g *game) arrive() {
	batch := max(1, g.batch)
	for range batch {
		g.join(new(request))
	}
	g.arrival = g.now + g.gaps.ExpFloat64()*float64(batch)/g.rate
}

// ask has a client send its next request.
func (g *game) ask() { g.join(heap.Pop(&g.thinking).(*request)) }

// think has a client send its next request later.
func (g *game) think(r *request) {
	r.due = g.now + g.gaps.ExpFloat64()*g.thinks()
	heap.Push(&g.thinking, r)
}

// turn changes the capacity and the load.
func (g *game) turn() {
	g.changed = true
	g.server.scale(g.change)
	g.rate *= g.change
}

// join has a request arrive, which waits if others do.
func (g *game) join(r *request) {
	*r = request{number: -1, arrived: g.now, work: g.world.work(g.works), luck: g.works.Float64()}
	if g.now >= g.from() {
		r.number = len(g.calls)
		g.calls = append(g.calls, latency.Call{Index: int32(r.number), Start: duration(g.now - g.from()), Latency: -1})
	}
	g.line = append(g.line, r)
	g.admit()
}

// admit has the server begin those who wait, as far as the limiter allows it.
func (g *game) admit() {
	for len(g.line) > 0 {
		ended, ok := g.limiter.begin(g.now, g.working, len(g.line)-1)
		if !ok {
			return
		}
		r := g.line[0]
		g.line[0] = nil
		g.line = g.line[1:]
		g.working++
		r.ended = ended
		g.server.begin(g.now, r)
	}
}

// work does what happens in the server.
func (g *game) work() {
	r := g.server.step(g.now)
	if r == nil {
		return
	}
	g.working--
	if r.ended != nil {
		r.ended(g.now, len(g.line))
	}
	if r.number >= 0 {
		took := duration(g.now - r.arrived)
		g.calls[r.number].Latency = took
		if took > g.worst {
			g.slower++
		}
	}
	if g.clients > 0 {
		g.think(r)
	}
}

// end has those that are not finished count with how long they have been there.
func (g *game) end() {
	g.limits.end(g.until)
	for i := range g.calls {
		if c := &g.calls[i]; c.Latency < 0 {
			c.Latency = duration(g.until-g.from()) - c.Start
		}
	}
}

func duration(seconds float64) time.Duration { return time.Duration(seconds * 1e9) }

// A track follows a limit.
type track struct {
	times map[int]float64 // how many seconds it was so high
	at    float64         // when it was looked at last
	last  int             // and what it was
}

// note says what the limit is from now on.
func (t *track) note(now float64, limit int) {
	if t.times == nil {
		t.times = make(map[int]float64)
	} else if now > t.at {
		t.times[t.last] += now - t.at
	}
	t.at, t.last = now, limit
}

// end says that it stays as it is until then.
func (t *track) end(until float64) {
	if t.times != nil {
		t.note(until, t.last)
	}
}

// limits returns what is said of it.
func (t *track) limits() *Limits {
	all := slices.Sorted(maps.Keys(t.times))
	l := &Limits{Lowest: all[0], Highest: all[len(all)-1]}
	sum, time := 0., 0.
	for _, limit := range all {
		sum, time = sum+t.times[limit]*float64(limit), time+t.times[limit]
	}
	l.Mean = sum / time
	for _, limit := range all {
		if math.Abs(float64(limit)/l.Mean-1) <= Steady {
			l.Steady += t.times[limit] / time
		}
	}
	return l
}
