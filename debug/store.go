package debug

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/sanitize"
	"github.com/gohedge/hedge/observe"
)

// A RangeStore is a *rangeread.Store, or any other type with its Stats method. This package does not import rangeread: programs that do not use it
// need not link it.
type RangeStore interface{ Stats() observe.StoreStats }

// Store returns a Source for a store of ranges. The page shows the name, for example that of a bucket. The name may be empty. Store panics if s is
// nil.
func Store(name string, s RangeStore) Source {
	if isNil(s) {
		panic("debug: Store: RangeStore is nil")
	}
	return storeSource{name, s}
}

type storeSource struct {
	name   string
	ranges RangeStore
}

// Snapshot returns only the fields that all sources have. The page shows the Stats.
func (s storeSource) Snapshot() hedge.Snapshot {
	stats := s.ranges.Stats()
	return hedge.Snapshot{Name: s.name, Protocol: "range", Enabled: stats.Enabled, Shadow: stats.Shadow}
}

// StoreStats has the name and the counters of a source of [Store].
type StoreStats struct {
	Name string `json:"name,omitempty"` // the argument of Store
	observe.StoreStats
}

type storeView struct {
	observe.StoreStats
	Title   string
	Totals  []labeledValue
	Bytes   []labeledValue
	Denied  []namedValue
	Classes []classView
}

// classView is a row with the counters and estimates of ranges of about one size.
type classView struct {
	Length         string // upper bound
	P50, P99       string // of the time to the first byte; "" if unknown
	Delay, Stall   string // "" if there is none
	Ranges, Hedges string
	Load           string // hedges per range; "" if there were none
}

func renderStore(s StoreStats) storeView {
	v := storeView{StoreStats: s.StoreStats, Title: sanitize.CleanText(cmp.Or(s.Name, "ranges"))}
	hedges, shadow := s.FirstByteHedges+s.StallHedges, s.DeniedBy[observe.DeniedShadow]
	v.Totals = []labeledValue{
		{"ranges", "ranges", formatCount(s.Ranges), "parts of reads"},
		{"requests", "requests sent", formatCount(s.Requests), formatShareOf(hedges, s.Ranges, "extra load")},
		{"first_byte_hedges", "first byte late", formatCount(s.FirstByteHedges), formatShareOf(s.FirstByteHedges, s.Ranges, "of the ranges")},
		{"first_byte_wins", "hedge was first", formatCount(s.FirstByteWins), formatShareOf(s.FirstByteWins, s.FirstByteHedges, "of those")},
		{"stall_hedges", "body stalled", formatCount(s.StallHedges), formatShareOf(s.StallHedges, s.Ranges, "of the ranges")},
		{"stall_wins", "went on", formatCount(s.StallWins), formatShareOf(s.StallWins, s.StallHedges, "of those, by a hedge")},
		{"denied", "hedges denied", formatCount(s.Denied - shadow), ""},
		{"denied_bytes", "out of bytes", formatCount(s.DeniedBytes), formatShareOf(s.DeniedBytes, s.Denied-shadow, "of those denied")},
	}
	if s.Shadow {
		v.Totals = slices.Replace(v.Totals, 2, 6, // the totals of hedges and their wins
			labeledValue{"shadow", "would be hedged", formatCount(shadow), formatShareOf(shadow, s.Ranges, "extra load")})
	}
	if s.Panics > 0 {
		v.Totals = append(v.Totals, labeledValue{"panics", "panics", formatCount(s.Panics), "recovered"})
	}
	held := "nothing is read ahead"
	if s.MaxBytes > 0 {
		held = formatShareOf(s.BytesHeld, s.MaxBytes, "of "+formatBytes(s.MaxBytes))
	}
	v.Bytes = []labeledValue{
		{"bytes_asked", "asked", formatBytes(s.BytesAsked), "by ranges"},
		{"bytes_hedged", "asked by hedges", formatBytes(s.BytesHedged), formatShareOf(s.BytesHedged, s.BytesAsked, "more")},
		{"bytes_read", "read", formatBytes(s.BytesRead), "from bodies"},
		{"bytes_twice", "read twice", formatBytes(s.BytesTwice), formatShareOf(s.BytesTwice, s.BytesRead, "of what was read")},
		{"bytes_skipped", "before the range", formatBytes(s.BytesSkipped), formatShareOf(s.BytesSkipped, s.BytesRead, "of what was read")},
		{"bytes_held", "read ahead", formatBytes(s.BytesHeld), held},
	}
	v.Denied = listDenied(s.DeniedBy)
	for _, c := range s.Classes {
		v.Classes = append(v.Classes, renderClass(c))
	}
	return v
}

func renderClass(c observe.StoreClass) classView {
	known := func(d time.Duration) string {
		if d == 0 {
			return ""
		}
		return formatDuration(d)
	}
	return classView{
		Length: formatLength(c.Length), P50: known(c.P50), P99: known(c.P99), Delay: known(c.Delay), Stall: known(c.Stall),
		Ranges: formatCount(c.Ranges), Hedges: formatCount(c.Hedges), Load: formatShareOf(c.Hedges, c.Ranges, ""),
	}
}

// formatLength formats a power of two in GiB, MiB, KiB or B.
func formatLength(n int64) string {
	for _, unit := range []struct {
		of   int64
		name string
	}{{1 << 30, " GiB"}, {1 << 20, " MiB"}, {1 << 10, " KiB"}} {
		if n >= unit.of {
			return strconv.FormatInt(n/unit.of, 10) + unit.name
		}
	}
	return strconv.FormatInt(n, 10) + " B"
}
