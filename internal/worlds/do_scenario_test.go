package worlds_test

import (
	"fmt"
	"time"

	"github.com/gohedge/hedge"
)

// A doScenario has calls of Do and DoDetached.
type doScenario struct {
	past   warmUp
	client doClient
	calls  []*doCall
}

// A doClient has the settings of the Hedger.
type doClient struct {
	share   float64
	options []func() hedge.FuncOption
	maxKeys int
	counts  bool // an observer counts
	change  string
}

// A doCall has the steps of a caller and of its function.
type doCall struct {
	number           int
	at               time.Duration
	key              int
	detached         bool
	discards         bool // DoDetached has a function for late results
	deadline, cancel time.Duration
	delay            time.Duration
	value            string // that the function returns: "" a closer of its own, shared, nil, text
	acts             [4]doStep
}

// A doStep is the behaviour of the function in one attempt.
type doStep struct {
	wait time.Duration
	deaf bool   // it ignores its context
	ends string // "" with a value, error, canceled, panic, goexit
}

// returnsAlways reports whether no attempt panics or ends its goroutine.
func (c *doCall) returnsAlways() bool {
	for _, a := range c.acts {
		if a.ends == "panic" || a.ends == "goexit" {
			return false
		}
	}
	return true
}

func newDoScenario(d *generator) *doScenario {
	w := &doScenario{past: newWarmUp(d)}
	w.client.share = drawPart(d, "client.share", .2, 1, .1)
	if w.past.outage > 0 {
		w.client.share = .1
	}
	w.client.change = drawPart(d, "client.change", .08, "", "off", "reset", "import", "update")
	o := &w.client.options
	drawOption(d, o, "maxHedges", .15, hedge.WithMaxHedges, 1, 3)
	w.client.maxKeys, _ = drawOption(d, o, "maxKeys", .15, hedge.WithMaxKeys, 2)
	drawOption(d, o, "initialDelay", .15, hedge.WithInitialDelay, 20*ms)
	drawOption(d, o, "maxDelay", .1, hedge.WithMaxDelay, 20*ms)
	w.client.counts = drawFlag(d, "option.counter", .2)
	drawOption(d, o, "observer", .1, newObserver, "quiet", "panics")
	drawOption(d, o, "audit", .04, func(bool) hedge.FuncOption { return hedge.WithAudit() }, true)
	for i := range drawPart(d, "calls", .5, 1, 2, 3, 4) {
		w.calls = append(w.calls, newDoCall(d, i))
	}
	return w
}

func newDoCall(d *generator, i int) *doCall {
	name := func(s string) string { return fmt.Sprintf("call%d.%s", i, s) }
	c := &doCall{number: i + 1}
	c.at = drawPart(d, name("at"), .5, time.Duration(i)*20*time.Second, 0, 10*ms, 40*ms)
	c.at += time.Duration(i) * 1130 * time.Microsecond
	c.detached = drawFlag(d, name("detached"), .5)
	c.discards = c.detached && drawFlag(d, name("discards"), .4)
	c.deadline, c.cancel = drawCallerTimes(d, name)
	c.delay = drawPart(d, name("delay"), .6, 0, 5*ms, 20*ms, 50*ms)
	c.value = drawPart(d, name("value"), .5, "", "shared", "nil", "text")
	for n := range c.acts {
		try, odd := name(fmt.Sprintf("try%d.", n)), .4
		if n == 0 {
			odd = .8
		}
		a := &c.acts[n]
		a.wait = drawPart(d, try+"wait", odd, 0, extraLatencies...)
		if a.wait > 0 {
			a.wait += time.Duration(170*n+730*i) * time.Microsecond
		}
		a.deaf = drawFlag(d, try+"deaf", .2)
		a.ends = drawPart(d, try+"ends", .3, "", "error", "error", "canceled", "panic", "goexit")
	}
	return c
}
