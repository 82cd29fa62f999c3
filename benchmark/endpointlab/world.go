package endpointlab

import (
	"math"
	"slices"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

// A world is some endpoints and what is wrong with them.
type world struct {
	name, about string
	rate        float64    // calls a second
	endpoints   []endpoint // in the order of preference
}

// An endpoint answers.
type endpoint struct {
	away    time.Duration // every answer takes so much more
	tail    bool          // one answer in twenty takes ten times as long
	trouble []trouble
}

// A trouble of an endpoint lasts from one moment to another one, which are shares of the run.
type trouble struct {
	from, to float64
	share    float64 // of the attempts that it meets
	every    float64 // it comes anew after such a share of the run; 0: it stays
	stays    float64 // and is there for that share of the run
	slower   float64 // times
	fails    bool    // if it is neither, there is no answer
}

const hangs = time.Hour

// answer returns how long an attempt takes, and its error, at a moment which is a share of the run.
func (p endpoint) answer(d *virtual.Draws, a virtual.Attempt, at float64) (took time.Duration, err error) {
	model := virtual.Lognormal(5*time.Millisecond, 2*time.Millisecond)
	if p.tail {
		model = virtual.Stragglers(model, 0.05, 10)
	}
	took = model(d, a)
	a.N += 8 // other numbers than those of the time
	for _, t := range p.trouble {
		if at < t.from || at >= t.to || t.every > 0 && math.Mod(at-t.from, t.every) >= t.stays || a.Own(d).Float64() >= t.share {
			continue
		}
		switch {
		case t.fails:
			return took + p.away, errDown
		case t.slower > 0:
			took = time.Duration(float64(took) * t.slower)
		default:
			took = hangs
		}
	}
	return took + p.away, nil
}

// halfTime is a trouble that lasts from the first quarter of the run to the last one, and always all of it.
func halfTime(t trouble) trouble { t.from, t.to = .25, .75; return t }
func always(t trouble) trouble   { t.from, t.to = 0, 1; return t }

// beside returns a world of a near endpoint that has troubles, and one that is 80 ms away.
func beside(name, about string, t ...trouble) world {
	return world{"endpoints" + name, about, 100, []endpoint{{trouble: t}, {away: away}}}
}

// with returns w after a change.
func (w world) with(change func(*world)) world {
	change(&w)
	return w
}

const away = 80 * time.Millisecond

// worlds are those of which something is required, and then others.
var worlds = []world{
	beside("", "nothing is wrong"),
	beside("-slow", "the near one takes five times as long for half of the time", halfTime(trouble{share: 1, slower: 5})),
	beside("-slower", "the near one takes sixty times as long for half of the time", halfTime(trouble{share: 1, slower: 60})),
	beside("-down", "the near one fails for half of the time", halfTime(trouble{share: 1, fails: true})),
	beside("-silent", "the near one does not answer for half of the time", halfTime(trouble{share: 1})),
	beside("-errors", "a tenth of the near one's answers are errors", always(trouble{share: .1, fails: true})),
	beside("-errors-half", "the same for half of the time", halfTime(trouble{share: .1, fails: true})),
	beside("-tenth-slow", "a tenth of the near one's answers take 1 s", always(trouble{share: .1, slower: 200})),
	beside("-hangs", "a tenth of the near one's calls get no answer", always(trouble{share: .1})),
	beside("-hangs-half", "the same for half of the time", halfTime(trouble{share: .1})),

	beside("-tail", "one in twenty of the near one's answers takes ten times as long").with(func(w *world) { w.endpoints[0].tail = true }),
	beside("-flapping", "the near one fails for three seconds, and is well for three, in turn", always(trouble{share: 1, fails: true, every: 6. / 120, stays: 3. / 120})),
	beside("-pauses", "the near one does not answer for one second in ten", always(trouble{share: 1, every: 10. / 120, stays: 1. / 120})),
	beside("-far-down", "the far one fails for half of the time").with(func(w *world) { w.endpoints[1].trouble = []trouble{halfTime(trouble{share: 1, fails: true})} }),
	beside("-both", "the near one fails for half of the time, and the far one for the last second of it", halfTime(trouble{share: 1, fails: true})).with(func(w *world) {
		w.endpoints[1].trouble = []trouble{{from: .75 - 1./120, to: .75, share: 1, fails: true}}
	}),
	beside("-rare", "one call a second, and the near one fails for half of the time", halfTime(trouble{share: 1, fails: true})).with(func(w *world) { w.rate = 1 }),
	beside("-rare-silent", "one call a second, and the near one does not answer for half of the time", halfTime(trouble{share: 1})).with(func(w *world) { w.rate = 1 }),
	beside("-reversed", "calls are made for the one that is 80 ms away").with(func(w *world) { slices.Reverse(w.endpoints) }),
	beside("-three", "a third one is 40 ms away, and fails for the second half of the time in which the near one does", halfTime(trouble{share: 1, fails: true})).with(func(w *world) {
		w.endpoints = slices.Insert(w.endpoints, 1, endpoint{away: away / 2, trouble: []trouble{{from: .5, to: .75, share: 1, fails: true}}})
	}),
	beside("-few-errors", "one in fifty of the near one's answers is an error", always(trouble{share: .02, fails: true})),
}

func worldOf(name string) *world {
	if i := slices.IndexFunc(worlds, func(w world) bool { return w.name == name }); i >= 0 {
		return &worlds[i]
	}
	return nil
}

// Worlds are their names, and About says what each is.
var Worlds, About = func() (names []string, about map[string]string) {
	about = make(map[string]string)
	for _, w := range worlds {
		names, about[w.name] = append(names, w.name), w.about
	}
	return names, about
}()
