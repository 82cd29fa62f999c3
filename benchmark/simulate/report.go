package main

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"html/template"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

//go:embed report.html
var reportHTML string

var reportTemplate = template.Must(template.New("report").Parse(reportHTML))

// page is what the report shows. It refers to nothing outside itself.
type page struct {
	Command  string
	Machine  string
	Date     string
	Notes    []string
	Busy     bool
	Sections []*section
	Legend   []strategy // those that ran

	Sheet template.CSS // of the charts
}

type section struct {
	Name, About string
	Head        []string
	Rows        []line
	Charts      []drawing
}

type line struct {
	Label string
	Cells []string
	Ours  bool
	First bool // of a part
}

type drawing struct {
	Title string
	SVG   template.HTML
}

func newSection(f finding) *section {
	s := &section{Name: f.scenario.name, About: sentence(f.scenario.about) + " " + sentence(f.requests())}
	rows := f.shown()
	shown := newSheet(rows)
	s.Head = shown.titles
	for n, r := range rows {
		s.Rows = append(s.Rows, line{
			Label: label(r), Cells: shown.cells[n], Ours: r.Strategy == ours, First: n > 0 && rows[n-1].Scenario != r.Scenario,
		})
	}
	return s
}

// add takes a chart, whose colours are in the page's style sheet.
func (s *section) add(c *canvas) {
	// #nosec G203: drawn here, from numbers and names of ours.
	s.Charts = append(s.Charts, drawing{Title: c.title, SVG: template.HTML(c.svg(""))})
}

func (p *page) write(file string, f findings) error {
	p.Command, p.Machine, p.Date, p.Notes = command(f.options.args), machine(), time.Now().Format("2006-01-02"), f.notes()
	p.Busy = f.isBusy()
	var names []string
	ran := make(map[string]bool)
	for _, r := range f.rows() {
		ran[r.Strategy] = true
	}
	for _, s := range strategies {
		if ran[s.name] {
			p.Legend = append(p.Legend, s)
			names = append(names, s.name)
		}
	}
	p.Sheet = template.CSS(styleSheet(names)) // #nosec G203: written here, from colours of ours.
	var b bytes.Buffer
	if err := reportTemplate.Execute(&b, p); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}

// About is for the template.
func (s strategy) About() string { return s.whole() }

// Name is for the template.
func (s strategy) Name() string { return s.name }

// command is what to type for the same figures.
func command(args []string) string {
	return strings.TrimSpace("go run ./benchmark/simulate " + strings.Join(args, " "))
}

// machine says what the figures were measured on.
func machine() string {
	m := fmt.Sprintf("%s, %d cores, %s/%s", runtime.Version(), runtime.GOMAXPROCS(0), runtime.GOOS, runtime.GOARCH)
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for l := range strings.Lines(string(info)) {
			if name, ok := strings.CutPrefix(l, "model name"); ok {
				m = strings.TrimSpace(strings.TrimLeft(name, "\t :")) + ", " + m
				break
			}
		}
	}
	if commit := commit(); commit != "" {
		m += ", commit " + commit
	}
	return m
}

// commit is the checked-out one, if there is one.
func commit() string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
