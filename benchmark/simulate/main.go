// Simulate puts hedging strategies through the same traffic, side by side, and
// shows what each did to the latency, and what it cost.
//
//	go run ./benchmark/simulate                                  # real HTTP over loopback, under 3 minutes
//	go run ./benchmark/simulate -quick                           # the same, small: under 20 seconds
//	go run ./benchmark/simulate -engine virtual -scenario all    # the matrix, in virtual time
//	go run ./benchmark/simulate -engine virtual -scenario drift -strategy none,published,hedge -format md
//	go run ./benchmark/simulate -scenario frozen-h2              # a connection goes dead; see -help for more
//
// It prints a table (-format text, md, csv or json) and leaves plots (PNG and
// SVG) and one self-contained HTML report in -out. Interrupted, it reports what
// was done until then.
//
// # Engines
//
// http and grpc send real requests over loopback sockets to a server that
// sleeps as the scenario says and stops when its context is cancelled. The
// libraries are the real ones; the strategies take turns in ten rounds, so that
// a noisy machine is noisy for all. CPU is that of client and server together.
// stream, frozen-h2, cold, and replica over http, are about connections: they take
// a simulated network in memory instead of sockets, half a minute at most, and
// the strategies that are for them. TestFirstByteIsHedgedAndTheHeaderIsNot and its
// neighbours play them in fake time, where no machine is noisy.
//
// dns asks DNS servers through real kernel sockets in network namespaces, over a
// simulated network; it needs root on Linux. Its strategies and scenarios are its
// own. extra_pct counts all queries besides one per request, resent ones as well.
//
// virtual is a discrete-event simulation: a million requests per second or
// more, and the same answer for the same seed. The policy code of this library
// is the real one, driven by the simulation's clock. hedgedhttp and failsafe-go
// keep their own clocks and cannot be driven so: models stand for them there.
//
// In all but dns, what an attempt takes is drawn by seed, request and attempt, so
// that every strategy meets the same fate.
//
// # Strategies
//
// See -help. published is the policy that is published most (90th percentile,
// one hedge, a bucket filled by the clock), written from its description.
// oracle-1 and oracle-2 know the latencies beforehand: the best static delay,
// and pair of delays, at the load that hedge caused in the same run.
//
// # Scenarios
//
// See -help. Those with phases give a row for each, such as outage/during. With
// -requests, scenarios of a fixed duration get more or fewer requests per
// second; with -rps, closed loops become open ones.
//
// # Rows
//
// -format json prints one array of objects on standard output, one per
// strategy and scenario (and per phase of it):
//
//	engine scenario strategy seed requests errors
//	p50_ms p90_ms p95_ms p99_ms p999_ms mean_ms max_ms stddev_ms   of successes
//	extra_pct hedges wins denied                                   hedges per 100 requests, sent, won, refused
//	conns_opened cpu_us_per_request                                null in virtual time
//
// With -runs, each figure is the median over runs with successive seeds, and what
// stands behind ± in tables is half their range; for dns, half of the 95 %
// bootstrap interval of all their calls.
//
// # README
//
// -readme FILE runs what the tables in FILE need and rewrites them in place,
// between the markers <!-- table:NAME --> and <!-- /table -->.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/term"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second interrupt kills
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr, term.IsTerminal(int(os.Stderr.Fd()))))
}

// Exit codes.
const (
	ok          = 0
	failed      = 1
	misused     = 2
	interrupted = 130
)

func run(ctx context.Context, args []string, stdout, stderr io.Writer, terminal bool) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return ok
	case err != nil:
		fmt.Fprintln(stderr, "simulate:", err)
		return misused
	}
	p := newProgress(stderr, terminal)
	if o.readme != nil || o.picture != "" {
		if o.picture != "" {
			err = drawPicture(ctx, o.picture, p)
		}
		if err == nil && o.readme != nil {
			err = rewrite(ctx, o.readme, p)
		}
		p.stop()
		if err != nil {
			fmt.Fprintln(stderr, "simulate:", err)
			return failed
		}
		return ok
	}
	found, err := simulate(ctx, o, p)
	p.stop()
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(stderr, "simulate:", err)
		return failed
	}
	if err := found.print(stdout, o.format); err != nil {
		fmt.Fprintln(stderr, "simulate:", err)
		return failed
	}
	if tables := o.format == "text" || o.format == "md"; !tables && found.late > tooLate {
		fmt.Fprintln(stderr, "simulate:", busy(found.late))
	}
	if o.out != "" && len(found.scenarios) > 0 {
		index, err := found.write(o.out)
		if err != nil {
			fmt.Fprintln(stderr, "simulate:", err)
			return failed
		}
		fmt.Fprintln(stderr, "report:", index)
	}
	if ctx.Err() != nil {
		fmt.Fprintln(stderr, "simulate: interrupted; this is what was done until then")
		return interrupted
	}
	return ok
}
