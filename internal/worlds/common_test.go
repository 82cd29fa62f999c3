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

// waits are how much longer than usual an answer can take.
var waits = []time.Duration{10 * ms, 30 * ms, 60 * ms, 120 * ms, 400 * ms, 1200 * ms, 3 * time.Second, 20 * time.Second, forever}

// past is what the client has done before the calls.
type past struct {
	calls, hosts int
	gap          time.Duration // between two calls
	outage       time.Duration // every answer takes so long, then and later; 0: there is no outage
	large        bool          // bodies are large, then and later
}

func newPast(d *draw) past {
	p := past{calls: pick(d, "past.calls", .2, 12, 0, 30), hosts: pick(d, "past.hosts", .15, 1, 3, 6)}
	p.gap = pick(d, "past.gap", .2, 50*ms, 0, 2*time.Second)
	p.outage = pick(d, "past.outage", .05, 0, 100*ms, time.Second)
	p.large = has(d, "past.large", .1)
	if p.outage > 0 {
		p.calls = 150
	}
	return p
}

// teaches reports whether the client knows what is usual for the key of the calls. It forgets keys if it keeps only a few (0: there
// is no limit), or by a change.
func (p past) teaches(maxKeys int, change string) bool {
	return p.calls >= 10*p.hosts && change == "" && (maxKeys == 0 || p.hosts <= maxKeys)
}

// newTimes draws when a caller gives up: its deadline (0: none) and when it cancels (-1: never).
func newTimes(d *draw, name func(string) string) (deadline, cancel time.Duration) {
	deadline = pick(d, name("deadline"), .25, 0, 50*ms, 300*ms, 3*time.Second)
	cancel = pick(d, name("cancel"), .12, -1, 0, 15*ms, 60*ms, time.Second)
	if deadline > 0 {
		deadline += 310 * time.Microsecond // no two things happen at the same instant
	}
	if cancel > 0 {
		cancel += 430 * time.Microsecond
	}
	return deadline, cancel
}

// add adds an option if it is drawn. P is the interface type of the option, which has the methods of O.
func add[T, O, P any](d *draw, options *[]func() O, name string, odds float64, option func(T) P, choices ...T) (chosen T, ok bool) {
	choice := pick(d, "option."+name, odds, nil, pointers(choices)...)
	if choice == nil {
		return chosen, false
	}
	*options = append(*options, func() O { return any(option(choice.value)).(O) })
	return choice.value, true
}

// onTrue returns a function that makes an option without an argument, for [add].
func onTrue[O any](option func() O) func(bool) O { return func(bool) O { return option() } }

// A pointer is a choice that can be missing.
type pointer[T any] struct{ value T }

func (p *pointer[T]) String() string { return fmt.Sprint(p.value) }

func pointers[T any](values []T) (all []*pointer[T]) {
	for _, v := range values {
		all = append(all, &pointer[T]{v})
	}
	return all
}

// An unruly observer panics.
type unruly struct{ hedge.NopObserver }

func (unruly) AttemptDone(context.Context, hedge.KeyInfo, hedge.AttemptResult) { panic("observer") }

func observer(what string) hedge.Option {
	if what == "panics" {
		return hedge.WithObserver(unruly{})
	}
	return hedge.WithObserver(hedge.NopObserver{})
}

// A countedConn is one of the connections that are open.
type countedConn struct {
	net.Conn
	open *atomic.Int64
	once sync.Once
}

// counted counts a connection until it is closed.
func counted(c net.Conn, open *atomic.Int64) net.Conn {
	open.Add(1)
	return &countedConn{Conn: c, open: open}
}

func (c *countedConn) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
	return c.Conn.Close()
}
