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

// lowerBound returns the smallest value of bucket i. The mapping's own LowerBound is
// wrong where int has 32 bits (sketches-go 1.4.8 shifts an int by 52); its Index is right.
func lowerBound(i int) float64 {
	// Index takes for the logarithm to the base 2 the exponent and, between two powers
	// of 2, a polynomial of the significand. Newton's method inverts that.
	whole, rest := math.Modf(float64(i) / perOctave)
	if rest < 0 {
		whole, rest = whole-1, rest+1
	}
	s := rest
	for range 5 {
		s -= (((mapping.A*s+mapping.B)*s+mapping.C)*s - rest) / ((3*mapping.A*s+2*mapping.B)*s + mapping.C)
	}
	return math.Ldexp(1+s, int(whole))
}

// perOctave is the number of buckets between a value and twice that.
var perOctave = 7 / (10 * math.Log((1+accuracy)/(1-accuracy)))

var (
	lowest = index.Index(1)

	// edges[i] is the last whole nanosecond of bucket lowest+i: no sample of the
	// bucket is above it. values[i] is the bucket's estimate.
	edges, values = func() (edges, values []time.Duration) {
		edges = make([]time.Duration, index.Index(float64(maxSample))-lowest+1)
		values = make([]time.Duration, len(edges))
		for i := range edges {
			edge := time.Duration(math.Ceil(lowerBound(lowest+i+1))) - 1
			for index.Index(float64(edge+1)) <= lowest+i { // a bound near a whole nanosecond may be rounded
				edge++
			}
			for index.Index(float64(edge)) > lowest+i {
				edge--
			}
			edges[i] = edge
			values[i] = time.Duration(lowerBound(lowest+i) * (1 + accuracy))
		}
		return edges, values
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
type half struct {
	s    *ddsketch.DDSketch
	bins *store.CollapsingLowestDenseStore // of s
}

func (h *half) make() {
	if h.s == nil {
		h.bins = store.NewCollapsingLowestDenseStore(maxBins)
		h.s = ddsketch.NewDDSketch(index, h.bins, store.NewDenseStore())
	}
}

// addBin adds n samples to bucket i.
func (h *half) addBin(i int, n float64) {
	h.make()
	h.bins.AddWithCount(i, n)
}

func (h *half) count() float64 {
	if h.s == nil {
		return 0
	}
	return h.bins.TotalCount()
}

// Add records that something took d, as seen at time t. Samples below one
// nanosecond count as one nanosecond, samples above 10,000 hours as 10,000 hours. Add
// takes constant time on average, and allocates only while the range of samples grows.
func (w *Window) Add(t time.Time, d time.Duration) { w.AddIndex(t, Index(d)) }

// Index returns the number of the bucket that counts samples of d, for
// [Window.AddIndex]. It can be called while another goroutine uses a Window.
func Index(d time.Duration) int {
	// The mapping's smallest value is below 1 ns, so that no sample is taken for zero.
	return index.Index(float64(min(max(d, 1), maxSample)))
}

// AddIndex is Add for a sample whose Index is known. It takes less time, for callers
// that hold a lock. The index must be one that Index returned.
func (w *Window) AddIndex(t time.Time, i int) {
	switch {
	case w.nowSince.IsZero():
		w.nowSince = t
		w.now.make()
	case t.Sub(w.nowSince) >= minHalfAge && w.now.count() >= minHalfSize:
		w.now, w.old = w.old, w.now
		if w.now.s != nil {
			w.now.s.Clear()
		}
		w.now.make()
		w.oldSince, w.nowSince = w.nowSince, t
	}
	w.now.bins.Add(i)
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
	d := distributions.Get().(*Distribution)
	defer distributions.Put(d)
	w.Distribution(d)
	return d.Quantile(q)
}

// Tail returns the window's non-empty buckets from the slowest to the fastest: the
// upper edge of each bucket, and the share of samples above that edge, in [0, 1).
// Choose a delay from these edges: the share of samples above an edge is known, but the
// share above a point inside of a bucket is not.
func (w *Window) Tail() iter.Seq2[time.Duration, float64] {
	return func(yield func(time.Duration, float64) bool) {
		d := distributions.Get().(*Distribution)
		defer distributions.Put(d)
		w.Distribution(d)
		d.Tail()(yield)
	}
}

var distributions = sync.Pool{New: func() any { return new(Distribution) }}

// A Distribution is what a [Window] knew at one moment: both halves in one, of which
// the previous one counts as 500 samples at most. The zero value is empty.
type Distribution struct {
	weight []float64 // weight[i] belongs to bucket first+i
	first  int
	total  float64
	n      int
}

// Distribution makes d a copy of what the window knows, and uses d's memory again. It
// takes about a microsecond, for callers that hold a lock and have more to ask than that takes.
func (w *Window) Distribution(d *Distribution) {
	d.weight, d.total, d.n = d.weight[:0], 0, w.Len()
	lo, hi := math.MaxInt, math.MinInt
	for _, h := range [...]*half{&w.now, &w.old} {
		if h.count() > 0 {
			l, _ := h.bins.MinIndex() // not empty
			u, _ := h.bins.MaxIndex()
			lo, hi = min(lo, l), max(hi, u)
		}
	}
	if lo > hi {
		return
	}
	d.first = lo
	if n := hi - lo + 1; n <= cap(d.weight) {
		d.weight = d.weight[:n]
		clear(d.weight)
	} else {
		d.weight = make([]float64, n)
	}
	d.add(&w.now, 1)
	if n := w.old.count(); n > 0 {
		d.add(&w.old, min(1, maxPastWeight/n))
	}
}

func (d *Distribution) add(h *half, weight float64) {
	if h.s == nil {
		return
	}
	h.bins.ForEach(func(i int, n float64) bool {
		d.weight[i-d.first] += n * weight
		return false
	})
	d.total += h.count() * weight
}

// Len is [Window.Len].
func (d *Distribution) Len() int { return d.n }

// Weight returns as how many samples those of both halves count.
func (d *Distribution) Weight() float64 { return d.total }

// Quantile is [Window.Quantile].
func (d *Distribution) Quantile(q float64) (time.Duration, bool) {
	if d.total == 0 {
		return 0, false
	}
	rank := min(max(q, 0), 1) * max(d.total-1, 0)
	var below float64
	for i, n := range d.weight {
		if below += n; below > rank {
			return values[d.first+i-lowest], true
		}
	}
	return values[d.first+len(d.weight)-1-lowest], true
}

// Tail is [Window.Tail].
func (d *Distribution) Tail() iter.Seq2[time.Duration, float64] {
	return func(yield func(time.Duration, float64) bool) {
		var above float64
		for i := len(d.weight) - 1; i >= 0; i-- {
			if d.weight[i] == 0 {
				continue
			}
			if !yield(edges[d.first+i-lowest], above/d.total) {
				return
			}
			above += d.weight[i]
		}
	}
}
