package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohedge/hedge/benchmark/endpointlab"
)

// A readmeTable is what can stand between the markers <!-- table:NAME --> and
// <!-- /table -->: findings of this command, or output of benchmarks.
type readmeTable struct {
	name string
	args string // of this command
	runs string // how many, if the table has no ±; empty: what stands behind it is said
	draw func(findings) string

	test  string // of go test, several times
	bench func(benchResults) string
}

const benchRuns = 5

var readmeTables = []readmeTable{{
	name: "headline", draw: headline,
	args: "-requests 30000 -runs 3 -strategy none,hedge",
}, {
	name: "reference", draw: wholes,
	args: "-requests 30000 -runs 3 -strategy none,static-10ms,failsafe-quantile,bhope,bhope-tuned,hedge,static-best-2",
}, {
	name: "dns", draw: networks,
	args: "-engine dns -scenario loss2,spikes,clean -runs 5 -strategy single,hedge,net-resolver",
}, {
	name: "faults", draw: faultTable, runs: "one run",
	args: "-engine faults -scenario all",
}, {
	name: "recursor", draw: resolvers,
	args: "-engine recursor -scenario broken,clean",
}, {
	name: "signed", draw: resolvers,
	args: "-engine recursor -scenario mixed,signed -strategy hedge,hedge-novalidate,unbound-validate,named-validate -requests 1000 -runs 3",
}, {
	name: "storage", draw: rangesTable, runs: "one run, in fake time",
	args: "-engine storage -scenario all",
}, {
	name: "endpoints", draw: endpointsTable, runs: "one run, in fake time",
	args: "-engine endpoints -scenario all",
}, {
	name: "cost", bench: costs,
	test: "-run ^$ -bench ^BenchmarkNoHedge$ ./benchmark",
}}

const (
	opening = "<!-- table:"
	closing = "<!-- /table -->"
)

// marker finds a table. What stands between its two comments is replaced.
var marker = regexp.MustCompile(`(?s)<!-- table:([a-z0-9-]+) -->\n(.*?)<!-- /table -->`)

// A document is a file with tables.
type document struct {
	file   string
	text   string
	tables [][]int // see marker: where each table, its name and its body begin and end
}

// rewrite fills in the tables of files by running what they show.
func rewrite(ctx context.Context, files []string, p *progress) error {
	return rewriteWith(files, func(t readmeTable) (string, error) { return t.fill(ctx, p) })
}

// rewriteWith reads and checks all files before it fills in the first table. It
// writes a file when all of its tables are there. A table in several places is
// filled in once.
func rewriteWith(files []string, fill func(readmeTable) (string, error)) error {
	var all []document
	for _, file := range files {
		d, err := readDocument(file)
		if err != nil {
			return fmt.Errorf("-readme %s: %w", file, err)
		}
		all = append(all, d)
	}
	filled := make(map[string]string)
	for _, d := range all {
		var text strings.Builder
		end := 0
		for _, at := range d.tables {
			name := d.text[at[2]:at[3]]
			if filled[name] == "" {
				table, err := fill(readmeTables[slices.Index(readmeTableNames(), name)])
				if err != nil {
					return err
				}
				filled[name] = table
			}
			text.WriteString(d.text[end:at[4]] + filled[name])
			end = at[5]
		}
		text.WriteString(d.text[end:])
		if err := os.WriteFile(d.file, []byte(text.String()), 0o644); err != nil {
			return fmt.Errorf("-readme: %w", err)
		}
	}
	return nil
}

// readDocument returns a file whose tables are all known and closed.
func readDocument(file string) (document, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return document{}, err
	}
	d := document{file: file, text: string(text)}
	d.tables = marker.FindAllStringSubmatchIndex(d.text, -1)
	opened, closed := strings.Count(d.text, opening), strings.Count(d.text, closing)
	if n := len(d.tables); n == 0 || opened != n || closed != n {
		return d, fmt.Errorf("found %d %sNAME --> and %d %s; each table needs both, on lines of their own, and a file needs a table", opened, opening, closed, closing)
	}
	for _, at := range d.tables {
		if name := d.text[at[2]:at[3]]; !slices.Contains(readmeTableNames(), name) {
			return d, fmt.Errorf("no table %q: must be %s", name, list(readmeTableNames()))
		}
	}
	return d, nil
}

func readmeTableNames() []string {
	var names []string
	for _, t := range readmeTables {
		names = append(names, t.name)
	}
	return names
}

// fill runs what the table shows.
func (t readmeTable) fill(ctx context.Context, p *progress) (string, error) {
	var body, typed, note string
	if t.bench != nil {
		out, err := goTest(ctx, t.test, p)
		if err != nil {
			return "", err
		}
		body, typed = t.bench(readBench(out)), "go test "+t.test
		note = fmt.Sprintf("medians of %d runs, ± half their range", benchRuns)
	} else {
		o, err := optionsOf(strings.Fields(t.args), os.Stderr)
		if err != nil {
			return "", err
		}
		found, err := simulate(ctx, o, p)
		if err != nil {
			return "", err
		}
		if found.isBusy() {
			return "", fmt.Errorf("table %s: %s", t.name, o.engine.profile().busyText(found.late))
		}
		body, typed, note = t.draw(found), command(o.args), cmp.Or(t.runs, o.plusMinus())
	}
	return fmt.Sprintf("%s\n`%s`; %s, %s; %s.\n", body, typed, machine(), time.Now().Format("2006-01-02"), note), nil
}

// headline is the first scenario in a few words.
func headline(f findings) string {
	s := f.scenarios[0]
	var b strings.Builder
	fmt.Fprintf(&b, "| %s | p50 ms | p99 ms | p99.9 ms | extra requests |\n|---|--:|--:|--:|--:|\n", s.scenario.about)
	for _, res := range s.results {
		r := res.rows[0]
		name := "without"
		if r.Strategy == ours {
			name = "**with `hedge`, no option set**"
		}
		fmt.Fprintf(&b, "| %s | %s | %s%s | %s%s | %.1f %% |\n", name,
			figure(r.P50), figure(r.P99), spread(r.spread.p99), figure(r.P999), spread(r.spread.p999), r.Extra)
	}
	return b.String()
}

// wholes is the table of the first scenario without its parts.
func wholes(f findings) string {
	var rows []row
	for _, r := range f.scenarios[0].results {
		rows = append(rows, r.rows[0])
	}
	return markdown(rows)
}

// networks has a line for each strategy in each scenario.
func networks(f findings) string {
	return f.lines([]string{"p50", "p99", "mean", "σ", "failed", "extra queries"}, func(r row) []any {
		return []any{figure(r.P50) + spread(r.spread.p50), figure(r.P99) + spread(r.spread.p99), figure(r.Mean) + spread(r.spread.mean),
			figure(r.Stddev) + spread(r.spread.stddev), r.Errors, fmt.Sprintf("%.1f %%", r.Extra)}
	})
}

// resolvers has a line for each resolver in each scenario.
func resolvers(f findings) string {
	return f.lines([]string{"p50", "p95", "p99", "p99.9", "failed", "queries per name", "CPU µs"}, func(r row) []any {
		cpu := "–"
		if r.CPU != nil {
			cpu = fmt.Sprintf("%.0f", *r.CPU)
		}
		return []any{figure(r.P50), figure(r.P95), figure(r.P99) + spread(r.spread.p99), figure(r.P999) + spread(r.spread.p999),
			r.Errors, fmt.Sprintf("%.2f", *r.Sent), cpu}
	})
}

// faultTable has a line for each resolver in each world.
func faultTable(f findings) string {
	return f.lines([]string{"answered", "p50", "p99", "last answer", "queries per question"}, func(r row) []any {
		answered := fmt.Sprintf("%d of %d", r.Requests-r.Errors, r.Requests)
		if *r.own["denials"] > 0 {
			answered += fmt.Sprintf(", %.0f denied", *r.own["denials"])
		}
		return []any{answered, figure(r.P50), figure(r.P99), fmt.Sprintf("%.2f s", *r.own["last_answer_ms"]/1000), fmt.Sprintf("%.2f", *r.Sent)}
	})
}

// rangesTable has a line for each reader in each world of the store.
func rangesTable(f findings) string {
	percent := func(x float64) string { return fmt.Sprintf("%.2f", x) }
	return f.lines([]string{"p50", "p90", "p99", "p99.9", "extra requests %", "bytes asked twice %", "bytes sent twice %", "wins %"}, func(r row) []any {
		return []any{figure(r.P50), figure(r.P90), figure(r.P99), figure(r.P999),
			percent(r.Extra), percent(*r.own["asked_twice_pct"]), percent(*r.own["sent_twice_pct"]), percent(100 * float64(r.Wins) / float64(max(r.Requests, 1)))}
	})
}

// endpointsTable has a line for each world: the 99th percentiles of all, and what WithEndpoints costs.
func endpointsTable(f findings) string {
	var b strings.Builder
	b.WriteString("| p99 in ms |")
	for _, name := range inOrder(endpointlab.Contenders) {
		b.WriteString(" " + name + " |")
	}
	fmt.Fprintf(&b, " extra requests %% | tokens %% | errors |\n|---|%s\n", strings.Repeat("--:|", len(endpointlab.Contenders)+3))
	for _, s := range f.scenarios {
		fmt.Fprintf(&b, "| %s |", s.scenario.name)
		var extra, tokens, errors []string
		for _, r := range s.rows() {
			fmt.Fprintf(&b, " %s |", figure(r.P99))
			if strings.HasPrefix(r.Strategy, steered) {
				extra, tokens = append(extra, fmt.Sprintf("%.1f", r.Extra)), append(tokens, fmt.Sprintf("%.1f", *r.own["tokens_pct"]))
				errors = append(errors, strconv.Itoa(r.Errors))
			}
		}
		for _, both := range [][]string{extra, tokens, errors} {
			fmt.Fprintf(&b, " %s |", strings.Join(both, ", "))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// lines is a table of all wholes, grouped by scenario.
func (f findings) lines(titles []string, cells func(row) []any) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| ms | | %s |\n|---|---%s|\n", strings.Join(titles, " | "), strings.Repeat("|--:", len(titles)))
	for _, s := range f.scenarios {
		about := s.scenario.name
		if text, ok := strings.CutPrefix(s.scenario.about, "DNS: "); ok {
			about = text
		}
		for _, res := range s.results {
			name := res.strategy
			if name == ours {
				name = "**" + name + "**"
			}
			fmt.Fprintf(&b, "| %s | %s |", about, name)
			for _, c := range cells(res.rows[0]) {
				fmt.Fprintf(&b, " %v |", c)
			}
			b.WriteByte('\n')
			about = ""
		}
	}
	return b.String()
}

// goTest runs benchmarks several times, so that they take turns.
func goTest(ctx context.Context, args string, p *progress) ([]byte, error) {
	var all []byte
	for i := range benchRuns {
		p.say("go test %s, %d of %d", args, i+1, benchRuns)
		out, err := exec.CommandContext(ctx, "go", append([]string{"test"}, strings.Fields(args)...)...).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("go test %s: %w\n%s", args, err, out)
		}
		all = append(all, out...)
	}
	return all, nil
}

// benchResults are what benchmarks printed, in several runs: the values by name and unit, sorted.
type benchResults map[string][]float64

// procs is what package testing appends to the names of benchmarks.
var procs = regexp.MustCompile(`-\d+$`)

func readBench(out []byte) benchResults {
	res := make(benchResults)
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		_, name, _ := strings.Cut(procs.ReplaceAllString(fields[0], ""), "/")
		for i := 2; i+1 < len(fields); i += 2 {
			if v, err := strconv.ParseFloat(fields[i], 64); err == nil {
				key := name + " " + fields[i+1]
				res[key] = append(res[key], v)
				slices.Sort(res[key])
			}
		}
	}
	return res
}

// median is the lower one, of an even number.
func (b benchResults) median(name, unit string) (m, halfRange float64, ok bool) {
	v := b[name+" "+unit]
	if len(v) == 0 {
		return 0, 0, false
	}
	return v[(len(v)-1)/2], (v[len(v)-1] - v[0]) / 2, true
}

// costs shows what each contender takes above bare.
func costs(b benchResults) string {
	kinds := []struct{ title, name string }{
		{"HTTP/1.1", "http1"}, {"HTTP/1.1, a context per request", "http1-fresh-context"},
		{"HTTP/2", "http2"}, {"HTTP/2, a context per request", "http2-fresh-context"},
		{"gRPC", "grpc"}, {"gRPC, a context per call", "grpc-fresh-context"},
	}
	var s strings.Builder
	s.WriteString("| |")
	for _, k := range kinds {
		s.WriteString(" " + k.title + " |")
	}
	s.WriteString("\n|---|" + strings.Repeat("--:|", len(kinds)) + "\n")
	for _, c := range []struct{ title, name string }{
		{"**hedge**", "hedge"}, {"hedgedhttp", "hedgedhttp"}, {"failsafe-go", "failsafe"},
	} {
		s.WriteString("| " + c.title + " |")
		for _, k := range kinds {
			took, half, ok := b.median(k.name+"/"+c.name, "ns/op")
			if !ok {
				s.WriteString(" – |")
				continue
			}
			base, _, _ := b.median(k.name+"/bare", "ns/op")
			allocs, _, _ := b.median(k.name+"/"+c.name, "allocs/op")
			baseAllocs, _, _ := b.median(k.name+"/bare", "allocs/op")
			fmt.Fprintf(&s, " %s ns ±%s, %s allocations |", short(took-base), short(half), short(allocs-baseAllocs))
		}
		s.WriteByte('\n')
	}
	return s.String()
}

// short keeps three digits, and whole numbers from a hundred on.
func short(x float64) string {
	if x >= 100 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', 3, 64)
}
