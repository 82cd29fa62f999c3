package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// contract is what the machine-readable formats promise, in this order.
const contract = "engine scenario strategy seed requests errors p50_ms p90_ms p95_ms p99_ms p999_ms mean_ms max_ms stddev_ms " +
	"extra_pct hedges wins denied conns_opened cpu_us_per_request"

// sim runs the command.
func sim(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, err bytes.Buffer
	code = run(t.Context(), args, &out, &err, false)
	return out.String(), err.String(), code
}

func small(args ...string) []string {
	return append([]string{"-engine", "virtual", "-requests", "5000", "-out", "", "-strategy", "none,static-10ms,hedge"}, args...)
}

func TestSameSeedSameOutput(t *testing.T) {
	for _, format := range formats {
		a, _, code := sim(t, small("-format", format)...)
		require.Equal(t, ok, code)
		b, _, _ := sim(t, small("-format", format)...)
		assert.Equal(t, a, b)
		c, _, _ := sim(t, small("-format", format, "-seed", "2")...)
		assert.NotEqual(t, a, c)
	}
}

func TestGoldenTables(t *testing.T) {
	for _, format := range formats {
		t.Run(format, func(t *testing.T) {
			got, _, code := sim(t, small("-format", format, "-scenario", "seed,outage", "-runs", "3")...)
			require.Equal(t, ok, code)
			file := filepath.Join("testdata", "table."+format)
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			assert.Equal(t, string(want), got)
		})
	}
}

func TestColumnsKeepTheirNames(t *testing.T) {
	out, _, code := sim(t, small("-format", "csv")...)
	require.Equal(t, ok, code)
	records, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	require.NoError(t, err)
	require.Len(t, records, 4)
	assert.Equal(t, strings.Fields(contract), records[0])

	out, _, code = sim(t, small("-format", "json")...)
	require.Equal(t, ok, code)
	var rows []map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &rows))
	require.Len(t, rows, 3)
	for i, r := range rows {
		assert.Len(t, r, len(strings.Fields(contract)))
		for j, name := range strings.Fields(contract) {
			require.Contains(t, r, name)
			want := records[i+1][j]
			switch v := r[name].(type) {
			case nil:
				assert.Empty(t, want, name)
			case string:
				assert.Equal(t, want, v)
			}
		}
		assert.Nil(t, r["conns_opened"], "nothing is measured in virtual time")
	}
	// The order within an object is the contract's as well.
	last := -1
	for _, name := range strings.Fields(contract) {
		at := strings.Index(out, `"`+name+`":`)
		assert.Greater(t, at, last, name)
		last = at
	}
}

func TestPhasesGetRowsOfTheirOwn(t *testing.T) {
	out, _, code := sim(t, small("-format", "json", "-scenario", "outage")...)
	require.Equal(t, ok, code)
	var rows []row
	require.NoError(t, json.Unmarshal([]byte(out), &rows))
	requests := make(map[string]int)
	for _, r := range rows {
		if r.Strategy == "hedge" {
			requests[r.Scenario] = r.Requests
		}
	}
	require.Len(t, requests, 4)
	assert.Equal(t, 5000, requests["outage"])
	assert.Equal(t, 5000, requests["outage/before"]+requests["outage/during"]+requests["outage/after"])
	assert.InEpsilon(t, 1000, requests["outage/during"], 0.1, "30 of 150 seconds")
}

func TestBadFlagsAreNamed(t *testing.T) {
	for _, tt := range []struct {
		args string
		says []string
	}{
		{"-engine warp", []string{"-engine", `"warp"`, "http, grpc, dns or virtual"}},
		{"-scenario nothing", []string{"-scenario", `"nothing"`, "seed", "all"}},
		{"-engine http -scenario drift", []string{"-scenario", `"drift"`, "seed"}},
		{"-strategy hedge,best", []string{"-strategy", `"best"`, "published-told"}},
		{"-engine virtual -scenario queue -strategy oracle-1", []string{"-strategy oracle-1", "queue"}},
		{"-engine dns -transport quic", []string{"-transport", `"quic"`, "udp, tls or https"}},
		{"-transport tls", []string{"-transport tls", "-engine dns"}},
		{"-engine dns -transport tls -strategy miekg", []string{"-strategy miekg", "DNS over tls"}},
		{"-requests -1", []string{"-requests -1", "100"}},
		{"-requests 7", []string{"-requests 7", "100"}},
		{"-requests many", []string{"-requests", `"many"`}},
		{"-rps -3", []string{"-rps -3", "1000000"}},
		{"-rps NaN", []string{"-rps NaN"}},
		{"-runs 0", []string{"-runs 0", "1"}},
		{"-format xml", []string{"-format", `"xml"`, "text, md, csv or json"}},
		{"-seed x", []string{"-seed", `"x"`}},
		{"-colour", []string{"-colour"}},
		{"extra", []string{`"extra"`}},
	} {
		t.Run(tt.args, func(t *testing.T) {
			stdout, stderr, code := sim(t, strings.Fields(tt.args)...)
			assert.Equal(t, misused, code)
			assert.Empty(t, stdout)
			assert.Equal(t, 1, strings.Count(stderr, "\n"), "one line: %s", stderr)
			for _, s := range tt.says {
				assert.Contains(t, stderr, s)
			}
		})
	}
}

func TestHelpListsEverything(t *testing.T) {
	_, stderr, code := sim(t, "-help")
	assert.Equal(t, ok, code)
	for _, s := range strategies {
		assert.Contains(t, stderr, "  "+s.name+" ")
	}
	for _, sc := range scenarios() {
		assert.Contains(t, stderr, "  "+sc.name+" ")
	}
}

func TestEveryStrategyRunsInEveryScenario(t *testing.T) {
	var scenes []string
	for _, sc := range scenarios() {
		if (virtualEngine{}).runs(sc) && (sc.name != "metastable" || !raceOn) { // its size is fixed, by its load
			scenes = append(scenes, sc.name)
		}
	}
	out, stderr, code := sim(t, "-engine", "virtual", "-scenario", strings.Join(scenes, ","), "-requests", "2000", "-format", "json", "-out", "",
		"-strategy", strings.Join(strategyNames(), ","))
	require.Equal(t, ok, code, stderr)
	var rows []row
	require.NoError(t, json.Unmarshal([]byte(out), &rows))
	seen := make(map[string]bool)
	for _, r := range rows {
		seen[r.Scenario+" "+r.Strategy] = true
		assert.LessOrEqual(t, r.Wins, r.Hedges)
		assert.LessOrEqual(t, r.P50, r.P99)
		assert.LessOrEqual(t, r.P999, r.Max)
	}
	for _, sc := range scenarios() {
		for _, s := range strategies {
			if (virtualEngine{}).runs(sc) && slices.Contains(scenes, sc.name) {
				assert.Equal(t, virtualEngine{}.offers(sc, s), seen[sc.name+" "+s.name], "%s %s", sc.name, s.name)
			}
		}
	}
}

// The DNS engine needs namespaces, and skips where there are none.
func TestDNSEngineAsksOverASimulatedNetwork(t *testing.T) {
	out, stderr, code := sim(t, "-engine", "dns", "-scenario", "dead-primary", "-strategy", "single,hedge", "-requests", "200", "-format", "json", "-out", "")
	if code == failed && strings.Contains(stderr, "netsim: needs root") {
		t.Skip(stderr)
	}
	require.Equal(t, ok, code, stderr)
	var rows []row
	require.NoError(t, json.Unmarshal([]byte(out), &rows))
	require.Len(t, rows, 4, "a part for each")
	for _, r := range rows {
		assert.Equal(t, "dns", r.Engine)
		assert.Zero(t, r.Errors, r.Strategy)
		assert.Greater(t, r.P50, 19.0)
	}
	_, stderr, code = sim(t, "-engine", "dns", "-strategy", "published")
	assert.Equal(t, misused, code)
	assert.Contains(t, stderr, "not offered for DNS over udp")
}

func TestReportStandsAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	_, stderr, code := sim(t, "-engine", "virtual", "-requests", "5000", "-scenario", "seed,drift", "-strategy", "none,published-told,hedge", "-out", dir)
	require.Equal(t, ok, code, stderr)
	for _, name := range []string{"virtual-seed-latency", "virtual-drift-p99", "virtual-drift-extra"} {
		for _, kind := range []string{".png", ".svg"} {
			info, err := os.Stat(filepath.Join(dir, name+kind))
			require.NoError(t, err)
			assert.Greater(t, info.Size(), int64(2000))
		}
	}
	page, err := os.ReadFile(filepath.Join(dir, "report.html"))
	require.NoError(t, err)
	html := string(page)
	assert.Equal(t, 6, strings.Count(html, "<svg"))
	for _, name := range strategyNames() {
		ran := name == "none" || name == "published-told" || name == "hedge"
		assert.Equal(t, ran, strings.Contains(html, "<dt>"+name+"</dt>"), "described if it ran: %s", name)
	}
	assert.Contains(t, html, "± is half of a 95 % interval")
	for _, outside := range []string{"<script", "<link", "<img", "src=", "@import", "url("} {
		assert.NotContains(t, html, outside)
	}
}

func TestUnwritableOutIsAnError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	_, stderr, code := sim(t, "-engine", "virtual", "-requests", "1000", "-strategy", "none", "-out", file)
	assert.Equal(t, failed, code)
	assert.Contains(t, stderr, "-out")
}

func TestInterruptKeepsWhatIsDone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var stdout bytes.Buffer
	stderr := &watched{until: "seed none                        done in", then: cancel}
	code := run(ctx, []string{"-engine", "virtual", "-scenario", "seed,pareto", "-requests", "5000", "-strategy", "none", "-format", "csv", "-out", ""},
		&stdout, stderr, false)
	assert.Equal(t, interrupted, code)
	assert.Contains(t, stderr.String(), "interrupted")
	assert.Contains(t, stdout.String(), "virtual,seed,none,1,5000,")
	assert.NotContains(t, stdout.String(), "pareto")
}

// watched calls then when it has seen a text.
type watched struct {
	bytes.Buffer
	until string
	then  func()
}

func (w *watched) Write(p []byte) (int, error) {
	if strings.Contains(string(p), w.until) {
		w.then()
	}
	return w.Buffer.Write(p)
}

func TestFirstCallsAreNotHedgedByOurs(t *testing.T) {
	r := play(t, "cold", size{requests: 5000}, "none", "published", "hedge")
	assert.Equal(t, 5000, r["hedge"].Requests)
	assert.Equal(t, 250, r["hedge/first-50"].Requests)
}

func TestMedianOfRuns(t *testing.T) {
	run := func(p99 float64, hedges int) result {
		conns := hedges
		return result{strategy: "hedge", rows: []row{{Seed: 1, P99: p99, Hedges: hedges, Conns: &conns}}}
	}
	got := median([]result{run(10, 1), run(30, 3), run(12, 2)}).rows[0]
	assert.Equal(t, 12.0, got.P99)
	assert.Equal(t, 10.0, got.spread.p99)
	assert.Equal(t, 2, got.Hedges)
	assert.Equal(t, 2, *got.Conns)
	assert.Nil(t, got.CPU)
}

func TestRowCountsFailuresApart(t *testing.T) {
	tr := trial{engine: "virtual", strategy: "none", calls: []virtual.Call{
		{Latency: 10 * ms}, {Latency: 20 * ms, Winner: 1, Hedges: 1}, {Latency: time.Hour, Winner: -1, Hedges: 2, Denied: 1},
	}}
	tr.scenario.name = "x"
	r := tr.result().rows[0]
	assert.Equal(t, row{
		Engine: "virtual", Scenario: "x", Strategy: "none", Requests: 3, Errors: 1,
		P50: 10, P90: 20, P95: 20, P99: 20, P999: 20, Mean: 15, Max: 20, Stddev: 5, Extra: 100, Hedges: 3, Wins: 1, Denied: 1,
	}, r)
}

func TestReadmeTablesAreReplaced(t *testing.T) {
	readme, other := filepath.Join(t.TempDir(), "README.md"), filepath.Join(t.TempDir(), "benchmarks.md")
	write := func(file, text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o644)) }
	read := func(file string) string {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		return string(b)
	}
	runs := make(map[string]int)
	fill := func(t readmeTable) (string, error) { runs[t.name]++; return "new " + t.name + " $1\n", nil }

	write(readme, "a\n<!-- table:seed -->\nold\n<!-- /table -->\nb\n<!-- table:cost -->\n<!-- /table -->\nc\n")
	write(other, "<!-- table:seed -->\n<!-- /table -->\n<!-- table:dns -->\nold\n<!-- /table -->")
	require.NoError(t, rewriteWith([]string{readme, other}, fill))
	require.NoError(t, rewriteWith([]string{readme}, fill), "and again")
	assert.Equal(t, "a\n<!-- table:seed -->\nnew seed $1\n<!-- /table -->\nb\n<!-- table:cost -->\nnew cost $1\n<!-- /table -->\nc\n", read(readme))
	assert.Equal(t, "<!-- table:seed -->\nnew seed $1\n<!-- /table -->\n<!-- table:dns -->\nnew dns $1\n<!-- /table -->", read(other))
	assert.Equal(t, map[string]int{"seed": 2, "cost": 2, "dns": 1}, runs, "a table in two files is filled in once")

	broken := errors.New("too busy")
	before := read(readme)
	assert.ErrorIs(t, rewriteWith([]string{readme}, func(t readmeTable) (string, error) { return "x", broken }), broken)
	assert.Equal(t, before, read(readme), "a file is written whole or not at all")
}

func TestFilesWithoutProperTablesAreRefusedBeforeAnythingRuns(t *testing.T) {
	good := filepath.Join(t.TempDir(), "good.md")
	require.NoError(t, os.WriteFile(good, []byte("<!-- table:seed -->\n<!-- /table -->\n"), 0o644))
	for text, says := range map[string]string{
		"<!-- table:unknown -->\n<!-- /table -->\n": `"unknown"`,
		"no marker":                         "found 0 <!-- table:NAME -->",
		"<!-- table:seed -->\nnot closed\n": "1 <!-- table:NAME --> and 0 <!-- /table -->",
		"<!-- /table -->":                   "0 <!-- table:NAME --> and 1",
		"<!-- table:seed -->\n<!-- table:dns -->\n<!-- /table -->\n":               "2 <!-- table:NAME --> and 1",
		"<!-- table:seed -->\n<!-- /table -->\n<!-- /table -->\n":                  "1 <!-- table:NAME --> and 2",
		"<!-- table:seed -->\n<!-- /table -->\n<!-- table:Dns --> <!-- /table -->": "2 <!-- table:NAME --> and 2",
	} {
		file := filepath.Join(t.TempDir(), "bad.md")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		_, stderr, code := sim(t, "-readme", good+","+file)
		assert.Equal(t, failed, code, text)
		assert.Contains(t, stderr, says)
		assert.Contains(t, stderr, file)
	}
	_, stderr, code := sim(t, "-readme", good+",")
	assert.Equal(t, failed, code)
	assert.Contains(t, stderr, "-readme")
}

func TestReadmeTablesCarryTheirOrigin(t *testing.T) {
	table := readmeTable{name: "x", args: "-engine virtual -requests 2000 -runs 2 -strategy none,hedge", draw: headline}
	got, err := table.fill(t.Context(), nil)
	require.NoError(t, err)
	for _, s := range []string{
		"| **with `hedge`, no option set** |", "`go run ./benchmark/simulate -engine virtual", "go1.", "cores", "medians of 2 runs",
		time.Now().Format("2006-01-02"),
	} {
		assert.Contains(t, got, s)
	}
	for _, known := range readmeTables {
		if known.args != "" {
			_, err := parse(strings.Fields(known.args), os.Stderr)
			assert.NoError(t, err, known.name)
		}
	}
}

func TestMatrixHasALineForEachHighlight(t *testing.T) {
	long(t)
	o, err := parse(strings.Fields("-engine virtual -scenario all -requests 2000 -strategy none,hedge"), os.Stderr)
	require.NoError(t, err)
	found, err := simulate(t.Context(), o, nil)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(matrix(found)), "\n")
	require.Len(t, lines, 2+len(highlights))
	for _, l := range lines {
		assert.Equal(t, 4, strings.Count(l, "|"), l)
	}
}

func TestBenchmarkOutputBecomesATable(t *testing.T) {
	const out = `goos: linux
BenchmarkNoHedge/http/bare-8     	100	 70 ns/op	 144 B/op	 1 allocs/op
BenchmarkNoHedge/http/hedge-8    	100	500 ns/op	 500 B/op	 4 allocs/op
PASS
BenchmarkNoHedge/http/bare-8     	100	 90 ns/op	 144 B/op	 1 allocs/op
BenchmarkNoHedge/http/hedge-8    	100	540 ns/op	 500 B/op	 4 allocs/op
BenchmarkNoHedge/http/bare-8     	100	 80 ns/op	 144 B/op	 1 allocs/op
BenchmarkNoHedge/http/hedge-8    	100	520 ns/op	 500 B/op	 4 allocs/op
`
	res := readBench([]byte(out))
	assert.Equal(t, "| | ns/op | B/op | allocs/op |\n|---|--:|--:|--:|\n"+
		"| http/bare | 80 ±10 | 144 | 1 |\n| http/hedge | 520 ±20 | 500 | 4 |\n", res.table())
	assert.Contains(t, costs(res), "| **hedge** | 440 ns ±20, 3 allocations | – | – | – |")
}

// Loopback engines: real sockets, so only what holds on any machine.
func TestLoopbackRunsTheRealLibraries(t *testing.T) {
	for engine, strategies := range map[string]string{
		"http": strings.Join(slices.DeleteFunc(strategyNames(), func(n string) bool { return !loopback("http").offers(scenario{}, strategyOf(n)) }), ","),
		// failsafe-go gives one reply to all attempts, which the race detector rightly reports.
		"grpc": "none,static-10ms,published,published-told,hedge,hedge-1,oracle-2",
	} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			out, stderr, code := sim(t, "-engine", engine, "-requests", "400", "-strategy", strategies, "-format", "json", "-out", "")
			require.Equal(t, ok, code, stderr)
			var rows []row
			require.NoError(t, json.Unmarshal([]byte(out), &rows))
			require.Len(t, rows, strings.Count(strategies, ",")+1)
			for _, r := range rows {
				assert.Equal(t, engine, r.Engine)
				assert.Equal(t, 400, r.Requests, r.Strategy)
				assert.Zero(t, r.Errors, r.Strategy)
				assert.Greater(t, r.P50, 2.0)
				require.NotNil(t, r.Conns)
				assert.Positive(t, *r.Conns)
				switch r.Strategy {
				case "none":
					assert.Zero(t, r.Hedges)
				case "static-10ms":
					assert.Greater(t, r.Hedges, 10)
					assert.Positive(t, r.Wins)
				}
			}
		})
	}
}

func TestLoopbackKeepsAnOpenLoop(t *testing.T) {
	start := time.Now()
	out, stderr, code := sim(t, "-engine", "http", "-requests", "200", "-rps", "400", "-strategy", "none", "-format", "csv", "-out", "")
	require.Equal(t, ok, code, stderr)
	assert.Contains(t, out, "http,seed,none,1,200,0,")
	assert.Greater(t, time.Since(start), 300*ms)
}

// A million requests take minutes: that the command returns shows that it was interrupted.
func TestLoopbackIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var stdout bytes.Buffer
	stderr := &watched{until: "http: this takes about", then: func() { time.AfterFunc(200*ms, cancel) }}
	code := run(ctx, []string{"-requests", "1000000", "-strategy", "none,hedge", "-format", "csv", "-out", ""}, &stdout, stderr, false)
	assert.Equal(t, interrupted, code)
	assert.Equal(t, 1, strings.Count(stdout.String(), "\n"), "the head alone: nobody has done a tenth: %s", &stdout)
}
