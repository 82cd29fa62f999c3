package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const benchmarkRuns = 5

// runGoBenchmark runs go test with args five times, one run after the other, and returns the output of all runs.
func runGoBenchmark(ctx context.Context, args string, p *progressDisplay) ([]byte, error) {
	var all []byte
	for i := range benchmarkRuns {
		p.printLine("go test %s, %d of %d", args, i+1, benchmarkRuns)
		out, err := exec.CommandContext(ctx, "go", append([]string{"test"}, strings.Fields(args)...)...).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("go test %s: %w\n%s", args, err, out)
		}
		all = append(all, out...)
	}
	return all, nil
}

// The benchmarkResults have the sorted values of Go benchmarks, by name and unit with a space between: "BenchmarkX ns/op".
type benchmarkResults map[string][]float64

// processorSuffix matches the number of processors, which package testing appends to the names of benchmarks.
var processorSuffix = regexp.MustCompile(`-\d+$`)

func parseBenchmark(out []byte) benchmarkResults {
	res := make(benchmarkResults)
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		_, name, _ := strings.Cut(processorSuffix.ReplaceAllString(fields[0], ""), "/")
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

// median returns the median m of a benchmark's values, and half of their range. ok is false if there are none.
func (b benchmarkResults) median(name, unit string) (m, halfRange float64, ok bool) {
	v := b[name+" "+unit]
	if len(v) == 0 {
		return 0, 0, false
	}
	return v[(len(v)-1)/2], (v[len(v)-1] - v[0]) / 2, true
}

// formatCostTable returns the Markdown table of the time and the allocations that each hedging library adds to a call.
func formatCostTable(b benchmarkResults) string {
	kinds := []struct{ title, name string }{
		{"HTTP/1.1", "http1"}, {"HTTP/1.1, a context per request", "http1-fresh-context"},
		{"HTTP/2", "http2"}, {"HTTP/2, a context per request", "http2-fresh-context"},
		{"gRPC", "grpc"}, {"gRPC, a context per call", "grpc-fresh-context"},
	}
	table := textTable{titles: []string{""}}
	for _, k := range kinds {
		table.titles = append(table.titles, k.title)
	}
	for _, c := range []struct{ title, name string }{
		{"**hedge**", "hedge"}, {"hedgedhttp", "hedgedhttp"}, {"failsafe-go", "failsafe"},
	} {
		cells := []string{c.title}
		for _, k := range kinds {
			took, half, ok := b.median(k.name+"/"+c.name, "ns/op")
			if !ok {
				cells = append(cells, "–")
				continue
			}
			base, _, _ := b.median(k.name+"/bare", "ns/op")
			allocs, _, _ := b.median(k.name+"/"+c.name, "allocs/op")
			baseAllocs, _, _ := b.median(k.name+"/bare", "allocs/op")
			cells = append(cells, fmt.Sprintf("%s ns ±%s, %s allocations", formatThreeDigits(took-base), formatThreeDigits(half), formatThreeDigits(allocs-baseAllocs)))
		}
		table.addRow(cells...)
	}
	return table.formatMarkdown()
}

func formatThreeDigits(x float64) string {
	if x >= 100 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', 3, 64)
}
