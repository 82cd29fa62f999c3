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

// A RangeStore is a *rangeread.Store, or anything else that has its Stats. This package
// does not import rangeread, so that programs without it need not carry it.
type RangeStore interface{ Stats() observe.StoreStats }

// Store makes a Source of a store of ranges, under a name that the page shows: that of its bucket, for example. The
// name may be empty. It panics if s is nil.
func Store(name string, s RangeStore) Source {
	if isNil(s) {
		panic("debug: Store: RangeStore is nil")
	}
	return store{name, s}
}

type store struct {
	name string
	of   RangeStore
}

// Snapshot returns what stores have in common with others. The page shows their Stats.
func (s store) Snapshot() hedge.Snapshot {
	stats := s.of.Stats()
	return hedge.Snapshot{Name: s.name, Protocol: "range", Enabled: stats.Enabled, Shadow: stats.Shadow}
}

// StoreStats is what [Page] has of a source of [Store].
type StoreStats struct {
	Name string `json:"name,omitempty"` // that Store was given
	observe.StoreStats
}

type storeView struct {
	observe.StoreStats
	Title   string
	Totals  []total
	Bytes   []total
	Denied  []setting
	Classes []classView
}

// classView is a row: what is known of ranges of about one size.
type classView struct {
	Length         string // at most
	P50, P99       string // of the time to the first byte; "" if unknown
	Delay, Stall   string // "" if there is none
	Ranges, Hedges string
	Load           string // hedges per range; "" if there were none
}

func renderStore(s StoreStats) storeView {
	v := storeView{StoreStats: s.StoreStats, Title: sanitize.CleanText(cmp.Or(s.Name, "ranges"))}
	hedges, shadow := s.FirstByteHedges+s.StallHedges, s.DeniedBy[observe.DeniedShadow]
	v.Totals = []total{
		{"ranges", "ranges", count(s.Ranges), "parts of reads"},
		{"requests", "requests sent", count(s.Requests), of(hedges, s.Ranges, "extra load")},
		{"first_byte_hedges", "first byte late", count(s.FirstByteHedges), of(s.FirstByteHedges, s.Ranges, "of the ranges")},
		{"first_byte_wins", "hedge was first", count(s.FirstByteWins), of(s.FirstByteWins, s.FirstByteHedges, "of those")},
		{"stall_hedges", "body stalled", count(s.StallHedges), of(s.StallHedges, s.Ranges, "of the ranges")},
		{"stall_wins", "went on", count(s.StallWins), of(s.StallWins, s.StallHedges, "of those, by a hedge")},
		{"denied", "hedges denied", count(s.Denied - shadow), ""},
		{"denied_bytes", "out of bytes", count(s.DeniedBytes), of(s.DeniedBytes, s.Denied-shadow, "of those denied")},
	}
	if s.Shadow {
		v.Totals = slices.Replace(v.Totals, 2, 6, // the totals of hedges and their wins
			total{"shadow", "would be hedged", count(shadow), of(shadow, s.Ranges, "extra load")})
	}
	if s.Panics > 0 {
		v.Totals = append(v.Totals, total{"panics", "panics", count(s.Panics), "recovered"})
	}
	held := "nothing is read ahead"
	if s.MaxBytes > 0 {
		held = of(s.BytesHeld, s.MaxBytes, "of "+size(s.MaxBytes))
	}
	v.Bytes = []total{
		{"bytes_asked", "asked", size(s.BytesAsked), "by ranges"},
		{"bytes_hedged", "asked by hedges", size(s.BytesHedged), of(s.BytesHedged, s.BytesAsked, "more")},
		{"bytes_read", "read", size(s.BytesRead), "from bodies"},
		{"bytes_twice", "read twice", size(s.BytesTwice), of(s.BytesTwice, s.BytesRead, "of what was read")},
		{"bytes_skipped", "before the range", size(s.BytesSkipped), of(s.BytesSkipped, s.BytesRead, "of what was read")},
		{"bytes_held", "read ahead", size(s.BytesHeld), held},
	}
	v.Denied = denied(s.DeniedBy)
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
		return duration(d)
	}
	return classView{
		Length: length(c.Length), P50: known(c.P50), P99: known(c.P99), Delay: known(c.Delay), Stall: known(c.Stall),
		Ranges: count(c.Ranges), Hedges: count(c.Hedges), Load: of(c.Hedges, c.Ranges, ""),
	}
}

// length formats a power of two in the largest unit of which there is one at least.
func length(n int64) string {
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
