package debug_test

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/debug"
	"github.com/gohedge/hedge/dnshedge/dnssec"
	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/observe"
)

var _ debug.Resolver = (*recursor.Resolver)(nil)

// recursorStats is a recursor that has these Stats.
type recursorStats observe.RecursorStats

func (r recursorStats) Stats() observe.RecursorStats { return observe.RecursorStats(r) }

// newRecursorStats returns a recursor no number of which is zero, or that of another.
func newRecursorStats() recursorStats {
	s := observe.RecursorStats{Name: "<root>\x1b", Limited: map[string]int64{"Queries": 1234, "Referrals": 3}}
	v := reflect.ValueOf(&s).Elem()
	fillFields(v)
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Int64 || f.Kind() == reflect.Int {
			f.SetInt(int64(1000 + i))
		}
	}
	s.Questions, s.Local, s.Wire, s.FirstContact = 1012, 12, 2910, 60*ms
	s.Bytes, s.MaxBytes = 3<<20, 64<<20
	s.Bogus = map[uint16]int64{7: 2222, 10: 4}
	s.Anchors = []observe.RecursorAnchor{{Tag: 20326, Present: true, Signs: true}, {Tag: 38696, Present: true}, {Tag: 5}}
	s.UnknownSEP, s.ClockOff = []uint16{111, 222}, -90*time.Minute
	s.LastBogus = []observe.RecursorBogus{{
		Time: time.Date(2026, 11, 23, 13, 14, 15, 0, time.UTC), Name: "<www>.broken.\x1b", Type: "AAAA", Reason: "Signature Expired", Text: "the signature <ended>",
		Zone: "broken.", Server: netip.MustParseAddrPort("192.0.2.1:53"),
	}, {Name: "other.broken.", Type: "A", Reason: "RRSIGs Missing"}}
	return recursorStats(s)
}

func TestPageShowsRecursor(t *testing.T) {
	s := newRecursorStats()
	h := debug.Handler(debug.Recursor(s))
	html := getPage(h, "/").Body.String()
	assert.Contains(t, html, "&lt;root&gt;")
	assert.NotContains(t, html, "\x1b")
	assert.NotContains(t, html, "Nothing to show")
	assert.Contains(t, html, "2.91 for each question")
	totals, _, _ := parsePage(t, html)
	stats := reflect.ValueOf(s)
	for i := range stats.NumField() {
		f, name := stats.Field(i), stats.Type().Field(i).Tag.Get("json")
		switch {
		case name == "bytes" || name == "max_bytes" || name == "first_contact" || name == "clock_off":
		case f.Kind() == reflect.Int64 || f.Kind() == reflect.Int:
			assert.EqualValues(t, f.Int(), totals.numberOf(t, "data-total "+name), name)
		}
	}
	assert.Equal(t, "3.0 MiB", totals["data-total bytes"])
	assert.Contains(t, html, "of 64.0 MiB")
	assert.Equal(t, "60ms", totals["data-total first_contact"])
	assert.Equal(t, "7.0", totals["data-total budget"])
	assert.Equal(t, "1,234", totals["data-total limited.Queries"])
	assert.Equal(t, "3", totals["data-total limited.Referrals"])
	for id, want := range map[string]string{
		"bogus": "2,226", "bogus.Signature Expired": "2,222", "bogus.RRSIGs Missing": "4", "clock_off": "1h30m", "unknown_sep": "111, 222",
		"anchors.20326": "signs", "anchors.38696": "present", "anchors.5": "not seen",
	} {
		assert.Equal(t, want, totals["data-total "+id], id)
	}
	shown := textsOf(t, html)
	for _, text := range []string{"AAAA", "Signature Expired", "zone broken. · the signature <ended>", "192.0.2.1:53", "13:14:15", "other.broken.", "slow: set the clock"} {
		assert.Contains(t, shown, text)
	}
	assert.Contains(t, html, "&lt;www&gt;.broken.")
	assert.NotContains(t, html, "invalid AddrPort")

	var page debug.Page
	body := getPage(h, "/?format=json").Body.Bytes()
	require.NoError(t, json.Unmarshal(body, &page))
	assert.Equal(t, []observe.RecursorStats{s.Stats()}, page.Recursors)
	assert.Empty(t, page.Clients)

	var fields struct{ Recursors []map[string]any }
	require.NoError(t, json.Unmarshal(body, &fields))
	documented := documentedNumbers(t, "number of a recursor", fields.Recursors[0], html)
	for name := range fields.Recursors[0] {
		assert.True(t, documented[name] || name == "name", "%s is not in the table", name)
	}
}

func TestPageShowsUnusedRecursor(t *testing.T) {
	html := getPage(debug.Handler(debug.Recursor(&recursor.Resolver{Trust: dnssec.Trust{Off: true}})), "/").Body.String()
	assert.Contains(t, html, "<h2>recursor")
	assert.NotContains(t, html, "for each question")
	assert.NotContains(t, html, "NaN")
	assert.NotContains(t, html, "anchors", "it does not validate")
}

func TestPageShowsUnusedValidatingRecursor(t *testing.T) {
	r := &recursor.Resolver{Trust: dnssec.Trust{Insecure: []string{}}}
	html := getPage(debug.Handler(debug.Recursor(r)), "/").Body.String()
	totals, _, _ := parsePage(t, html)
	assert.Equal(t, "not seen", totals["data-total anchors.20326"])
	assert.Equal(t, "0s", totals["data-total clock_off"])
	assert.Equal(t, "none", totals["data-total unknown_sep"])
	assert.NotContains(t, html, "last bogus names")
	assert.NotContains(t, html, "NaN")
}

func TestRecursorPanicsOnNil(t *testing.T) {
	assert.PanicsWithValue(t, "debug: Recursor: Resolver is nil", func() { debug.Recursor(nil) })
	assert.PanicsWithValue(t, "debug: Recursor: Resolver is nil", func() { debug.Recursor((*recursor.Resolver)(nil)) })
}
