package debug_test

import (
	"encoding/json"
	"encoding/xml"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/debug"
	"github.com/gohedge/hedge/internal/metricstest"
)

// clientSnapshot is a source whose Snapshot has no number that is zero.
type clientSnapshot hedge.Snapshot

func (f clientSnapshot) Snapshot() hedge.Snapshot { return hedge.Snapshot(f) }

func newClientSnapshot(shadow bool) clientSnapshot {
	var s hedge.Snapshot
	s.Keys = make([]hedge.KeySnapshot, 1)
	s.Keys[0].Delays = []time.Duration{30 * ms}
	fillFields(reflect.ValueOf(&s.Stats).Elem())
	fillFields(reflect.ValueOf(&s.Keys[0]).Elem())
	s.Keys[0].Denied = map[hedge.Reason]int64{
		hedge.DeniedBudget: 7, hedge.DeniedSlow: 7, hedge.DeniedPaused: 7, hedge.DeniedDeadline: 7,
		hedge.DeniedInFlight: 7, hedge.DeniedNotReady: 7, hedge.DeniedSameBackend: 7, hedge.DeniedShadow: 7, hedge.DeniedAudit: 7,
	}
	s.Keys[0].Endpoints = []hedge.EndpointSnapshot{
		{Endpoint: "https://eu.api.example", Calls: 7, Hedges: 7, Failures: 7, Overtaken: 7, BadShare: 0.07, Ejected: true},
		{Endpoint: "https://us.api.example", Calls: 7, Hedges: 7},
	}
	s.Keys[0].Audit = &hedge.Audit{Verdict: hedge.AuditOn, Confidence: 0.98, Pairs: 7, P99: 7, Saved: 7, PlusMinus: 7}
	s.Keys[0].BudgetScale, s.Keys[0].PausedUntil = 0.5, time.Now().Add(time.Hour)
	s.Shadow = shadow
	return clientSnapshot(s)
}

func fillFields(v reflect.Value) {
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Int, reflect.Int64:
			f.SetInt(7)
		case reflect.Float64:
			f.SetFloat(7)
		case reflect.Struct:
			if f.Type() != reflect.TypeFor[time.Time]() {
				fillFields(f)
			}
		}
	}
}

// textsOf returns all texts between the tags of a page.
func textsOf(t *testing.T, page string) (all []string) {
	d := xml.NewDecoder(strings.NewReader(page))
	d.Entity = xml.HTMLEntity
	for {
		token, err := d.Token()
		if err == io.EOF {
			return all
		}
		require.NoError(t, err)
		if text, ok := token.(xml.CharData); ok {
			all = append(all, strings.TrimSpace(string(text)))
		}
	}
}

// TestPageShowsDocumentedNumbers compares the table in docs/operations.md with the JSON and the page.
func TestPageShowsDocumentedNumbers(t *testing.T) {
	h := debug.Handler(newClientSnapshot(false), newClientSnapshot(true))
	var page struct{ Clients []map[string]any }
	require.NoError(t, json.Unmarshal(getPage(h, "/?format=json").Body.Bytes(), &page))
	documented := documentedNumbers(t, "number of a client", page.Clients[0], getPage(h, "/").Body.String())
	for name := range page.Clients[0]["stats"].(map[string]any) {
		assert.True(t, documented["stats."+name], "stats.%s is not in the table of docs/operations.md", name)
	}
	denied := page.Clients[0]["keys"].([]any)[0].(map[string]any)["denied"].(map[string]any)
	for name := range denied {
		known := documented["keys[].denied."+name] || name == "budget" || name == "slow" || name == "paused" // by another field
		assert.True(t, known, "keys[].denied.%s is not in the table of docs/operations.md", name)
	}
}

// TestPageShowsDocumentedNumbersOfDNS does the same for the table of DNS.
func TestPageShowsDocumentedNumbersOfDNS(t *testing.T) {
	h := debug.Handler(debug.DNS(newDNSStats(false)))
	var page struct{ DNS []map[string]any }
	require.NoError(t, json.Unmarshal(getPage(h, "/?format=json").Body.Bytes(), &page))
	documented := documentedNumbers(t, "number over DNS", page.DNS[0], getPage(h, "/").Body.String())
	for name, value := range page.DNS[0] {
		if _, isNumber := value.(float64); isNumber {
			assert.True(t, documented[name], "%s is not in the table of docs/operations.md", name)
		}
	}
}

// documentedNumbers checks that the rows of a table in the pages of docs are in the JSON of a client and on the page. It returns the
// names that they have in the JSON.
func documentedNumbers(t *testing.T, title string, client map[string]any, page string) (documented map[string]bool) {
	t.Helper()
	shown := textsOf(t, page)
	documented = make(map[string]bool)
	for _, number := range metricstest.DocumentedNumbers(t, "../docs", title) {
		documented[number.JSON] = true
		var at any = client
		for name := range strings.SplitSeq(number.JSON, ".") {
			name, isList := strings.CutSuffix(name, "[]")
			object, _ := at.(map[string]any)
			if at = object[name]; at == nil {
				t.Errorf("%s is in the table and not in the JSON", number.JSON)
				break
			}
			if isList {
				at = at.([]any)[0]
			}
		}
		assert.True(t, hasLabel(shown, number.Label), "%q is in the table and not on the page", number.Label)
	}
	return documented
}

// hasLabel reports whether one of the texts is the label, or starts with the label and contains a number.
func hasLabel(shown []string, label string) bool {
	for _, text := range shown {
		if text == label || strings.HasPrefix(text, label+" ") && regexp.MustCompile(`\d`).MatchString(text) {
			return true
		}
	}
	return false
}

func TestAxisLabelsDoNotOverlap(t *testing.T) {
	for _, p50 := range []time.Duration{700, 100 * time.Microsecond, 3160 * time.Microsecond, 14 * ms, 90 * ms, 2 * time.Second} {
		for p99 := p50; p99 < min(1e8*p50, 500*time.Second); p99 = p99 * 17 / 10 {
			s := newClientSnapshot(false)
			s.Keys[0].P50, s.Keys[0].P99, s.Keys[0].Delays = p50, p99, nil
			plots := strings.Split(getPage(debug.Handler(s), "/").Body.String(), "<svg ")[1:]
			require.Len(t, plots, 2, "one above the table, one in its row")
			for _, plot := range plots {
				labels := regexp.MustCompile(`<text x="([\d.]+)"`).FindAllStringSubmatch(plot, -1)
				require.NotEmpty(t, labels, "%v to %v", p50, p99)
				last := -100.0
				for _, l := range labels {
					x, err := strconv.ParseFloat(l[1], 64)
					require.NoError(t, err)
					require.GreaterOrEqual(t, x-last, 38.0, "%v to %v", p50, p99)
					last = x
				}
			}
		}
	}
}
