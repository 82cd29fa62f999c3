package hedgeprom_test

import (
	"fmt"
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
)

// recursor is a recursor that has these Stats.
type recursor observe.RecursorStats

func (r *recursor) Stats() observe.RecursorStats { return observe.RecursorStats(*r) }

// newRecursor returns a recursor each number of which is another, from 1001 on.
func newRecursor(name string) *recursor {
	s := &recursor{Name: name, Limited: map[string]int64{"Queries": 7, "Aliases": 2}}
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Int, reflect.Int64:
			f.SetInt(int64(1000 + i))
		case reflect.Float64:
			f.SetFloat(float64(1000 + i))
		}
	}
	s.FirstContact, s.ClockOff = 60*time.Millisecond, -90*time.Second
	s.Bogus = map[uint16]int64{7: 3, 10: 2}
	s.Anchors = []observe.RecursorAnchor{{Tag: 20326, Present: true, Signs: true}, {Tag: 38696, Present: true}}
	s.UnknownSEP = []uint16{1, 2, 3}
	return s
}

func TestCollectorShowsStatsOfRecursor(t *testing.T) {
	c := hedgeprom.New(hedgeprom.WithConstLabels(prometheus.Labels{"zone": "a"}))
	assert.Zero(t, testutil.CollectAndCount(c), "there is no recursor yet")
	r := newRecursor("root")
	c.AddRecursor(r)
	problems, err := testutil.CollectAndLint(c)
	require.NoError(t, err)
	assert.Empty(t, problems)
	shown := make(map[float64]string)
	for name, value := range map[string]any{
		"questions_total": r.Questions, "failures_total": r.Failures, "local_answers_total": r.Local, "server_lookups_total": r.Lookups,
		"queries_total": r.Wire, "tcp_queries_total": r.TCP, "hedges_total": r.Hedges, "hedge_wins_total": r.HedgeWins,
		"hedges_denied_total": r.Denied, "timeouts_total": r.Timeouts, "failovers_total": r.Failovers, "lame_responses_total": r.Lame,
		"ignored_messages_total": r.Ignored, "scrubbed_records_total": r.Scrubbed, "in_flight": r.InFlight, "servers": r.Servers,
		"servers_resting": r.Resting, "zones": r.Zones, "rrsets": r.RRsets, "bytes": r.Bytes, "max_bytes": r.MaxBytes,
		"budget_tokens": r.Budget, "first_contact_seconds": r.FirstContact.Seconds(),
		"verifications_total": r.Verifications, "key_queries_total": r.KeyQueries, "responses_passed_over_total": r.PassedOver, "synthesized_answers_total": r.Synthesized,
		"unknown_anchors": len(r.UnknownSEP), "clock_off_seconds": r.ClockOff.Seconds(),
	} {
		name = "hedge_recursor_" + name
		got := gatherValues(t, c, name)
		assert.Equal(t, map[string]float64{`client="root",zone="a"`: number(t, value)}, got, name)
		shown[number(t, value)] = name
	}
	for name, want := range map[string]map[string]float64{
		"limited_total": {`limit="Queries"`: 7, `limit="Aliases"`: 2},
		"answers_total": {`security="secure"`: float64(r.Secure), `security="insecure"`: float64(r.Insecure), `security="bogus"`: 5},
		"bogus_total":   {`reason="Signature Expired"`: 3, `reason="RRSIGs Missing"`: 2},
		"anchor_signs":  {`tag="20326"`: 1, `tag="38696"`: 0},
	} {
		got := make(map[string]float64)
		for labels, n := range gatherValues(t, c, "hedge_recursor_"+name) {
			var own []string
			for l := range strings.SplitSeq(labels, ",") {
				if l != `client="root"` && l != `zone="a"` {
					own = append(own, l)
				}
			}
			require.Len(t, own, 1, labels)
			got[own[0]] = n
		}
		assert.Equal(t, want, got, name)
	}
	others := []string{"Name", "LastBogus", "Limited", "Secure", "Insecure", "Bogus", "Anchors"} // without a metric; with one that has a label
	assert.Len(t, shown, reflect.TypeFor[observe.RecursorStats]().NumField()-len(others), "all other fields have a metric")
}

func TestCollectorShowsNoSecurityWithoutValidation(t *testing.T) {
	c := hedgeprom.New()
	c.AddRecursor(&recursor{Name: "root", Questions: 1})
	for _, name := range []string{"answers_total", "bogus_total", "anchor_signs"} {
		assert.Empty(t, gatherValues(t, c, "hedge_recursor_"+name))
	}
	assert.Equal(t, map[string]float64{`client="root"`: 0}, gatherValues(t, c, "hedge_recursor_unknown_anchors"))
}

func TestCollectorMergesRecursorsOfSameName(t *testing.T) {
	c := hedgeprom.New()
	slow := newRecursor("root")
	slow.FirstContact = time.Second
	slow.ClockOff = time.Minute
	slow.Anchors = []observe.RecursorAnchor{{Tag: 38696, Signs: true}}
	for _, r := range []*recursor{newRecursor("root"), slow, newRecursor("a\xff")} {
		c.AddRecursor(r)
	}
	wire := float64(slow.Wire)
	assert.Equal(t, map[string]float64{`client="root"`: 2 * wire, `client="a�"`: wire}, gatherValues(t, c, "hedge_recursor_queries_total"))
	assert.Equal(t, map[string]float64{`client="root"`: 1, `client="a�"`: 0.06}, gatherValues(t, c, "hedge_recursor_first_contact_seconds"))
	assert.Equal(t, map[string]float64{
		`client="root",limit="Queries"`: 14, `client="root",limit="Aliases"`: 4, `client="a�",limit="Queries"`: 7, `client="a�",limit="Aliases"`: 2,
	}, gatherValues(t, c, "hedge_recursor_limited_total"))
	assert.Equal(t, map[string]float64{`client="root"`: -90, `client="a�"`: -90}, gatherValues(t, c, "hedge_recursor_clock_off_seconds"), "the farthest from 0")
	assert.Equal(t, map[string]float64{
		`client="root",tag="20326"`: 1, `client="root",tag="38696"`: 1, `client="a�",tag="20326"`: 1, `client="a�",tag="38696"`: 0,
	}, gatherValues(t, c, "hedge_recursor_anchor_signs"))
}

func TestAddRecursorPanicsOnNil(t *testing.T) {
	assert.PanicsWithValue(t, "hedgeprom: AddRecursor: Resolver is nil", func() { hedgeprom.New().AddRecursor(nil) })
	assert.PanicsWithValue(t, "hedgeprom: AddRecursor: Resolver is nil", func() { hedgeprom.New().AddRecursor((*recursor)(nil)) })
}

// gatherValues returns the values of a metric of c, by their labels.
func gatherValues(t *testing.T, c prometheus.Collector, name string) map[string]float64 {
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(c))
	families, err := registry.Gather()
	require.NoError(t, err)
	values := make(map[string]float64)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			values[strings.Join(labels, ",")] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return values
}

func number(t *testing.T, v any) float64 {
	f := reflect.ValueOf(v)
	require.True(t, f.CanConvert(reflect.TypeFor[float64]()), "%T", v)
	return f.Convert(reflect.TypeFor[float64]()).Float()
}
