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

// A RangeStore is a *rangeread.Store, or another type with the same Stats method. The interface avoids an import of
// rangeread in programs that do not use it.
type RangeStore interface{ Stats() observe.StoreStats }

// Store returns a [Source] that shows a store of package rangeread on the page. The name, for example of a bucket, is
// the title of the section; it may be empty. Store panics if s is nil.
func Store(name string, s RangeStore) Source {
	if isNil(s) {
		panic("debug: Store: RangeStore is nil")
	}
	return storeSource{name, s}
}

// A storeSource is the Source that Store returns.
type storeSource struct {
	name   string
	ranges RangeStore
}

// Snapshot implements [Source]. It returns only the name and whether hedging is enabled or in shadow mode; the page
// shows the Stats of the store instead.
func (s storeSource) Snapshot() hedge.Snapshot {
	stats := s.ranges.Stats()
	return hedge.Snapshot{Name: s.name, Protocol: "range", Enabled: stats.Enabled, Shadow: stats.Shadow}
}

// StoreStats holds the statistics of a store that [Store] shows, and its name.
type StoreStats struct {
	Name string `json:"name,omitempty"` // name that was passed to [Store]
	observe.StoreStats
}

// A storeView is the section of the page for one store, with formatted numbers.
type storeView struct {
	observe.StoreStats
	Title   string
	Totals  []labeledValue
	Bytes   []labeledValue // totals of bytes
	Denied  []namedValue   // numbers of denied hedges, by reason
	Classes []classView
}

// A classView is the row of the page for one size class of ranges, with formatted numbers.
type classView struct {
	Length         string // maximum length of the ranges
	P50, P99       string // of the time to the first byte; "" if unknown
	Delay, Stall   string // "" if there is none
	Ranges, Hedges string
	Load           string // hedges per range; "" if there are none
}

// renderStore returns the section for the statistics s of a store.
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

// renderClass returns the row for the statistics c of a size class.
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

// formatLength formats n bytes, a power of two, in GiB, MiB, KiB or B without decimal places, such as "64 KiB".
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
