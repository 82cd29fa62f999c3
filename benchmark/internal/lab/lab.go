// Package lab has the parts that all labs of this benchmark share. A lab is a package that compares contenders in
// scenarios: dnslab, faultlab, cachelab, reclab, endpointlab and storelab.
//
// A lab lists its [Contender] values and its scenarios, which embed [Scenario]. A [Config] selects some of them. The lab
// starts each contender, makes calls by a [Load], collects the calls with a [Recorder], and reports a [Row] for each
// contender. A lab with further figures embeds Row in its own type.
package lab

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/latency"
)

// A Contender is a client, a server or a library that a lab compares with others. Start makes it ready in the
// environment E and returns it as type C.
type Contender[E, C any] struct {
	Name  string
	Start func(environment E) (C, error)
}

func (c Contender[E, C]) selectionName() string { return c.Name }

// A Scenario names and describes a condition under which a lab compares clients or servers. Labs embed it in their types.
type Scenario struct {
	Name        string
	Description string // one phrase, for lists of scenarios
}

func (s Scenario) selectionName() string { return s.Name }

func (s Scenario) commonScenario() Scenario { return s }

// ScenariosOf returns the names and descriptions of a lab's scenarios, whose type embeds Scenario, for lists of scenarios.
func ScenariosOf[T interface{ commonScenario() Scenario }](all []T) []Scenario {
	scenarios := make([]Scenario, len(all))
	for i, one := range all {
		scenarios[i] = one.commonScenario()
	}
	return scenarios
}

// Selectable is implemented by the things that a user selects by name: contenders and scenarios.
type Selectable interface{ selectionName() string }

func NamesOf[T Selectable](all []T) []string {
	names := make([]string, len(all))
	for i, one := range all {
		names[i] = one.selectionName()
	}
	return names
}

// FindByName returns the element of all with the given name. Errors name the kind of element: scenario or contender.
func FindByName[T Selectable](kind string, all []T, name string) (found T, err error) {
	i := slices.IndexFunc(all, func(one T) bool { return one.selectionName() == name })
	if i < 0 {
		return found, fmt.Errorf("%s %q; want one of %s", kind, name, strings.Join(NamesOf(all), ", "))
	}
	return all[i], nil
}

// SelectByName returns the elements of all with the given names, or all if names is empty. Errors name the kind of element.
func SelectByName[T Selectable](kind string, all []T, names []string) ([]T, error) {
	if len(names) == 0 {
		return all, nil
	}
	selected := make([]T, len(names))
	for i, name := range names {
		var err error
		if selected[i], err = FindByName(kind, all, name); err != nil {
			return nil, err
		}
	}
	return selected, nil
}

// A Row is the result of one contender, a compared client or server, in one run of a scenario. Figures that a lab does
// not measure are 0.
type Row struct {
	Contender string

	// Calls without those that the end of the run cut off. A failed call has the winner -1, unless it is one of Failures.
	Calls []latency.Call

	Asked    int           // calls sent, including those that Calls leaves out
	Failures int           // failed calls that Calls holds as answered, with the time that their callers waited
	Sent     int64         // queries or requests on the network
	Hedges   int64         // of contenders that report them
	Wins     int64         // calls answered by a hedge
	Denied   int64         // hedges that were due and not allowed
	CPU      time.Duration // of the contender, for all calls; 0: unknown
}

// CommonRow returns r. Code for the rows of all labs calls it by an interface, because labs embed Row in their own types.
func (r Row) CommonRow() Row { return r }

func (r Row) SentPerCall() float64 { return float64(r.Sent) / float64(max(r.Asked, 1)) }

// A Recorder collects the calls of one compared client or server. It is safe for concurrent use.
type Recorder struct {
	mu    sync.Mutex // guards calls
	calls []latency.Call
}

func (r *Recorder) Add(c latency.Call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, c)
}

// Measure calls the function call and records its start, latency and success under index, unless the run's context ctx
// has ended. start is the start of the run.
func (r *Recorder) Measure(ctx context.Context, start time.Time, index int, call func() error) {
	begin := time.Now()
	err := call()
	c := latency.Call{Start: begin.Sub(start), Latency: time.Since(begin), Index: int32(index)}
	if err != nil {
		c.Winner = -1
	}
	if ctx.Err() == nil {
		r.Add(c)
	}
}

// SortedCalls sorts the recorded calls by Index and returns them. No call may be added afterwards.
func (r *Recorder) SortedCalls() []latency.Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.SortFunc(r.calls, func(a, b latency.Call) int { return int(a.Index) - int(b.Index) })
	return r.calls
}
