package hedgeprom_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// panel returns the expressions of the dashboard's panel with the given title, by the
// names in its legend, with all clients and hosts chosen and a rate interval of five minutes.
func panel(t *testing.T, title string) map[string]string {
	t.Helper()
	b, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	require.NoError(t, json.Unmarshal(b, &dashboard))
	all := strings.NewReplacer("$client", ".*", "$host", ".*", "$__rate_interval", "5m")
	exprs := make(map[string]string)
	for _, p := range dashboard.Panels {
		if p.Title == title {
			for _, target := range p.Targets {
				exprs[target.LegendFormat] = all.Replace(target.Expr)
			}
		}
	}
	require.NotEmpty(t, exprs, title)
	return exprs
}

// A promSeries is one series of a promtool test, in its notation.
type promSeries struct {
	Series string `yaml:"series"`
	Values string `yaml:"values"`
}

// evaluate compares the values of expressions after ten minutes of the series.
func evaluate(t *testing.T, series []promSeries, want map[string]float64) {
	t.Helper()
	type sample struct {
		Labels string  `yaml:"labels"`
		Value  float64 `yaml:"value"`
	}
	type exprTest struct {
		Expr     string   `yaml:"expr"`
		EvalTime string   `yaml:"eval_time"`
		Samples  []sample `yaml:"exp_samples"`
	}
	var tests []exprTest
	for expr, value := range want {
		// Rounded, because promtool compares floats exactly.
		tests = append(tests, exprTest{fmt.Sprintf("round(%s, 0.001)", expr), "10m", []sample{{"{}", value}}})
	}
	b, err := yaml.Marshal(map[string]any{"tests": []any{map[string]any{
		"interval": "1m", "input_series": series, "promql_expr_test": tests,
	}}})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "test.yaml")
	require.NoError(t, os.WriteFile(file, b, 0o600))
	promtool(t, "test", "rules", file)
}

const (
	live   = `{job="web",instance="a:9090",client="live",host="db",protocol="http"`
	shadow = `{job="web",instance="a:9090",client="shadow",host="db",protocol="http"`
)

func TestShadowPanelIgnoresClientsThatSendHedges(t *testing.T) {
	exprs := panel(t, "Shadow")
	clientInShadow := []promSeries{
		{"hedge_requests_total" + shadow + "}", "0+1000x10"},
		{"hedge_denied_total" + shadow + `,reason="shadow"}`, "0+100x10"},
		{"hedge_saved_seconds_count" + shadow + "}", "0+60x10"},
	}
	want := map[string]float64{exprs["would be hedged"]: 0.1, exprs["would win"]: 0.6}
	evaluate(t, clientInShadow, want)
	evaluate(t, append(clientInShadow,
		promSeries{"hedge_requests_total" + live + "}", "0+4000x10"},
		promSeries{"hedge_attempts_total" + live + `,type="hedge"}`, "0+150x10"},
		promSeries{"hedge_wins_total" + live + `,type="hedge"}`, "0+92x10"},
		promSeries{"hedge_saved_seconds_count" + live + "}", "0+92x10"}), want)
}

func TestDashboardShowsZeroForHedgesThatNeverWin(t *testing.T) {
	evaluate(t, []promSeries{{"hedge_attempts_total" + live + `,type="hedge"}`, "0+150x10"}},
		map[string]float64{panel(t, "Hedges that win")["wins"]: 0})
}
