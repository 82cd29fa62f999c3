// Package limitlab has servers of several kinds work on requests behind one line, and asks how many they should work on at a time: what the best fixed limit is,
// what limiters find that are told nothing, and what requests take in line and at work together.
//
// It is a discrete-event simulation: no machine disturbs the figures, and the same seed has the same ones. The limiters are the real ones, but for Netflix', which is
// written anew from its description. All contenders have the same arrivals and the same work, unless clients wait for their answers before they ask again.
package limitlab

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/bubble"
	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/internal/limit"
)

// Lasts is for how long is measured, unless Config says otherwise.
const Lasts = 60 * time.Second

// A Config says what to measure.
type Config struct {
	World      string
	Contenders []string      // nil: all
	Lasts      time.Duration // from 20 s after the start, or after a change of the capacity; 0: Lasts
	Seed       uint64
}

// A Row is what a contender measured.
type Row struct {
	Contender string
	// Calls are the requests that arrived while it was measured, in their order. Their latency is the time in line and at work. For those that
	// were not finished at the end, it is how long they had been there.
	Calls []latency.Call
	Limit *Limits // nil: there was none
}

// Limits are what a limit was while it was measured. Of one that is lowered for a moment, to see what that changes, the moments are in it.
type Limits struct {
	Lowest, Highest int
	Mean            float64 // over time
	Steady          float64 // the share of the time for which it was within Steady of its mean
}

// Steady is how far a limit is from its mean at most that does not oscillate, as a share.
const Steady = .2

// Run measures. If ctx ends, it returns its error.
func Run(ctx context.Context, conf Config) ([]Row, error) {
	w := worldOf(conf.World)
	switch {
	case w == nil:
		return nil, fmt.Errorf("limitlab: world %q; want one of %s", conf.World, strings.Join(Worlds, ", "))
	case conf.Lasts < 0:
		return nil, fmt.Errorf("limitlab: Lasts is %v, want at least 0", conf.Lasts)
	case conf.Lasts == 0:
		conf.Lasts = Lasts
	}
	if len(conf.Contenders) == 0 {
		conf.Contenders = Contenders
	}
	rows, errs := make([]Row, len(conf.Contenders)), make([]error, len(conf.Contenders))
	var all sync.WaitGroup
	for n, name := range conf.Contenders {
		at := slices.Index(Contenders, name)
		if at < 0 {
			return nil, fmt.Errorf("limitlab: contender %q; want one of %s", name, strings.Join(Contenders, ", "))
		}
		all.Go(func() { rows[n], errs[n] = conf.measure(ctx, contenders[at]) })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return rows, ctx.Err()
}

// Play does what Run has started this program for, and does not return then. Programs that call Run call it first.
func Play() { bubble.Serve(bubbleName, playFake) }

const bubbleName = "limitlab"

// measure plays with a contender, in fake time if it reads the clock.
func (conf Config) measure(ctx context.Context, c contender) (Row, error) {
	if !c.reads {
		return conf.play(ctx, c), nil
	}
	conf.Contenders = []string{c.name}
	return bubble.Run[Config, Row](ctx, bubbleName, conf)
}

// playFake plays with the only contender of conf, in the bubble of its caller.
func playFake(ctx context.Context, conf Config) (Row, error) {
	return conf.play(ctx, contenders[slices.Index(Contenders, conf.Contenders[0])]), ctx.Err()
}

func (conf Config) play(ctx context.Context, c contender) Row {
	w := worldOf(conf.World)
	if c.start == nil {
		g, at := best(ctx, w, conf.Seed, conf.Lasts)
		return Row{c.name, g.calls, &Limits{at, at, float64(at), 1}}
	}
	g := play(ctx, w, conf.Seed, conf.Lasts, c.start(), nil)
	row := Row{Contender: c.name, Calls: g.calls}
	if g.limiter != unlimited {
		row.Limit = g.limits.limits()
	}
	return row
}

// A contender is a way to limit how many requests are worked on.
type contender struct {
	name  string
	reads bool           // the clock
	start func() limiter // nil: the best fixed one is looked for
}

// The contenders, in the order of the tables.
const (
	None      = "none"
	Best      = "fixed-best"
	FromOne   = "adaptive-1"
	FromMany  = "adaptive-10000"
	Failsafe  = "failsafe-adaptive"
	Gradient2 = "gradient2"
)

var contenders = []contender{
	{name: None, start: func() limiter { return unlimited }},
	{name: Best},
	{name: FromOne, start: func() limiter { return adaptive{limit.New(1)} }},
	{name: FromMany, start: func() limiter { return adaptive{limit.New(10_000)} }},
	{name: Failsafe, reads: true, start: newFailsafe},
	{name: Gradient2, start: newGradient2},
}

// Contenders are their names.
var Contenders = func() (names []string) {
	for _, c := range contenders {
		names = append(names, c.name)
	}
	return names
}()
