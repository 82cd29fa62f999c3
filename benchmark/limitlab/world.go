package limitlab

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// A world is a server and the requests for it.
type world struct {
	name, about string
	server      func() server
	capacity    float64                  // how many requests per second the server can finish
	mean        float64                  // seconds of work of a request
	work        func(*rand.Rand) float64 // draws them
	load        float64                  // requests per second that arrive, as a share of the capacity
	infinite    bool                     // the server has no end of capacity; the one above says only how many requests arrive
	batch       int                      // how many arrive at a time; 0: one
	clients     int                      // who send the next request some time after the answer to the last one; 0: requests arrive at random times
	change      float64                  // by what capacity and load are multiplied at changesAt; 0: they stay
}

const (
	settles   = 20. // seconds after the start, and after a change, from which is measured
	changesAt = 40. // seconds after the start
)

// from is when measuring begins.
func (w *world) from() float64 {
	if w.change > 0 {
		return changesAt + settles
	}
	return settles
}

// rate is how many requests arrive per second at first.
func (w *world) rate() float64 { return w.load * w.capacity }

// thinks is how long a client waits on average before it sends the next request: so that the load is reached if no request waits.
func (w *world) thinks() float64 { return float64(w.clients)/w.rate() - w.mean }

// The ways to draw work, in seconds.

func (w world) exponential() world {
	w.work = func(r *rand.Rand) float64 { return w.mean * r.ExpFloat64() }
	return w.named("-exponential", "exponential")
}

func (w world) lognormal(sigma float64) world {
	w.work = func(r *rand.Rand) float64 { return w.mean * math.Exp(sigma*r.NormFloat64()-sigma*sigma/2) }
	return w.named("-lognormal", "lognormal")
}

// bimodal has one request in ten take 20 times as long as the others, all ± 20 %.
func (w world) bimodal() world {
	const share, times = .1, 20
	short := w.mean / (1 - share + share*times)
	w.work = func(r *rand.Rand) float64 {
		took := short * (.8 + .4*r.Float64())
		if r.Float64() < share {
			took *= times
		}
		return took
	}
	return w.named("-bimodal", "a tenth takes 20 × as long")
}

func (w world) named(suffix, about string) world {
	w.name, w.about = w.name+suffix, w.about+", "+about
	return w
}

// with returns w after a change, by another name.
func (w world) with(name, about string, change func(*world)) world {
	w.name, w.about = name, about
	change(&w)
	return w
}

// cpu is a server with cores, which its requests share.
func cpu(cores, mean float64) world {
	return world{
		name: fmt.Sprintf("cpu%.0f", cores), about: fmt.Sprintf("%.0f cores", cores), capacity: cores / mean, mean: mean,
		server: func() server {
			return &sharing{capacity: cores, pace: func(n, cores float64) float64 { return min(1, cores/n) }}
		},
	}
}

// costly is a server with 8 cores, where each request above 8 makes all work cost 1 % more.
func costly() world {
	w := cpu(8, .01)
	w.server = func() server {
		return &sharing{capacity: 8, pace: func(n, cores float64) float64 { return min(1, cores/n) / (1 + .01*max(0, n-cores)) }}
	}
	return w
}

// connections is a server with a pool of connections.
func connections(n int, mean float64) world {
	return world{
		name: fmt.Sprintf("pool%d", n), about: fmt.Sprintf("%d connections", n), capacity: float64(n) / mean, mean: mean,
		server: func() server { return &pool{connections: n} },
	}
}

// lock is a server whose requests hold a lock for a tenth of their work.
func lock() world {
	return world{
		name: "lock", about: "a lock for a tenth of the work", capacity: 500, mean: .02,
		server: func() server { return &pool{connections: 1, free: .9} },
	}
}

// sleeping is a server whose requests only wait for something.
func sleeping() world {
	return world{
		name: "sleeping", about: "handlers that sleep", capacity: 1000, mean: .05, infinite: true,
		server: func() server { return &sharing{pace: func(float64, float64) float64 { return 1 }} },
	}
}

// contention is a server that finishes the most while it works on peak requests, and less with each one more: n/(1+(n/peak)²) times what it finishes of one.
func contention(peak float64) world {
	const mean = .02
	return world{
		name: "contention", about: fmt.Sprintf("contention that collapses above %.0f at a time", peak), capacity: peak / 2 / mean, mean: mean,
		server: func() server {
			return &sharing{capacity: peak, pace: func(n, peak float64) float64 { return 1 / (1 + n*n/peak/peak) }}
		},
	}
}

func halved(w *world)  { w.change = .5 }
func doubled(w *world) { w.change = 2 }

// kinds are the worlds at any load.
var kinds = []world{
	cpu(8, .01).exponential(),
	cpu(8, .01).lognormal(.5),
	cpu(8, .01).bimodal(),
	cpu(1, .005).lognormal(.5),
	cpu(64, .02).lognormal(.7),
	costly().lognormal(.7).with("cpu8-costly", "8 cores, lognormal, and each request too many costs 1 %", func(*world) {}),
	connections(10, .02).lognormal(.5),
	connections(10, .02).bimodal(),
	connections(10, .02).lognormal(.5).with("pool10-half", "10 connections, lognormal, of which half of the work needs none", func(w *world) {
		w.capacity *= 2
		w.server = func() server { return &pool{connections: 10, free: .5} }
	}),
	connections(10, .02).lognormal(.5).with("pool10-some", "10 connections, lognormal, and half of the requests need none", func(w *world) {
		w.capacity *= 2
		w.server = func() server { return &pool{connections: 10, skip: .5} }
	}),
	lock().lognormal(.5),
	lock().exponential(),
	lock().lognormal(.5).with("lock-slowing", "a lock for a tenth of the work, lognormal, that takes 2 % longer for each that waits for it", func(w *world) {
		w.capacity = 480
		w.server = func() server {
			return &pool{connections: 1, free: .9, slower: func(waiting int) float64 { return 1 + .02*max(0, float64(waiting)-2) }}
		}
	}),
	sleeping().lognormal(.5),
	sleeping().bimodal(),
	contention(32).lognormal(.5),
	contention(32).bimodal(),
	cpu(8, .01).lognormal(.5).with("cpu8-batches", "8 cores, lognormal, and requests arrive 20 at a time", func(w *world) { w.batch = 20 }),
	cpu(8, .01).lognormal(.5).with("cpu8-closed", "8 cores, lognormal, and 200 clients who wait for their answers", func(w *world) { w.clients = 200 }),
	cpu(16, .01).lognormal(.5).with("cpu16-halved", "16 cores, lognormal, and half of them from 40 s on, with half of the requests", halved),
	cpu(8, .01).lognormal(.5).with("cpu8-doubled", "8 cores, lognormal, and twice as many from 40 s on, with twice the requests", doubled),
	connections(16, .02).lognormal(.5).with("pool16-halved", "16 connections, lognormal, and half of them from 40 s on, with half of the requests", halved),
	connections(10, .02).lognormal(.5).with("pool10-doubled", "10 connections, lognormal, and twice as many from 40 s on, with twice the requests", doubled),
	contention(64).lognormal(.5).with("contention-halved", "contention that collapses above 64, and above 32 from 40 s on, with half of the requests", halved),
	contention(32).lognormal(.5).with("contention-doubled", "contention that collapses above 32, and above 64 from 40 s on, with twice the requests", doubled),
}

// worlds are the kinds at each load.
var worlds = func() (all []world) {
	for _, k := range kinds {
		for _, percent := range Loads {
			w := k
			w.load = float64(percent) / 100
			w.name, w.about = fmt.Sprintf("limit-%s-%d", k.name, percent), fmt.Sprintf("%s; %d %% loaded", k.about, percent)
			all = append(all, w)
		}
	}
	return all
}()

// Loads are those of the worlds, in percent of their capacity.
var Loads = []int{95, 80, 50}

func worldOf(name string) *world {
	if i := slices.IndexFunc(worlds, func(w world) bool { return w.name == name }); i >= 0 {
		return &worlds[i]
	}
	return nil
}

// Rate is how many requests arrive per second in a world while it is measured, about.
func Rate(name string) float64 {
	w := worldOf(name)
	if w.change > 0 {
		return w.rate() * w.change
	}
	return w.rate()
}

// Worlds are their names, About says what each is, and Load is that of each, in percent.
var Worlds, About, Load = func() (names []string, about map[string]string, load map[string]int) {
	about, load = make(map[string]string), make(map[string]int)
	for _, w := range worlds {
		names, about[w.name], load[w.name] = append(names, w.name), w.about, int(math.Round(100*w.load))
	}
	return names, about, load
}()
