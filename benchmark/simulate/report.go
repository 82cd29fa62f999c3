package main

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"html/template"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

//go:embed report.html
var reportHTML string

var reportTemplate = template.Must(template.New("report").Parse(reportHTML))

// A reportPage has the values that the template report.html shows.
type reportPage struct {
	Command, Machine, Date string
	Runs                   []reportSection
	Style                  template.CSS // of the charts
}

// A reportSection is the part of the HTML report with the tables and the charts of one engine.
type reportSection struct {
	Text   string
	Charts []template.HTML
}

// writeReport writes the HTML report of all results and the chart of each scenario to dir. It returns the report's path.
func writeReport(dir string, all []engineResults) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("-out: %w", err)
	}
	var names []string
	for _, s := range collectStrategies(all...) {
		names = append(names, s.name)
	}
	styles := newLineStyles(names)
	sheet := newStyleSheet(styles)
	page := reportPage{
		Command: formatCommand(all[0].options.args), Machine: describeMachine(), Date: time.Now().Format(time.DateOnly),
		Style: template.CSS(sheet), // #nosec G203: written here, from colours of ours.
	}
	for _, f := range all {
		run := reportSection{Text: f.formatText(allColumns)}
		for _, s := range f.scenarios {
			drawing := drawLatencies(s, styles)
			if drawing == nil {
				continue
			}
			file := filepath.Join(dir, f.options.engine.spec().name+"-"+s.scenario.name+"-latency.svg")
			if err := os.WriteFile(file, drawing.renderSVG(sheet), 0o644); err != nil {
				return "", err
			}
			// #nosec G203: drawn here, from numbers and names of ours.
			run.Charts = append(run.Charts, template.HTML(drawing.renderSVG("")))
		}
		page.Runs = append(page.Runs, run)
	}
	var b bytes.Buffer
	if err := reportTemplate.Execute(&b, page); err != nil {
		return "", err
	}
	index := filepath.Join(dir, "report.html")
	return index, os.WriteFile(index, b.Bytes(), 0o644)
}

// formatCommand returns the command line of simulate with the arguments args as text.
func formatCommand(args []string) string {
	return strings.TrimSpace("go run ./benchmark/simulate " + strings.Join(args, " "))
}

// describeMachine returns a description of the conditions of a measurement: the processor, the number of cores, the
// version of Go, and the commit that is checked out. Unknown conditions are left out.
func describeMachine() string {
	m := fmt.Sprintf("%s, %d cores, %s/%s", runtime.Version(), runtime.GOMAXPROCS(0), runtime.GOOS, runtime.GOARCH)
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		_, rest, _ := strings.Cut(string(info), "model name")
		if name, _, ok := strings.Cut(rest, "\n"); ok {
			m = strings.TrimLeft(name, "\t :") + ", " + m
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if commit, err := exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD").Output(); err == nil {
		m += ", commit " + strings.TrimSpace(string(commit))
	}
	return m
}
