package worlds_test

import (
	"fmt"
	"time"

	"github.com/gohedge/hedge/rangeread"
)

// A rangeWorld is what rangePlay plays: reads of an object in a store.
type rangeWorld struct {
	past    past
	options rangeread.Options
	store   rangeStore
	reads   []*rangeRead
}

// A rangeStore is what all requests have in common.
type rangeStore struct {
	size     int64
	unsized  bool          // nothing is said about lengths
	ignores  bool          // ranges: the whole object is sent
	tagless  bool          // versions have no tags
	replaced time.Duration // when another version takes the object's place; 0: never
	shared   bool          // all reads have the same Reader
}

// A rangeRead is what a caller does, and what the store does with the requests for one part of it.
type rangeRead struct {
	number           int // from 1; 0 is the past, or the read at the end
	at               time.Duration
	sequential       bool // by NewReader
	offset, length   int64
	deadline, cancel time.Duration
	part             int64
	acts             [4]rangeAct
}

// A rangeAct is what the store does with a request.
type rangeAct struct {
	wait  time.Duration // before the first byte
	stall time.Duration // in the middle
	ends  string        // "" whole, cut, broken, fails, panics
	deaf  bool          // contexts are ignored
}

func (w *rangeWorld) partSize() int64 {
	if w.options.PartSize > 0 {
		return w.options.PartSize
	}
	return rangeread.DefaultPartSize
}

// hedges reports whether a hedge would break off when it has won, and whether it would stall.
func (r *rangeRead) hedges() (breakOff, stall bool) {
	for _, a := range r.acts[1:] {
		breakOff = breakOff || a.ends == "cut" || a.ends == "broken"
		stall = stall || a.stall > 0
	}
	return breakOff, stall
}

func newRangeWorld(d *draw) *rangeWorld {
	w := &rangeWorld{past: newPast(d)}
	o := &w.options
	o.PartSize = pick(d, "option.partSize", .5, int64(0), 4<<10, 20_000)
	o.Parallel = pick(d, "option.parallel", .4, 0, 1, 2)
	o.MaxBytes = pick(d, "option.maxBytes", .3, int64(0), -1, 10_000)
	if o.BudgetPercent = pick(d, "option.budget", .3, 300., 10); w.past.outage > 0 {
		o.BudgetPercent = 10
	}
	s := &w.store
	s.size = pick(d, "store.size", .5, int64(100_000), 0, 1, 4096, 4097, 40_000)
	s.unsized = has(d, "store.unsized", .15)
	s.ignores = has(d, "store.ignores", .1)
	s.tagless = has(d, "store.tagless", .1)
	s.replaced = pick(d, "store.replaced", .1, 0, 15*ms, 300*ms, 2*time.Second)
	if s.tagless && s.unsized {
		s.replaced = 0 // nobody can tell
	}
	s.shared = has(d, "store.shared", .4)
	for i := range pick(d, "reads", .5, 1, 2, 3, 4) {
		w.reads = append(w.reads, newRangeRead(d, i, s.unsized))
	}
	return w
}

func newRangeRead(d *draw, i int, unsized bool) *rangeRead {
	name := func(s string) string { return fmt.Sprintf("read%d.%s", i, s) }
	r := &rangeRead{number: i + 1}
	r.at = pick(d, name("at"), .5, time.Duration(i)*20*time.Second, 0, 10*ms, 40*ms)
	r.at += time.Duration(i) * 1130 * time.Microsecond
	r.sequential = has(d, name("sequential"), .4)
	r.offset = pick(d, name("offset"), .5, int64(0), 1, 4095, 30_000, 99_999, 100_000)
	r.length = pick(d, name("length"), .6, int64(pastLength), 1, 5000, 20_000, 60_000, 100_000, 200_000)
	r.deadline, r.cancel = newTimes(d, name)
	r.part = pick(d, name("part"), .3, int64(0), 1, 3)
	for n := range r.acts {
		try, odd := name(fmt.Sprintf("try%d.", n)), .3
		if n == 0 {
			odd = .7
		}
		a := &r.acts[n]
		if a.wait = pick(d, try+"wait", odd, 0, waits...); a.wait > 0 {
			a.wait += time.Duration(170*n+730*i) * time.Microsecond
		}
		a.stall = pick(d, try+"stall", odd/2, 0, waits...)
		a.ends = pick(d, try+"ends", .25, "", "cut", "broken", "fails", "panics")
		if a.ends == "cut" && unsized { // nobody can tell that from the end
			a.ends = "broken"
		}
		a.deaf = has(d, try+"deaf", .1)
	}
	return r
}
