// Package storelab reads ranges of a large object from a simulated object store. It compares plain reads, hedging and
// retrying clients of object stores, a Transport of this library with WithResume, and package rangeread. Some first
// bytes of the store are late, and some bodies stall.
//
// The store is in memory and 15 ms away. The libraries are the real ones, except hedgedhttp: its goroutines outlive a
// bubble of testing/synctest, so failsafe-go with the same delay and without a budget stands for it.
//
// All contenders read at the same time, each from a store of its own. The seed, the range and the number of earlier
// requests for the range determine the faults of a request. The first request for a range therefore meets the same
// faults in all contenders, and so does the second.
//
// Time is fake, by testing/synctest: the figures do not depend on the machine.
package storelab

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/bubble"
	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/benchmark/internal/latency"
)

const (
	ReadSize        = 1 << 20 // bytes of a read
	ConcurrentReads = 16      // concurrent reads of a contender
	DefaultReads    = 10_000  // of a contender, unless the config has a number
)

// A Row is the result of one client of the object store. A call is a read of one range, in the order of the ranges. Its
// hedges are all requests after the first, and its winner is 1 if a hedge or a retry sent the last byte, else 0.
type Row struct {
	lab.Row
	Traffic []Traffic // of each call
}

// Traffic is the number of bytes that one read caused: those that its requests asked for, and those that the store sent.
type Traffic struct {
	Asked int64 // by its requests
	Sent  int64 // by the store until the requests ended
}

// Run lets the selected clients read all ranges of the object, and returns a row for each. It runs in the time of its caller:
// the fake time of a testing/synctest bubble, or real time. If ctx ends, Run returns the results so far and the error of ctx.
func Run(ctx context.Context, conf lab.Config) ([]Row, error) {
	sc, err := lab.SelectScenario(&conf, scenarios, DefaultReads)
	if err != nil {
		return nil, err
	}
	return lab.MeasureAll(ctx, conf, contenders, func(c lab.Contender[*objectStore, rangeReader]) (Row, error) {
		return measureContender(ctx, conf, sc, c)
	})
}

// FakeTimeRun runs Run in fake time, in a helper process.
var FakeTimeRun = bubble.New("storelab", Run)

func measureContender(ctx context.Context, conf lab.Config, sc scenario, c lab.Contender[*objectStore, rangeReader]) (Row, error) {
	s := newObjectStore(sc, conf.Seed, conf.Calls)
	read, err := c.Start(s)
	if err != nil {
		return Row{}, err
	}
	reading, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	calls, start := make([]latency.Call, conf.Calls), time.Now()
	buffers := sync.Pool{New: func() any { return new([ReadSize]byte) }}
	lab.Load{Workers: ConcurrentReads}.Run(reading, conf.Calls, func(i int) {
		p := buffers.Get().(*[ReadSize]byte)
		defer buffers.Put(p)
		if err := readRange(reading, read, p[:], int64(i), &calls[i], start); err != nil {
			stop(err)
		}
	})
	s.openRequests.Wait()
	row := Row{Row: lab.Row{Contender: c.Name}}
	for i, call := range calls {
		if call.Latency == 0 {
			continue // the end of ctx cut it off
		}
		r := &s.reads[i]
		call.Index, call.Hedges = int32(i), uint8(r.requests.Load()-1)
		if r.replaced.Load() && !call.Failed() {
			call.Winner = 1
		}
		row.Calls = append(row.Calls, call)
		row.Traffic = append(row.Traffic, Traffic{Asked: r.asked.Load(), Sent: r.sent.Load()})
	}
	if ctx.Err() == nil {
		err = context.Cause(reading)
	}
	return row, err
}

// readRange reads the i-th range into p and stores the measurement in call. start is the start of the run. It returns an
// error only if wrong bytes are read.
func readRange(ctx context.Context, read rangeReader, p []byte, i int64, call *latency.Call, start time.Time) error {
	begin := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	err := read(ctx, p, i*ReadSize)
	took := time.Since(begin)
	cutOff := ctx.Err() != nil
	cancel() // as callers do after a read
	if cutOff {
		return nil
	}
	*call = latency.Call{Start: begin.Sub(start), Latency: max(took, 1)}
	if err != nil {
		call.Winner = -1
		return nil
	}
	return checkContent(p, i*ReadSize)
}

// wordSpacing is the distance in bytes between words of the object that depend on their offset. Other bytes are 0.
const wordSpacing = 4 << 10

// contentWord returns the eight bytes of the object at off, one of the offsets where it is not zero. They depend on off.
func contentWord(off int64) uint64 { return uint64(off+8) * 0x9E3779B97F4A7C15 }

// fillContent fills p, which must be all zeros, with the bytes of the object from offset off.
func fillContent(p []byte, off int64) {
	for at := (wordSpacing - off%wordSpacing) % wordSpacing; at+8 <= int64(len(p)); at += wordSpacing {
		binary.LittleEndian.PutUint64(p[at:], contentWord(off+at))
	}
}

// checkContent returns an error unless p has the content of the object from offset off.
func checkContent(p []byte, off int64) error {
	for at := (wordSpacing - off%wordSpacing) % wordSpacing; at+8 <= int64(len(p)); at += wordSpacing {
		if binary.LittleEndian.Uint64(p[at:]) != contentWord(off+at) {
			return fmt.Errorf("wrong bytes at %d", off+at)
		}
	}
	return nil
}
