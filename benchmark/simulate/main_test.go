package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
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

// contract is what the JSON format promises, in this order.
const contract = "engine scenario strategy seed requests errors p50_ms p90_ms p95_ms p99_ms p999_ms mean_ms max_ms stddev_ms " +
	"extra_pct hedges wins denied conns_opened cpu_us_per_request sent_per_request denials last_answer_ms asked_twice_pct sent_twice_pct tokens_pct kb_per_connection " +
	"kernel_kb_per_connection queries_per_second"

func TestSameSeedSameOutput(t *testing.T) {
	for _, format := range formats {
		a, _, code := runSimulate(t, withFewRequests("-format", format)...)
		require.Equal(t, exitOK, code)
		b, _, _ := runSimulate(t, withFewRequests("-format", format)...)
		assert.Equal(t, a, b)
		c, _, _ := runSimulate(t, withFewRequests("-format", format, "-seed", "2")...)
		assert.NotEqual(t, a, c)
	}
}

func TestGoldenTables(t *testing.T) {
	skipIfShort(t)
	for _, format := range formats {
		t.Run(format, func(t *testing.T) {
			got, _, code := runSimulate(t, withFewRequests("-format", format, "-scenario", "reference,outage", "-runs", "3")...)
			require.Equal(t, exitOK, code)
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
	out, _, code := runSimulate(t, withFewRequests("-format", "json")...)
	require.Equal(t, exitOK, code)
	var rows []map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &rows))
	require.Len(t, rows, 3)
	for _, r := range rows {
		assert.Len(t, r, len(strings.Fields(contract)))
		for _, name := range strings.Fields(contract) {
			require.Contains(t, r, name)
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
	out, _, code := runSimulate(t, withFewRequests("-format", "json", "-scenario", "outage")...)
	require.Equal(t, exitOK, code)
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
		{"-engine warp", []string{"-engine", `"warp"`, "virtual, http, grpc, dns, faults, cached, recursor, storage or endpoints"}},
		{"-scenario nothing", []string{"-scenario", `"nothing"`, "reference", "all"}},
		{"-engine http -scenario drift", []string{"-scenario", `"drift"`, "reference"}},
		{"-strategy hedge,best", []string{"-strategy", `"best"`, "bhope-tuned"}},
		{"-engine virtual -scenario queue -strategy static-best-1", []string{"-strategy static-best-1", "queue"}},
		{"-engine dns -transport quic", []string{"-transport", `"quic"`, "udp, tls or https"}},
		{"-transport tls", []string{"-transport tls", "-engine dns"}},
		{"-engine dns -transport tls -strategy miekg", []string{"-strategy miekg", "DNS over tls"}},
		{"-engine recursor -strategy miekg", []string{"-strategy miekg", "not a resolver"}},
		{"-engine storage -strategy miekg", []string{"-strategy miekg", "not a reader of ranges"}},
		{"-engine endpoints -strategy miekg", []string{"-strategy miekg", "not a way to choose an endpoint"}},
		{"-engine cached -strategy miekg", []string{"-strategy miekg", "not a DNS server with a cache"}},
		{"-engine dns -peer bind=/bin/true", []string{"-peer", `"bind=/bin/true"`, `no peer "bind"`, "unbound, named, pdns, kresd, dnsdist, sdns, hickory"}},
		{"-engine dns -peer unbound=", []string{"-peer", `"unbound="`, "no command for unbound", "name=command"}},
		{"-peer unbound=/bin/true", []string{"-peer unbound=/bin/true", "engine http starts no DNS servers"}},
		{"-requests -1", []string{"-requests -1", "100"}},
		{"-requests 7", []string{"-requests 7", "100"}},
		{"-requests many", []string{"-requests", `"many"`}},
		{"-rps -3", []string{"-rps -3", "1000000"}},
		{"-rps NaN", []string{"-rps NaN"}},
		{"-runs 0", []string{"-runs 0", "1"}},
		{"-format xml", []string{"-format", `"xml"`, "text or json"}},
		{"-seed x", []string{"-seed", `"x"`}},
		{"-colour", []string{"-colour"}},
		{"extra", []string{`"extra"`}},
	} {
		t.Run(tt.args, func(t *testing.T) {
			stdout, stderr, code := runSimulate(t, strings.Fields(tt.args)...)
			assert.Equal(t, exitUsage, code)
			assert.Empty(t, stdout)
			assert.Equal(t, 1, strings.Count(stderr, "\n"), "one line: %s", stderr)
			for _, s := range tt.says {
				assert.Contains(t, stderr, s)
			}
		})
	}
}

func TestHelpAndListDescribeEverything(t *testing.T) {
	_, help, code := runSimulate(t, "-help")
	assert.Equal(t, exitOK, code)
	list, stderr, code := runSimulate(t, "-list")
	assert.Equal(t, exitOK, code)
	assert.Empty(t, stderr)
	for _, text := range []string{help, list} {
		for _, s := range strategies {
			assert.Contains(t, text, "  "+s.name+" ")
		}
		for _, sc := range allScenarios() {
			assert.Contains(t, text, "  "+sc.name+" ")
			assert.Contains(t, text, sc.description)
		}
	}
}

func TestEveryStrategyRunsInEveryScenario(t *testing.T) {
	skipIfShort(t)
	var scenes []string
	for _, sc := range virtualScenarios() {
		if sc.name != "metastable" || !testing.Short() { // its size is fixed, by its load
			scenes = append(scenes, sc.name)
		}
	}
	out, stderr, code := runSimulate(t, "-engine", "virtual", "-scenario", strings.Join(scenes, ","), "-requests", "2000", "-format", "json", "-out", "",
		"-strategy", strings.Join(strategyNames(), ","))
	require.Equal(t, exitOK, code, stderr)
	var rows []row
	require.NoError(t, json.Unmarshal([]byte(out), &rows))
	seen := make(map[string]bool)
	for _, r := range rows {
		seen[r.Scenario+" "+r.Strategy] = true
		assert.LessOrEqual(t, r.Wins, r.Hedges)
		assert.LessOrEqual(t, r.P50, r.P99)
		assert.LessOrEqual(t, r.P999, r.Max)
	}
	for _, sc := range virtualScenarios() {
		for _, s := range strategies {
			if slices.Contains(scenes, sc.name) {
				assert.Equal(t, virtualEngine{}.supports(sc, s), seen[sc.name+" "+s.name], "%s %s", sc.name, s.name)
			}
		}
	}
}

func TestReportStandsAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	_, stderr, code := runSimulate(t, "-engine", "virtual", "-requests", "5000", "-scenario", "reference,drift", "-strategy", "none,bhope-tuned,hedge", "-out", dir)
	require.Equal(t, exitOK, code, stderr)
	for _, name := range []string{"virtual-reference-latency", "virtual-drift-latency"} {
		info, err := os.Stat(filepath.Join(dir, name+".svg"))
		require.NoError(t, err)
		assert.Greater(t, info.Size(), int64(2000))
	}
	page, err := os.ReadFile(filepath.Join(dir, "report.html"))
	require.NoError(t, err)
	html := string(page)
	assert.Equal(t, 2, strings.Count(html, "<svg"))
	for _, name := range strategyNames() {
		ran := name == "none" || name == "bhope-tuned" || name == "hedge"
		assert.Equal(t, ran, describesStrategy(html, name), "described if it ran: %s", name)
	}
	assert.Contains(t, html, "± is half of a 95 % interval")
	for _, outside := range []string{"<script", "<link", "<img", "src=", "@import", "url("} {
		assert.NotContains(t, html, outside)
	}
}

func TestUnwritableOutIsAnError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	_, stderr, code := runSimulate(t, "-engine", "virtual", "-requests", "1000", "-strategy", "none", "-out", file)
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, stderr, "-out")
}

func TestInterruptKeepsWhatIsDone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var stdout bytes.Buffer
	stderr := &outputWatcher{until: "reference none                   done in", then: cancel}
	code := runCommand(ctx, []string{"-engine", "virtual", "-scenario", "reference,pareto", "-requests", "5000", "-strategy", "none", "-format", "json", "-out", ""},
		&stdout, stderr, false)
	assert.Equal(t, exitInterrupted, code)
	assert.Contains(t, stderr.String(), "interrupted")
	assert.Contains(t, stdout.String(), `"requests": 5000`)
	assert.NotContains(t, stdout.String(), "pareto")
}

func TestFirstCallsAreNotHedgedByOurs(t *testing.T) {
	r := runVirtual(t, "cold", trafficFlags{requests: 5000}, "none", "bhope", "hedge")
	assert.Equal(t, 5000, r["hedge"].Requests)
	assert.Equal(t, 250, r["hedge/first-50"].Requests)
}

// TestTitlesSayWhatWasRun has a scenario whose title says another load than it is given, and fewer requests than its
// part begins with.
func TestTitlesSayWhatWasRun(t *testing.T) {
	out, _, code := runSimulate(t, "-engine", "virtual", "-out", "", "-runs", "1", "-scenario", "queue-ignores-cancel", "-strategy", "none", "-requests", "3000", "-rps", "1234")
	require.Equal(t, exitOK, code)
	title, _, _ := strings.Cut(out, "\n")
	assert.Equal(t, "queue-ignores-cancel: 20 servers, 80 % loaded, with a queue each, that finish cancelled requests: hedging does harm here; here with 1,234 requests/s; 3,000 requests for each strategy", title)

	sc := scenario{name: "x", description: "a load", parts: []scenarioPart{newFirstCallsPart("first", 5), newLaterCallsPart("settled", 20)}}
	few := trial{scenario: &sc, strategy: "none", calls: make([]latency.Call, 10)}
	assert.Len(t, scenarioResults{scenario: sc, results: []strategyResult{few.toResult()}}.tableRows(), 2, "no call is settled")
}
