package worlds_test

import (
	"fmt"
	"time"

	"github.com/gohedge/hedge/rangeread"
)

// A rangeScenario has reads of an object in a store.
type rangeScenario struct {
	past    warmUp
	options rangeread.Options
	store   rangeStore
	reads   []*rangeRead
}

// A rangeStore has the properties of the store that are the same for all requests.
type rangeStore struct {
	size     int64
	unsized  bool          // nothing is said about lengths
	ignores  bool          // ranges: the whole object is sent
	tagless  bool          // versions have no tags
	replaced time.Duration // when another version takes the object's place; 0: never
	shared   bool          // all reads have the same Reader
}

// A rangeRead has the steps of a caller, and the behaviour of the store for requests for one part of the read.
type rangeRead struct {
	number           int // from 1; 0 is the past, or the read at the end
	at               time.Duration
	sequential       bool // by NewReader
	offset, length   int64
	deadline, cancel time.Duration
	part             int64
	acts             [4]rangeStep
}

// A rangeStep is the behaviour of the store for one request.
type rangeStep struct {
	wait  time.Duration // before the first byte
	stall time.Duration // in the middle
	ends  string        // "" whole, cut, broken, fails, panics
	deaf  bool          // contexts are ignored
}

func (w *rangeScenario) partSize() int64 {
	if w.options.PartSize > 0 {
		return w.options.PartSize
	}
	return rangeread.DefaultPartSize
}

// hedgeFaults reports whether a winning hedge would break off and need not be replaced, because other hedges have faults
// as well, and whether a hedge would stall.
func (r *rangeRead) hedgeFaults() (breakOff, stall bool) {
	faults := 0
	for n, a := range r.acts[1:] {
		breakOff = breakOff || a.ends == "cut" || a.ends == "broken"
		stall = stall || a.stall > 0
		if a.ends != "" || a.wait > 0 || a.stall > 0 {
			faults += n + 1 // the last one is that of all further hedges
		}
	}
	return breakOff && faults > 2, stall
}

func newRangeScenario(d *generator) *rangeScenario {
	w := &rangeScenario{past: newWarmUp(d)}
	o := &w.options
	o.PartSize = drawPart(d, "option.partSize", .5, int64(0), 4<<10, 20_000)
	o.Parallel = drawPart(d, "option.parallel", .4, 0, 1, 2)
	o.MaxBytes = drawPart(d, "option.maxBytes", .3, int64(0), -1, 10_000)
	if o.BudgetPercent = drawPart(d, "option.budget", .3, 300., 10); w.past.outage > 0 {
		o.BudgetPercent = 10
	}
	s := &w.store
	s.size = drawPart(d, "store.size", .5, int64(100_000), 0, 1, 4096, 4097, 40_000)
	s.unsized = drawFlag(d, "store.unsized", .15)
	s.ignores = drawFlag(d, "store.ignores", .1)
	s.tagless = drawFlag(d, "store.tagless", .1)
	s.replaced = drawPart(d, "store.replaced", .1, 0, 15*ms, 300*ms, 2*time.Second)
	if s.tagless && s.unsized {
		s.replaced = 0 // the reader cannot detect the replacement
	}
	s.shared = drawFlag(d, "store.shared", .4)
	for i := range drawPart(d, "reads", .5, 1, 2, 3, 4) {
		w.reads = append(w.reads, newRangeRead(d, i, s.unsized))
	}
	return w
}

func newRangeRead(d *generator, i int, unsized bool) *rangeRead {
	name := func(s string) string { return fmt.Sprintf("read%d.%s", i, s) }
	r := &rangeRead{number: i + 1}
	r.at = drawPart(d, name("at"), .5, time.Duration(i)*20*time.Second, 0, 10*ms, 40*ms)
	r.at += time.Duration(i) * 1130 * time.Microsecond
	r.sequential = drawFlag(d, name("sequential"), .4)
	r.offset = drawPart(d, name("offset"), .5, int64(0), 1, 4095, 30_000, 99_999, 100_000)
	r.length = drawPart(d, name("length"), .6, int64(usualLength), 1, 5000, 20_000, 60_000, 100_000, 200_000)
	r.deadline, r.cancel = drawCallerTimes(d, name)
	r.part = drawPart(d, name("part"), .3, int64(0), 1, 3)
	for n := range r.acts {
		try, odd := name(fmt.Sprintf("try%d.", n)), .3
		if n == 0 {
			odd = .7
		}
		a := &r.acts[n]
		if a.wait = drawPart(d, try+"wait", odd, 0, extraLatencies...); a.wait > 0 {
			a.wait += time.Duration(170*n+730*i) * time.Microsecond
		}
		a.stall = drawPart(d, try+"stall", odd/2, 0, extraLatencies...)
		a.ends = drawPart(d, try+"ends", .25, "", "cut", "broken", "fails", "panics")
		if a.ends == "cut" && unsized { // the reader cannot detect the truncation
			a.ends = "broken"
		}
		a.deaf = drawFlag(d, try+"deaf", .1)
	}
	return r
}
