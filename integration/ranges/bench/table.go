package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// quantile returns one of durations that are sorted.
func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func ms(d time.Duration) string { return fmt.Sprintf("%.3g", float64(d.Microseconds())/1000) }

// rate returns mebibytes in a second.
func rate(bytes int64, d time.Duration) float64 { return float64(bytes) / (1 << 20) / d.Seconds() }

func (p plan) randomTable(bucket string, rows []row) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Bucket %s: %d reads of %d KiB each, %d at a time.\n\n", bucket, p.reads*p.rounds, p.part>>10, p.workers)
	b.WriteString("| | p50 ms | p99 ms | of plain | p99.9 ms | MiB/s | received for nothing % | connections |\n|---|--:|--:|--:|--:|--:|--:|--:|\n")
	var plain time.Duration
	for i, r := range rows {
		slices.Sort(r.took)
		p99 := quantile(r.took, 0.99)
		if i == 0 {
			plain = p99
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %.2g | %s | %.0f | %.2f | %d |\n", strategies[i].name, ms(quantile(r.took, 0.5)), ms(p99),
			float64(p99)/float64(plain), ms(quantile(r.took, 0.999)), rate(r.wanted, r.all), 100*(float64(r.received)/float64(r.wanted)-1), r.opened)
	}
	return b.String() + "\n"
}

func (p plan) sequentialTable(passes [][]pass) string {
	var b strings.Builder
	fmt.Fprintf(&b, "All %d MiB, from the first byte to the last, without faults: %d runs.\n\n", p.size>>20, p.runs)
	b.WriteString("| | MiB/s, median | slowest | fastest | of manager.Downloader | CPU ms, median |\n|---|--:|--:|--:|--:|--:|\n")
	sdk := slices.IndexFunc(strategies, func(s strategy) bool { return s.name == "manager.Downloader" })
	took, cpu := make([][]time.Duration, len(passes)), make([][]time.Duration, len(passes))
	for i := range passes {
		for _, one := range passes[i] {
			took[i], cpu[i] = append(took[i], one.took), append(cpu[i], one.cpu)
		}
		slices.Sort(took[i])
		slices.Sort(cpu[i])
	}
	for i, t := range took {
		fmt.Fprintf(&b, "| %s | %.0f | %.0f | %.0f | %.2f | %d |\n", strategies[i].name, rate(p.size, quantile(t, 0.5)), rate(p.size, t[len(t)-1]), rate(p.size, t[0]),
			float64(quantile(took[sdk], 0.5))/float64(quantile(t, 0.5)), quantile(cpu[i], 0.5).Milliseconds())
	}
	return b.String() + "\n"
}

// line says where the tables are from.
func line(command string) string {
	commit, _ := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	load, _ := os.ReadFile("/proc/loadavg")
	said := ""
	if fields := strings.Fields(string(load)); len(fields) > 1 {
		said = fmt.Sprintf(", load %s in the last five minutes", fields[1])
	}
	return fmt.Sprintf("`%s`; %s, %d cores, %s/%s, commit %s, %s%s.", command, runtime.Version(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH,
		strings.TrimSpace(string(commit)), time.Now().UTC().Format(time.DateOnly), said)
}
