// Package sketch stores recent latencies, for example of a host, a route or a DNS upstream, in constant memory, and
// estimates their quantiles.
//
// A [Window] has two halves, the current and the previous one. Each is a DDSketch. When the current half is 10 seconds
// old and has 200 samples, the next sample starts a new half. The current half then becomes the previous one, and the
// old previous half is dropped.
//
// The time is an argument, so a window needs no goroutine and no clock. A window keeps its samples as long as no new
// ones are added.
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
	// accuracy is the maximum relative error of a quantile.
	accuracy = 0.01

	// A new half starts when the current one has at least this age and this number of samples.
	minHalfAge  = 10 * time.Second
	minHalfSize = 200

	// maxPastWeight is the maximum weight of the previous half, in samples. It limits how long a shift of the
	// distribution is hidden by many older samples.
	maxPastWeight = 500

	// maxBins is the maximum number of buckets of a half. With an accuracy of 1 % they cover 17 decades, so that no
	// buckets between 1 ns and a year are collapsed.
	maxBins = 2048

	maxSample = 10_000 * time.Hour // longer samples are counted as this
)

var indexMapping = func() mapping.IndexMapping {
	m, err := mapping.NewCubicallyInterpolatedMapping(accuracy)
	if err != nil {
		panic(err) // accuracy is in (0, 1)
	}
	return m
}()

// lowerBound returns the lower bound of bucket i. It replaces LowerBound of the mapping, which is wrong if int has 32
// bits: sketches-go 1.4.8 shifts an int by 52. Index of the mapping is correct.
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

	// upperBounds[i] is the largest whole nanosecond in bucket lowestIndex+i. estimates[i] is the estimate for samples
	// in that bucket.
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
// of any age. The zero value is an empty window, ready for use. A Window is not safe for concurrent use.
type Window struct {
	current, previous           halfWindow
	currentStart, previousStart time.Time // time of the first sample of a half; zero if the half is empty
}

// A halfWindow is one of the two sketches of a Window. It allocates memory on its first sample.
type halfWindow struct {
	sketch *ddsketch.DDSketch
	bins   *store.CollapsingLowestDenseStore // the buckets of sketch
}

// init allocates the sketch, if it is not allocated yet.
func (h *halfWindow) init() {
	if h.sketch == nil {
		h.bins = store.NewCollapsingLowestDenseStore(maxBins)
		h.sketch = ddsketch.NewDDSketch(indexMapping, h.bins, store.NewDenseStore())
	}
}

// addToBucket adds n samples to the bucket with index i.
func (h *halfWindow) addToBucket(i int, n float64) {
	h.init()
	h.bins.AddWithCount(i, n)
}

// samples returns the number of samples of the half.
func (h *halfWindow) samples() float64 {
	if h.sketch == nil {
		return 0
	}
	return h.bins.TotalCount()
}

// Add adds the latency d, measured at time t. Latencies are limited to the range from one nanosecond to 10,000 hours.
// Add takes amortized constant time, and allocates only while the range of latencies grows.
func (w *Window) Add(t time.Time, d time.Duration) { w.AddIndex(t, Index(d)) }

// Index returns the index of the bucket for the latency d, as an argument of [Window.AddIndex]. It is safe for
// concurrent use.
func Index(d time.Duration) int {
	// The smallest value of the mapping is below 1 ns: no sample counts as zero.
	return indexMapping.Index(float64(min(max(d, 1), maxSample)))
}

// AddIndex adds a latency by the result of [Index] for it. It is faster than Add, for callers that compute the Index
// before they take a lock.
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

// Len returns the number of samples in both halves of the window.
func (w *Window) Len() int { return int(w.current.samples() + w.previous.samples()) }

// Rate returns the number of samples per second from the start of the window to t. It is zero for an empty window, and
// within the first millisecond.
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

// Quantile returns the estimate of quantile q, which is clamped to [0, 1]. It reports false if the window is empty. The
// previous half counts as at most 500 samples.
func (w *Window) Quantile(q float64) (time.Duration, bool) {
	d := distributions.Get().(*Distribution)
	defer distributions.Put(d)
	w.Distribution(d)
	return d.Quantile(q)
}

// Tail returns the non-empty buckets of the window, from the slowest to the fastest. A pair is the upper bound of a
// bucket, and the share of samples above that bound, in [0, 1).
//
// Choose a delay among these bounds: the share of samples above a bound is exact, while the share above a value within
// a bucket is unknown.
func (w *Window) Tail() iter.Seq2[time.Duration, float64] {
	return func(yield func(time.Duration, float64) bool) {
		d := distributions.Get().(*Distribution)
		defer distributions.Put(d)
		w.Distribution(d)
		d.Tail()(yield)
	}
}

// distributions are reusable copies, for calls without a Distribution of the caller.
var distributions = sync.Pool{New: func() any { return new(Distribution) }}

// A Distribution is a copy of the samples of a [Window] in one histogram. The previous half counts as at most 500
// samples. The zero value is empty.
type Distribution struct {
	weights     []float64 // weights[i] is the weight of bucket firstIndex+i
	firstIndex  int
	totalWeight float64
	samples     int
}

// Distribution copies the samples of the window to d, reusing the memory of d. It takes about a microsecond. A caller
// that holds a lock can release it and evaluate the copy.
func (w *Window) Distribution(d *Distribution) {
	d.weights, d.totalWeight, d.samples = d.weights[:0], 0, w.Len()
	lo, hi := math.MaxInt, math.MinInt
	for _, h := range [...]*halfWindow{&w.current, &w.previous} {
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

// addHalf adds the samples of h, each with the given weight.
func (d *Distribution) addHalf(h *halfWindow, weight float64) {
	if h.sketch == nil {
		return
	}
	h.bins.ForEach(func(i int, n float64) bool {
		d.weights[i-d.firstIndex] += n * weight
		return false
	})
	d.totalWeight += h.samples() * weight
}

// Len returns the number of samples of the window.
func (d *Distribution) Len() int { return d.samples }

// Weight returns the number of samples of both halves, where the previous half counts as at most 500.
func (d *Distribution) Weight() float64 { return d.totalWeight }

// Quantile returns the estimate of quantile q, as [Window.Quantile] does.
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

// Tail returns the non-empty buckets from the slowest to the fastest, as [Window.Tail] does: the upper bound of a
// bucket, and the share of samples above that bound, in [0, 1).
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
