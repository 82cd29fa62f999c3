package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A readmeTable is what can stand between the markers <!-- table:NAME --> and
// <!-- /table -->.
type readmeTable struct {
	name string
	args string // of this command; or else
	test string // of go test, and how often it runs
	runs int
	draw func(findings) string
}

var readmeTables = []readmeTable{{
	name: "seed", draw: wholes,
	args: "-engine virtual -runs 5",
}, {
	name: "http", draw: wholes,
	args: "-engine http -requests 50000 -runs 3 -strategy none,static-10ms,failsafe-quantile,published,published-told,hedge,oracle-2",
}, {
	name: "grpc", draw: wholes,
	args: "-engine grpc -requests 20000 -runs 3 -strategy none,failsafe-quantile,published,published-told,hedge,oracle-2",
}, {
	name: "matrix", draw: matrix,
	args: "-engine virtual -scenario all -strategy none,static-10ms,failsafe-quantile,published,published-told,hedge",
}, {
	name: "nohedge", runs: 5,
	test: "-run ^$ -bench ^BenchmarkNoHedge$ -benchmem ./benchmark",
}, {
	name: "loopback", runs: 5,
	test: "-run ^$ -bench ^BenchmarkLoopback$/./^c16$ ./benchmark",
}}

var marker = regexp.MustCompile(`(?s)<!-- table:([a-z0-9-]*) -->\n.*?<!-- /table -->`)

// rewrite fills in the tables of a file by running what they show.
func rewrite(ctx context.Context, file string, p *progress) error {
	return rewriteWith(file, func(t readmeTable) (string, error) { return t.fill(ctx, p) })
}

func rewriteWith(file string, fill func(readmeTable) (string, error)) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("-readme: %w", err)
	}
	var known []string
	for _, t := range readmeTables {
		known = append(known, t.name)
	}
	places := marker.FindAllSubmatch(text, -1)
	if opened := bytes.Count(text, []byte("<!-- table:")); opened == 0 || opened != len(places) {
		return fmt.Errorf("-readme %s: each table needs <!-- table:NAME --> and <!-- /table --> on lines of their own; NAME is %s", file, list(known))
	}
	for _, place := range places {
		name := string(place[1])
		i := slices.Index(known, name)
		if i < 0 {
			return fmt.Errorf("-readme %s: no table %q: must be %s", file, name, list(known))
		}
		table, err := fill(readmeTables[i])
		if err != nil {
			return err
		}
		text = bytes.Replace(text, place[0], fmt.Appendf(nil, "<!-- table:%s -->\n%s<!-- /table -->", name, table), 1)
	}
	return os.WriteFile(file, text, 0o644)
}

// fill runs what the table shows.
func (t readmeTable) fill(ctx context.Context, p *progress) (string, error) {
	runs, body, typed := t.runs, "", "go test "+t.test
	if t.args != "" {
		o, err := parse(strings.Fields(t.args), os.Stderr)
		if err != nil {
			return "", err
		}
		found, err := simulate(ctx, o, p)
		if err != nil {
			return "", err
		}
		runs, body, typed = o.runs, t.draw(found), command(o.args)
	} else {
		var err error
		if body, err = t.bench(ctx, p); err != nil {
			return "", err
		}
	}
	note := "one run"
	if runs > 1 {
		note = fmt.Sprintf("medians of %d runs, ± half their range", runs)
	}
	return fmt.Sprintf("`%s`\n\n%s\n%s, %s; %s.\n", typed, body, machine(), time.Now().Format("2006-01-02"), note), nil
}

// wholes is the table of the first scenario without its parts.
func wholes(f findings) string {
	var rows []row
	for _, r := range f.scenarios[0].results {
		rows = append(rows, r.rows[0])
	}
	return markdown(rows)
}

// telling are the lines of the matrix: what happens where it happens.
var telling = []string{
	"seed", "pareto", "replica", "correlated", "queue", "low", "cold/first-200", "drift/during", "drift/after",
	"outage/during", "outage/after", "hosts/during", "bimodal", "uniform", "hang/during", "metastable/10-30s-after", "queue-deaf",
}

// matrix has a line for each telling scenario, or part of one, and a column for each strategy.
func matrix(f findings) string {
	var b strings.Builder
	b.WriteString("| p99 / p99.9 ms, extra % |")
	names := f.options.strategies
	for _, name := range names {
		b.WriteString(" " + name + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("--:|", len(names)) + "\n")
	rows := f.rows()
	for _, name := range telling {
		b.WriteString("| " + name + " |")
		for _, r := range rows {
			if r.Scenario == name {
				fmt.Fprintf(&b, " %s / %s, %.1f |", figure(r.P99), figure(r.P999), r.Extra)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// bench runs the benchmark several times, so that its parts take turns, and
// draws the medians.
func (t readmeTable) bench(ctx context.Context, p *progress) (string, error) {
	var all []byte
	for i := range t.runs {
		p.say("go test %s, %d of %d", t.test, i+1, t.runs)
		out, err := exec.CommandContext(ctx, "go", append([]string{"test"}, strings.Fields(t.test)...)...).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("go test %s: %w\n%s", t.test, err, out)
		}
		all = append(all, out...)
	}
	return benchTable(all), nil
}

// procs is what package testing appends to the names of benchmarks.
var procs = regexp.MustCompile(`-\d+$`)

// benchTable draws benchmark output, several runs of it, as one table.
func benchTable(out []byte) string {
	values := make(map[string]map[string][]float64) // by benchmark and unit
	var names, units []string
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		_, name, _ := strings.Cut(procs.ReplaceAllString(fields[0], ""), "/")
		if values[name] == nil {
			values[name] = make(map[string][]float64)
			names = append(names, name)
		}
		for i := 2; i+1 < len(fields); i += 2 {
			v, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				continue
			}
			unit := fields[i+1]
			if !slices.Contains(units, unit) {
				units = append(units, unit)
			}
			values[name][unit] = append(values[name][unit], v)
		}
	}
	var b strings.Builder
	b.WriteString("| |")
	for _, unit := range units {
		b.WriteString(" " + unit + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("--:|", len(units)) + "\n")
	for _, name := range names {
		b.WriteString("| " + name + " |")
		for _, unit := range units {
			v := slices.Sorted(slices.Values(values[name][unit]))
			if len(v) == 0 {
				b.WriteString(" |")
				continue
			}
			fmt.Fprintf(&b, " %s", short(v[(len(v)-1)/2]))
			if half := (v[len(v)-1] - v[0]) / 2; half > 0 {
				fmt.Fprintf(&b, " ±%s", short(half))
			}
			b.WriteString(" |")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// short keeps three digits, and whole numbers from a hundred on.
func short(x float64) string {
	if x >= 100 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', 3, 64)
}
