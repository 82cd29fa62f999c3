package hedgeprom_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/hedgeprom"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/observe"
)

// A scrapedService is an example service. Its labels are those that Prometheus adds: cluster, namespace and job.
type scrapedService struct {
	labels  map[string]string
	address string // of the metrics, on loopback
}

// startService starts an example service with clients whose names begin with client. HTTP and functions are called until the
// test ends. One HTTP request in thirty is slow, unless it is a hedge. gRPC calls are events, and the sources of numbers of
// DNS, the recursor and the Store are doubles.
func startService(t *testing.T, client string, labels map[string]string) scrapedService {
	metrics := hedgeprom.New()
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	limiter := hedge.NewLimiter(8, hedge.WithName(client))
	var primaries, hedges atomic.Int64
	backend := doubles.NewServer(t, "HTTP/1.1", limiter.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		wait := 2*ms + rand.N(3*ms)
		if isHedge := r.Header.Get(hedge.AttemptHeader) != ""; !isHedge && primaries.Add(1)%30 == 0 {
			wait = 100 * ms
		} else if isHedge && hedges.Add(1)%8 == 0 {
			w.WriteHeader(http.StatusNotFound)
		}
		doubles.WaitOrCanceled(r, wait)
	})).ServeHTTP)
	base := doubles.NewTransport(t, backend)
	base.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, backend.Listener.Addr().String())
	}
	home := "http://eu." + client + ".test"
	shop := hedge.New(base, hedge.WithName(client), hedge.WithObserver(metrics),
		hedge.WithEndpoints(hedge.Endpoint{URL: home}, hedge.Endpoint{URL: "http://us." + client + ".test"}))
	trial := hedge.New(base, hedge.WithName(client+"-trial"), hedge.WithObserver(metrics), hedge.WithShadow())
	database := hedge.NewHedger(hedge.WithName(client+"-sql"), hedge.WithObserver(metrics), hedge.WithAudit())
	r := newRecursor(client)
	r.Budget = 9
	metrics.AddRecursor(r)
	metrics.AddDNS(newResolver(client))
	metrics.AddLimiter(limiter)
	metrics.AddStore(client, newRangeStore())

	var callers sync.WaitGroup
	t.Cleanup(callers.Wait)
	callAgain := func(call func() error) {
		callers.Go(func() {
			for doubles.Sleep(t.Context(), 5*ms) == nil {
				if err := call(); t.Context().Err() == nil {
					assert.NoError(t, err)
				}
			}
		})
	}
	for _, rt := range []http.RoundTripper{shop, trial} {
		callAgain(func() error { _, err := doubles.Fetch(t.Context(), rt, home+"/item"); return err })
	}
	callAgain(func() error {
		result := observe.RequestResult{Attempts: 1, Latency: 8*ms + rand.N(3*ms)}
		if rand.IntN(20) == 0 {
			result = observe.RequestResult{Attempts: 2, Winner: 1, Latency: 15 * ms, Saved: 30 * ms}
			if resp, err := (&http.Client{Transport: shop}).Post(home+"/order", "text/plain", http.NoBody); assert.NoError(t, err) {
				resp.Body.Close()
			}
		}
		metrics.RequestDone(t.Context(), observe.KeyInfo{Client: client, Protocol: "grpc", Host: "dns:///stock", Route: "/stock.Items/Get"}, result)
		_, err := hedge.Do(t.Context(), database, "items", func(ctx context.Context) (int, error) { return 0, doubles.Sleep(ctx, rand.N(4*ms)) })
		return err
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		families, err := registry.Gather()
		assert.NoError(t, err)
		format := expfmt.Negotiate(r.Header)
		w.Header().Set("Content-Type", string(format))
		for encoder := expfmt.NewEncoder(w, format); len(families) > 0; families = families[1:] {
			_ = encoder.Encode(families[0]) // an error ends the scrape
		}
	}))
	t.Cleanup(server.Close)
	return scrapedService{labels, server.Listener.Addr().String()}
}

// A prometheusServer is the URL of a Prometheus.
type prometheusServer string

// startPrometheus starts a Prometheus that scrapes the services once a second. It skips the test if Prometheus is not installed.
func startPrometheus(t *testing.T, services []scrapedService) prometheusServer {
	global := "scrape_interval: 1s"
	var major, minor int
	_, err := fmt.Sscanf(doubles.RunTool(t, "prometheus", "--version"), "prometheus, version %d.%d", &major, &minor)
	require.NoError(t, err)
	if major > 3 || major == 3 && minor >= 9 { // older ones have a flag, and may not know the setting
		global += ", scrape_native_histograms: true"
	}
	config := "global: {" + global + "}\nscrape_configs:\n"
	for _, s := range services {
		config += fmt.Sprintf("- {job_name: %s, static_configs: [{targets: [%q], labels: {cluster: %s, namespace: %s}}]}\n",
			s.labels["job"], s.address, s.labels["cluster"], s.labels["namespace"])
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yaml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	address := doubles.FreeAddress(t)
	var log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "prometheus", "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--log.level=warn",
		"--web.listen-address="+address, "--web.enable-admin-api", "--enable-feature=native-histograms")
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Wait() // it is killed when the test ends
		if t.Failed() {
			t.Logf("Prometheus: %s", &log)
		}
	})
	return prometheusServer("http://" + address)
}

// get decodes the data of the API's answer to a query.
func (p prometheusServer) get(path string, args url.Values, data any) error {
	resp, err := http.Get(string(p) + "/api/v1/" + path + "?" + args.Encode())
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer := struct{ Error, Data any }{Data: data}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return fmt.Errorf("%s: %w", resp.Status, err)
	} else if answer.Error != nil {
		return fmt.Errorf("%s: %v", args, answer.Error)
	}
	return nil
}

// A promMatrix is the result of a query: lines by their text in the legend, and their values by Unix time. Values that no panel
// shows, NaN and infinity, are absent.
type promMatrix map[string]map[float64]float64

// query returns the lines of a target of the dashboard with the given variables, one point for each step.
func (p prometheusServer) query(target dashboardTarget, variables map[string]string, from, to time.Time, step time.Duration) (promMatrix, error) {
	var data struct {
		Result []struct {
			Metric map[string]string
			Values [][2]any
		}
	}
	unix := func(at time.Time) string { return strconv.FormatInt(at.Unix(), 10) }
	err := p.get("query_range", url.Values{
		"query": {setVariables(target.Expr, variables)}, "start": {unix(from)}, "end": {unix(to)}, "step": {step.String()},
	}, &data)
	lines := make(promMatrix)
	for _, one := range data.Result {
		legend := regexp.MustCompile(`{{(\w+)}}`).ReplaceAllStringFunc(target.LegendFormat, func(name string) string { return one.Metric[strings.Trim(name, "{}")] })
		if lines[legend] != nil {
			return nil, fmt.Errorf("two lines of %s are named %q", target.Expr, legend)
		}
		points := make(map[float64]float64)
		for _, pair := range one.Values {
			if v, err := strconv.ParseFloat(pair[1].(string), 64); err == nil && !math.IsNaN(v) && !math.IsInf(v, 0) {
				points[pair[0].(float64)] = v
			}
		}
		if len(points) > 0 {
			lines[legend] = points
		}
	}
	return lines, err
}

// setVariables replaces the variables of the dashboard in text.
func setVariables(text string, variables map[string]string) string {
	for name, value := range variables {
		text = strings.ReplaceAll(text, "$"+name, value)
	}
	return text
}

// chooseService returns the values of the dashboard's variables that show the service s: all of its clients and hosts that
// Prometheus knows. It returns nil if Prometheus does not know the service yet.
func (p prometheusServer) chooseService(t *testing.T, d dashboard, s scrapedService) map[string]string {
	variables := map[string]string{"__rate_interval": "10s"}
	for _, v := range d.Templating.List[1:] {
		m := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(v.Definition)
		require.NotNil(t, m, v.Definition)
		var values []string
		_ = p.get("label/"+m[2]+"/values", url.Values{"match[]": {setVariables(m[1], variables)}}, &values) // it may still start
		if own := s.labels[v.Name]; own != "" {
			if !slices.Contains(values, own) {
				return nil
			}
			values = []string{own}
		}
		for i := range values {
			values[i] = strings.ReplaceAll(regexp.QuoteMeta(values[i]), `\`, `\\`)
		}
		variables[v.Name] = strings.Join(values, "|")
	}
	return variables
}

// evaluateAll returns the lines of all targets at the time at, and an expression without lines, if there is one.
func (p prometheusServer) evaluateAll(t *testing.T, targets []dashboardTarget, variables map[string]string, at time.Time) (lines []promMatrix, empty string) {
	for _, target := range targets {
		one, err := p.query(target, variables, at, at, time.Second)
		require.NoError(t, err)
		if lines = append(lines, one); len(one) == 0 {
			empty = target.Expr
		}
	}
	return lines, empty
}

// TestDashboardShowsEachScrapedServiceAlone evaluates the dashboard in a real Prometheus that scrapes two services. With the
// environment variable HEDGE_WRITE_DASHBOARD, it also draws docs/dashboard.svg, which takes two minutes.
func TestDashboardShowsEachScrapedServiceAlone(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes ten seconds")
	}
	services := []scrapedService{
		startService(t, "cart", map[string]string{"cluster": "eu", "namespace": "shop", "job": "web"}),
		startService(t, "search", map[string]string{"cluster": "us", "namespace": "catalog", "job": "api"}),
	}
	p := startPrometheus(t, services)
	d, panels := readDashboard(t)
	var targets []dashboardTarget
	for _, panel := range panels {
		targets = append(targets, panel.Targets...)
	}
	var variables [2]map[string]string
	var at [2]time.Time
	var before [2][]promMatrix
	deadline := time.Now().Add(25 * time.Second)
	for i, s := range services {
		for empty := "everything"; empty != ""; {
			require.True(t, time.Now().Before(deadline), "no data of %s: %s", s.labels, empty)
			require.NoError(t, doubles.Sleep(t.Context(), 200*ms))
			if variables[i] = p.chooseService(t, d, s); variables[i] != nil {
				at[i] = time.Now().Add(-3 * time.Second) // all scrapes before it have ended
				before[i], empty = p.evaluateAll(t, targets, variables[i], at[i])
			}
		}
	}
	if os.Getenv("HEDGE_WRITE_DASHBOARD") != "" {
		require.NoError(t, doubles.Sleep(t.Context(), 2*time.Minute))
		drawDashboard(t, p, d, p.chooseService(t, d, services[0]))
	}

	// The samples of the second service are deleted. Nothing is left of it, and nothing changes for the first one.
	resp, err := http.Post(string(p)+"/api/v1/admin/tsdb/delete_series?"+url.Values{"match[]": {`{job="api"}`}}.Encode(), "", nil)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusNoContent, resp.StatusCode)
	kept, _ := p.evaluateAll(t, targets, variables[0], at[0])
	gone, _ := p.evaluateAll(t, targets, variables[1], at[1])
	for i, target := range targets {
		assert.Empty(t, gone[i], target.Expr)
		require.Len(t, kept[i], len(before[0][i]), target.Expr)
		for legend, points := range kept[i] {
			assert.InDeltaMapValues(t, before[0][i][legend], points, 1e-9, target.Expr)
		}
	}
}
