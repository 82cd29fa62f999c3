package audit

import (
	"math/bits"
	"time"
)

const (
	slotLength     = 20 * time.Second
	washout        = 6 * time.Second // first part of a slot, in which queues drain; calls that begin in it are not measured
	measuredLength = slotLength - washout

	minSlotCalls    = 10   // minimum of calls in each slot of a compared pair
	tailShare       = 0.1  // share of the slowest calls of a slot, which hedging can make faster
	maxUnendedShare = 0.01 // if in both slots a larger share of the calls has not ended when the slot is closed, the pair does not count

	measuredSeconds = int(measuredLength / time.Second)

	binsPerOctave  = 8                  // histogram bins from a latency to twice the latency
	lowestExponent = 14                 // the first bin starts at 2^lowestExponent ns: 16 µs
	binCount       = 22 * binsPerOctave // up to 68 s
)

// failureBin is the bin of failures. It is that of a minute, so that a failure counts as slower than a success.
var failureBin = binOf(time.Minute)

// A histogram counts latencies. An octave, from one power of two of nanoseconds to the next, has eight bins of equal width.
type histogram [binCount]uint32

// binOf returns the index of the bin that counts d.
func binOf(d time.Duration) int {
	n := uint64(max(d, 1<<lowestExponent))
	octave := bits.Len64(n) - 1
	return min((octave-lowestExponent)*binsPerOctave+int(n>>(octave-3)&(binsPerOctave-1)), binCount-1)
}

// durationAt converts a position in bins to a duration; it is the inverse of binOf. The position 8.5 is the middle of bin 8.
func durationAt(position float64) time.Duration {
	octave := int(position) / binsPerOctave
	return time.Duration(float64(int64(1)<<(lowestExponent+octave)) * (1 + position/binsPerOctave - float64(octave)))
}

// quantile returns the position, in bins, below which the given share of the latencies lies.
func (h *histogram) quantile(share float64) float64 {
	above := 0.0
	for _, n := range h {
		above += (1 - min(share, 1)) * float64(n)
	}
	for i := binCount - 1; i > 0; i-- {
		if n := float64(h[i]); n > 0 && above <= n {
			return float64(i+1) - above/n
		}
		above -= float64(h[i])
	}
	return 0
}

// A Result is the result of a call.
type Result struct {
	Latency time.Duration // time for which the caller waited
	Failed  bool
	Hedges  int // number of hedges that were sent
}

// A slot holds the statistics of the calls that began in the measured part of a time slot.
type slot struct {
	number         int64
	measuredFrom   int64 // start of the measured part, by the engine's clock
	hedgingOff     bool
	compared       bool // it will be compared with the other slot of its pair
	invalid        bool // the process missed a part of the slot, or the verdict changed in it
	countsInFlight bool // calls are counted when they begin; otherwise when they end

	calls      int                    // number of calls
	inFlight   [measuredSeconds]int32 // number of calls that have not ended, by the second in which they began
	failures   int
	hedges     int
	latencySum int // sum of the bin indexes of the calls
}

// slotLatencies are the latencies of the calls of a compared slot, separately for successes and failures.
type slotLatencies struct{ answers, failures histogram }

// beginCall records a call that begins at the given time.
func (s *slot) beginCall(at int64) {
	if i := uint64(at-s.measuredFrom) / 1e9; i < uint64(measuredSeconds) {
		s.calls++
		s.inFlight[i]++
	}
}

// endCall records the result of a call that began at the given time. In a compared slot, it adds the latency to l.
func (s *slot) endCall(began int64, r Result, l *slotLatencies) {
	i, bin := uint64(began-s.measuredFrom)/1e9, binOf(r.Latency)
	switch {
	case i >= uint64(measuredSeconds) || s.countsInFlight && s.inFlight[i] == 0:
		return
	case s.countsInFlight:
		s.inFlight[i]--
	default:
		s.calls++
	}
	s.hedges += r.Hedges
	switch {
	case s.compared && r.Failed:
		l.failures[bin]++
	case s.compared:
		l.answers[bin]++
	}
	if r.Failed {
		s.failures++
		bin = failureBin
	}
	s.latencySum += bin
}

// A summary holds the results of a closed slot.
type summary struct {
	number                     int64
	hedgingOff, compared       bool
	meanLatency, tailLatency   float64 // mean latency of all calls, and of the slowest calls: log2 of the nanoseconds, minus lowestExponent
	unendedShare, failureShare float64 // shares of the calls
}

// makeSummary returns the summary of s, which is closed 6 s after its end. A call in flight counts with the time that it has taken so far.
// In a compared slot, makeSummary adds that time to l.
func (s *slot) makeSummary(l *slotLatencies) summary {
	sum := summary{number: s.number, hedgingOff: s.hedgingOff, compared: s.compared && !s.invalid && s.calls >= minSlotCalls}
	n := max(float64(s.calls), 1)
	for i, unended := range s.inFlight {
		if unended > 0 {
			bin := binOf(slotLength - time.Duration(i+1)*time.Second)
			s.latencySum += int(unended) * bin
			sum.unendedShare += float64(unended) / n
			if s.compared {
				l.answers[bin] += uint32(unended)
			}
		}
	}
	sum.meanLatency, sum.failureShare = float64(s.latencySum)/binsPerOctave/n, float64(s.failures)/n
	if sum.compared {
		sum.tailLatency = l.answers.tailMean(n, float64(s.failures))
	}
	return sum
}

// tailMean returns the mean latency of the slowest tenth of the calls of a slot, in the unit of [summary]. Failures count as slowest; the
// histogram only holds successes.
func (h *histogram) tailMean(calls, failures float64) float64 {
	most := tailShare * calls
	left := max(most-failures, 0)
	sum := (most - left) * float64(failureBin)
	for i := binCount - 1; i >= 0 && left > 0; i-- {
		n := min(float64(h[i]), left)
		sum, left = sum+n*float64(i), left-n
	}
	return sum / most / binsPerOctave
}
