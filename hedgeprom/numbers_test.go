package hedgeprom_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/internal/metricstest"
)

// TestDashboardShowsDocumentedNumbers compares the tables of numbers in the pages of docs with the metrics and the dashboard.
func TestDashboardShowsDocumentedNumbers(t *testing.T) {
	var table []string
	for _, title := range []string{"number of a client", "number over DNS", "number of a recursor", "number of a Limiter", "number of a Store"} {
		for _, number := range metricstest.DocumentedNumbers(t, "../docs", title) {
			table = append(table, number.Metric)
		}
	}
	var exprs []string
	_, panels := readDashboard(t)
	for _, p := range panels {
		for _, target := range p.Targets {
			exprs = append(exprs, target.Expr)
		}
	}

	metrics, labels := names(t)
	documented := make(map[string]bool)
	for _, m := range regexp.MustCompile(`\b((?:hedge|grpc_client)_\w+)(?:\{(\w+)="([\w-]+)"\})?`).FindAllStringSubmatch(strings.Join(table, "\n"), -1) {
		name, label, value := m[1], m[2], m[3]
		if name == "hedge_saved_seconds" || name == "grpc_client_call_hedges" {
			name += "_sum"
		}
		documented[name] = true
		if !slices.Contains(metrics, name) {
			t.Errorf("%s is in the tables and does not exist", m[0])
			continue
		}
		onDashboard := slices.ContainsFunc(exprs, func(expr string) bool {
			return regexp.MustCompile(`\b` + name + `\b`).MatchString(expr)
		})
		assert.True(t, onDashboard, "%s is in no panel", name)
		if label != "" {
			assert.True(t, slices.Contains(labels[name], label), "%s has no label %s", m[0], label)
			assert.Contains(t, labelValues[label], value, "%s", m[0])
		}
	}
	for _, name := range metrics {
		assert.True(t, documented[name] || name == "hedge_saved_seconds_bucket", "%s is not in the tables", name)
	}
}

// TestDocumentsExplainEveryAlert compares the table of alerts with the rules.
func TestDocumentsExplainEveryAlert(t *testing.T) {
	doc, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	rules, err := os.ReadFile("alerts.yaml")
	require.NoError(t, err)
	var alerts struct {
		Groups []struct{ Rules []struct{ Alert string } }
	}
	require.NoError(t, yaml.Unmarshal(rules, &alerts))
	var exist, explained []string
	for _, g := range alerts.Groups {
		for _, r := range g.Rules {
			exist = append(exist, r.Alert)
		}
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(Hedge\\w+)` \\|").FindAllStringSubmatch(string(doc), -1) {
		explained = append(explained, m[1])
	}
	require.NotEmpty(t, exist)
	doubles.AssertSameNames(t, "docs/operations.md", exist, explained)
	assert.True(t, t.Failed() || slices.Equal(exist, explained), "the table is in another order than the rules")
}
