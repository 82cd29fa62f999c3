package audit

import (
	"math/bits"
	"time"
)

const (
	slotLength     = 20 * time.Second     // length of a time slot
	washout        = 6 * time.Second      // first part of each slot, in which queues drain; calls that begin in it are not measured
	measuredLength = slotLength - washout // length of the measured part of a slot

	minSlotCalls    = 10   // minimum number of calls in each slot of a compared pair
	tailShare       = 0.1  // share of the calls of a slot that are its slowest calls, which hedging can make faster
	maxUnendedShare = 0.01 // a pair is not compared if both slots close with a larger share of calls in flight

	measuredSeconds = int(measuredLength / time.Second)

	binsPerOctave  = 8                  // number of histogram bins in an octave, which is a factor of two
	lowestExponent = 14                 // the first bin starts at 2^lowestExponent ns, which is 16 µs
	binCount       = 22 * binsPerOctave // the last bin ends at 68 s
)

// failureBin is the bin in which failed calls are counted. It is the bin of one minute, so that a failure counts as slower than
// a success.
var failureBin = binOf(time.Minute)

// A histogram counts latencies by bin. Each octave, from one power of two of nanoseconds to the next, has eight bins of equal
// width.
type histogram [binCount]uint32

// binOf returns the index of the bin that contains d. Durations outside the histogram belong to the first or the last bin.
func binOf(d time.Duration) int {
	n := uint64(max(d, 1<<lowestExponent))
	octave := bits.Len64(n) - 1
	return min((octave-lowestExponent)*binsPerOctave+int(n>>(octave-3)&(binsPerOctave-1)), binCount-1)
}

// durationAt converts a position in the histogram to a duration: position 8.0 is the lower bound of bin 8, and 8.5 is its
// middle. It is the inverse of binOf.
func durationAt(position float64) time.Duration {
	octave := int(position) / binsPerOctave
	return time.Duration(float64(int64(1)<<(lowestExponent+octave)) * (1 + position/binsPerOctave - float64(octave)))
}

// quantile returns the quantile of the latencies for the given share in [0, 1], as a position in the histogram. Use
// durationAt to convert the position to a duration. It returns 0 if the histogram is empty.
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

// A Result holds the facts about an ended call that an Audit measures.
type Result struct {
	Latency time.Duration // time that the caller waited
	Failed  bool          // the call failed; false if it succeeded or the caller cancelled it
	Hedges  int           // number of hedges that were sent
}

// A slot holds the statistics of all calls that began in the measured part of one time slot.
type slot struct {
	number         int64 // number of the slot since 1970
	measuredFrom   int64 // start of the measured part, in nanoseconds of the engine's clock
	hedgingOff     bool  // hedging was off in the slot
	compared       bool  // the slot will be compared with the other slot of its pair
	invalid        bool  // the process missed a part of the slot, or the verdict changed during the slot
	countsInFlight bool  // calls are counted when they begin; false: when they end

	calls      int                    // number of calls
	inFlight   [measuredSeconds]int32 // number of calls that have not ended, by the second of the measured part in which they began
	failures   int                    // number of failed calls
	hedges     int                    // number of hedges that were sent
	latencySum int                    // sum of the bin indexes of the calls' latencies
}

// A slotLatencies holds two histograms of the latencies in a compared slot: one of successful calls and one of failed calls.
type slotLatencies struct{ successes, failures histogram }

// beginCall counts a call that begins at the time at, in nanoseconds of the engine's clock. It ignores a call that begins
// outside the measured part of the slot.
func (s *slot) beginCall(at int64) {
	if i := uint64(at-s.measuredFrom) / 1e9; i < uint64(measuredSeconds) {
		s.calls++
		s.inFlight[i]++
	}
}

// endCall records the result r of a call that began at the time began, in nanoseconds of the engine's clock. If the slot is
// to be compared, endCall adds the latency to the histograms l.
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
		l.successes[bin]++
	}
	if r.Failed {
		s.failures++
		bin = failureBin
	}
	s.latencySum += bin
}

// A summary holds the results of a slot that was closed.
type summary struct {
	number               int64 // number of the slot since 1970
	hedgingOff, compared bool  // as in slot; compared is false if the slot was invalid or had too few calls
	// meanLatency is the mean latency of all calls, and tailLatency that of the slowest tenth of the calls. Both are log2 of
	// the nanoseconds minus lowestExponent.
	meanLatency, tailLatency   float64
	unendedShare, failureShare float64 // shares of the calls that were in flight when the slot was closed, and that failed
}

// makeSummary returns the summary of a slot. It must be called when the slot is closed, 6 s after its end. A call in
// flight counts with the time that it has taken so far. If the slot is to be compared, makeSummary adds the latencies
// of such calls to the histograms l.
func (s *slot) makeSummary(l *slotLatencies) summary {
	sum := summary{number: s.number, hedgingOff: s.hedgingOff, compared: s.compared && !s.invalid && s.calls >= minSlotCalls}
	n := max(float64(s.calls), 1)
	for i, unended := range s.inFlight {
		if unended > 0 {
			bin := binOf(slotLength - time.Duration(i+1)*time.Second)
			s.latencySum += int(unended) * bin
			sum.unendedShare += float64(unended) / n
			if s.compared {
				l.successes[bin] += uint32(unended)
			}
		}
	}
	sum.meanLatency, sum.failureShare = float64(s.latencySum)/binsPerOctave/n, float64(s.failures)/n
	if sum.compared {
		sum.tailLatency = l.successes.tailMean(n, float64(s.failures))
	}
	return sum
}

// tailMean returns the mean latency of the slowest tenth of a slot's calls, in octaves: log2 of the nanoseconds minus
// lowestExponent.
//
// The histogram holds the successful calls of the slot. The argument calls is the number of all calls of the slot. The
// argument failures is the number of failed calls, which count as slower than all successful calls.
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
