package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/dnsserver"
)

// measurements runs the commands behind the tables of documents. It keeps the results of each run, so that tables with
// the same arguments share one run.
type measurements struct {
	ctx      context.Context
	progress *progress
	peers    dnsserver.Peers
	findings map[string]engineResults // by arguments
}

// measureDocuments measures the tables in the files that the flag -readme names, and writes them there. p shows the
// progress.
func measureDocuments(ctx context.Context, o options, p *progress) error {
	m := &measurements{ctx: ctx, progress: p, peers: o.peers, findings: make(map[string]engineResults)}
	return updateDocuments(o.readme, m.measureTable)
}

// measureTable measures a table of a document and returns its new content. It runs Go benchmarks or this command.
func (m *measurements) measureTable(t documentTable) (renderedTable, error) {
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

// runOnce runs this command with the arguments args, separated by spaces, and returns its results. Later calls with
// the same arguments return the same results. It fails if the machine is too busy.
func (m *measurements) runOnce(args string) (engineResults, error) {
	if found, ok := m.findings[args]; ok {
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
	if found.isBusy() {
		return engineResults{}, errors.New(o.engine.profile().busyText(found.late))
	}
	m.findings[args] = found
	return found, nil
}

// appendOrigin returns a table with a line below it about its origin. The line has the command as typed, the machine,
// the date, and basis, which explains the figures.
func appendOrigin(table, typed, basis string) string {
	return fmt.Sprintf("%s\n`%s`; %s, %s; %s.\n", table, typed, describeMachine(), time.Now().Format(time.DateOnly), basis)
}
