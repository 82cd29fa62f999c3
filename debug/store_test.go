package debug_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/debug"
	"github.com/gohedge/hedge/observe"
	"github.com/gohedge/hedge/rangeread"
)

var _ debug.RangeStore = (*rangeread.Store)(nil)

// storeStats is a store that has these Stats.
type storeStats observe.StoreStats

func (r storeStats) Stats() observe.StoreStats { return observe.StoreStats(r) }

// newStoreStats returns a store no number of which is zero, or that of another.
func newStoreStats() storeStats {
	s := observe.StoreStats{
		Enabled: true, DeniedBy: map[observe.Reason]int64{observe.DeniedBudget: 1234, observe.DeniedSlow: 3},
		Classes: []observe.StoreClass{
			{Length: 1, Ranges: 1},
			{Length: 64 << 10, Ranges: 7100, Hedges: 355, P50: 12 * ms, P99: 345 * ms, Delay: 28 * ms, Stall: 67 * ms},
			{Length: 256 << 20, Ranges: 1},
		},
	}
	v := reflect.ValueOf(&s).Elem()
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Int64 {
			f.SetInt(int64(1000 + i))
		}
	}
	s.BytesAsked, s.BytesHedged, s.BytesRead, s.BytesSkipped, s.BytesTwice = 8<<30, 2<<30, 9<<30, 5<<10, 6<<20
	s.BytesHeld, s.MaxBytes = 64<<20, 256<<20
	return storeStats(s)
}

func TestPageShowsStore(t *testing.T) {
	s := newStoreStats()
	h := debug.Handler(debug.Store("<tables>\x1b", s))
	html := getPage(h, "/").Body.String()
	assert.Contains(t, html, "&lt;tables&gt;")
	assert.NotContains(t, html, "\x1b")
	assert.NotContains(t, html, "Nothing to show")
	totals, _, classes := parsePage(t, html)
	stats := reflect.ValueOf(s)
	for i := range stats.NumField() {
		f, name := stats.Field(i), stats.Type().Field(i).Tag.Get("json")
		if f.Kind() == reflect.Int64 && f.Int() < 2000 {
			assert.EqualValues(t, f.Int(), totals.numberOf(t, "data-total "+name), name)
		}
	}
	for id, want := range map[string]string{
		"bytes_asked": "8.0 GiB", "bytes_hedged": "2.0 GiB", "bytes_read": "9.0 GiB", "bytes_skipped": "5.0 KiB", "bytes_twice": "6.0 MiB", "bytes_held": "64.0 MiB",
		"denied_by.budget": "1,234", "denied_by.slow": "3",
	} {
		assert.Equal(t, want, totals["data-total "+id], id)
	}
	assert.Contains(t, textsOf(t, html), "25 % of 256.0 MiB")
	assert.Equal(t, map[string]row{
		"1 B":     {"p50": "–", "p99": "–", "delay": "not yet", "stall": "not yet", "ranges": "1", "hedges": "0"},
		"64 KiB":  {"p50": "12ms", "p99": "345ms", "delay": "28ms", "stall": "67ms", "ranges": "7,100", "hedges": "355"},
		"256 MiB": {"p50": "–", "p99": "–", "delay": "not yet", "stall": "not yet", "ranges": "1", "hedges": "0"},
	}, classes)

	var page debug.Page
	body := getPage(h, "/?format=json").Body.Bytes()
	require.NoError(t, json.Unmarshal(body, &page))
	assert.Equal(t, []debug.StoreStats{{Name: "<tables>\x1b", StoreStats: s.Stats()}}, page.Stores)
	assert.Empty(t, page.Clients)

	var fields struct{ Stores []map[string]any }
	require.NoError(t, json.Unmarshal(body, &fields))
	documented := documentedNumbers(t, "number of a Store", fields.Stores[0], html)
	for name := range fields.Stores[0] {
		assert.True(t, documented[name] || name == "name" || name == "classes", "%s is not in the table", name)
	}
	for name := range fields.Stores[0]["classes"].([]any)[1].(map[string]any) {
		assert.True(t, documented["classes[]."+name] || name == "length", "classes[].%s is not in the table", name)
	}
}

func TestPageShowsModeOfStore(t *testing.T) {
	s := newStoreStats()
	s.Shadow, s.DeniedBy = true, map[observe.Reason]int64{observe.DeniedShadow: 321, observe.DeniedSlow: 4}
	s.Denied = 325
	html := getPage(debug.Handler(debug.Store("tables", s)), "/").Body.String()
	assert.Contains(t, html, "shadow: no hedge is sent")
	totals, _, _ := parsePage(t, html)
	assert.Equal(t, "321", totals["data-total shadow"])
	assert.Equal(t, "4", totals["data-total denied"])
	assert.NotContains(t, totals, "data-total first_byte_hedges")
	assert.NotContains(t, totals, "data-total stall_wins")
	assert.Equal(t, hedge.Snapshot{Name: "tables", Protocol: "range", Enabled: true, Shadow: true}, debug.Store("tables", s).Snapshot())

	off := storeStats(rangeread.NewStore(rangeread.Options{BudgetPercent: -1, MaxBytes: -1}).Stats())
	off.Classes = []observe.StoreClass{{Length: 8}}
	html = getPage(debug.Handler(debug.Store("tables", off)), "/").Body.String()
	assert.Contains(t, html, `<span class="badge bad">off</span>`)
	assert.Contains(t, html, "nothing is read ahead")
	assert.NotContains(t, html, "not yet", "nothing is learned")
}

func TestPageShowsUnusedStore(t *testing.T) {
	html := getPage(debug.Handler(debug.Store("", rangeread.NewStore(rangeread.Options{}))), "/").Body.String()
	assert.Contains(t, html, "<h2>ranges\n")
	assert.Contains(t, html, "No range was read yet.")
	assert.NotContains(t, html, "NaN")
}

func TestStorePanicsOnNil(t *testing.T) {
	assert.PanicsWithValue(t, "debug: Store: RangeStore is nil", func() { debug.Store("a", nil) })
	assert.PanicsWithValue(t, "debug: Store: RangeStore is nil", func() { debug.Store("a", (*rangeread.Store)(nil)) })
}
