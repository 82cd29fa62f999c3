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

// The defaults of [Options]. Sizes are in bytes.
const (
	DefaultPartSize      = 8 << 20
	DefaultParallel      = 4
	DefaultBudgetPercent = 10
	DefaultMaxBytes      = 256 << 20
)

// Special values of [Options].
const (
	NoBudget    = -1 // a BudgetPercent that sends no hedge
	NoReadAhead = -1 // a MaxBytes that disables reading ahead
)

// Bounds of Options.PartSize in bytes.
const (
	minPartSize = 4 << 10
	maxPartSize = 256 << 20
)

// burstParts is the burst of the budget of bytes, in parts: hedges may request that many parts at once.
const burstParts = 4

// Options are the settings of a [Store]. A field that is zero has its default value, so the zero Options are valid.
type Options struct {
	// PartSize is the maximum length of a range in bytes: longer reads are split into parts. The default is
	// [DefaultPartSize]. Valid values are 4 KiB to 256 MiB.
	PartSize int64

	// Parallel is the maximum number of parts that one read or sequential reader requests at the same time. The default
	// is [DefaultParallel]; 1 reads parts one after another.
	Parallel int

	// BudgetPercent limits the hedges per 100 ranges, and also the bytes of hedges per 100 bytes that are read. Both
	// limits have a burst; the burst of bytes is four parts. The default is [DefaultBudgetPercent], and the maximum is
	// 400. With [NoBudget], no hedges are sent.
	BudgetPercent float64

	// MaxBytes limits the memory that all sequential readers of the store use for reading ahead. At the limit, a reader
	// requests only the part that the caller is reading. The default is [DefaultMaxBytes]. [NoReadAhead] disables reading
	// ahead. In addition to MaxBytes, each range that is being read uses 128 KiB.
	MaxBytes int64
}

// withDefaults returns o with the default in place of each zero field. It panics if a setting is invalid.
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

// A Store holds the learned latencies and the hedge budgets that all objects of one object store, or one bucket, share.
// It is safe for concurrent use. The zero Store is not usable; call NewStore. A Store has no goroutines, and need not
// be closed.
type Store struct {
	options         Options        // with defaults
	hedgingDisabled bool           // true if hedging is disabled by NoBudget or the environment
	shadow          bool           // true in shadow mode: hedges are only counted
	engine          *policy.Engine // latencies, hedge delays and the budget of hedges, by size class
	byteBudget      *budget.Bucket // budget that limits the bytes of hedges
	reserved        atomic.Int64   // bytes of Options.MaxBytes that readers have reserved
	ignoresRanges   atomic.Bool    // the last response to a range with a positive offset started at offset 0
	counters
}

// NewStore returns a Store with the settings o. It panics if a setting is invalid. The environment variables HEDGE_MODE
// and HEDGE_DISABLED apply as in package hedge. HEDGE_BUDGET_PERCENT has no effect. This and an invalid value are each
// logged once with [slog.Default].
func NewStore(o Options) *Store {
	o = o.withDefaults()
	environment := ops.ReadEnvironment(false)
	ops.NewLog(nil, "rangeread", "range", "", new(atomic.Int64)).LogEnvironment(environment)
	share := max(o.BudgetPercent, 0) / 100
	return &Store{
		options:         o,
		hedgingDisabled: environment.Off != "" || share == 0,
		shadow:          environment.IsShadow(false),
		byteBudget:      budget.NewBucket(share, float64(burstParts*o.PartSize)),
		engine: policy.New(policy.Config{
			Percentile: 0.90, MaxHedges: maxHedges, Share: share, EstimatedRPS: 100, Burst: 2 * time.Second,
			MinDelay: time.Millisecond, MaxKeys: 2 * 64, Shadow: environment.IsShadow(false),
			Setup: policy.Setup{Protocol: "range", PerHost: true},
		}),
	}
}

// maxHedges limits the hedges of a range because of a late first byte. The same limit applies separately to hedges
// because of a stalled or broken body.
const maxHedges = 2

// Stats returns the current counters and estimates of the store. Use it for metrics and debug pages.
func (s *Store) Stats() Stats {
	all := s.toStats()
	all.Enabled, all.Shadow = !s.hedgingDisabled, s.shadow
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

// keyForLength returns the latency key of the size class that contains a range of the given length in bytes. The length
// must be at least 1.
func (s *Store) keyForLength(length int64) *policy.Key {
	class := int64(1) << bits.Len64(uint64(length-1))
	return s.engine.Key(policy.Name{Host: "store", Route: strconv.FormatInt(class, 10)})
}

// setIgnoresRanges records whether the server supports ranges, as a response to a range request shows. The argument
// ignored is true if the server has ignored the range and sent the whole object.
func (s *Store) setIgnoresRanges(ignored bool) {
	if s.ignoresRanges.Load() != ignored {
		s.ignoresRanges.Store(ignored)
	}
}

// responseBytes returns the expected length of the response to a request for the bytes [from, to). If the server
// ignores ranges, the response also contains the bytes before from.
func (s *Store) responseBytes(from, to int64) int64 {
	if s.ignoresRanges.Load() {
		return to
	}
	return to - from
}

// reserveMemory reserves n bytes of Options.MaxBytes for reading ahead. It returns false, and reserves nothing, if the
// limit would be exceeded.
func (s *Store) reserveMemory(n int64) bool {
	if s.reserved.Add(n) > s.options.MaxBytes {
		s.reserved.Add(-n)
		return false
	}
	return true
}

// releaseMemory gives back n bytes of Options.MaxBytes that reserveMemory has reserved.
func (s *Store) releaseMemory(n int64) { s.reserved.Add(-n) }
