package worlds_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge"
)

const (
	ms      = time.Millisecond
	forever = time.Hour
)

// extraLatencies are the times by which an answer can be later than usual.
var extraLatencies = []time.Duration{10 * ms, 30 * ms, 60 * ms, 120 * ms, 400 * ms, 1200 * ms, 3 * time.Second, 20 * time.Second, forever}

// A warmUp is the calls of a client before those of the scenario.
type warmUp struct {
	calls, hosts int
	gap          time.Duration // between two calls
	outage       time.Duration // latency of every answer, also after the warm-up; 0: no outage
	large        bool          // bodies are large, also after the warm-up
}

func newWarmUp(d *generator) warmUp {
	p := warmUp{calls: drawPart(d, "past.calls", .2, 12, 0, 30), hosts: drawPart(d, "past.hosts", .15, 1, 3, 6)}
	p.gap = drawPart(d, "past.gap", .2, 50*ms, 0, 2*time.Second)
	p.outage = drawPart(d, "past.outage", .05, 0, 100*ms, time.Second)
	p.large = drawFlag(d, "past.large", .1)
	if p.outage > 0 {
		p.calls = 150
	}
	return p
}

// teachesLatency reports whether the client has learned the latency for the key of the calls. A client forgets keys if
// maxKeys is small (0: no limit), or after a change.
func (p warmUp) teachesLatency(maxKeys int, change string) bool {
	return p.calls >= 10*p.hosts && change == "" && (maxKeys == 0 || p.hosts <= maxKeys)
}

// drawCallerTimes draws the deadline of a caller (0: none) and the time of its cancellation (-1: never).
func drawCallerTimes(d *generator, name func(string) string) (deadline, cancel time.Duration) {
	deadline = drawPart(d, name("deadline"), .25, 0, 50*ms, 300*ms, 3*time.Second)
	cancel = drawPart(d, name("cancel"), .12, -1, 0, 15*ms, 60*ms, time.Second)
	if deadline > 0 {
		deadline += 310 * time.Microsecond // so that no two events happen at the same instant
	}
	if cancel > 0 {
		cancel += 430 * time.Microsecond
	}
	return deadline, cancel
}

// drawOption adds an option if it is drawn. P is the interface type of the option, which has the methods of O.
func drawOption[T, O, P any](d *generator, options *[]func() O, name string, odds float64, option func(T) P, choices ...T) (chosen T, ok bool) {
	choice := drawPart(d, "option."+name, odds, nil, pointersTo(choices)...)
	if choice == nil {
		return chosen, false
	}
	*options = append(*options, func() O { return any(option(choice.value)).(O) })
	return choice.value, true
}

// withoutArgument adapts an option without an argument to [drawOption].
func withoutArgument[O any](option func() O) func(bool) O { return func(bool) O { return option() } }

// A pointer is a choice for drawOption that may be absent.
type pointer[T any] struct{ value T }

func (p *pointer[T]) String() string { return fmt.Sprint(p.value) }

// pointersTo returns a pointer to each value.
func pointersTo[T any](values []T) (all []*pointer[T]) {
	for _, v := range values {
		all = append(all, &pointer[T]{v})
	}
	return all
}

// A panickingObserver panics.
type panickingObserver struct{ hedge.NopObserver }

func (panickingObserver) AttemptDone(context.Context, hedge.KeyInfo, hedge.AttemptResult) {
	panic("observer")
}

func newObserver(what string) hedge.Option {
	if what == "panics" {
		return hedge.WithObserver(panickingObserver{})
	}
	return hedge.WithObserver(hedge.NopObserver{})
}

// A countedConn is a connection that is counted until it is closed.
type countedConn struct {
	net.Conn
	open *atomic.Int64
	once sync.Once
}

// countConn counts a connection until it is closed.
func countConn(c net.Conn, open *atomic.Int64) net.Conn {
	open.Add(1)
	return &countedConn{Conn: c, open: open}
}

func (c *countedConn) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
	return c.Conn.Close()
}
