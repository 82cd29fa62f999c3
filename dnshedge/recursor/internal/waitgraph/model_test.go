package waitgraph_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/recursor/internal/waitgraph"
)

// client is the caller of a modelWait that is a client's question.
const client = -1

// A lookup is a lookup with a number in place of results.
type lookup struct {
	waitgraph.Flight[int]
	number     int
	canceledBy error
}

// A modelWait is one wait of a model: by is the number of the lookup that waits, or client, and on is the number of the
// awaited lookup.
type modelWait struct {
	by, on int
	hedge  bool
}

// A model is a list of waits, with definitions in place of algorithms.
type model struct {
	waits   []modelWait
	needed  map[int]bool // numbers of the lookups that a client's question has needed
	running map[int]int  // number of the lookup that a new caller joins, by key
}

// waitsFor reports whether there is a path of at least one wait from one lookup to another.
func (m *model) waitsFor(from, to int) bool {
	reached := map[int]bool{from: true}
	for changed := true; changed; {
		changed = false
		for _, w := range m.waits {
			if !reached[w.by] {
				continue
			}
			if w.on == to {
				return true
			}
			changed = changed || !reached[w.on]
			reached[w.on] = true
		}
	}
	return false
}

// updateNeeded adds each lookup to needed for which a client waits, or for which a needed lookup waits and not as a hedge.
func (m *model) updateNeeded() {
	for changed := true; changed; {
		changed = false
		for _, w := range m.waits {
			if (w.by == client || m.needed[w.by] && !w.hedge) && !m.needed[w.on] {
				m.needed[w.on], changed = true, true
			}
		}
	}
}

// isAwaited reports whether a lookup has callers.
func (m *model) isAwaited(number int) bool {
	return slices.ContainsFunc(m.waits, func(w modelWait) bool { return w.on == number })
}

// modelTest applies equal operations to a Group and to a model.
type modelTest struct {
	*testing.T
	model
	random *rand.Rand
	graph  waitgraph.Graph
	group  *waitgraph.Group[int, *lookup]
	all    []*lookup    // by number
	open   map[int]bool // numbers of the lookups that have not finished
	cycles int          // number of refused waits
}

// wait returns the Wait of the Group that w models.
func (m *modelTest) wait(w modelWait) waitgraph.Wait {
	if w.by == client {
		return waitgraph.Wait{}
	}
	return waitgraph.Wait{By: &m.all[w.by].Node, Hedge: w.hedge}
}

// pickOpen returns the number of a random unfinished lookup, or client if there is none.
func (m *modelTest) pickOpen() int {
	numbers := make([]int, 0, len(m.open))
	for number := range m.open {
		numbers = append(numbers, number)
	}
	if len(numbers) == 0 {
		return client
	}
	slices.Sort(numbers)
	return numbers[m.random.IntN(len(numbers))]
}

// join has a random caller join the lookup of a key.
func (m *modelTest) join(key int) {
	w := modelWait{by: client, hedge: m.random.IntN(3) == 0}
	if m.random.IntN(4) > 0 {
		w.by = m.pickOpen()
	}
	w.hedge = w.hedge && w.by != client
	on, isRunning := m.running[key]
	if w.on = on; isRunning && slices.ContainsFunc(m.waits, func(o modelWait) bool { return o.by == w.by && o.on == on && w.by != client }) {
		return // a lookup awaits another once
	}
	f, started, err := m.group.Join(key, m.wait(w), nil, func(needed bool) (*lookup, error) {
		f := &lookup{number: len(m.all)}
		f.Key, f.Cancel = key, func(cause error) { f.canceledBy = cause }
		assert.Equal(m, !w.hedge && (w.by == client || m.needed[w.by]), needed)
		m.all = append(m.all, f)
		return f, nil
	})
	if isRunning && w.by != client && (w.by == on || m.waitsFor(on, w.by)) {
		require.ErrorIs(m, err, waitgraph.ErrCycle)
		m.cycles++
		return
	}
	require.NoError(m, err)
	require.Equal(m, !isRunning, started)
	if started {
		on = len(m.all) - 1
		m.running[key], m.open[on] = on, true
	}
	require.Equal(m, on, f.number)
	require.Equal(m, key, f.Key)
	w.on = on
	m.waits = append(m.waits, w)
}

// leave ends the wait with index i, by the end of its caller's context.
func (m *modelTest) leave(i int) {
	w := m.waits[i]
	m.waits = slices.Delete(m.waits, i, i+1)
	f, cause := m.all[w.on], fmt.Errorf("caller %d has left", w.by)
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	before := f.canceledBy
	require.Equal(m, cause, m.group.Await(ctx, f, m.wait(w)))
	if m.isAwaited(w.on) {
		require.Equal(m, before, f.canceledBy)
		return
	}
	require.Equal(m, cause, f.canceledBy, "the last caller has left")
	if m.running[f.Key] == w.on {
		delete(m.running, f.Key)
	}
}

// finish ends the waits of a lookup, and then the lookup and the waits for it.
func (m *modelTest) finish(number int) {
	for {
		i := slices.IndexFunc(m.waits, func(w modelWait) bool { return w.by == number })
		if i < 0 {
			break
		}
		m.leave(i)
	}
	f := m.all[number]
	m.group.Finish(f, func(shared bool) { assert.Equal(m, m.isAwaited(number), shared) })
	if on, ok := m.running[f.Key]; ok && on == number {
		delete(m.running, f.Key)
	}
	delete(m.open, number)
	m.waits = slices.DeleteFunc(m.waits, func(w modelWait) bool {
		if w.on == number {
			assert.NoError(m, m.group.Await(m.Context(), f, m.wait(w)))
		}
		return w.on == number
	})
}

// promote makes the hedges of a lookup ordinary waits.
func (m *modelTest) promote(number int) {
	m.graph.PromoteHedges(&m.all[number].Node)
	for i := range m.waits {
		m.waits[i].hedge = m.waits[i].hedge && m.waits[i].by != number
	}
}

// TestGroupBehavesLikeModel applies random operations to a Group and to a list of waits. After each operation, both must
// agree, and no lookup may wait for itself.
func TestGroupBehavesLikeModel(t *testing.T) {
	cycles := 0
	for seed := range uint64(300) {
		m := &modelTest{T: t, model: model{needed: make(map[int]bool), running: make(map[int]int)}, random: rand.New(rand.NewPCG(seed, 1)), open: make(map[int]bool)}
		m.group = waitgraph.NewGroup[int, *lookup](&m.graph)
		keys := 2 + m.random.IntN(8)
		for range 100 {
			number, n := m.pickOpen(), m.random.IntN(20)
			switch {
			case n < 14 || number == client:
				m.join(m.random.IntN(keys))
			case n < 16 && len(m.waits) > 0:
				m.leave(m.random.IntN(len(m.waits)))
			case n < 18:
				m.promote(number)
			default:
				m.finish(number)
			}
			m.updateNeeded()
			for number := range m.open {
				require.Equal(t, m.needed[number], m.graph.IsNeeded(&m.all[number].Node), "seed %d, lookup %d", seed, number)
				require.False(t, m.waitsFor(number, number), "seed %d, lookup %d waits for itself", seed, number)
			}
		}
		for len(m.open) > 0 {
			m.finish(m.pickOpen())
		}
		require.Empty(t, m.waits)
		cycles += m.cycles
	}
	assert.Greater(t, cycles, 100)
}

// dependencies has, for each key, the keys whose results the lookup of the key needs.
type dependencies [][]int

// leadsTo reports whether the lookup of from needs the result of to, directly or through others.
func (d dependencies) leadsTo(from, to int, visited map[int]bool) bool {
	if from == to {
		return true
	}
	visited[from] = true
	return slices.ContainsFunc(d[from], func(next int) bool { return !visited[next] && d.leadsTo(next, to, visited) })
}

// resolver runs lookups on goroutines, as a Resolver does.
type resolver struct {
	graph   waitgraph.Graph
	group   *waitgraph.Group[int, *lookup]
	needs   dependencies
	running sync.WaitGroup

	mu      sync.Mutex
	random  *rand.Rand
	active  map[int]int // by key: number of running lookups that were not canceled
	most    int         // largest value in active
	refused [][2]int    // waits that would have closed a cycle: the keys of the caller and of the lookup
}

// pause waits for a random time of at most a second.
func (r *resolver) pause() {
	r.mu.Lock()
	d := time.Duration(r.random.IntN(1000)) * time.Millisecond
	r.mu.Unlock()
	time.Sleep(d)
}

// count adds n to the number of active lookups of a key.
func (r *resolver) count(key, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.active[key] += n
	r.most = max(r.most, r.active[key])
}

// resolve awaits the lookup of a key for the caller by, or does without it if it would wait for itself.
func (r *resolver) resolve(ctx context.Context, by *lookup, key int) error {
	var w waitgraph.Wait
	if by != nil {
		w.By = &by.Node
	}
	f, _, err := r.group.Join(key, w, nil, func(bool) (*lookup, error) { return r.start(key), nil })
	if errors.Is(err, waitgraph.ErrCycle) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.refused = append(r.refused, [2]int{by.Key, key})
		return nil
	}
	return r.group.Await(ctx, f, w)
}

// start starts the lookup of a key. It has no time limit: a cycle of waits would never end.
func (r *resolver) start(key int) *lookup {
	ctx, cancel := context.WithCancelCause(context.Background())
	f := new(lookup)
	uncount := sync.OnceFunc(func() { r.count(key, -1) })
	f.Key, f.Cancel = key, func(cause error) {
		uncount()
		cancel(cause)
	}
	r.count(key, 1)
	r.running.Go(func() {
		defer cancel(nil)
		r.pause()
		var parallel sync.WaitGroup
		for _, next := range r.needs[key] {
			parallel.Go(func() {
				if r.pause(); ctx.Err() == nil {
					_ = r.resolve(ctx, f, next)
				}
			})
		}
		parallel.Wait()
		uncount()
		r.group.Finish(f, func(bool) {})
	})
	return f
}

// TestEachLookupEndsInRandomGraph runs lookups that need each other at random. Each must end although none has a time limit.
// A wait may be refused only if the needs of the lookups form a cycle.
func TestEachLookupEndsInRandomGraph(t *testing.T) {
	refused, canceled := 0, 0
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 2))
			r := &resolver{needs: make(dependencies, 1+random.IntN(12)), random: random, active: make(map[int]int)}
			r.group = waitgraph.NewGroup[int, *lookup](&r.graph)
			for key := range r.needs {
				r.needs[key] = random.Perm(len(r.needs))[:random.IntN(min(4, len(r.needs)+1))]
			}
			keys := make([]int, 1+random.IntN(10))
			limits := make([]time.Duration, len(keys)) // 0: none
			for i := range keys {
				keys[i] = random.IntN(len(r.needs))
				if random.IntN(3) == 0 {
					limits[i] = time.Duration(1+random.IntN(2000)) * time.Millisecond
				}
			}
			var clients sync.WaitGroup
			errs := make([]error, len(keys))
			for i, key := range keys {
				clients.Go(func() {
					r.pause()
					ctx := t.Context()
					if limits[i] > 0 {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, limits[i])
						defer cancel()
					}
					errs[i] = r.resolve(ctx, nil, key)
				})
			}
			clients.Wait()
			for i, err := range errs {
				if limits[i] == 0 {
					assert.NoError(t, err, "seed %d", seed)
				} else if err != nil {
					assert.ErrorIs(t, err, context.DeadlineExceeded, "seed %d", seed)
					canceled++
				}
			}
			r.running.Wait()
			assert.LessOrEqual(t, r.most, 1, "seed %d: equal lookups at the same time", seed)
			for _, w := range r.refused {
				assert.True(t, r.needs.leadsTo(w[1], w[0], make(map[int]bool)), "seed %d: the wait of %d for %d was refused without a cycle", seed, w[0], w[1])
			}
			refused += len(r.refused)
		})
	}
	assert.Greater(t, refused, 100)
	assert.Greater(t, canceled, 20)
}
