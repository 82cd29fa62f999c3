package storelab

import (
	"context"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/lab"
)

// A scenario is a condition of the simulated object store: whether some of its responses have faults, and whether it is
// slow for a while.
type scenario struct {
	lab.Scenario
	faulty bool
	slow   bool // for the reads that IsSlow reports
}

var scenarios = []scenario{
	{lab.Scenario{Name: "storage", Description: "reads of 1 MiB from a store 15 ms away; 1 % of the first bytes are 1 s late, and 1 % of the bodies stall for 1 s"}, true, false},
	{lab.Scenario{Name: "storage-still", Description: "the same store without faults"}, false, false},
	{lab.Scenario{Name: "storage-slow", Description: "the same without faults, but three reads in ten come while the whole store takes eight times as long"}, false, true},
}

// Scenarios lists all scenarios.
var Scenarios = lab.ScenariosOf(scenarios)

// The times of a store.
const (
	firstByteMean      = 15 * time.Millisecond // normally distributed
	firstByteDeviation = 2 * time.Millisecond
	chunkSize          = 128 << 10            // bytes of a body that arrive together
	chunkInterval      = time.Millisecond / 2 // between two chunks
	faultDelay         = time.Second
	faultPeriod        = 100 // requests of which one has a late first byte and one a body that stalls
	slowFactor         = 8   // of all times while the store is slow
)

// IsSlow reports whether the whole store is slow during the read with the given number, in the scenario storage-slow.
// Three reads in ten are slow.
func IsSlow(read int32) bool { return read%1000 >= 400 && read%1000 < 700 }

// block is the unit of faults in bytes: the seed determines the faults of all requests that begin in one block.
const block = Size / 4

// A store is a simulated object store with one object, for one contender. It determines the faults of each response,
// and counts requests and bytes.
type store struct {
	scenario
	seed         uint64
	size         int64          // of the object
	requestSize  int64          // of the requests of which a read consists at first
	tries        []atomic.Int32 // requests by the block in which they begin
	reads        []readStats
	openRequests sync.WaitGroup
}

type readStats struct {
	requests, asked, sent atomic.Int64
	replaced              atomic.Bool // the last byte came by a request that replaced another
}

// newStore returns the store of one contender for a scenario. seed determines the faults, and reads is the number of
// ranges in the object.
func newStore(sc scenario, seed uint64, reads int) *store {
	return &store{
		scenario: sc, seed: seed, size: int64(reads) * Size, requestSize: Size,
		tries: make([]atomic.Int32, reads*Size/block), reads: make([]readStats, reads),
	}
}

// openBody sends a request to the store for n bytes of the object at offset off, all within one read. It returns the
// response's body when the first byte arrives, or the error of ctx.
func (s *store) openBody(ctx context.Context, off, n int64) (*body, error) {
	try := s.tries[off/block].Add(1) - 1
	b := &body{
		store: s, ctx: ctx, stats: &s.reads[off/Size], off: off, size: n, interval: chunkInterval, stallAt: -1,
		isFirst: try == 0 && off%s.requestSize == 0,
	}
	b.stats.requests.Add(1)
	b.stats.asked.Add(n)
	delay := b.drawFaults(rand.New(rand.NewPCG(s.seed, uint64(off/block)<<8|uint64(try))))
	s.openRequests.Add(1)
	if err := lab.SleepContext(ctx, delay); err != nil {
		s.openRequests.Done()
		return nil, err
	}
	b.start = time.Now()
	b.stopWatch = context.AfterFunc(ctx, b.finish)
	return b, nil
}

// drawFaults draws the speed and the stall of a body from random numbers, and returns the delay of its first byte. A
// stall begins at a multiple of the page size.
func (b *body) drawFaults(random *rand.Rand) time.Duration {
	delay := max(firstByteMean+time.Duration(random.NormFloat64()*float64(firstByteDeviation)), firstByteMean/2)
	kind, share := random.IntN(faultPeriod), random.Float64()
	switch {
	case b.store.faulty && kind == 0:
		delay += faultDelay
	case b.store.faulty && kind == 1:
		b.stallAt = int64(share*float64(b.size)) / page * page
	}
	if b.store.slow && IsSlow(int32(b.off/Size)) {
		delay, b.interval = delay*slowFactor, b.interval*slowFactor
	}
	return delay
}

// A body is the body of a response from the simulated store. It arrives in chunks, the first one at once.
type body struct {
	store     *store
	ctx       context.Context // of the request
	stats     *readStats
	off       int64 // in the object
	size      int64
	isFirst   bool // no earlier request was for this range
	interval  time.Duration
	stallAt   int64 // the byte before which the body stalls; -1: it does not
	start     time.Time
	position  atomic.Int64 // of the next byte
	stopWatch func() bool  // detaches finish from ctx
	once      sync.Once
}

// arrivalOf returns the time at which the byte at a position of the body arrives.
func (b *body) arrivalOf(position int64) time.Time {
	d := time.Duration(position/chunkSize) * b.interval
	if b.stallAt >= 0 && position >= b.stallAt {
		d += faultDelay
	}
	return b.start.Add(d)
}

// endOfChunk returns the end of the chunk around a position of the body: the position after the last byte that arrives
// together with it.
func (b *body) endOfChunk(position int64) int64 {
	end := min((position/chunkSize+1)*chunkSize, b.size)
	if position < b.stallAt {
		end = min(end, b.stallAt)
	}
	return end
}

// Read reads bytes of the response that have arrived. It waits for the next chunk if there are none.
func (b *body) Read(p []byte) (int, error) {
	position := b.position.Load()
	if position == b.size {
		return 0, io.EOF
	}
	if err := lab.SleepContext(b.ctx, time.Until(b.arrivalOf(position))); err != nil {
		return 0, err
	}
	n := min(int64(len(p)), b.endOfChunk(position)-position)
	fillBytes(p[:n], b.off+position)
	b.position.Store(position + n)
	if position+n == b.size && (b.off+b.size)%Size == 0 && !b.isFirst {
		b.stats.replaced.Store(true)
	}
	return int(n), nil
}

// Close ends the request, and counts the bytes that have arrived.
func (b *body) Close() error {
	b.stopWatch()
	b.finish()
	return nil
}

// finish adds the bytes that have arrived so far to the bytes sent by the store. It runs once, when the body is closed
// or when the context of the request ends.
func (b *body) finish() {
	b.once.Do(func() {
		sent, now := b.position.Load(), time.Now()
		for sent < b.size && !b.arrivalOf(sent).After(now) {
			sent = b.endOfChunk(sent)
		}
		b.stats.sent.Add(sent)
		b.store.openRequests.Done()
	})
}
