package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/dnsserver"
)

// A documentMeasurer makes the measurements for tables in documents. Tables with the same arguments share one run.
type documentMeasurer struct {
	ctx           context.Context
	progress      *progressDisplay
	peers         dnsserver.PeerCommands
	resultsByArgs map[string]engineResults
}

// regenerateTable runs the command or the benchmark of table t, and returns the new content of the table.
func (m *documentMeasurer) regenerateTable(t documentTable) (renderedTable, error) {
	switch {
	case t.command != "":
		out, err := exec.CommandContext(m.ctx, "go", strings.Fields(t.command)...).Output()
		if err != nil {
			return renderedTable{}, fmt.Errorf("go %s: %w", t.command, err)
		}
		return renderedTable{body: string(out)}, nil
	case t.renderCosts != nil:
		out, err := runGoBenchmark(m.ctx, t.benchmark, m.progress)
		if err != nil {
			return renderedTable{}, err
		}
		basis := fmt.Sprintf("medians of %d runs, ± half their range", benchmarkRuns)
		return renderedTable{body: appendOrigin(t.renderCosts(parseBenchmark(out)), "go test "+t.benchmark, basis)}, nil
	}
	found, err := m.runMemoized(t.args)
	if err != nil {
		return renderedTable{}, fmt.Errorf("table %s: %w", t.name, err)
	}
	o := found.options
	table := renderedTable{body: appendOrigin(t.render(found), cmp.Or(t.citedCommand, formatCommand(o.args)), cmp.Or(t.basis, o.explainErrorMargin()))}
	if t.picture != "" {
		table.picture = drawReadmeChart(found)
	}
	return table, nil
}

// runMemoized runs this command with args, or returns the results of an earlier run with the same args. It returns an
// error if the machine is too busy.
func (m *documentMeasurer) runMemoized(args string) (engineResults, error) {
	if found, ok := m.resultsByArgs[args]; ok {
		return found, nil
	}
	o, err := parseOptions(strings.Fields(args), os.Stderr)
	if err != nil {
		return engineResults{}, err
	}
	o.peers = m.peers
	found, err := runScenarios(m.ctx, o, m.progress)
	if err != nil {
		return engineResults{}, err
	}
	if found.hadLateTimers() {
		return engineResults{}, errors.New(o.engine.spec().busyWarning(found.timerDelay))
	}
	m.resultsByArgs[args] = found
	return found, nil
}

// appendOrigin appends a line to a table: the command, the machine, the date, and basis, which explains the figures.
func appendOrigin(table, citedCommand, basis string) string {
	return fmt.Sprintf("%s\n`%s`; %s, %s; %s.\n", table, citedCommand, describeMachine(), time.Now().Format(time.DateOnly), basis)
}
