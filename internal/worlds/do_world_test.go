package worlds_test

import (
	"fmt"
	"time"

	"github.com/gohedge/hedge"
)

// A doWorld is what doPlay plays: calls of Do and DoDetached.
type doWorld struct {
	past   past
	client doClient
	calls  []*doCall
}

// A doClient is the Hedger.
type doClient struct {
	share   float64
	options []func() hedge.FuncOption
	maxKeys int
	counts  bool // an observer counts
	change  string
}

// A doCall is what a caller does, and what its function does.
type doCall struct {
	number           int
	at               time.Duration
	key              int
	detached         bool
	discards         bool // it gives DoDetached a function for what comes too late
	deadline, cancel time.Duration
	delay            time.Duration
	value            string // that the function returns: "" a closer of its own, shared, nil, text
	acts             [4]doAct
}

// A doAct is what the function does in an attempt.
type doAct struct {
	wait time.Duration
	deaf bool   // it ignores its context
	ends string // "" with a value, error, canceled, panic, goexit
}

// calm reports whether no attempt panics or ends its goroutine.
func (c *doCall) calm() bool {
	for _, a := range c.acts {
		if a.ends == "panic" || a.ends == "goexit" {
			return false
		}
	}
	return true
}

func newDoWorld(d *draw) *doWorld {
	w := &doWorld{past: newPast(d)}
	w.client.share = pick(d, "client.share", .2, 1, .1)
	if w.past.outage > 0 {
		w.client.share = .1
	}
	w.client.change = pick(d, "client.change", .08, "", "off", "reset", "import", "update")
	o := &w.client.options
	add(d, o, "maxHedges", .15, hedge.WithMaxHedges, 1, 3)
	w.client.maxKeys, _ = add(d, o, "maxKeys", .15, hedge.WithMaxKeys, 2)
	add(d, o, "initialDelay", .15, hedge.WithInitialDelay, 20*ms)
	add(d, o, "maxDelay", .1, hedge.WithMaxDelay, 20*ms)
	w.client.counts = has(d, "option.counter", .2)
	add(d, o, "observer", .1, observer, "quiet", "panics")
	add(d, o, "audit", .04, func(bool) hedge.FuncOption { return hedge.WithAudit() }, true)
	for i := range pick(d, "calls", .5, 1, 2, 3, 4) {
		w.calls = append(w.calls, newDoCall(d, i))
	}
	return w
}

func newDoCall(d *draw, i int) *doCall {
	name := func(s string) string { return fmt.Sprintf("call%d.%s", i, s) }
	c := &doCall{number: i + 1}
	c.at = pick(d, name("at"), .5, time.Duration(i)*20*time.Second, 0, 10*ms, 40*ms)
	c.at += time.Duration(i) * 1130 * time.Microsecond
	c.detached = has(d, name("detached"), .5)
	c.discards = c.detached && has(d, name("discards"), .4)
	c.deadline, c.cancel = newTimes(d, name)
	c.delay = pick(d, name("delay"), .6, 0, 5*ms, 20*ms, 50*ms)
	c.value = pick(d, name("value"), .5, "", "shared", "nil", "text")
	for n := range c.acts {
		try, odd := name(fmt.Sprintf("try%d.", n)), .4
		if n == 0 {
			odd = .8
		}
		a := &c.acts[n]
		a.wait = pick(d, try+"wait", odd, 0, waits...)
		if a.wait > 0 {
			a.wait += time.Duration(170*n+730*i) * time.Microsecond
		}
		a.deaf = has(d, try+"deaf", .2)
		a.ends = pick(d, try+"ends", .3, "", "error", "error", "canceled", "panic", "goexit")
	}
	return c
}
