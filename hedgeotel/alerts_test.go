package hedgeotel_test

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/metricstest"
	"github.com/gohedge/hedge/observe"
)

//go:generate go test -run TestAlertsAreThoseOfHedgeprom -update .
var update = flag.Bool("update", false, "write alerts.yaml")

const alertsHead = `# Alerts on hedging for metrics of module hedgeotel that a Prometheus exporter or an OTLP receiver has translated. They are
# generated from alerts.yaml of module hedgeprom by go generate; DO NOT EDIT. Only the names of labels differ. Rules for
# metrics that hedgeotel does not export are omitted. The comments there say how to change the labels of a service.
`

// otherLabels returns text with the labels of hedgeprom replaced by those of hedgeotel: in matchers, in groupings, in templates,
// and in the expected labels of tests.
func otherLabels(text string) string {
	names := `(client|host|protocol|type|reason|endpoint)`
	replace := func(pattern string) {
		text = regexp.MustCompile(pattern).ReplaceAllStringFunc(text, func(found string) string {
			return regexp.MustCompile(`\b`+names+`\b`).ReplaceAllStringFunc(found, func(name string) string {
				if key, ok := labels[name]; ok {
					return strings.ReplaceAll(string(key), ".", "_")
				}
				return "hedge_" + name
			})
		})
	}
	replace(`\b(?:by|on) \([^)]*\)`)
	replace(`\$labels\.\w+`)
	replace(`\b` + names + `(?:=~?|!=)"`)
	replace(`exp_labels: \{.*\}`)
	return text
}

// splitBlocks splits text before each line that begins with prefix. The first element is the text before all blocks.
func splitBlocks(text, prefix string) []string {
	parts := strings.Split(text, "\n"+prefix)
	for i := range parts {
		if i > 0 {
			parts[i] = prefix + parts[i]
		}
		if i < len(parts)-1 {
			parts[i] += "\n"
		}
	}
	return parts
}

// exportedNames returns the names of all metrics of an Observer, as a Prometheus exporter translates them.
func exportedNames(t *testing.T) (names []string) {
	r := newTelemetry(t)
	r.RequestDone(t.Context(), hedge.KeyInfo{Protocol: "grpc"}, hedge.RequestResult{Attempts: 2, Winner: 1, Saved: ms, AnswersNotTaken: 1})
	r.AttemptDone(t.Context(), hedge.KeyInfo{}, hedge.AttemptResult{Outcome: hedge.Won})
	r.Denied(t.Context(), hedge.KeyInfo{}, hedge.DeniedBudget)
	r.ClientCreated(metricstest.StateOf(fullState))
	for _, kind := range []hedge.EndpointKind{hedge.EndpointCalled, hedge.EndpointFailed} {
		r.EndpointEvent(hedge.KeyInfo{}, hedge.EndpointEvent{Kind: kind})
	}
	r.Limited(t.Context(), "limiter", observe.LimiterResult{})
	var rm metricdata.ResourceMetrics
	require.NoError(t, r.reader.Collect(t.Context(), &rm))
	for _, m := range rm.ScopeMetrics[0].Metrics {
		names = append(names, prometheusName(m))
	}
	return names
}

// translatedAlerts returns the alerts of hedgeprom whose metrics hedgeotel exports, and their names.
func translatedAlerts(t *testing.T) (rules string, alerts []string) {
	b, err := os.ReadFile("../hedgeprom/alerts.yaml")
	require.NoError(t, err)
	exported := exportedNames(t)
	blocks := splitBlocks(string(b), "      - alert: ")
	rules = alertsHead + blocks[0][strings.Index(blocks[0], "groups:"):]
	for _, block := range blocks[1:] {
		expr, _, _ := strings.Cut(block, "labels:\n")
		if !slices.ContainsFunc(regexp.MustCompile(`\bhedge_\w+`).FindAllString(expr, -1), func(metric string) bool { return !slices.Contains(exported, metric) }) {
			rules += strings.TrimRight(otherLabels(block), "\n") + "\n\n"
			alerts = append(alerts, strings.Fields(block)[2])
		}
	}
	return strings.TrimRight(rules, "\n") + "\n", alerts
}

func TestAlertsAreThoseOfHedgeprom(t *testing.T) {
	want, alerts := translatedAlerts(t)
	if *update {
		require.NoError(t, os.WriteFile("alerts.yaml", []byte(want), 0o644)) //nolint:gosec // it is in the repository
	}
	is, err := os.ReadFile("alerts.yaml")
	require.NoError(t, err)
	assert.Equal(t, want, string(is), "run go generate")
	assert.Len(t, alerts, 9, "%v", alerts)
}

// TestAlertsFireForTranslatedSeries runs the tests of hedgeprom's alerts with translated labels.
func TestAlertsFireForTranslatedSeries(t *testing.T) {
	metricstest.Promtool(t, "check", "rules", "alerts.yaml")
	_, alerts := translatedAlerts(t)
	rules, err := filepath.Abs("alerts.yaml")
	require.NoError(t, err)
	for _, name := range []string{"alerts_test.yaml", "alerts_days_test.yaml"} {
		b, err := os.ReadFile("../hedgeprom/" + name)
		require.NoError(t, err)
		blocks := splitBlocks(string(b), "  - name: ")
		tests := strings.Replace(blocks[0], "- alerts.yaml", "- "+rules, 1)
		for _, block := range blocks[1:] {
			alert, _, _ := strings.Cut(strings.TrimPrefix(block, `  - name: "`), ":")
			if slices.Contains(alerts, alert) {
				tests += otherLabels(block)
			}
		}
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, []byte(tests), 0o600))
		metricstest.Promtool(t, "test", "rules", path)
	}
}
