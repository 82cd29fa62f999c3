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
	s.FirstContact = 60 * time.Millisecond
	return s
}

func TestRecursorMetricsAreItsStats(t *testing.T) {
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
	} {
		name = "hedge_recursor_" + name
		got := gathered(t, c, name)
		assert.Equal(t, map[string]float64{`client="root",zone="a"`: number(t, value)}, got, name)
		shown[number(t, value)] = name
	}
	assert.Len(t, shown, reflect.TypeFor[observe.RecursorStats]().NumField()-2, "all fields but Name and Limited have a metric")
	assert.Equal(t, map[string]float64{`client="root",limit="Queries",zone="a"`: 7, `client="root",limit="Aliases",zone="a"`: 2},
		gathered(t, c, "hedge_recursor_limited_total"))
}

func TestRecursorsOfOneNameAreShownAsOne(t *testing.T) {
	c := hedgeprom.New()
	slow := newRecursor("root")
	slow.FirstContact = time.Second
	for _, r := range []*recursor{newRecursor("root"), slow, newRecursor("a\xff")} {
		c.AddRecursor(r)
	}
	wire := float64(slow.Wire)
	assert.Equal(t, map[string]float64{`client="root"`: 2 * wire, `client="a�"`: wire}, gathered(t, c, "hedge_recursor_queries_total"))
	assert.Equal(t, map[string]float64{`client="root"`: 1, `client="a�"`: 0.06}, gathered(t, c, "hedge_recursor_first_contact_seconds"))
	assert.Equal(t, map[string]float64{
		`client="root",limit="Queries"`: 14, `client="root",limit="Aliases"`: 4, `client="a�",limit="Queries"`: 7, `client="a�",limit="Aliases"`: 2,
	}, gathered(t, c, "hedge_recursor_limited_total"))
}

func TestAddRecursorOfNilPanics(t *testing.T) {
	assert.PanicsWithValue(t, "hedgeprom: AddRecursor: Resolver is nil", func() { hedgeprom.New().AddRecursor(nil) })
	assert.PanicsWithValue(t, "hedgeprom: AddRecursor: Resolver is nil", func() { hedgeprom.New().AddRecursor((*recursor)(nil)) })
}

// gathered returns the values of a metric of c, by their labels.
func gathered(t *testing.T, c prometheus.Collector, name string) map[string]float64 {
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
