package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// measurements are the runs behind tables.
type measurements struct {
	ctx      context.Context
	progress *progress
	findings map[string]findings // by arguments
}

// updateDocumentsOf fills in the tables of files.
func updateDocumentsOf(ctx context.Context, files []string, p *progress) error {
	m := &measurements{ctx: ctx, progress: p, findings: make(map[string]findings)}
	return updateDocuments(files, m.fillTable)
}

// fillTable measures a table.
func (m *measurements) fillTable(t documentTable) (renderedTable, error) {
	if t.renderCosts != nil {
		out, err := runBenchmark(m.ctx, t.benchmark, m.progress)
		if err != nil {
			return renderedTable{}, err
		}
		basis := fmt.Sprintf("medians of %d runs, ± half their range", benchmarkRuns)
		return renderedTable{body: appendOrigin(t.renderCosts(parseBenchmark(out)), "go test "+t.benchmark, basis)}, nil
	}
	found, err := m.runOnce(t.args)
	if err != nil {
		return renderedTable{}, fmt.Errorf("table %s: %w", t.name, err)
	}
	o := found.options
	table := renderedTable{body: appendOrigin(t.render(found), cmp.Or(t.typed, formatCommand(o.args)), cmp.Or(t.basis, o.explainSpread()))}
	if t.picture != "" {
		table.picture = drawPicture(found)
	}
	return table, nil
}

// runOnce runs this command, once for the same arguments. It fails if the machine is too busy.
func (m *measurements) runOnce(args string) (findings, error) {
	if found, ok := m.findings[args]; ok {
		return found, nil
	}
	o, err := optionsOf(strings.Fields(args), os.Stderr)
	if err != nil {
		return findings{}, err
	}
	found, err := runScenarios(m.ctx, o, m.progress)
	if err != nil {
		return findings{}, err
	}
	if found.isBusy() {
		return findings{}, errors.New(o.engine.profile().busyText(found.late))
	}
	m.findings[args] = found
	return found, nil
}

// appendOrigin adds the command, the machine and the basis of the figures to a table.
func appendOrigin(table, typed, basis string) string {
	return fmt.Sprintf("%s\n`%s`; %s, %s; %s.\n", table, typed, describeMachine(), time.Now().Format(time.DateOnly), basis)
}
