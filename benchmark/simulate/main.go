// Simulate compares hedging strategies under the same traffic: their latencies, and the extra requests that they cost.
//
//	go run ./benchmark/simulate                                  # virtual time, then HTTP over loopback: at most 90 seconds
//	go run ./benchmark/simulate -quick                           # the same with fewer requests: at most 20 seconds
//	go run ./benchmark/simulate -list                            # describes all strategies, engines and scenarios
//	go run ./benchmark/simulate -engine virtual -scenario all    # every scenario of virtual time but the long ones
//	go run ./benchmark/simulate -engine virtual -scenario drift -strategy none,bhope,hedge -format json
//	go run ./benchmark/simulate -scenario frozen-h2              # a connection stops answering
//
// It prints a table (-format text or json), and writes plots (SVG) and one self-contained HTML report to the directory
// -out. After an interrupt it reports the results until then.
//
// # Engines
//
// An engine, which -engine selects, runs strategies in scenarios of its own: in virtual time, over sockets, or over a
// simulated network. The comments of declarations whose names end in Engine describe the engines. In virtual time and over
// loopback, the seed, the request and the attempt determine how long an attempt takes, so that every strategy meets the
// same latencies. An episode is a part of a scenario with its own client and server. Most scenarios are one episode.
//
// The engines dns, faults, recursor and cached start DNS servers of other projects, the peers: those in PATH, or those
// that the flag -peer names. ../peers.md says how to install current versions.
//
// While strategies run in real time, timers are measured. If one in a hundred is later than a limit of the engine, the
// output warns that the machine was too busy. Virtual and fake time do not depend on the machine.
//
// # Scenarios
//
// A scenario with phases has a row for each, such as outage/during. -requests changes the rate of scenarios with a
// fixed duration, and -rps turns closed loops into open loops. -scenario all leaves out the scenarios that -list marks.
// -scenario long runs those of 40 minutes of virtual time: the rows learning and settled are halves.
//
// # Rows
//
// -format json prints an array with an object per strategy and scenario, and one per phase of the scenario:
//
//	engine scenario strategy seed requests errors
//	p50_ms p90_ms p95_ms p99_ms p999_ms mean_ms max_ms stddev_ms   of successes
//	extra_pct hedges wins denied                                   hedges per 100 requests, sent, won, denied
//	conns_opened cpu_us_per_request                                null in virtual time
//	sent_per_request                                               attempts that servers worked on, or queries to DNS servers
//
// Further fields belong to one engine: see registerMetrics.
//
// In tables, ± is half of a 95 % interval. Ten consecutive parts of the run are resampled to find it, as the calls of
// one part share a client that learns and a machine that is more or less busy. With -runs, each figure is the median of
// runs with successive seeds, and ± is half of their range.
//
// # Documents
//
// -readme FILE,FILE measures the tables of these files anew and writes them between the markers <!-- table:NAME --> and
// <!-- /table -->. It refuses figures of a busy machine. With README.md, it also draws docs/tail.svg from the same run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"golang.org/x/term"

	"github.com/gohedge/hedge/benchmark/internal/helper"
)

func main() {
	helper.RunIfHelper()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second interrupt kills
	os.Exit(runCommand(ctx, os.Args[1:], os.Stdout, os.Stderr, term.IsTerminal(int(os.Stderr.Fd()))))
}

// Exit codes.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

// runCommand runs simulate with the command-line arguments args, and returns the exit code of the process. terminal
// says whether stderr is a terminal, on which the line of progress is replaced.
func runCommand(ctx context.Context, args []string, stdout, stderr io.Writer, terminal bool) int {
	o, err := parseOptions(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		fmt.Fprintln(stderr, "simulate:", err)
		return exitUsage
	}
	if o.list {
		printDescriptions(stdout)
		return exitOK
	}
	p := newProgressDisplay(stderr, terminal)
	if err := runWithOptions(ctx, o, p, stdout, stderr); err != nil {
		p.printLine("simulate: %v", err)
		return exitFailed
	}
	if ctx.Err() != nil {
		fmt.Fprintln(stderr, "simulate: interrupted; this is what was done until then")
		return exitInterrupted
	}
	return exitOK
}

// runWithOptions updates the tables in documents if o.readme is set. Otherwise it runs engines and writes their
// results, also if ctx ends.
func runWithOptions(ctx context.Context, o options, p *progressDisplay, stdout, stderr io.Writer) error {
	if o.readme != nil {
		m := &documentMeasurer{ctx: ctx, progress: p, peers: o.peers, resultsByArgs: make(map[string]engineResults)}
		return updateDocuments(o.readme, m.regenerateTable)
	}
	found, err := runEngines(ctx, o, p)
	if err != nil && ctx.Err() == nil {
		return err
	}
	if err := printResults(stdout, stderr, o, found); err != nil {
		return err
	}
	if o.out == "" || !slices.ContainsFunc(found, func(f engineResults) bool { return len(f.scenarios) > 0 }) {
		return nil
	}
	index, err := writeReport(o.out, found)
	if err == nil {
		fmt.Fprintln(stderr, "report:", index)
	}
	return err
}
