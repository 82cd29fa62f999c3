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

// A scenario determines the faults of the simulated object store: late first bytes and stalls, or times of slowness.
type scenario struct {
	lab.Scenario
	faulty bool
	slow   bool // for the reads that IsSlowRead reports
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

// IsSlowRead reports whether the store is slow during the read with the given index, in the scenario storage-slow. That
// is the case for three reads in ten.
func IsSlowRead(read int32) bool { return read%1000 >= 400 && read%1000 < 700 }

// faultBlockSize is the unit of faults in bytes: the seed determines the faults of all requests that begin in a block.
const faultBlockSize = ReadSize / 4

// An objectStore is a simulated object store with one object, for one client. It counts requests and bytes.
type objectStore struct {
	scenario
	seed         uint64
	size         int64          // of the object
	requestSize  int64          // of the requests of which a read consists at first
	attempts     []atomic.Int32 // requests by the block in which they begin
	reads        []readStats
	openRequests sync.WaitGroup
}

// A readStats counts the requests that the store has got for one read of a range, and their bytes.
type readStats struct {
	requests, asked, sent atomic.Int64
	replaced              atomic.Bool // the last byte came from a request that replaced another
}

// newObjectStore returns the store for one client to compare. reads is the number of ranges of the object.
func newObjectStore(sc scenario, seed uint64, reads int) *objectStore {
	return &objectStore{
		scenario: sc, seed: seed, size: int64(reads) * ReadSize, requestSize: ReadSize,
		attempts: make([]atomic.Int32, reads*ReadSize/faultBlockSize), reads: make([]readStats, reads),
	}
}

// openBody requests n bytes at offset off, within one of the ranges that clients read. It returns when the first byte
// arrives or ctx ends.
func (s *objectStore) openBody(ctx context.Context, off, n int64) (*responseBody, error) {
	try := s.attempts[off/faultBlockSize].Add(1) - 1
	b := &responseBody{
		store: s, ctx: ctx, stats: &s.reads[off/ReadSize], off: off, size: n, interval: chunkInterval, stallAt: -1,
		isFirst: try == 0 && off%s.requestSize == 0,
	}
	b.stats.requests.Add(1)
	b.stats.asked.Add(n)
	delay := b.drawFaults(rand.New(rand.NewPCG(s.seed, uint64(off/faultBlockSize)<<8|uint64(try))))
	s.openRequests.Add(1)
	if err := lab.SleepContext(ctx, delay); err != nil {
		s.openRequests.Done()
		return nil, err
	}
	b.start = time.Now()
	b.stopAfterFunc = context.AfterFunc(ctx, b.finishRequest)
	return b, nil
}

// drawFaults draws the delay until the first byte and returns it. It also sets the position at which the body stalls, if it
// does. While the store is slow, the delay and the interval between chunks are longer.
func (b *responseBody) drawFaults(random *rand.Rand) time.Duration {
	delay := max(firstByteMean+time.Duration(random.NormFloat64()*float64(firstByteDeviation)), firstByteMean/2)
	kind, share := random.IntN(faultPeriod), random.Float64()
	switch {
	case b.store.faulty && kind == 0:
		delay += faultDelay
	case b.store.faulty && kind == 1:
		b.stallAt = int64(share*float64(b.size)) / wordSpacing * wordSpacing
	}
	if b.store.slow && IsSlowRead(int32(b.off/ReadSize)) {
		delay, b.interval = delay*slowFactor, b.interval*slowFactor
	}
	return delay
}

// A responseBody is the response body of a request to the simulated store. The first chunk is available at once, and
// each further chunk after an interval.
type responseBody struct {
	store         *objectStore
	ctx           context.Context // of the request
	stats         *readStats
	off           int64 // in the object
	size          int64
	isFirst       bool // no earlier request was for this range
	interval      time.Duration
	stallAt       int64 // the byte before which the body stalls; -1: it does not
	start         time.Time
	position      atomic.Int64 // of the next byte
	stopAfterFunc func() bool  // detaches finishRequest from ctx
	once          sync.Once
}

func (b *responseBody) arrivalTime(position int64) time.Time {
	d := time.Duration(position/chunkSize) * b.interval
	if b.stallAt >= 0 && position >= b.stallAt {
		d += faultDelay
	}
	return b.start.Add(d)
}

// chunkEnd returns the position after the last byte that arrives together with the byte at the given position.
func (b *responseBody) chunkEnd(position int64) int64 {
	end := min((position/chunkSize+1)*chunkSize, b.size)
	if position < b.stallAt {
		end = min(end, b.stallAt)
	}
	return end
}

func (b *responseBody) Read(p []byte) (int, error) {
	position := b.position.Load()
	if position == b.size {
		return 0, io.EOF
	}
	if err := lab.SleepContext(b.ctx, time.Until(b.arrivalTime(position))); err != nil {
		return 0, err
	}
	n := min(int64(len(p)), b.chunkEnd(position)-position)
	fillContent(p[:n], b.off+position)
	b.position.Store(position + n)
	if position+n == b.size && (b.off+b.size)%ReadSize == 0 && !b.isFirst {
		b.stats.replaced.Store(true)
	}
	return int(n), nil
}

func (b *responseBody) Close() error {
	b.stopAfterFunc()
	b.finishRequest()
	return nil
}

// finishRequest marks the request as finished, and adds the bytes that the store has sent so far to those of the read.
// It has an effect once: when the body is closed or when the request's context ends.
func (b *responseBody) finishRequest() {
	b.once.Do(func() {
		sent, now := b.position.Load(), time.Now()
		for sent < b.size && !b.arrivalTime(sent).After(now) {
			sent = b.chunkEnd(sent)
		}
		b.stats.sent.Add(sent)
		b.store.openRequests.Done()
	})
}
