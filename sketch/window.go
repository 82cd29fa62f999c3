// Package sketch keeps the recent latencies of one thing (a host, a route, a
// DNS upstream) in constant memory and answers how slow is slow.
//
// A [Window] is two DDSketches, a current and a previous one. It needs no
// goroutine and no clock of its own: it turns when a sample arrives, and time
// comes in as an argument. A key that falls idle therefore keeps what it knew.
//
// Every answer is within [Accuracy] of the true quantile (Masson, Rim, Lee:
// "DDSketch: A Fast and Fully-Mergeable Quantile Sketch with Relative-Error
// Guarantees", VLDB 2019).
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
	// Accuracy is the relative error of every quantile.
	Accuracy = 0.01

	// Span is how old the current half must be before it becomes the previous one.
	Span = 10 * time.Second

	// MinTurn is how many samples the current half must hold before it becomes
	// the previous one, however old it is.
	MinTurn = 200

	// Prior is the most that the previous half weighs, in samples: after a shift
	// of the distribution the past counts as 500 samples, not as 30,000.
	Prior = 500

	// maxBins bounds the memory of a half. At 1 % they span 17 decades, so that
	// nothing between 1 ns and a year is ever collapsed.
	maxBins = 2048

	longest = 10_000 * time.Hour // what Add cuts longer samples to
)

var index = func() mapping.IndexMapping {
	m, err := mapping.NewCubicallyInterpolatedMapping(Accuracy)
	if err != nil {
		panic(err) // Accuracy is in (0, 1)
	}
	return m
}()

// edges[i] is the last whole nanosecond of bucket lowest+i: no sample of the
// bucket is above it. The mapping would compute it anew each time.
var (
	lowest = index.Index(1)
	edges  = func() []time.Duration {
		all := make([]time.Duration, index.Index(float64(longest))-lowest+1)
		for i := range all {
			all[i] = time.Duration(math.Ceil(index.LowerBound(lowest+i+1))) - 1
		}
		return all
	}()
)

// Window holds the latencies of the last 10 to 20 seconds, or of the last 200
// samples where traffic is thin. The zero value is an empty window, ready for
// use. A Window must not be used from several goroutines at once.
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
// nanosecond count as one, samples above 10,000 hours as that. Amortised O(1); allocates only while the
// range of values grows.
func (w *Window) Add(t time.Time, d time.Duration) {
	switch {
	case w.nowSince.IsZero():
		w.nowSince = t
	case t.Sub(w.nowSince) >= Span && w.now.count() >= MinTurn:
		w.now, w.old = w.old, w.now
		if w.now.s != nil {
			w.now.s.Clear()
		}
		w.oldSince, w.nowSince = w.nowSince, t
	}
	// The mapping's smallest value is below 1 ns, so that no sample is taken for zero.
	w.now.add(float64(min(max(d, 1), longest)))
}

// Len returns the number of samples in the window, the previous half unweighted.
func (w *Window) Len() int { return int(w.now.count() + w.old.count()) }

// Rate returns the samples per second from the window's beginning until t.
// It is zero for an empty window and within the window's first millisecond.
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

// Quantile returns the estimate for q in [0, 1]; a q outside is taken for the
// nearer end. It reports false if the window holds no sample.
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

// Tail returns the window's non-empty buckets from the slowest to the fastest:
// the upper edge of a bucket, and the share of samples above that edge. It is
// what a delay must be chosen from: an edge is a point the counts speak about,
// while a bucket's middle has an unknown part of the bucket above it.
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

// bins is the sum of both halves, the previous one weighted.
type bins struct {
	weight []float64 // weight[i] belongs to bucket first+i
	first  int
	total  float64
}

var binsPool = sync.Pool{New: func() any { return new(bins) }}

func (b *bins) free() { binsPool.Put(b) }

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
		b.add(&w.old, min(1, Prior/n))
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
