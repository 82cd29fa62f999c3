package rangeread

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/internal/budget"
	"github.com/gohedge/hedge/internal/ops"
	"github.com/gohedge/hedge/internal/policy"
)

// The defaults of Options.
const (
	DefaultPartSize      = 8 << 20
	DefaultParallel      = 4
	DefaultBudgetPercent = 10
	DefaultMaxBytes      = 256 << 20
)

// NoBudget is the BudgetPercent of [Options] with which no hedge is sent, and NoReadAhead the MaxBytes with which nothing is read ahead.
const (
	NoBudget    = -1
	NoReadAhead = -1
)

// The least and the largest part.
const (
	minPartSize = 4 << 10
	maxPartSize = 256 << 20
)

// burstParts is how many parts the budget of bytes holds at most: hedges may cluster.
const burstParts = 4

// Options are the settings of a [Store]. A field that is zero has its default. The zero value suits most programs.
type Options struct {
	// PartSize is how long a range is at most: longer reads are split. The default is [DefaultPartSize]. It is from 4 KiB to 256 MiB.
	PartSize int64

	// Parallel is how many parts of one read, or of one sequential reader, are asked for at the same time. The default is
	// [DefaultParallel]; 1 reads them one after another.
	Parallel int

	// BudgetPercent is how many hedges are sent per 100 ranges at most, and how many bytes they ask for per 100 bytes that are read, besides a
	// burst of four parts. The default is [DefaultBudgetPercent]. [NoBudget] sends no hedge. It is 400 at most.
	BudgetPercent float64

	// MaxBytes bounds the memory for what all sequential readers of the store have read ahead. A reader that gets none reads
	// only what it is asked for. The default is [DefaultMaxBytes]. [NoReadAhead] reads nothing ahead. Besides, each range that is being read holds
	// 128 KiB.
	MaxBytes int64
}

// withDefaults returns o with the defaults of unset fields. It panics if a setting is invalid.
func (o Options) withDefaults() Options {
	o.PartSize, o.Parallel = cmp.Or(o.PartSize, DefaultPartSize), cmp.Or(o.Parallel, DefaultParallel)
	o.BudgetPercent, o.MaxBytes = cmp.Or(o.BudgetPercent, DefaultBudgetPercent), cmp.Or(o.MaxBytes, DefaultMaxBytes)
	switch {
	case o.PartSize < minPartSize || o.PartSize > maxPartSize:
		panic(fmt.Sprintf("rangeread: PartSize is %d, want %d to %d", o.PartSize, minPartSize, maxPartSize))
	case o.Parallel < 1:
		panic(fmt.Sprintf("rangeread: Parallel is %d, want at least 1", o.Parallel))
	case o.BudgetPercent != NoBudget && !(o.BudgetPercent > 0 && o.BudgetPercent <= 400): // NaN is not
		panic(fmt.Sprintf("rangeread: BudgetPercent is %v, want 0 to 400 or NoBudget", o.BudgetPercent))
	case o.MaxBytes < NoReadAhead:
		panic(fmt.Sprintf("rangeread: MaxBytes is %d, want at least 0 or NoReadAhead", o.MaxBytes))
	}
	return o
}

// A Store is what is learned of one object store, or of one bucket, and what pays for the hedges of all its objects. It is safe for concurrent
// use. The zero Store is not usable; NewStore makes one. It has no goroutines and needs no Close.
type Store struct {
	options       Options // with defaults
	off           bool    // no hedge is sent
	shadow        bool    // shadow mode: hedges are only counted
	engine        *policy.Engine
	bytes         *budget.Bucket // pays for the bytes of hedges
	reserved      atomic.Int64   // bytes read ahead
	ignoresRanges atomic.Bool    // the last answer to a range behind byte 0 began at byte 0
	counters
}

// NewStore returns a Store. It panics if the options make no sense. The variables HEDGE_MODE and HEDGE_DISABLED of the environment count, as they do for
// package hedge.
func NewStore(o Options) *Store {
	o = o.withDefaults()
	environment := ops.ReadEnvironment()
	share := max(o.BudgetPercent, 0) / 100
	return &Store{
		options: o,
		off:     environment.Off != "" || share == 0,
		shadow:  environment.Shadow,
		bytes:   budget.NewBucket(share, float64(burstParts*o.PartSize)),
		engine: policy.New(policy.Config{
			Percentile: 0.90, MaxHedges: maxHedges, Share: share, EstimatedRPS: 100, Burst: 2 * time.Second,
			MinDelay: time.Millisecond, MaxKeys: 2 * 64,
			Setup: policy.Setup{Protocol: "range", PerHost: true, Shadow: environment.Shadow},
		}),
	}
}

// maxHedges is how many hedges a range has at most, of each kind.
const maxHedges = 2

// Stats returns what the store has done and knows.
func (s *Store) Stats() Stats {
	all := s.toStats()
	all.Enabled, all.Shadow = !s.off, s.shadow
	all.BytesHeld, all.MaxBytes = s.reserved.Load(), max(s.options.MaxBytes, 0)
	for _, v := range s.engine.Snapshots() {
		length, err := strconv.ParseInt(v.Name.Route, 10, 64)
		if err != nil {
			continue // the store itself, which pays
		}
		c := Class{Length: length, Ranges: v.Requests, Hedges: v.Hedges, P50: v.P50, P99: v.P99, Stall: v.Stall}
		if len(v.Delays) > 0 {
			c.Delay = v.Delays[0]
		}
		all.Classes = append(all.Classes, c)
	}
	slices.SortFunc(all.Classes, func(a, b Class) int { return cmp.Compare(a.Length, b.Length) })
	return all
}

// keyForLength returns the latency key of ranges of about the given length.
func (s *Store) keyForLength(length int64) *policy.Key {
	class := int64(1) << bits.Len64(uint64(length-1))
	return s.engine.Key(policy.Name{Host: "store", Route: strconv.FormatInt(class, 10)})
}

// recordRangeSupport records whether the last response was the whole object in place of the range.
func (s *Store) recordRangeSupport(ranges bool) {
	if s.ignoresRanges.Load() != ranges {
		s.ignoresRanges.Store(ranges)
	}
}

// responseBytes estimates the length of the response to a request for the bytes [from, to).
func (s *Store) responseBytes(from, to int64) int64 {
	if s.ignoresRanges.Load() {
		return to
	}
	return to - from
}

// reserveMemory counts n bytes that will be read ahead. It reports false, and counts nothing, beyond Options.MaxBytes.
func (s *Store) reserveMemory(n int64) bool {
	if s.reserved.Add(n) > s.options.MaxBytes {
		s.reserved.Add(-n)
		return false
	}
	return true
}

// releaseMemory undoes reserveMemory.
func (s *Store) releaseMemory(n int64) { s.reserved.Add(-n) }
