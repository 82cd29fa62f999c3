package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"sort"
)

// errorMargins are the uncertainties that tables show after ±, in milliseconds: half of a 95 % interval for each
// figure. 0 means unknown.
type errorMargins struct{ p99, p999, mean float64 }

// The calls of one run depend on each other: they share a client that learns, and a machine whose load changes.
// Therefore batches of calls are resampled.
const (
	batchCount     = 10
	batchResamples = 100
	studentFactor  = 2.262 // the 97.5 % quantile of Student's t distribution with batches-1 degrees of freedom
)

// batchErrorMargins returns half of the 95 % interval of each figure of one run, whose calls may depend on each other.
// It multiplies a standard error, from a bootstrap of ten consecutive batches of calls, by Student's factor. Ten
// batches can agree by chance, so a quantile's interval is never below that of independent calls.
//
// phases are the latencies in the order of the calls, divided where the scenario itself changes the latencies. Each
// phase has ten batches. sorted has all latencies. The result is zero for fewer than 100 latencies.
func batchErrorMargins(phases [][]float64, sorted []float64) errorMargins {
	if len(sorted) < 10*batchCount {
		return errorMargins{}
	}
	edges := newTailBucketEdges(sorted)
	type batch struct {
		calls []float64 // between two edges
		sum   float64
	}
	var cut [][]batch
	for _, phase := range phases {
		var all []batch
		for i := range batchCount {
			b := batch{calls: make([]float64, len(edges))}
			for _, x := range phase[i*len(phase)/batchCount : (i+1)*len(phase)/batchCount] {
				b.calls[sort.SearchFloat64s(edges, x)]++
				b.sum += x
			}
			all = append(all, b)
		}
		cut = append(cut, all)
	}
	rng := rand.New(rand.NewPCG(2, uint64(len(sorted))))
	var p99, p999, mean moments
	calls := make([]float64, len(edges))
	for range batchResamples {
		clear(calls)
		n, sum := 0.0, 0.0
		for _, all := range cut {
			for range batchCount {
				b := all[rng.IntN(batchCount)]
				for i, k := range b.calls {
					calls[i] += k
					n += k
				}
				sum += b.sum
			}
		}
		quantile := func(q float64) float64 {
			above := 0.0
			for i := len(calls) - 1; i > 0; i-- {
				if above += calls[i]; above > (1-q)*n {
					return edges[i]
				}
			}
			return edges[0]
		}
		p99.add(quantile(0.99))
		p999.add(quantile(0.999))
		mean.add(sum / max(n, 1))
	}
	half := func(m moments) float64 { return studentFactor * math.Sqrt(m.variance()*batchCount/(batchCount-1)) }
	atLeast := func(q, margin float64) float64 {
		low, high := quantileInterval(sorted, q)
		return max(margin, (high-low)/2)
	}
	return errorMargins{p99: atLeast(0.99, half(p99)), p999: atLeast(0.999, half(p999)), mean: half(mean)}
}

// quantileInterval returns the two values of sorted that enclose quantile q with a probability of 95 % (David,
// Nagaraja: Order Statistics, section 7.1). Calls must be independent, of any distribution. sorted must not be empty.
func quantileInterval(sorted []float64, q float64) (low, high float64) {
	n := float64(len(sorted))
	ranks := 1.96 * math.Sqrt(n*q*(1-q))
	return sorted[max(int(q*n-ranks), 0)], sorted[min(int(math.Ceil(q*n+ranks)), len(sorted)-1)]
}

// newTailBucketEdges returns the edges of histogram buckets for high quantiles, in ascending order. They are values
// from the highest quarter of sorted, up to the highest value, and denser among higher values.
func newTailBucketEdges(sorted []float64) (edges []float64) {
	n := len(sorted)
	for above := 1; above <= n/4; above += 1 + above/200 {
		edges = append(edges, sorted[n-above])
	}
	slices.Reverse(edges)
	return slices.Compact(edges)
}

// moments are the number, the sum and the sum of squares of samples, from which their variance follows.
type moments struct{ n, sum, squares float64 }

func (m *moments) add(x float64) {
	m.n++
	m.sum += x
	m.squares += x * x
}

func (m *moments) variance() float64 {
	return max(0, m.squares/m.n-m.sum*m.sum/m.n/m.n)
}
