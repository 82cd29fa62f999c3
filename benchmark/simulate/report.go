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

// A reportPage is the content of the HTML report, which loads no other file.
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

// A reportRun has the notes about the findings of one engine.
type reportRun struct {
	Engine string // empty if there is only one
	Notes  []string
	IsBusy bool
}

// A section shows one scenario.
type section struct {
	ID, Name, About string
	Head            []string
	Rows            []line
	Summary         string
	Charts          []drawing
}

type line struct {
	Label       string
	Cells       []string
	IsOurs      bool
	StartsGroup bool // of a part of the scenario
}

type drawing struct {
	Title string
	SVG   template.HTML
}

// writeReport writes the charts of every scenario and the HTML report into a directory, and returns the path of the report.
func writeReport(dir string, all []findings) (string, error) {
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

// newReportPage returns a page without sections.
func newReportPage(all []findings) *reportPage {
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

func newSection(f finding, engine profile) *section {
	s := &section{
		Name: f.scenario.name, About: toSentence(f.scenario.about) + " " + toSentence(f.describeRequests()), Summary: f.compare(nil),
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

// addChart adds a chart, which is drawn in the page's style.
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

// formatCommand returns the command that produces the same figures.
func formatCommand(args []string) string {
	return strings.TrimSpace("go run ./benchmark/simulate " + strings.Join(args, " "))
}

// describeMachine returns the processor, the version of Go and the commit of a measurement.
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

// currentCommit returns the checked-out commit, or "" outside a repository.
func currentCommit() string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
