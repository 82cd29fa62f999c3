package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/benchmark/internal/latency"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// contract is what the machine-readable formats promise, in this order.
const contract = "engine scenario strategy seed requests errors p50_ms p90_ms p95_ms p99_ms p999_ms mean_ms max_ms stddev_ms " +
	"extra_pct hedges wins denied conns_opened cpu_us_per_request sent_per_request denials last_answer_ms asked_twice_pct sent_twice_pct tokens_pct"

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
	long(t)
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
		{"-engine warp", []string{"-engine", `"warp"`, "http, grpc, dns, faults, recursor, storage, endpoints or virtual"}},
		{"-scenario nothing", []string{"-scenario", `"nothing"`, "seed", "all"}},
		{"-engine http -scenario drift", []string{"-scenario", `"drift"`, "seed"}},
		{"-strategy hedge,best", []string{"-strategy", `"best"`, "published-told"}},
		{"-engine virtual -scenario queue -strategy oracle-1", []string{"-strategy oracle-1", "queue"}},
		{"-engine dns -transport quic", []string{"-transport", `"quic"`, "udp, tls or https"}},
		{"-transport tls", []string{"-transport tls", "-engine dns"}},
		{"-engine dns -transport tls -strategy miekg", []string{"-strategy miekg", "DNS over tls"}},
		{"-engine recursor -strategy miekg", []string{"-strategy miekg", "not a resolver"}},
		{"-engine storage -strategy miekg", []string{"-strategy miekg", "not a reader of ranges"}},
		{"-engine endpoints -strategy miekg", []string{"-strategy miekg", "not a way to choose an endpoint"}},
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
	long(t)
	var scenes []string
	for _, sc := range scenarios() {
		if (virtualEngine{}).runs(sc) && (sc.name != "metastable" || !testing.Short()) { // its size is fixed, by its load
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
	out, stderr, code := sim(t, "-engine", "dns", "-scenario", "dead-primary", "-strategy", "single,hedge", "-requests", "600", "-format", "json", "-out", "")
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

// The recursor engine needs namespaces too. It has our own resolver run by this test's program.
func TestRecursorEngineResolvesInASimulatedInternet(t *testing.T) {
	out, stderr, code := sim(t, "-engine", "recursor", "-quick", "-requests", "100", "-strategy", "hedge,hedge-off", "-format", "json", "-out", "")
	if code == failed && strings.Contains(stderr, "netsim: needs root") {
		t.Skip(stderr)
	}
	require.Equal(t, ok, code, stderr)
	var rows []row
	require.NoError(t, json.Unmarshal([]byte(out), &rows))
	require.Len(t, rows, 2)
	for _, r := range rows {
		assert.Equal(t, "recursor", r.Engine)
		assert.Equal(t, 100, r.Requests)
		assert.LessOrEqual(t, r.Errors, 2, r.Strategy)
		assert.Greater(t, r.P50, 10.0)
		require.NotNil(t, r.Sent)
		assert.Greater(t, *r.Sent, 1.0)
		assert.Less(t, *r.Sent, 10.0)
	}
}

func TestRecursorRunsThreeTimesUnlessToldOtherwise(t *testing.T) {
	for args, want := range map[string]int{"": 3, "-quick": 1, "-runs 2": 2, "-quick -runs 4": 4} {
		o, err := optionsOf(append([]string{"-engine", "recursor"}, strings.Fields(args)...), io.Discard)
		require.NoError(t, err)
		assert.Equal(t, want, o.runs, args)
	}
}

// What is required is said under the table, for those that ran.
func TestBoundsOfTheResolverAreSaid(t *testing.T) {
	o, err := optionsOf([]string{"-engine", "recursor"}, io.Discard)
	require.NoError(t, err)
	of := func(strategy string, p50, p99, p999, sent float64, errors int) result {
		return result{strategy: strategy, rows: []row{{Engine: "recursor", Scenario: "broken", Strategy: strategy, P50: p50, P99: p99, P999: p999, Sent: &sent, Errors: errors}}}
	}
	found := findings{options: o, scenarios: []finding{{scenario: o.scenarios[0], results: []result{of("hedge", 70, 450, 700, 3, 2), of("unbound", 100, 1000, 3000, 2.7, 1)}}}}
	assert.Equal(t, []string{
		"broken: p50 is 0.70 × unbound's, at most 0.80 ×: met.",
		"broken: p99 is 0.45 × unbound's, at most 0.45 ×: met.",
		"broken: p99.9 is 0.23 × unbound's, at most 0.35 ×: met.",
		"broken: sent is 1.11 × unbound's, at most 1.10 ×: NOT MET.",
		"broken: of those that send at most 1.3 × as much, nobody is faster at p99, nobody may be: met.",
		"broken: 2 failures, at most unbound's 1: NOT MET.",
	}, found.bounds())
	found.scenarios[0].results = found.scenarios[0].results[:1]
	assert.NotContains(t, strings.Join(found.bounds(), "\n"), "NOT MET", "nobody to compare with")
}

// Where zones are signed, ours is compared with those who check signatures, and what these get wrong is said.
func TestBoundsWhereZonesAreSignedAreSaid(t *testing.T) {
	o, err := optionsOf([]string{"-engine", "recursor", "-scenario", "signed", "-strategy", "hedge,unbound-validate"}, io.Discard)
	require.NoError(t, err)
	of := func(strategy string, p50 float64, wrong misread) result {
		sent, cpu := 4.0, 900.0
		return result{strategy: strategy, misread: wrong, rows: []row{{Engine: "recursor", Scenario: "signed", Strategy: strategy, P50: p50, P99: 5 * p50, Sent: &sent, CPU: &cpu}}}
	}
	results := []result{of("hedge", 70, misread{}), of("unbound-validate", 100, misread{1, 2})}
	said := strings.Join(findings{options: o, scenarios: []finding{{scenario: o.scenarios[0], results: results}}}.bounds(), "\n")
	assert.Contains(t, said, "signed: p50 is not compared: hedge-novalidate has none.")
	assert.Contains(t, said, "signed: p50 is 0.70 × unbound-validate's, at most 0.60 ×: NOT MET.")
	assert.Contains(t, said, "signed: hedge answers 0 bogus names, and AD is wrong in 0 answers, in none it may be: met.")
	assert.Contains(t, said, "signed: unbound-validate answers 1 bogus names, and AD is wrong in 2 answers, in none it may be: NOT MET.")

	o, err = optionsOf([]string{"-engine", "recursor", "-scenario", "keytrap", "-strategy", "hedge"}, io.Discard)
	require.NoError(t, err)
	trap := trial{engine: "recursor", scenario: &o.scenarios[0], strategy: "hedge", calls: make([]latency.Call, 10), partCPU: map[string]float64{traps: 10_001}}
	said = strings.Join(findings{options: o, scenarios: []finding{{scenario: o.scenarios[0], results: []result{trap.result()}}}}.bounds(), "\n")
	assert.Contains(t, said, "keytrap/traps: CPU in µs is 10001, at most 10000: NOT MET.")

	for _, args := range []string{"-scenario broken -strategy unbound-validate", "-scenario signed -strategy unbound-stock"} {
		_, err = optionsOf(append([]string{"-engine", "recursor"}, strings.Fields(args)...), io.Discard)
		assert.Error(t, err, args)
	}
	o, err = optionsOf([]string{"-engine", "recursor", "-scenario", "all"}, io.Discard)
	require.NoError(t, err)
	assert.Len(t, o.scenarios, 6, "none of them is signed")
}

func TestReportStandsAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	_, stderr, code := sim(t, "-engine", "virtual", "-requests", "5000", "-scenario", "seed,drift", "-strategy", "none,published-told,hedge", "-out", dir)
	require.Equal(t, ok, code, stderr)
	for _, name := range []string{"virtual-seed-latency", "virtual-drift-p99", "virtual-drift-extra"} {
		info, err := os.Stat(filepath.Join(dir, name+".svg"))
		require.NoError(t, err)
		assert.Greater(t, info.Size(), int64(2000))
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

func TestFirstCallsAreNotHedgedByOurs(t *testing.T) {
	r := play(t, "cold", size{requests: 5000}, "none", "published", "hedge")
	assert.Equal(t, 5000, r["hedge"].Requests)
	assert.Equal(t, 250, r["hedge/first-50"].Requests)
}

// TestTitlesSayWhatWasRun has a scenario whose title says another load than it is given, and fewer requests than its part begins with.
func TestTitlesSayWhatWasRun(t *testing.T) {
	out, _, code := sim(t, "-engine", "virtual", "-out", "", "-runs", "1", "-scenario", "queue-deaf", "-strategy", "none", "-requests", "3000", "-rps", "1234")
	require.Equal(t, ok, code)
	title, _, _ := strings.Cut(out, "\n")
	assert.Equal(t, "queue-deaf: the same, 80 % loaded, and the servers finish cancelled requests: hedging hurts here; here with 1,234 requests/s; 3,000 requests for each strategy", title)

	sc := scenario{name: "x", about: "a load", parts: []part{first("first", 5), last("settled", 20)}}
	few := trial{scenario: &sc, strategy: "none", calls: make([]latency.Call, 10)}
	assert.Len(t, finding{scenario: sc, results: []result{few.result()}}.shown(), 2, "no call is settled")
}
