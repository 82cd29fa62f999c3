package hedgeprom_test

import (
	"fmt"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/hedgeprom"
	"github.com/gohedge/hedge/observe"
	"github.com/gohedge/hedge/rangeread"
)

var _ hedgeprom.RangeStore = (*rangeread.Store)(nil)

const module = "github.com/gohedge/hedge"

// rangeStore is a store that has these Stats.
type rangeStore observe.StoreStats

func (r *rangeStore) Stats() observe.StoreStats { return observe.StoreStats(*r) }

// newRangeStore returns a store each number of which is another, from 1001 on.
func newRangeStore() *rangeStore {
	s := &rangeStore{
		DeniedBy: map[observe.Reason]int64{observe.DeniedBudget: 5, observe.DeniedSlow: 2},
		Classes: []observe.StoreClass{
			{Length: 4096, Ranges: 70, Hedges: 6, P50: 20 * ms, P99: 90 * ms, Delay: 40 * ms, Stall: 300 * ms},
			{Length: 1 << 20, Ranges: 3},
		},
	}
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Int64 {
			f.SetInt(int64(1000 + i))
		}
	}
	return s
}

func TestCollectorShowsStatsOfStore(t *testing.T) {
	c := hedgeprom.New(hedgeprom.WithConstLabels(prometheus.Labels{"zone": "a"}))
	assert.Zero(t, testutil.CollectAndCount(c), "there is no store yet")
	s := newRangeStore()
	c.AddStore("tables", s)
	problems, err := testutil.CollectAndLint(c)
	require.NoError(t, err)
	assert.Empty(t, problems)
	shown := make(map[int64]bool)
	for name, value := range map[string]int64{
		"ranges_total": s.Ranges, "requests_total": s.Requests, "hedges_denied_for_bytes_total": s.DeniedBytes,
		"asked_bytes_total": s.BytesAsked, "hedged_bytes_total": s.BytesHedged, "read_bytes_total": s.BytesRead,
		"skipped_bytes_total": s.BytesSkipped, "read_twice_bytes_total": s.BytesTwice, "held_bytes": s.BytesHeld, "max_held_bytes": s.MaxBytes,
		"panics_total": s.Panics,
	} {
		assert.Equal(t, map[string]float64{`store="tables",zone="a"`: float64(value)}, gatherValues(t, c, "hedge_store_"+name), name)
		shown[value] = true
	}
	for name, want := range map[string]map[string]float64{
		"hedges_total":           {"kind=first-byte": float64(s.FirstByteHedges), "kind=stall": float64(s.StallHedges)},
		"hedge_wins_total":       {"kind=first-byte": float64(s.FirstByteWins), "kind=stall": float64(s.StallWins)},
		"hedges_denied_total":    {"reason=budget": 5, "reason=slow": 2},
		"class_ranges_total":     {"length=4096": 70, "length=1048576": 3},
		"class_hedges_total":     {"length=4096": 6, "length=1048576": 0},
		"first_byte_p50_seconds": {"length=4096": 0.02, "length=1048576": 0},
		"first_byte_p99_seconds": {"length=4096": 0.09, "length=1048576": 0},
		"delay_seconds":          {"length=4096": 0.04, "length=1048576": 0},
		"stall_seconds":          {"length=4096": 0.3, "length=1048576": 0},
	} {
		all := make(map[string]float64)
		for label, n := range want {
			label, value, _ := strings.Cut(label, "=")
			all[fmt.Sprintf(`%s=%q,store="tables",zone="a"`, label, value)] = n
		}
		assert.Equal(t, all, gatherValues(t, c, "hedge_store_"+name), name)
	}
	others := []string{"Enabled", "Shadow", "Denied", "FirstByteHedges", "FirstByteWins", "StallHedges", "StallWins", "DeniedBy", "Classes"} // without a metric; with one that has a label
	assert.Len(t, shown, reflect.TypeFor[observe.StoreStats]().NumField()-len(others), "all other fields have a metric")
}

func TestCollectorMergesStoresOfSameName(t *testing.T) {
	c := hedgeprom.New()
	slow := newRangeStore()
	slow.Classes = []observe.StoreClass{{Length: 4096, Ranges: 1, P50: 10 * ms, P99: time.Second, Delay: 30 * ms, Stall: 2 * time.Second}}
	slow.DeniedBy = map[observe.Reason]int64{observe.DeniedBudget: 1}
	c.AddStore("tables", newRangeStore())
	c.AddStore("tables", slow)
	c.AddStore("a\xff", newRangeStore())
	read := float64(slow.BytesRead)
	assert.Equal(t, map[string]float64{`store="tables"`: 2 * read, `store="a�"`: read}, gatherValues(t, c, "hedge_store_read_bytes_total"))
	assert.Equal(t, map[string]float64{
		`reason="budget",store="tables"`: 6, `reason="slow",store="tables"`: 2, `reason="budget",store="a�"`: 5, `reason="slow",store="a�"`: 2,
	}, gatherValues(t, c, "hedge_store_hedges_denied_total"))
	for name, want := range map[string]float64{
		"class_ranges_total": 71, "class_hedges_total": 6, "first_byte_p50_seconds": 0.02, "first_byte_p99_seconds": 1, "delay_seconds": 0.04, "stall_seconds": 2,
	} {
		assert.Equal(t, want, gatherValues(t, c, "hedge_store_"+name)[`length="4096",store="tables"`], name)
	}
}

// TestModuleImportsOnlyObserve ensures that programs with metrics do not link packages that they do not use.
func TestModuleImportsOnlyObserve(t *testing.T) {
	deps, err := exec.Command("go", "list", "-deps", ".").Output()
	require.NoError(t, err)
	var ours []string
	for dep := range strings.FieldsSeq(string(deps)) {
		if dep != module+"/hedgeprom" && (dep == module || strings.HasPrefix(dep, module+"/")) {
			ours = append(ours, dep)
		}
	}
	assert.ElementsMatch(t, []string{module + "/internal/sanitize", module + "/observe"}, ours)
}

// TestCollectorLimitsSeriesOfStore checks the documented limit of the number of series.
func TestCollectorLimitsSeriesOfStore(t *testing.T) {
	c := hedgeprom.New()
	s := newRangeStore()
	s.Classes = nil
	for i := range 29 { // as many as TestStatsHaveAtMost29Classes allows
		s.Classes = append(s.Classes, observe.StoreClass{Length: 1 << i})
	}
	for _, reason := range []observe.Reason{observe.DeniedDeadline, observe.DeniedInFlight, observe.DeniedPaused, observe.DeniedShadow} {
		s.DeniedBy[reason] = 1
	}
	c.AddStore("tables", s)
	assert.Less(t, testutil.CollectAndCount(c), 200)
}

func TestAddStorePanicsOnNil(t *testing.T) {
	assert.PanicsWithValue(t, "hedgeprom: AddStore: RangeStore is nil", func() { hedgeprom.New().AddStore("a", nil) })
	assert.PanicsWithValue(t, "hedgeprom: AddStore: RangeStore is nil", func() { hedgeprom.New().AddStore("a", (*rangeread.Store)(nil)) })
}
