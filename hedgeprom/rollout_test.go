package hedgeprom_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/hedgeprom"
	"github.com/gohedge/hedge/internal/doubles"

	"github.com/gohedge/hedge/internal/metricstest"
)

// A rolloutStage is a row of the table of stages in docs/rollout.md.
type rolloutStage struct {
	name     string
	variable string // of the environment, such as HEDGE_DISABLED=true; none: ""
	alerts   []string
}

// rolloutStages reads the table of stages.
func rolloutStages(t *testing.T) (stages []rolloutStage) {
	t.Helper()
	doc, err := os.ReadFile("../docs/rollout.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(doc), "| stage | how | how long | continue if | alerts to expect |\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	for row := range strings.Lines(table) {
		cells := strings.Split(row, "|")
		require.Len(t, cells, 7, row)
		if strings.HasPrefix(cells[1], "---") {
			continue
		}
		s := rolloutStage{name: strings.TrimSpace(cells[1])}
		s.variable = regexp.MustCompile(`HEDGE_\w+=\w+`).FindString(cells[2])
		for _, m := range regexp.MustCompile("`(Hedge\\w+)`").FindAllStringSubmatch(cells[5], -1) {
			s.alerts = append(s.alerts, m[1])
		}
		stages = append(stages, s)
	}
	require.Len(t, stages, 4)
	return stages
}

// A rollout is a service with three processes, and the samples that Prometheus scrapes from each once a minute.
type rollout struct {
	transports []*hedge.Transport
	registries []*prometheus.Registry
	minutes    int
	series     map[string][]string // a value for each minute; "_": there is none
}

var processes = []string{"a:9090", "b:9090", "c:9090"}

// deploy starts new processes with another variable of the environment.
func (r *rollout) deploy(t *testing.T, before, after string) {
	if name, _, found := strings.Cut(before, "="); found {
		t.Setenv(name, "")
	}
	if name, value, found := strings.Cut(after, "="); found {
		t.Setenv(name, value)
	}
	r.transports, r.registries = nil, nil
	for i := range processes {
		random := rand.New(rand.NewPCG(uint64(i), uint64(r.minutes)))
		var mu sync.Mutex // guards random
		takes := func() time.Duration {
			mu.Lock()
			defer mu.Unlock()
			if random.IntN(100) < 5 {
				return time.Duration(150+random.IntN(100)) * ms
			}
			return time.Duration(8+random.IntN(5)) * ms
		}
		backend := doubles.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
			wait := takes()
			if err := doubles.Sleep(req.Context(), wait); err != nil {
				return nil, err
			}
			return &http.Response{StatusCode: http.StatusOK, ProtoMajor: 2, Header: http.Header{}, Body: http.NoBody, Request: req}, nil
		})
		metrics := hedgeprom.New()
		registry := prometheus.NewRegistry()
		require.NoError(t, registry.Register(metrics))
		r.registries = append(r.registries, registry)
		r.transports = append(r.transports, hedge.New(backend,
			hedge.WithName("shop"), hedge.WithObserver(metrics)))
	}
}

// play makes about one call in each process and second.
func (r *rollout) play(t *testing.T, minutes int) {
	for range minutes {
		for range 60 {
			for _, rt := range r.transports {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://db/x", http.NoBody)
				require.NoError(t, err)
				resp, err := rt.RoundTrip(req)
				require.NoError(t, err)
				_, err = io.Copy(io.Discard, resp.Body)
				require.NoError(t, err)
				resp.Body.Close()
			}
			time.Sleep(900 * ms)
		}
		r.read(t)
	}
}

// read takes the counters and gauges of this minute.
func (r *rollout) read(t *testing.T) {
	for i, registry := range r.registries {
		families, err := registry.Gather()
		require.NoError(t, err)
		for _, f := range families {
			for _, m := range f.GetMetric() {
				var value float64
				switch {
				case m.GetCounter() != nil:
					value = m.GetCounter().GetValue()
				case m.GetGauge() != nil:
					value = m.GetGauge().GetValue()
				default:
					continue
				}
				labels := []string{`job="web"`, fmt.Sprintf("instance=%q", processes[i])}
				for _, l := range m.GetLabel() {
					labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
				}
				name := f.GetName() + "{" + strings.Join(labels, ",") + "}"
				for len(r.series[name]) < r.minutes {
					r.series[name] = append(r.series[name], "_")
				}
				r.series[name] = append(r.series[name], strconv.FormatFloat(value, 'g', -1, 64))
			}
		}
	}
	r.minutes++
}

// TestRolloutRaisesDocumentedAlerts plays the stages of docs/rollout.md in fake time: the first takes a day and two
// hours, each of the others four hours. What its processes measure goes through the alerts.
//
// The race detector makes these 400,000 calls, one after another, several times slower. make test-nogrpc runs them without it.
func TestRolloutRaisesDocumentedAlerts(t *testing.T) {
	if doubles.RaceEnabled {
		t.Skip("a long simulation of one call after another")
	}
	const settle = 30 // minutes, in which what fired before may still fire
	r := &rollout{series: make(map[string][]string)}
	var checks []any
	synctest.Test(t, func(t *testing.T) {
		hours, variable := 26, "none yet"
		for _, stage := range rolloutStages(t) {
			before := r.minutes
			if stage.variable != variable {
				r.deploy(t, variable, stage.variable)
				variable = stage.variable
			}
			r.play(t, hours*60)
			hours = 4
			assert.Equal(t, variable == "" || variable == "HEDGE_MODE=audit", r.transports[0].Snapshot().Stats.HedgesSent > 0, stage.name)
			samples := []any{}
			for _, alert := range stage.alerts {
				samples = append(samples, map[string]any{"labels": fmt.Sprintf("{alertname=%q}", alert), "value": 1})
			}
			checks = append(checks, map[string]any{
				"expr":        fmt.Sprintf(`group by (alertname) (max_over_time(ALERTS{alertstate="firing"}[%dm]))`, r.minutes-1-before-settle),
				"eval_time":   fmt.Sprintf("%dm", r.minutes-1),
				"exp_samples": samples,
			})
		}
	})
	replay(t, r.series, checks)
}

// replay evaluates the checks where the alerts have been evaluated over the series, minute by minute.
func replay(t *testing.T, series map[string][]string, checks []any) {
	t.Helper()
	rules, err := filepath.Abs("alerts.yaml")
	require.NoError(t, err)
	var input []promSeries
	for name, values := range series {
		input = append(input, promSeries{name, strings.Join(values, " ")})
	}
	require.NotEmpty(t, input)
	slices.SortFunc(input, func(a, b promSeries) int { return strings.Compare(a.Series, b.Series) })
	b, err := yaml.Marshal(map[string]any{
		"rule_files": []string{rules}, "evaluation_interval": "1m",
		"tests": []any{map[string]any{"interval": "1m", "input_series": input, "promql_expr_test": checks}},
	})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "rollout.yaml")
	require.NoError(t, os.WriteFile(file, b, 0o600))
	metricstest.Promtool(t, "test", "rules", file)
}
