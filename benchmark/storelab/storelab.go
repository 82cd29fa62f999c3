// Package storelab reads ranges of a large object from a simulated object store, side by side: plainly, by hedging and by
// retrying as clients of stores do, by this library's Transport with WithResume, and by package rangeread. Some answers of the
// store are late, and some bodies stall.
//
// The store is in memory, and waits as one does that is 15 ms away. The libraries are the real ones but for one. All contenders read at the
// same time, each from a store of its own. What happens to a request follows from the seed, the range, and how often that was asked for: the first
// request for a range meets the same in all contenders, and so does the second one, if it is sent.
//
// Time is fake, by testing/synctest: no machine disturbs the figures, and a second passes in no time. hedgedhttp keeps goroutines that
// outlive a bubble, and cannot run in one: the same delay stands for it.
package storelab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/bubble"
	"github.com/gohedge/hedge/benchmark/internal/latency"
)

const (
	Size    = 1 << 20 // bytes of a read
	Workers = 16      // reads of a contender at the same time
	Reads   = 10_000  // of a contender, unless Config says otherwise
)

// Config says what to measure.
type Config struct {
	World      string   // one of Worlds
	Contenders []string // some of Contenders; empty: all
	Reads      int      // of each contender; 0: Reads
	Seed       uint64
}

// A Row is what was measured of a contender.
type Row struct {
	Contender string

	// Calls are its reads, in the order of their ranges. Hedges of a call are the requests beyond one. Winner is 1 if the last byte came by a
	// request that took the place of another one, else 0, and -1 if the read has failed.
	Calls   []latency.Call
	Traffic []Traffic // of each call
}

// Traffic is what a read has caused, in bytes.
type Traffic struct {
	Asked int64 // by its requests
	Sent  int64 // by the store until these ended; what is under way then, nobody has cut off
}

// Run measures, in the time of its caller: that of a bubble, or real time. If ctx ends, what was measured until then is returned with its error.
func Run(ctx context.Context, conf Config) ([]Row, error) {
	i := slices.IndexFunc(worlds, func(w world) bool { return w.name == conf.World })
	switch {
	case i < 0:
		return nil, fmt.Errorf("storelab: world %q; want one of %s", conf.World, strings.Join(Worlds, ", "))
	case conf.Reads < 0:
		return nil, fmt.Errorf("storelab: Reads is %d, want at least 0", conf.Reads)
	case conf.Reads == 0:
		conf.Reads = Reads
	}
	if len(conf.Contenders) == 0 {
		conf.Contenders = Contenders
	}
	var chosen []contender
	for _, name := range conf.Contenders {
		at := slices.Index(Contenders, name)
		if at < 0 {
			return nil, fmt.Errorf("storelab: contender %q; want one of %s", name, strings.Join(Contenders, ", "))
		}
		chosen = append(chosen, contenders[at])
	}
	rows, errs := make([]Row, len(chosen)), make([]error, len(chosen))
	var all sync.WaitGroup
	for n, c := range chosen {
		all.Go(func() {
			if rows[n], errs[n] = conf.measure(ctx, worlds[i], c); errs[n] != nil {
				errs[n] = fmt.Errorf("storelab: %s: %w", c.name, errs[n])
			}
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return rows, ctx.Err()
	}
	return rows, errors.Join(errs...)
}

// RunFake is Run in fake time. It starts this program again.
func RunFake(ctx context.Context, conf Config) ([]Row, error) {
	return bubble.Run[Config, []Row](ctx, bubbleName, conf)
}

// Play does what RunFake has started this program for, and does not return then. Programs that call RunFake call it first.
func Play() { bubble.Serve(bubbleName, Run) }

const bubbleName = "storelab"

// measure has a contender read all ranges.
func (conf Config) measure(ctx context.Context, w world, c contender) (Row, error) {
	s := newStore(w, conf.Seed, conf.Reads, c.parts)
	read, err := c.reader(s)
	if err != nil {
		return Row{}, err
	}
	calls, errs := make([]latency.Call, conf.Reads), make([]error, Workers)
	began := time.Now()
	var next atomic.Int64
	var all sync.WaitGroup
	for n := range Workers {
		all.Go(func() {
			p := make([]byte, Size)
			for i := next.Add(1) - 1; i < int64(conf.Reads) && ctx.Err() == nil; i = next.Add(1) - 1 {
				if errs[n] = one(ctx, read, p, i, &calls[i], began); errs[n] != nil {
					return
				}
			}
		})
	}
	all.Wait()
	s.open.Wait()
	row := Row{Contender: c.name}
	for i, call := range calls {
		if call.Latency == 0 {
			continue // it was not read, or to no end
		}
		a := &s.reads[i]
		call.Index, call.Hedges = int32(i), uint8(a.requests.Load()-1)
		if a.replaced.Load() && !call.Failed() {
			call.Winner = 1
		}
		row.Calls = append(row.Calls, call)
		row.Traffic = append(row.Traffic, Traffic{Asked: a.asked.Load(), Sent: a.sent.Load()})
	}
	return row, errors.Join(errs...)
}

// one reads range i into p and notes what came of it. Only wrong bytes are an error.
func one(ctx context.Context, read reader, p []byte, i int64, call *latency.Call, began time.Time) error {
	at := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	err := read(ctx, p, i*Size)
	took := time.Since(at)
	over := ctx.Err() != nil
	cancel() // as callers do whose work is done
	if over {
		return nil
	}
	*call = latency.Call{Start: at.Sub(began), Latency: max(took, 1)}
	if err != nil {
		call.Winner = -1
		return nil
	}
	return check(p, i*Size)
}

// Every 4 KiB of the object begin with a word that says where they are.
const page = 4 << 10

func word(off int64) uint64 { return uint64(off+8) * 0x9E3779B97F4A7C15 }

// fill writes to p what the object has at off, as far as it is checked.
func fill(p []byte, off int64) {
	for at := (page - off%page) % page; at+8 <= int64(len(p)); at += page {
		binary.LittleEndian.PutUint64(p[at:], word(off+at))
	}
}

// check returns an error if p is not what the object has at off.
func check(p []byte, off int64) error {
	for at := (page - off%page) % page; at+8 <= int64(len(p)); at += page {
		if binary.LittleEndian.Uint64(p[at:]) != word(off+at) {
			return fmt.Errorf("wrong bytes at %d", off+at)
		}
	}
	return nil
}
