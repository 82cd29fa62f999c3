// Package waitgraph lets lookups share the results of running lookups, without waiting for each other in a cycle.
//
// A [Flight] is a running lookup that several callers share (single flight). A [Group] has the running Flights of one kind
// by key. A caller joins the Flight with its key, or starts one, and then awaits its end. When the last caller has left,
// the Flight can be canceled.
//
// A resolver must prevent cycles. To query the servers of a zone, it looks up a server name. To look up that name, it
// queries the servers of another zone, whose names may be in the first zone. Two lookups that await each other would both
// wait until their time limit.
//
// A [Graph] therefore records which Flight waits for which. This is the wait-for graph of databases, in which a cycle
// is a deadlock. [Group.Join] fails with [ErrCycle] if the wait would close a cycle, and the caller must do without the
// result. So the graph never has a cycle.
//
// All Groups whose Flights wait for each other must have the same Graph.
//
// The Graph also shows whether a client's question needs a Flight. A wait is a hedge if the result is useful only because
// a server is late. If only hedges wait for a Flight, directly or through other Flights, the hedge budget pays for its
// queries. Otherwise the budget of a question does.
package waitgraph

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gohedge/hedge/dnshedge/internal/flight"
)

// ErrCycle is the error of a wait that would close a cycle in the Graph.
var ErrCycle = errors.New("recursor: the lookup of a server name depends on itself")

// A Graph is the wait-for graph of running lookups: it records which lookup waits for which, and refuses waits that
// would close a cycle. Its nodes are the Flights of the lookups. The zero value has none. A Graph is safe for
// concurrent use.
type Graph struct {
	mu sync.Mutex // guards the Groups of the Graph, and their Flights and Nodes
}

// A Node stands for a running lookup, a Flight, in the Graph. Its edges lead to the other Flights that the lookup waits
// for. The mutex of the Graph guards the fields. A nil *Node stands for a client's question, for which no Flight can
// wait.
type Node struct {
	waitsFor map[*Node]waitCount // number of waits of this Node, by the Node that it waits for
	isNeeded bool                // a client's question waits for the Node, directly or through other Nodes, and not only as a hedge
}

// A waitCount counts how often one Node waits for another: all waits, and the hedges among them. If all of them are
// hedges, the Node does not need the other.
type waitCount struct{ all, hedges int }

// A Wait describes one caller that waits for a running lookup.
type Wait struct {
	By    *Node     // caller: a Flight, or nil for a client's question
	Hedge bool      // the result is useful only because a server is late
	Until time.Time // time until which the caller waits for late servers; see Group.LatestDeadline
}

// IsNeeded reports whether a client's question cannot be answered without the result of n. This is so if the question
// waits for n, directly or through other lookups, and none of these waits is a hedge. Once it is true, it remains so,
// even if the caller leaves. n must not be nil.
func (g *Graph) IsNeeded(n *Node) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return n.isNeeded
}

// PromoteHedges turns all waits of n that are hedges into ordinary waits. The caller calls it when n cannot continue
// without their results any more. If a client's question needs n, it then needs these results, too. n must not be nil.
func (g *Graph) PromoteHedges(n *Node) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for other, count := range n.waitsFor {
		n.waitsFor[other] = waitCount{all: count.all}
		if n.isNeeded {
			other.markNeeded()
		}
	}
}

// markNeeded records that a client's question needs the result of n. It records the same for each lookup for which n
// waits, unless all waits of n for that lookup are hedges. The caller must hold the mutex of the Graph.
func (n *Node) markNeeded() {
	if n.isNeeded {
		return
	}
	n.isNeeded = true
	for other, count := range n.waitsFor {
		if count.all > count.hedges {
			other.markNeeded()
		}
	}
}

// hasPathTo reports whether n is the Node other, or waits for it directly or through further Nodes. If so, other must
// not wait for n, because that would close a cycle.
//
// visited holds the Nodes that the search has visited already. It must not be nil.
func (n *Node) hasPathTo(other *Node, visited map[*Node]bool) bool {
	if n == other {
		return true
	}
	visited[n] = true
	for next := range n.waitsFor {
		if !visited[next] && next.hasPathTo(other, visited) {
			return true
		}
	}
	return false
}

// A Flight is the shared part of a running lookup whose result several callers wait for (single flight). It is also the
// Node of the lookup in the Graph. Each lookup type embeds a Flight and adds its own results. K is the type of the
// Group's keys.
//
// The field Cancel may hold a function that stops the lookup. It is called if all callers have left before the end,
// with the cause of the last caller's context. It must not use the Graph.
type Flight[K comparable] struct {
	flight.Flight[K]
	Node            // the mutex of the Graph guards this and the next field
	until time.Time // latest Wait.Until of all callers
}

// embeddedFlight returns f. Through it, a Group gets the Flight that a lookup embeds.
func (f *Flight[K]) embeddedFlight() *Flight[K] { return f }

// addWait records that the caller w waits for the lookup f, as an edge of the Graph. The caller must hold the mutex of
// the Graph.
func (f *Flight[K]) addWait(w Wait) {
	f.AddCaller()
	if w.Until.After(f.until) {
		f.until = w.Until
	}
	if w.By == nil {
		f.markNeeded()
		return
	}
	if w.By.waitsFor == nil {
		w.By.waitsFor = make(map[*Node]waitCount)
	}
	count := w.By.waitsFor[&f.Node]
	count.all++
	if w.Hedge {
		count.hedges++
	} else if w.By.isNeeded {
		f.markNeeded()
	}
	w.By.waitsFor[&f.Node] = count
}

// A lookupType is the constraint for the lookups of a Group: a pointer to a struct that embeds a Flight[K].
type lookupType[K comparable] interface {
	flight.Operation[K]
	embeddedFlight() *Flight[K]
}

// A Group holds the running lookups of one kind, by key: callers with equal keys share one lookup. Its Graph
// prevents lookups from waiting for each other in a circle. F is a pointer to a type that embeds a Flight[K]. A
// Group is safe for concurrent use.
type Group[K comparable, F lookupType[K]] struct {
	graph   *Graph
	running flight.Group[K, F]
}

// NewGroup returns a Group without lookups. The Graph g records the waits for its lookups.
func NewGroup[K comparable, F lookupType[K]](g *Graph) *Group[K, F] {
	return &Group[K, F]{graph: g, running: make(flight.Group[K, F])}
}

// Join makes the caller w wait for the running lookup with the key k, and returns the lookup. If no lookup is running,
// or if isOutdated returns true for it, Join calls start to get a new one, and started is true. Later callers join the
// new lookup. isOutdated may be nil. Neither function may use the Graph.
//
// The argument of start, needed, is false if only hedges need the new lookup.
//
// The error is ErrCycle if the running lookup itself waits for the caller (w.By), or the error of start. Without an
// error, the caller must call Await or Leave once.
func (g *Group[K, F]) Join(k K, w Wait, isOutdated func(F) bool, start func(needed bool) (F, error)) (f F, started bool, err error) {
	g.graph.mu.Lock()
	defer g.graph.mu.Unlock()
	f, found := g.running[k]
	switch {
	case !found || isOutdated != nil && isOutdated(f):
		if f, err = start(!w.Hedge && (w.By == nil || w.By.isNeeded)); err != nil {
			return f, false, err
		}
		g.running[k], started = f, true
	case w.By != nil && f.embeddedFlight().hasPathTo(w.By, make(map[*Node]bool)):
		return f, false, ErrCycle
	}
	f.embeddedFlight().addWait(w)
	return f, started, nil
}

// JoinAlone adds the caller w to the lookup f, which is not part of the Group: no other caller joins it. The Graph then
// knows the wait of w, so that it can detect cycles. w must call Leave, as after Join.
func (g *Group[K, F]) JoinAlone(f F, w Wait) {
	g.graph.mu.Lock()
	defer g.graph.mu.Unlock()
	f.embeddedFlight().addWait(w)
}

// Await waits until the lookup f has ended (Finish), and returns nil. If ctx ends first, it returns the cause of ctx.
// In either case the caller w no longer waits. If w was the last caller of a running lookup, Await cancels the lookup,
// and later callers do not join it.
func (g *Group[K, F]) Await(ctx context.Context, f F, w Wait) (err error) {
	select {
	case <-f.embeddedFlight().Done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	g.Leave(f, w, err)
	return err
}

// Leave records that the caller w no longer waits for f. A caller that runs the lookup itself calls it before Finish,
// with the cause nil, instead of Await. With another cause, the lookup is canceled if no other caller waits.
func (g *Group[K, F]) Leave(f F, w Wait, cause error) {
	g.graph.mu.Lock()
	defer g.graph.mu.Unlock()
	if w.By != nil { // remove the edge that addWait has added
		n := &f.embeddedFlight().Node
		count := w.By.waitsFor[n]
		count.all--
		count.hedges = min(count.hedges, count.all)
		if w.By.waitsFor[n] = count; count.all <= 0 {
			delete(w.By.waitsFor, n)
		}
	}
	g.running.RemoveCaller(f, cause)
}

// Finish ends the lookup f, so that later callers start a new one. It calls setResult, which must store the result in
// f, and then wakes the callers. shared is true if other callers wait for the result. Finish must be called once.
func (g *Group[K, F]) Finish(f F, setResult func(shared bool)) {
	g.graph.mu.Lock()
	shared := g.running.RemoveOperation(f)
	g.graph.mu.Unlock()
	setResult(shared)
	close(f.embeddedFlight().Done)
}

// LatestDeadline returns the time until which f should wait for late servers: the latest Wait.Until of all its callers.
// It can become later when another caller joins.
func (g *Group[K, F]) LatestDeadline(f F) time.Time {
	g.graph.mu.Lock()
	defer g.graph.mu.Unlock()
	return f.embeddedFlight().until
}
