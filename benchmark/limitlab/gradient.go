package limitlab

// gradient2 is the limit of that name of Netflix' concurrency-limits, written anew from its description, with its defaults: each second it compares
// what requests took in that second with what they took in the long run. If that is more than it tolerates, it lowers the limit in proportion. It
// always adds room for a short queue, unless less than half of the limit is in use.
type gradient2 struct {
	estimate float64
	long     float64 // what requests take in the long run, in seconds
	windows  int

	// The window that goes on.
	ends  float64 // not before then
	sum   float64 // of what requests took
	ended int
	most  int // that were worked on
}

const (
	gradientStart, gradientLeast, gradientMost = 20, 20, 200 // the limit

	gradientWindow    = 1.  // seconds, at least
	gradientSamples   = 10  // requests that end in a window, at least
	gradientLong      = 600 // windows, of the long run
	gradientWarm      = 10  // windows, at the start, of which the long run is the plain average
	gradientTolerance = 1.5
	gradientQueue     = 4
	gradientSmoothing = .2
)

func newGradient2() limiter { return &gradient2{estimate: gradientStart} }

func (g *gradient2) limit() int { return int(g.estimate) }

func (g *gradient2) begin(now float64, working, _ int) (func(float64, int), bool) {
	if working >= g.limit() {
		return nil, false
	}
	g.most = max(g.most, working+1)
	return func(ended float64, _ int) { g.add(ended, ended-now) }, true
}

// add adds a request that has ended, and closes the window if it is time.
func (g *gradient2) add(now, took float64) {
	g.sum += took
	g.ended++
	if now < g.ends || g.ended < gradientSamples {
		return
	}
	g.update(g.sum/float64(g.ended), float64(g.most))
	g.ends, g.sum, g.ended, g.most = now+gradientWindow, 0, 0, 0
}

// update moves the limit after a window in which requests took short on average.
func (g *gradient2) update(short, most float64) {
	g.windows++
	if g.windows <= gradientWarm {
		g.long += (short - g.long) / float64(g.windows)
	} else {
		g.long += (short - g.long) * 2 / (gradientLong + 1)
	}
	if g.long > 2*short { // an overload is over: forget it sooner
		g.long *= .95
	}
	if most < g.estimate/2 {
		return
	}
	gradient := max(.5, min(1, gradientTolerance*g.long/short))
	g.estimate += (g.estimate*gradient + gradientQueue - g.estimate) * gradientSmoothing
	g.estimate = max(gradientLeast, min(gradientMost, g.estimate))
}
