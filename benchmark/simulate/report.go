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

// A reportPage is the content of the HTML report, which its template renders. The report loads no other file.
type reportPage struct {
	Command  string
	Machine  string
	Date     string
	Runs     []reportRun
	Sections []*section
	Legend   []legendEntry
	Style    template.CSS // of the charts

	styles lineStyles
}

// A reportRun has the notes of the HTML report about the results of one engine.
type reportRun struct {
	Engine string // empty if there is only one
	Notes  []string
	IsBusy bool
}

// A section is the part of the HTML report about one scenario: its table, a sentence, and its charts.
type section struct {
	ID, Name, About string
	Head            []string
	Rows            []line
	Summary         string
	Charts          []drawing
}

// A line is a row of a table in the HTML report.
type line struct {
	Label       string
	Cells       []string
	IsOurs      bool
	StartsGroup bool // of a part of the scenario
}

// A drawing is a chart in the HTML report.
type drawing struct {
	Title string
	SVG   template.HTML
}

// writeReport writes the HTML report of all results to the directory dir, and the charts of every scenario as SVG
// files. It returns the path of the report.
func writeReport(dir string, all []engineResults) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("-out: %w", err)
	}
	page := newReportPage(all)
	for _, f := range all {
		engine := f.options.engine.profile()
		run := reportRun{Notes: f.tableNotes(), IsBusy: f.isBusy()}
		for _, s := range f.scenarios {
			section := newSection(s, engine)
			section.ID = engine.name + "-" + s.scenario.name
			if len(all) > 1 {
				run.Engine, section.Name = engine.name, engine.name+": "+section.Name
			}
			for _, c := range charts {
				drawing := c.newCanvas(s, page.styles)
				if drawing == nil {
					continue
				}
				file := filepath.Join(dir, section.ID+"-"+c.name+".svg")
				if err := os.WriteFile(file, drawing.renderSVG(newStyleSheet(page.styles)), 0o644); err != nil {
					return "", err
				}
				section.addChart(drawing)
			}
			page.Sections = append(page.Sections, section)
		}
		page.Runs = append(page.Runs, run)
	}
	index := filepath.Join(dir, "report.html")
	return index, page.writeFile(index)
}

// newReportPage returns the HTML report of all results, without the sections about scenarios.
func newReportPage(all []engineResults) *reportPage {
	p := &reportPage{
		Command: formatCommand(all[0].options.args), Machine: describeMachine(), Date: time.Now().Format(time.DateOnly), Legend: newLegend(all),
	}
	var names []string
	for _, entry := range p.Legend {
		names = append(names, entry.Name)
	}
	p.styles = newLineStyles(names)
	p.Style = template.CSS(newStyleSheet(p.styles)) // #nosec G203: written here, from colours of ours.
	return p
}

// newSection returns the section of the HTML report about one scenario, without charts. engine determines the columns
// of its table.
func newSection(f scenarioResults, engine profile) *section {
	s := &section{
		Name: f.scenario.name, About: toSentence(f.scenario.about) + " " + toSentence(f.describeRequests()), Summary: f.compareWithPeers(nil),
	}
	rows := f.tableRows()
	table := newTextTable(rows, allColumns(engine))
	s.Head = table.titles
	for i, r := range rows {
		s.Rows = append(s.Rows, line{
			Label: rowLabel(r), Cells: table.cells[i], IsOurs: r.Strategy == ours, StartsGroup: i > 0 && rows[i-1].Scenario != r.Scenario,
		})
	}
	return s
}

// addChart adds a chart to the section, as SVG without a style sheet: the page has the styles of all charts.
func (s *section) addChart(c *canvas) {
	// #nosec G203: drawn here, from numbers and names of ours.
	s.Charts = append(s.Charts, drawing{Title: c.title, SVG: template.HTML(c.renderSVG(""))})
}

func (p *reportPage) writeFile(file string) error {
	var b bytes.Buffer
	if err := reportTemplate.Execute(&b, p); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}

// formatCommand returns the shell command that runs simulate with the arguments args.
func formatCommand(args []string) string {
	return strings.TrimSpace("go run ./benchmark/simulate " + strings.Join(args, " "))
}

// describeMachine returns a description of this measurement's conditions: the processor, the number of cores, the
// version of Go, and the commit.
func describeMachine() string {
	m := fmt.Sprintf("%s, %d cores, %s/%s", runtime.Version(), runtime.GOMAXPROCS(0), runtime.GOOS, runtime.GOARCH)
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for l := range strings.Lines(string(info)) {
			if name, ok := strings.CutPrefix(l, "model name"); ok {
				m = strings.TrimSpace(strings.TrimLeft(name, "\t :")) + ", " + m
				break
			}
		}
	}
	if commit := currentCommit(); commit != "" {
		m += ", commit " + commit
	}
	return m
}

// currentCommit returns the short hash of the git commit that is checked out, or "" outside a repository.
func currentCommit() string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
