// Simulate puts hedging strategies through the same traffic, side by side. It
// shows what each does to the latency, and how many extra requests that costs.
//
//	go run ./benchmark/simulate                                  # real HTTP over loopback, at most 90 seconds
//	go run ./benchmark/simulate -quick                           # the same with fewer requests, at most 20 seconds
//	go run ./benchmark/simulate -engine virtual -scenario all    # every scenario but the long ones, in virtual time
//	go run ./benchmark/simulate -engine virtual -scenario drift -strategy none,bhope,hedge -format md
//	go run ./benchmark/simulate -scenario frozen-h2              # a connection goes dead; see -list for more
//
// It says first how long it will take. It prints a table (-format text, md, csv or
// json), and writes plots (SVG) and one self-contained HTML report to the
// directory -out. After an interrupt it reports what was done until then.
//
// # Engines
//
// http and grpc send real requests over loopback sockets to a server that sleeps as
// the scenario says and stops when the request is cancelled. The libraries are the
// real ones. The strategies take turns in ten rounds, so that a disturbance of the
// machine meets all of them. CPU is that of client and server together. The
// scenarios stream, frozen-h2, cold and replica, those called stop, and the three
// after them are about connections and replicas: they run over a simulated network
// in memory instead of sockets, for half a minute at most, with the strategies that
// are made for them. So does queue-ignores-cancel, whose servers are what a Limiter is for.
// TestFirstByteIsHedgedAndTheHeaderIsNot and its neighbours run them in fake time.
//
// dns asks DNS servers through real kernel sockets in network namespaces, over a
// simulated network. It needs root on Linux, and has strategies and scenarios of its
// own. Its extra_pct counts every query but one per request, resent ones as well. With
// -workers, each strategy is asked alone, with so many questions in flight, and has two
// equal servers. The forwarders run in processes of their own.
//
// faults asks resolvers while something is wrong with one of their two servers, or the way there: Go's own, unbound as a
// forwarder, and this library's Client with resolv.conf, with Upstreams and with Fallback. It needs root on Linux. All are
// asked at the same time, through kernel sockets, and a question may take ten seconds. Its denials are the answers that deny
// the name, where that is right, and last_answer_ms is when the last answer came, from the first question on. Below its tables it says what is required of
// this library's, and whether that is so. TestAClientIsAsGoodAsAnyResolverInNineWorlds of package dnshedge has the same
// worlds in fake time.
//
// recursor asks resolvers for names in an internet of thousands of simulated servers, through
// kernel sockets in network namespaces. It needs root on Linux, and measures the resolvers that
// are installed, all at the same time. They know the servers of the root when it begins. Its
// sent_per_request is how many queries they sent for a question; failures count as ten seconds, and questions are left out that were asked in the two seconds
// before the machine stood still for a tenth of one.
// Below its tables it says what is required of this library's resolver, and whether that is so. Where zones are signed, which
// -scenario all leaves out, an answer of those who check signatures fails that has AD and must not, or has it not and must,
// and so does any but SERVFAIL about a name of which no signature is right.
//
// storage reads ranges of 1 MiB of an object, 16 at a time, from a store in memory that is 15 ms away and has faults: late first bytes, and bodies
// that stall. Its time is fake, by testing/synctest, so that a second of a stall costs nothing and the same seed has the same answer on any machine. The
// libraries are the real ones, but for hedgedhttp, for which the same delay stands, and for the clients of Google and AWS, whose timeout and whose parts are
// written from their documents; go -C integration run ./ranges/bench has those clients themselves. The first request for a range meets the same in all
// contenders. Below its tables it says what is required of package rangeread, and whether that is so.
//
// endpoints sends 100 calls a second for two minutes to endpoints that answer alike, of which some are in trouble some of the time: always to the near one, always to
// another one that is 80 ms farther away, to that after an error, and as this library does it, without WithEndpoints and with it. Its time is fake as that of storage, and all
// strategies meet the same. Failures count as the two seconds that a call may take. Its tokens_pct is what hedges cost in the budget. Below its tables it says what is
// required of WithEndpoints, and whether that is so; in some of the scenarios it is not.
//
// virtual is a discrete-event simulation: about a million requests per second, and
// the same answer for the same seed on any machine. The policy code of this library
// is the real one, driven by the simulation's clock. hedgedhttp and failsafe-go
// cannot be driven by another clock than their own: models stand for them.
//
// In all engines but dns, faults, recursor and storage, seed, request and attempt decide how long an attempt
// takes, so that every strategy meets the same latencies.
//
// # Busy machines
//
// While strategies run in real time, timers are measured. If one in a hundred is
// more than 2.5 ms late, or 5 ms for recursor and 25 ms for faults, the figures say more about the machine than about the
// strategies, and the output says so. No machine disturbs the engines virtual, storage and endpoints.
//
// # Strategies
//
// -list describes them. bhope is the policy of bhope/hedge (90th percentile, one hedge, a bucket
// that the clock fills), written from its description. static-best-1
// and static-best-2 know the latencies beforehand: they are the best static delay, and
// the best pair of delays, at the extra load that hedge caused in the same run.
//
// # Scenarios
//
// -list describes them. Those with phases have a row for each, such as outage/during.
// With -requests, scenarios of a fixed duration get more or fewer requests per
// second; with -rps, closed loops become open ones.
//
// Those whose names begin with long last for 40 minutes of virtual time: rows learning
// and settled are the first 20 and the others. -scenario long runs them all, and all
// leaves them out, as does -quick. -requests makes them shorter or longer.
//
// # Rows
//
// -format json prints one array of objects on standard output, one object per
// strategy and scenario, and one per phase of the scenario:
//
//	engine scenario strategy seed requests errors
//	p50_ms p90_ms p95_ms p99_ms p999_ms mean_ms max_ms stddev_ms   of successes
//	extra_pct hedges wins denied                                   hedges per 100 requests, sent, won, refused
//	conns_opened cpu_us_per_request                                null in virtual time
//	sent_per_request                                               null but for faults and recursor, and for queue-ignores-cancel in real time: attempts that were worked on
//	denials last_answer_ms                                         null but for faults
//	asked_twice_pct sent_twice_pct                                 null but for storage: bytes that requests asked for, and that the store sent, beyond those that were read
//	tokens_pct                                                     null but for endpoints: what hedges cost in the budget, for 100 requests
//
// In tables, ± is half of a 95 % interval. Ten consecutive parts of the run are
// resampled to find it, as the calls of one part share a client that learns and a
// machine that is more or less busy. With -runs, each figure is the median of runs
// with successive seeds, and ± is half of their range. For dns, ± is half of the
// 95 % bootstrap interval of all calls of all runs. The line below a table says
// which of these it is.
//
// # Documents
//
// -readme FILE,FILE measures the tables of these files anew and writes them between
// the markers <!-- table:NAME --> and <!-- /table -->. It refuses figures of a busy
// machine. With README.md, it also draws docs/tail.svg from the run of README's table.
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
)

func main() {
	serveChild()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
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
	o, err := optionsOf(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return ok
	case err != nil:
		fmt.Fprintln(stderr, "simulate:", err)
		return misused
	}
	if o.list {
		printList(stdout)
		return ok
	}
	p := newProgress(stderr, terminal)
	if o.readme != nil {
		err = rewrite(ctx, o.readme, p)
		p.stop()
		if err != nil {
			fmt.Fprintln(stderr, "simulate:", err)
			return failed
		}
		return ok
	}
	found, err := simulateAll(ctx, o, p)
	p.stop()
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(stderr, "simulate:", err)
		return failed
	}
	if err := printAll(stdout, stderr, o, found); err != nil {
		fmt.Fprintln(stderr, "simulate:", err)
		return failed
	}
	if o.out != "" && slices.ContainsFunc(found, func(f findings) bool { return len(f.scenarios) > 0 }) {
		index, err := writeReport(o.out, found)
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
