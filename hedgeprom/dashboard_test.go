package hedgeprom_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/gohedge/hedge/hedgeprom"
	"github.com/gohedge/hedge/internal/metricstest"
	"github.com/gohedge/hedge/observe"
)

// A dashboardPanel is a panel of the dashboard. A row has the panels below it if it is collapsed.
type dashboardPanel struct {
	ID        int
	Type      string
	Title     string
	Collapsed bool
	GridPos   struct{ X, Y, W, H int }
	Targets   []dashboardTarget
	Panels    []dashboardPanel

	FieldConfig struct {
		Defaults struct{ NoValue, Unit string }
	}
}

// A dashboardTarget is a query of a panel, and the text of its lines in the legend.
type dashboardTarget struct{ Expr, LegendFormat string }

// A dashboard is the dashboard of this module.
type dashboard struct {
	Templating struct {
		List []struct {
			Name, Definition, AllValue string
			Multi, IncludeAll          bool
		}
	}
	Panels []dashboardPanel
}

// readDashboard returns the dashboard, and all its panels but rows.
func readDashboard(t *testing.T) (d dashboard, panels []dashboardPanel) {
	t.Helper()
	b, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &d))
	for _, p := range d.Panels {
		if p.Type != "row" {
			panels = append(panels, p)
		}
		panels = append(panels, p.Panels...)
	}
	require.NotEmpty(t, panels)
	return d, panels
}

// fillVariables returns expr with all services, clients and hosts chosen and a rate interval of five minutes.
func fillVariables(expr string) string {
	return strings.NewReplacer("$cluster", ".*", "$namespace", ".*", "$job", ".*", "$client", ".*", "$host", ".*", "$__rate_interval", "5m").Replace(expr)
}

// panel returns the expressions of the dashboard's panel with the given title, by the names in its legend.
func panel(t *testing.T, title string) map[string]string {
	t.Helper()
	exprs := make(map[string]string)
	_, panels := readDashboard(t)
	for _, p := range panels {
		if p.Title == title {
			for _, target := range p.Targets {
				exprs[target.LegendFormat] = fillVariables(target.Expr)
			}
		}
	}
	require.NotEmpty(t, exprs, title)
	return exprs
}

func TestDashboardSelectsService(t *testing.T) {
	d, panels := readDashboard(t)
	var names []string
	for _, v := range d.Templating.List {
		names = append(names, v.Name)
		if v.Name != "datasource" {
			assert.True(t, v.Multi && v.IncludeAll, v.Name)
			assert.Equal(t, ".*", v.AllValue, "a label that is absent matches")
		}
	}
	assert.Equal(t, []string{"datasource", "cluster", "namespace", "job", "client", "host"}, names)
	for _, p := range panels {
		for _, target := range p.Targets {
			metrics := regexp.MustCompile(`\b(?:hedge|grpc_client)_\w+`).FindAllString(target.Expr, -1)
			assert.Equal(t, len(metrics), strings.Count(target.Expr, `{cluster=~"$cluster",namespace=~"$namespace",job=~"$job"`), "%s: %s", p.Title, target.Expr)
			if by := regexp.MustCompile(`by \(([\w, ]*\b(?:client|limiter|store)\b[\w, ]*)\)`).FindStringSubmatch(target.Expr); by != nil {
				assert.Contains(t, by[1], "job", "two services would be added up")
				assert.Contains(t, target.LegendFormat, "{{job}}", p.Title)
			}
		}
	}
}

func TestDashboardOpensOnLatency(t *testing.T) {
	d, panels := readDashboard(t)
	assert.Equal(t, "row", d.Panels[0].Type)
	assert.False(t, d.Panels[0].Collapsed)
	assert.Contains(t, d.Panels[1].Targets[0].Expr, "hedge_request_seconds")
	for _, p := range d.Panels[1:] {
		if p.Type == "row" {
			assert.True(t, p.Collapsed, p.Title)
			assert.NotEmpty(t, p.Panels, p.Title)
		}
	}
	for i, p := range panels {
		assert.NotEmpty(t, p.FieldConfig.Defaults.NoValue, "%s without data does not say what it needs", p.Title)
		for _, q := range panels[:i] {
			a, b := p.GridPos, q.GridPos
			apart := a.X+a.W <= b.X || b.X+b.W <= a.X || a.Y+a.H <= b.Y || b.Y+b.H <= a.Y
			assert.True(t, apart || inRow(&d, &p) != inRow(&d, &q), "%s is above %s", p.Title, q.Title)
		}
	}
}

// inRow returns the ID of the collapsed row with the panel p. It returns 0 if p is in the row that is open.
func inRow(d *dashboard, p *dashboardPanel) int {
	for _, row := range d.Panels {
		if slices.ContainsFunc(row.Panels, func(q dashboardPanel) bool { return q.ID == p.ID }) {
			return row.ID
		}
	}
	return 0
}

// TestDashboardHasDataOfEachService lets promtool evaluate the panels for two services that have played the same scenario.
func TestDashboardHasDataOfEachService(t *testing.T) {
	var series []promSeries
	synctest.Test(t, func(t *testing.T) {
		c := hedgeprom.New()
		registry := prometheus.NewRegistry()
		registry.MustRegister(c)
		metricstest.Play(t, c, func(metricstest.Values) {
			families, err := registry.Gather()
			require.NoError(t, err)
			for _, f := range families {
				for _, m := range f.GetMetric() {
					labels := []string{`instance="a:9090"`}
					for _, l := range m.GetLabel() {
						labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
					}
					add := func(suffix, value string, more ...string) {
						for _, job := range []string{"web", "api"} {
							all := append(append([]string{fmt.Sprintf("job=%q", job)}, labels...), more...)
							series = append(series, promSeries{f.GetName() + suffix + "{" + strings.Join(all, ",") + "}", value + "x15"})
						}
					}
					h := m.GetHistogram()
					switch {
					case h == nil:
						add("", fmt.Sprint(m.GetCounter().GetValue()+m.GetGauge().GetValue()))
					case len(h.GetBucket()) == 0: // native, for which old versions of promtool have no notation
					default:
						add("_sum", fmt.Sprint(h.GetSampleSum()))
						add("_count", fmt.Sprint(h.GetSampleCount()))
						add("_bucket", fmt.Sprint(h.GetSampleCount()), `le="+Inf"`)
					}
				}
			}
		})
	})
	want := make(map[string]float64)
	_, panels := readDashboard(t)
	for _, p := range panels {
		needs := p.FieldConfig.Defaults.NoValue
		if regexp.MustCompile("passed to Collector|WithShadow|WithAudit|gRPC|native histograms").MatchString(needs) {
			continue // the scenario has none
		}
		for _, job := range []string{"web", "api"} {
			var exprs []string
			for _, target := range p.Targets {
				exprs = append(exprs, fillVariables(strings.ReplaceAll(target.Expr, "$job", job)))
			}
			want["count(("+strings.Join(exprs, ") or (")+")) > bool 0"] = 1
		}
	}
	assert.Len(t, want, 2*15)
	evaluate(t, series, want)
}

// TestDashboardExpressionsAreValid lets promtool parse each expression as a rule.
func TestDashboardExpressionsAreValid(t *testing.T) {
	var rules []any
	_, panels := readDashboard(t)
	for _, p := range panels {
		for i, target := range p.Targets {
			rules = append(rules, map[string]string{"record": fmt.Sprintf("panel_%d:%d", p.ID, i), "expr": fillVariables(target.Expr)})
		}
	}
	b, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "panels", "rules": rules}}})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(file, b, 0o600))
	metricstest.Promtool(t, "check", "rules", file)
}

func TestDashboardHasAllReasonsOfCallsThatCannotBeHedged(t *testing.T) {
	exprs := panel(t, "Calls that cannot be hedged")
	shown := regexp.MustCompile(`reason=~"([^"]*)"`).FindStringSubmatch(exprs["{{reason}}"])
	require.NotNil(t, shown)
	assert.ElementsMatch(t, []string{
		string(observe.DeniedMethod), string(observe.DeniedBody), string(observe.DeniedDisabled), string(observe.DeniedWarming), string(observe.DeniedNested),
	}, strings.Split(shown[1], "|"))
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
	metricstest.Promtool(t, "test", "rules", file)
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
