// Package sketch keeps the recent latencies of one thing (a host, a route, a
// DNS upstream) in constant memory and estimates their quantiles.
//
// A [Window] has two halves, the current one and the previous one; each is a
// DDSketch. When the current half is 10 seconds old and holds 200 samples, the next
// sample makes it the previous half, and the half before that is dropped. The window
// needs no goroutine and no clock: time comes in as an argument. A window that gets no
// samples therefore keeps those it has.
//
// Every quantile is within 1 % of the true one (Masson, Rim, Lee: "DDSketch: A Fast
// and Fully-Mergeable Quantile Sketch with Relative-Error Guarantees", VLDB 2019).
package sketch

import (
	"iter"
	"math"
	"sync"
	"time"

	"github.com/DataDog/sketches-go/ddsketch"
	"github.com/DataDog/sketches-go/ddsketch/mapping"
	"github.com/DataDog/sketches-go/ddsketch/store"
)

const (
	// accuracy is the relative error of every quantile at most.
	accuracy = 0.01

	// The current half becomes the previous one when it has at least this age and
	// at least this number of samples.
	minHalfAge  = 10 * time.Second
	minHalfSize = 200

	// maxPastWeight is the weight of the previous half at most, in samples: after a
	// shift of the distribution the past counts as 500 samples, not as 30,000.
	maxPastWeight = 500

	// maxBins is the number of buckets of a half at most. At 1 % they cover 17 decades,
	// so that nothing between 1 ns and a year is ever collapsed.
	maxBins = 2048

	maxSample = 10_000 * time.Hour // Add takes a longer sample for this one
)

var index = func() mapping.IndexMapping {
	m, err := mapping.NewCubicallyInterpolatedMapping(accuracy)
	if err != nil {
		panic(err) // accuracy is in (0, 1)
	}
	return m
}()

// edges[i] is the last whole nanosecond of bucket lowest+i: no sample of the
// bucket is above it. The mapping would compute it each time.
var (
	lowest = index.Index(1)
	edges  = func() []time.Duration {
		all := make([]time.Duration, index.Index(float64(maxSample))-lowest+1)
		for i := range all {
			all[i] = time.Duration(math.Ceil(index.LowerBound(lowest+i+1))) - 1
		}
		return all
	}()
)

// A Window holds the latencies of the last 10 to 20 seconds; where there are few, the
// last 200 to 400 of them, however old. The zero value is an empty window, ready for
// use. A Window must not be used by several goroutines at once.
type Window struct {
	now, old           half
	nowSince, oldSince time.Time // when each half began; zero if empty
}

// half is a sketch that allocates on its first sample.
type half struct{ s *ddsketch.DDSketch }

func (h *half) make() {
	if h.s == nil {
		h.s = ddsketch.NewDDSketch(index, store.NewCollapsingLowestDenseStore(maxBins), store.NewDenseStore())
	}
}

// addBin adds n samples to bucket i.
func (h *half) addBin(i int, n float64) {
	h.make()
	h.s.GetPositiveValueStore().AddWithCount(i, n)
}

func (h *half) add(v float64) {
	h.make()
	// Add refuses only NaN and values outside the mapping's range; neither can come from a Duration.
	_ = h.s.Add(v)
}

func (h *half) count() float64 {
	if h.s == nil {
		return 0
	}
	return h.s.GetPositiveValueStore().TotalCount()
}

// Add records that something took d, as seen at time t. Samples below one
// nanosecond count as one nanosecond, samples above 10,000 hours as 10,000 hours. Add
// takes constant time on average, and allocates only while the range of samples grows.
func (w *Window) Add(t time.Time, d time.Duration) {
	switch {
	case w.nowSince.IsZero():
		w.nowSince = t
	case t.Sub(w.nowSince) >= minHalfAge && w.now.count() >= minHalfSize:
		w.now, w.old = w.old, w.now
		if w.now.s != nil {
			w.now.s.Clear()
		}
		w.oldSince, w.nowSince = w.nowSince, t
	}
	// The mapping's smallest value is below 1 ns, so that no sample is taken for zero.
	w.now.add(float64(min(max(d, 1), maxSample)))
}

// Len returns the number of samples in the window. Those of the previous half count in full.
func (w *Window) Len() int { return int(w.now.count() + w.old.count()) }

// Rate returns the samples per second from the beginning of the window until t.
// It is zero for an empty window and within the first millisecond of the window.
func (w *Window) Rate(t time.Time) float64 {
	since := w.oldSince
	if since.IsZero() {
		since = w.nowSince
	}
	age := t.Sub(since)
	if since.IsZero() || age < time.Millisecond {
		return 0
	}
	return float64(w.Len()) / age.Seconds()
}

// Quantile returns the estimate for q in [0, 1]; if q is outside, for the nearer
// end. It reports false if the window holds no sample. The previous half counts as 500
// samples at most.
func (w *Window) Quantile(q float64) (time.Duration, bool) {
	b := w.bins()
	defer b.free()
	if b.total == 0 {
		return 0, false
	}
	rank := min(max(q, 0), 1) * max(b.total-1, 0)
	var below float64
	for i, n := range b.weight {
		if below += n; below > rank {
			return time.Duration(index.Value(b.first + i)), true
		}
	}
	return time.Duration(index.Value(b.first + len(b.weight) - 1)), true
}

// Tail returns the window's non-empty buckets from the slowest to the fastest: the
// upper edge of each bucket, and the share of samples above that edge, in [0, 1).
// Choose a delay from these edges: the share of samples above an edge is known, but the
// share above a point inside of a bucket is not.
func (w *Window) Tail() iter.Seq2[time.Duration, float64] {
	return func(yield func(time.Duration, float64) bool) {
		b := w.bins()
		defer b.free()
		var above float64
		for i := len(b.weight) - 1; i >= 0; i-- {
			if b.weight[i] == 0 {
				continue
			}
			if !yield(edges[b.first+i-lowest], above/b.total) {
				return
			}
			above += b.weight[i]
		}
	}
}

// bins is the sum of both halves, with the weight of the previous one limited.
type bins struct {
	weight []float64 // weight[i] belongs to bucket first+i
	first  int
	total  float64
}

var binsPool = sync.Pool{New: func() any { return new(bins) }}

func (b *bins) free() { binsPool.Put(b) }

// bins returns the sum of both halves. The caller must free it.
func (w *Window) bins() *bins {
	b := binsPool.Get().(*bins)
	b.weight, b.total = b.weight[:0], 0
	lo, hi := math.MaxInt, math.MinInt
	for _, h := range [...]*half{&w.now, &w.old} {
		if h.count() > 0 {
			s := h.s.GetPositiveValueStore()
			l, _ := s.MinIndex() // not empty
			u, _ := s.MaxIndex()
			lo, hi = min(lo, l), max(hi, u)
		}
	}
	if lo > hi {
		return b
	}
	b.first = lo
	if n := hi - lo + 1; n <= cap(b.weight) {
		b.weight = b.weight[:n]
		clear(b.weight)
	} else {
		b.weight = make([]float64, n)
	}
	b.add(&w.now, 1)
	if n := w.old.count(); n > 0 {
		b.add(&w.old, min(1, maxPastWeight/n))
	}
	return b
}

func (b *bins) add(h *half, weight float64) {
	if h.s == nil {
		return
	}
	h.s.GetPositiveValueStore().ForEach(func(i int, n float64) bool {
		b.weight[i-b.first] += n * weight
		b.total += n * weight
		return false
	})
}
