// Package sketch keeps recent latencies, for example of a host, a route or a DNS
// upstream, in constant memory and estimates their quantiles.
//
// A [Window] has two halves, the current one and the previous one; each is a
// DDSketch. When the current half is 10 seconds old and holds 200 samples, the next
// sample makes it the previous half, and the half before that is dropped. The window
// needs no goroutine and no clock: the time is an argument. Therefore a window keeps
// its samples until new ones come.
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
	// accuracy is the largest relative error of a quantile.
	accuracy = 0.01

	// The current half becomes the previous one when it has at least this age and
	// at least this number of samples.
	minHalfAge  = 10 * time.Second
	minHalfSize = 200

	// maxPastWeight is the largest weight of the previous half, in samples. After a
	// shift of the distribution the past counts as 500 samples, not as 30,000.
	maxPastWeight = 500

	// maxBins is the largest number of buckets of a half. At 1 % they cover 17 decades,
	// so that no buckets between 1 ns and a year are ever collapsed.
	maxBins = 2048

	maxSample = 10_000 * time.Hour // longer samples count as this
)

var indexMapping = func() mapping.IndexMapping {
	m, err := mapping.NewCubicallyInterpolatedMapping(accuracy)
	if err != nil {
		panic(err) // accuracy is in (0, 1)
	}
	return m
}()

// lowerBound returns the smallest value of bucket i. It replaces LowerBound of the mapping, which is wrong where int has 32 bits: sketches-go 1.4.8
// shifts an int by 52. Index of the mapping is right.
func lowerBound(i int) float64 {
	// Index approximates the logarithm to the base 2 by the exponent and a polynomial
	// of the significand. Newton's method inverts the polynomial.
	whole, rest := math.Modf(float64(i) / bucketsPerOctave)
	if rest < 0 {
		whole, rest = whole-1, rest+1
	}
	s := rest
	for range 5 {
		s -= (((mapping.A*s+mapping.B)*s+mapping.C)*s - rest) / ((3*mapping.A*s+2*mapping.B)*s + mapping.C)
	}
	return math.Ldexp(1+s, int(whole))
}

// bucketsPerOctave is the number of buckets between a value and twice that value.
var bucketsPerOctave = 7 / (10 * math.Log((1+accuracy)/(1-accuracy)))

var (
	lowestIndex = indexMapping.Index(1)

	// upperBounds[i] is the last whole nanosecond of bucket lowest+i: no sample of the
	// bucket is above it. values[i] is the bucket's estimate.
	upperBounds, estimates = func() (upperBounds, estimates []time.Duration) {
		upperBounds = make([]time.Duration, indexMapping.Index(float64(maxSample))-lowestIndex+1)
		estimates = make([]time.Duration, len(upperBounds))
		for i := range upperBounds {
			edge := time.Duration(math.Ceil(lowerBound(lowestIndex+i+1))) - 1
			for indexMapping.Index(float64(edge+1)) <= lowestIndex+i { // a bound near a whole nanosecond may be rounded
				edge++
			}
			for indexMapping.Index(float64(edge)) > lowestIndex+i {
				edge--
			}
			upperBounds[i] = edge
			estimates[i] = time.Duration(lowerBound(lowestIndex+i) * (1 + accuracy))
		}
		return upperBounds, estimates
	}()
)

// A Window holds the latencies of the last 10 to 20 seconds. If these are few, it holds the last 200 to 400 latencies of any age. The zero value is
// an empty window, ready for use. A Window is not safe for concurrent use.
type Window struct {
	current, previous           half
	currentStart, previousStart time.Time // time of the first sample of a half; zero if the half is empty
}

// A half is a sketch that allocates on its first sample.
type half struct {
	sketch *ddsketch.DDSketch
	bins   *store.CollapsingLowestDenseStore // of sketch
}

func (h *half) init() {
	if h.sketch == nil {
		h.bins = store.NewCollapsingLowestDenseStore(maxBins)
		h.sketch = ddsketch.NewDDSketch(indexMapping, h.bins, store.NewDenseStore())
	}
}

// addToBucket adds n samples to bucket i.
func (h *half) addToBucket(i int, n float64) {
	h.init()
	h.bins.AddWithCount(i, n)
}

func (h *half) samples() float64 {
	if h.sketch == nil {
		return 0
	}
	return h.bins.TotalCount()
}

// Add adds the latency d, measured at time t. Latencies below one nanosecond count as one nanosecond, latencies above 10,000 hours as 10,000 hours.
// Add takes constant time on average, and allocates only while the range of latencies grows.
func (w *Window) Add(t time.Time, d time.Duration) { w.AddIndex(t, Index(d)) }

// Index returns the number of the bucket that counts the latency d, for [Window.AddIndex]. It is safe for concurrent use.
func Index(d time.Duration) int {
	// The smallest value of the mapping is below 1 ns: no sample counts as zero.
	return indexMapping.Index(float64(min(max(d, 1), maxSample)))
}

// AddIndex is Add for a latency whose Index is known. It is faster, for callers that hold a lock. The index must be a result of Index.
func (w *Window) AddIndex(t time.Time, i int) {
	switch {
	case w.currentStart.IsZero():
		w.currentStart = t
		w.current.init()
	case t.Sub(w.currentStart) >= minHalfAge && w.current.samples() >= minHalfSize:
		w.current, w.previous = w.previous, w.current
		if w.current.sketch != nil {
			w.current.sketch.Clear()
		}
		w.current.init()
		w.previousStart, w.currentStart = w.currentStart, t
	}
	w.current.bins.Add(i)
}

// Len returns the number of samples in the window. Samples of the previous half count in full.
func (w *Window) Len() int { return int(w.current.samples() + w.previous.samples()) }

// Rate returns the samples per second from the start of the window to t. It is zero for an empty window and within the first millisecond.
func (w *Window) Rate(t time.Time) float64 {
	since := w.previousStart
	if since.IsZero() {
		since = w.currentStart
	}
	age := t.Sub(since)
	if since.IsZero() || age < time.Millisecond {
		return 0
	}
	return float64(w.Len()) / age.Seconds()
}

// Quantile returns the estimate of the quantile q, which is clamped to [0, 1]. It reports false if the window has no samples. The previous half
// counts as at most 500 samples.
func (w *Window) Quantile(q float64) (time.Duration, bool) {
	d := distributions.Get().(*Distribution)
	defer distributions.Put(d)
	w.Distribution(d)
	return d.Quantile(q)
}

// Tail returns the non-empty buckets of the window from the slowest to the fastest. The pairs are the upper edge of a bucket, and the share of
// samples above that edge, in [0, 1). Choose a delay among these edges: the share of samples above an edge is known, but the share above a point
// within a bucket is not.
func (w *Window) Tail() iter.Seq2[time.Duration, float64] {
	return func(yield func(time.Duration, float64) bool) {
		d := distributions.Get().(*Distribution)
		defer distributions.Put(d)
		w.Distribution(d)
		d.Tail()(yield)
	}
}

var distributions = sync.Pool{New: func() any { return new(Distribution) }}

// A Distribution is a copy of the distribution of a [Window]. It combines both halves; the previous half counts as at most 500 samples. The zero
// value is empty.
type Distribution struct {
	weights     []float64 // weights[i] is the weight of bucket firstIndex+i
	firstIndex  int
	totalWeight float64
	samples     int
}

// Distribution copies the distribution of the window to d, and reuses the memory of d. It takes about a microsecond. Callers that hold a lock can
// copy, and evaluate the copy without the lock.
func (w *Window) Distribution(d *Distribution) {
	d.weights, d.totalWeight, d.samples = d.weights[:0], 0, w.Len()
	lo, hi := math.MaxInt, math.MinInt
	for _, h := range [...]*half{&w.current, &w.previous} {
		if h.samples() > 0 {
			l, _ := h.bins.MinIndex() // not empty
			u, _ := h.bins.MaxIndex()
			lo, hi = min(lo, l), max(hi, u)
		}
	}
	if lo > hi {
		return
	}
	d.firstIndex = lo
	if n := hi - lo + 1; n <= cap(d.weights) {
		d.weights = d.weights[:n]
		clear(d.weights)
	} else {
		d.weights = make([]float64, n)
	}
	d.addHalf(&w.current, 1)
	if n := w.previous.samples(); n > 0 {
		d.addHalf(&w.previous, min(1, maxPastWeight/n))
	}
}

// addHalf adds the samples of h, multiplied by weight.
func (d *Distribution) addHalf(h *half, weight float64) {
	if h.sketch == nil {
		return
	}
	h.bins.ForEach(func(i int, n float64) bool {
		d.weights[i-d.firstIndex] += n * weight
		return false
	})
	d.totalWeight += h.samples() * weight
}

// Len is [Window.Len].
func (d *Distribution) Len() int { return d.samples }

// Weight returns the number of samples of both halves, after the weight of the previous half is limited.
func (d *Distribution) Weight() float64 { return d.totalWeight }

// Quantile is [Window.Quantile].
func (d *Distribution) Quantile(q float64) (time.Duration, bool) {
	if d.totalWeight == 0 {
		return 0, false
	}
	rank := min(max(q, 0), 1) * max(d.totalWeight-1, 0)
	var below float64
	for i, n := range d.weights {
		if below += n; below > rank {
			return estimates[d.firstIndex+i-lowestIndex], true
		}
	}
	return estimates[d.firstIndex+len(d.weights)-1-lowestIndex], true
}

// Tail returns the non-empty buckets from the slowest to the fastest, as [Window.Tail] does: the upper edge of each, and the share of samples above it,
// in [0, 1).
func (d *Distribution) Tail() iter.Seq2[time.Duration, float64] {
	return func(yield func(time.Duration, float64) bool) {
		var above float64
		for i := len(d.weights) - 1; i >= 0; i-- {
			if d.weights[i] == 0 {
				continue
			}
			if !yield(upperBounds[d.firstIndex+i-lowestIndex], above/d.totalWeight) {
				return
			}
			above += d.weights[i]
		}
	}
}
