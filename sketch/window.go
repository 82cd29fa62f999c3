// Package sketch stores recent latencies, for example of a host, a route or a DNS upstream, in constant memory, and
// estimates their quantiles.
//
// A [Window] has two halves, the current and the previous one. Each is a DDSketch. When the current half is 10 seconds
// old and has 200 samples, the next sample starts a new half. The current half then becomes the previous one, and the
// old previous half is dropped.
//
// The time is an argument, so a window needs no goroutine and no clock. A window keeps its samples as long as no new
// samples are added.
//
// The relative error of a quantile is at most 1 % (Masson, Rim, Lee: "DDSketch: A Fast and Fully-Mergeable Quantile
// Sketch with Relative-Error Guarantees", VLDB 2019).
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
	// accuracy is the maximum relative error of an estimated quantile.
	accuracy = 0.01

	// minHalfAge and minHalfSize are the age and the number of samples that the current half must both have before a new
	// half starts.
	minHalfAge  = 10 * time.Second
	minHalfSize = 200

	// maxPreviousWeight is the number of samples that the previous half counts as, if it has more. So many older samples
	// cannot hide a shift of the distribution for long.
	maxPreviousWeight = 500

	// maxBins is the maximum number of buckets of a half. With an accuracy of 1 % they cover 17 decades. So no buckets
	// between 1 ns and a year need to be merged.
	maxBins = 2048

	maxSample = 10_000 * time.Hour // longest latency that is recorded; longer samples are recorded as this latency
)

// indexMapping maps a latency in nanoseconds to the index of its bucket.
var indexMapping = func() mapping.IndexMapping {
	m, err := mapping.NewCubicallyInterpolatedMapping(accuracy)
	if err != nil {
		panic(err) // accuracy is in (0, 1)
	}
	return m
}()

// lowerBound returns the smallest value, in nanoseconds, of the bucket with index i. It replaces LowerBound of the
// mapping, which is wrong if int has 32 bits: sketches-go 1.4.8 shifts an int by 52. Index of the mapping is correct.
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
	lowestIndex = indexMapping.Index(1) // index of the bucket for one nanosecond, the shortest latency

	// upperBounds[i] is the largest whole number of nanoseconds in bucket lowestIndex+i. estimates[i] is the value that
	// Quantile returns for samples in that bucket.
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

// A Window holds the latencies of the last 10 to 20 seconds. If these are few, it holds the last 200 to 400 latencies
// of any age. The zero value is an empty window, ready for use. A Window is not safe for concurrent use; its owner
// usually guards it with a lock.
type Window struct {
	current, previous           halfWindow
	currentStart, previousStart time.Time // time of the first sample of a half; zero if the half is empty
}

// A halfWindow holds the samples of one half of a Window in a DDSketch. It allocates memory when its first sample is
// added.
type halfWindow struct {
	sketch *ddsketch.DDSketch
	bins   *store.CollapsingLowestDenseStore // store of the buckets in sketch
}

// init allocates the sketch, unless it is already allocated.
func (h *halfWindow) init() {
	if h.sketch == nil {
		h.bins = store.NewCollapsingLowestDenseStore(maxBins)
		h.sketch = ddsketch.NewDDSketch(indexMapping, h.bins, store.NewDenseStore())
	}
}

// addToBucket adds n samples to the bucket with index i, as returned by Index.
func (h *halfWindow) addToBucket(i int, n float64) {
	h.init()
	h.bins.AddWithCount(i, n)
}

// sampleCount returns the number of samples in the half.
func (h *halfWindow) sampleCount() float64 {
	if h.sketch == nil {
		return 0
	}
	return h.bins.TotalCount()
}

// Add adds the latency d of a call that ended at time t. Latencies below one nanosecond or above 10,000 hours are
// recorded as these bounds. Add takes amortized constant time, and allocates only while the range of latencies grows.
func (w *Window) Add(t time.Time, d time.Duration) { w.AddIndex(t, Index(d)) }

// Index returns the index of the bucket for the latency d. Pass it to [Window.AddIndex]. Index is safe for concurrent
// use.
func Index(d time.Duration) int {
	// The smallest value of the mapping is below 1 ns: no sample counts as zero.
	return indexMapping.Index(float64(min(max(d, 1), maxSample)))
}

// AddIndex adds a latency that was measured at time t; i is the result of [Index] for the latency. Callers that guard
// the window with a lock can compute the index before they take the lock. So they hold the lock for a shorter time than
// with Add.
func (w *Window) AddIndex(t time.Time, i int) {
	switch {
	case w.currentStart.IsZero():
		w.currentStart = t
		w.current.init()
	case t.Sub(w.currentStart) >= minHalfAge && w.current.sampleCount() >= minHalfSize:
		w.current, w.previous = w.previous, w.current
		if w.current.sketch != nil {
			w.current.sketch.Clear()
		}
		w.current.init()
		w.previousStart, w.currentStart = w.currentStart, t
	}
	w.current.bins.Add(i)
}

// Len returns the number of samples in both halves of the window.
func (w *Window) Len() int { return int(w.current.sampleCount() + w.previous.sampleCount()) }

// Rate returns the number of samples per second from the first sample in the window to the time t. It is zero for an
// empty window, and within the first millisecond.
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

// Quantile returns the estimated latency at quantile q, for example the median for 0.5. A q outside [0, 1] is replaced
// by the nearest bound. The bool is false if the window is empty. The previous half counts as at most 500 samples.
func (w *Window) Quantile(q float64) (time.Duration, bool) {
	d := distributions.Get().(*Distribution)
	defer distributions.Put(d)
	w.Distribution(d)
	return d.Quantile(q)
}

// Tail returns an iterator over the non-empty buckets of the window, from the slowest to the fastest. Each pair is the
// upper bound of a bucket, and the share of samples above that bound, in [0, 1).
//
// Use it to find the shortest hedge delay that a budget allows. Choose the delay among these bounds: the share of
// samples above a bound is exact, while the share above a value within a bucket is unknown.
func (w *Window) Tail() iter.Seq2[time.Duration, float64] {
	return func(yield func(time.Duration, float64) bool) {
		d := distributions.Get().(*Distribution)
		defer distributions.Put(d)
		w.Distribution(d)
		d.Tail()(yield)
	}
}

// distributions holds Distributions for reuse by methods of Window that need one only while they run.
var distributions = sync.Pool{New: func() any { return new(Distribution) }}

// A Distribution is a histogram of the samples that a [Window] had when it was copied. The older half of the window is
// scaled down to a weight of at most 500 samples. The zero value has no samples. A Distribution is not safe for
// concurrent use.
type Distribution struct {
	weights     []float64 // weights[i] is the weight of bucket firstIndex+i
	firstIndex  int       // index of the first bucket in weights
	totalWeight float64   // sum of all weights
	sampleCount int       // number of samples of the window, without weights
}

// Distribution replaces the content of d by the samples of the window, reusing the memory of d. It takes about a
// microsecond. A caller that guards the window with a lock can release the lock after Distribution, and then evaluate
// d.
func (w *Window) Distribution(d *Distribution) {
	d.weights, d.totalWeight, d.sampleCount = d.weights[:0], 0, w.Len()
	lo, hi := math.MaxInt, math.MinInt
	for _, h := range [...]*halfWindow{&w.current, &w.previous} {
		if h.sampleCount() > 0 {
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
	if n := w.previous.sampleCount(); n > 0 {
		d.addHalf(&w.previous, min(1, maxPreviousWeight/n))
	}
}

// addHalf adds the samples of h to the histogram, where each sample counts as the given weight.
func (d *Distribution) addHalf(h *halfWindow, weight float64) {
	if h.sketch == nil {
		return
	}
	h.bins.ForEach(func(i int, n float64) bool {
		d.weights[i-d.firstIndex] += n * weight
		return false
	})
	d.totalWeight += h.sampleCount() * weight
}

// Len returns the number of samples of the window. Each sample counts as one, unlike in Weight.
func (d *Distribution) Len() int { return d.sampleCount }

// Weight returns the sum of the weights of all samples. A sample has the weight one, but the samples of the previous
// half weigh at most 500 together.
func (d *Distribution) Weight() float64 { return d.totalWeight }

// Quantile returns the estimated latency at quantile q, for example the median for 0.5. A q outside [0, 1] is replaced
// by the nearest bound. The bool is false if d has no samples.
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

// Tail returns an iterator over the non-empty buckets from the slowest to the fastest, as [Window.Tail] does. Each pair
// is the upper bound of a bucket, and the share of samples above that bound, in [0, 1).
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
