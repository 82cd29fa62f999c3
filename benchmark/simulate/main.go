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
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"

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
	if o.readme != "" {
		err = rewrite(ctx, o.readme, p)
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

// A stage is an engine: it puts strategies through scenarios.
type stage interface {
	name() string
	// runs reports whether the engine knows the scenario.
	runs(scenario) bool
	// offers reports whether the strategy can be put through it.
	offers(scenario, strategy) bool
	// run does a job once and gives each trial to keep, which may be called from
	// several goroutines. If ctx ends, it keeps what is worth keeping.
	run(ctx context.Context, j job, keep func(trial)) error
}

// A job is one run of a scenario.
type job struct {
	scenario   scenario
	strategies []string
	seed       uint64
	size       size
	share      int // of the time there is: the job is one of that many
	progress   *progress
	fake       bool // time, by testing/synctest
}

func engines() []stage {
	return []stage{loopback("http"), loopback("grpc"), dnsEngine{dnsTransports[0]}, virtualEngine{}}
}

// findings are what was found out.
type findings struct {
	options   options
	scenarios []finding
}

// A finding is what the strategies did in one scenario.
type finding struct {
	scenario scenario
	results  []result
}

// simulate does what the options say, and returns what it has when ctx ends.
func simulate(ctx context.Context, o options, p *progress) (findings, error) {
	found := findings{options: o}
	for _, sc := range o.scenarios {
		names := o.strategies
		if names == nil {
			for _, s := range strategies {
				if !s.standby && o.engine.offers(sc, s) {
					names = append(names, s.name)
				}
			}
		}
		names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !o.engine.offers(sc, strategyOf(n)) })
		var (
			mu   sync.Mutex
			done = make(map[string][]result)
			err  error
		)
		for i := range o.runs {
			j := job{
				scenario: sc, strategies: names, seed: o.seed + uint64(i), size: o.size,
				share: len(o.scenarios) * o.runs, progress: p,
			}
			err = o.engine.run(ctx, j, func(t trial) {
				r := t.result()
				mu.Lock()
				defer mu.Unlock()
				done[t.strategy] = append(done[t.strategy], r)
			})
			if err != nil {
				break
			}
		}
		f := finding{scenario: sc}
		for _, name := range names {
			if runs := done[name]; len(runs) > 0 {
				slices.SortFunc(runs, func(a, b result) int { return cmp.Compare(a.rows[0].Seed, b.rows[0].Seed) })
				f.results = append(f.results, median(runs))
			}
		}
		if len(f.results) > 0 {
			found.scenarios = append(found.scenarios, f)
		}
		if err != nil {
			return found, err
		}
	}
	return found, nil
}

// rows returns all rows: a scenario's whole for each strategy, then its parts.
func (f findings) rows() []row {
	var all []row
	for _, s := range f.scenarios {
		all = append(all, s.rows()...)
	}
	return all
}

func (f finding) rows() []row {
	var all []row
	for i := range 1 + len(f.scenario.parts) {
		for _, r := range f.results {
			all = append(all, r.rows[i])
		}
	}
	return all
}

// options are what the flags say.
type options struct {
	engine     stage
	scenarios  []scenario
	strategies []string // nil: the engine's choice
	size       size
	seed       uint64
	runs       int
	format     string
	out        string
	readme     string
	args       []string
}

// within says what stands behind ±.
func (o options) within() string {
	if o.engine.name() == "dns" {
		return "half the 95 % bootstrap interval of all their calls"
	}
	return "half their range"
}

var formats = []string{"text", "md", "csv", "json"}

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{args: args}
	fs := flag.NewFlagSet("simulate", flag.ContinueOnError)
	fs.SetOutput(stderr)
	var (
		engineName = fs.String("engine", "http", "`name` of the engine: "+list(engineNames()))
		scenes     = fs.String("scenario", "", "comma-separated `names` of scenarios, or all (default seed; clean for dns)")
		transport  = fs.String("transport", dnsTransports[0], "what dns asks over: "+list(dnsTransports))
		contenders = fs.String("strategy", "", "comma-separated `names` of strategies (default all that the scenario is for, but hedge-2 and hedge-3)")
	)
	fs.IntVar(&o.size.requests, "requests", 0, "`number` of requests per strategy and scenario (default 50000 in real time, or as many as three minutes allow; as the scenario says in virtual)")
	fs.Uint64Var(&o.seed, "seed", 1, "`number` that all random draws follow from")
	fs.Float64Var(&o.size.rps, "rps", 0, "requests per second, in an open loop (default as the scenario says)")
	fs.IntVar(&o.runs, "runs", 1, "`number` of runs, with successive seeds, to report the medians of")
	fs.StringVar(&o.format, "format", "text", "`format` of standard output: "+list(formats))
	fs.StringVar(&o.out, "out", "benchmark/out", "`directory` for plots and the HTML report; empty for none")
	fs.BoolVar(&o.size.quick, "quick", false, "run a smaller job, in at most 20 seconds")
	fs.StringVar(&o.readme, "readme", "", "rewrite the tables in this `file` instead")
	fs.Usage = func() { usage(fs) }
	if err := quiet(fs, args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: there are only flags", fs.Arg(0))
	}

	for _, e := range engines() {
		if e.name() == *engineName {
			o.engine = e
		}
	}
	if o.engine == nil {
		return o, wrong("engine", *engineName, engineNames())
	}
	if !slices.Contains(dnsTransports, *transport) {
		return o, wrong("transport", *transport, dnsTransports)
	}
	if _, ok := o.engine.(dnsEngine); ok {
		o.engine = dnsEngine{*transport}
	} else if *transport != dnsTransports[0] {
		return o, fmt.Errorf("-transport %s: is for -engine dns", *transport)
	}
	known := make(map[string]scenario)
	var names []string
	for _, sc := range scenarios() {
		if o.engine.runs(sc) {
			known[sc.name] = sc
			names = append(names, sc.name)
		}
	}
	if *scenes == "" {
		*scenes = names[0]
	}
	chosen := names
	if *scenes != "all" {
		chosen = strings.Split(*scenes, ",")
	}
	for _, name := range chosen {
		sc, ok := known[name]
		if !ok {
			return o, wrong("scenario", name, append(names, "all"))
		}
		o.scenarios = append(o.scenarios, sc)
	}
	if *contenders != "" {
		var all []string
		for _, s := range strategies {
			all = append(all, s.name)
		}
		for _, name := range strings.Split(*contenders, ",") {
			if !slices.Contains(all, name) {
				return o, wrong("strategy", name, all)
			}
			o.strategies = append(o.strategies, name)
		}
		o.strategies = order(o.strategies)
		for _, sc := range o.scenarios {
			offered := func(name string) bool { return o.engine.offers(sc, strategyOf(name)) }
			if o.engine.name() == "dns" && !slices.ContainsFunc(o.strategies, offered) {
				return o, fmt.Errorf("-strategy %s: not offered for DNS over %s", *contenders, *transport)
			}
			if sc.lab != nil && *scenes != "all" && !slices.ContainsFunc(o.strategies, offered) {
				return o, fmt.Errorf("-strategy %s: scenario %s is for %s", *contenders, sc.name, list(sc.lab.strategies))
			}
			if *scenes != "all" && !slices.ContainsFunc(o.strategies, offered) {
				return o, fmt.Errorf("-strategy %s: the draws of scenario %s cannot be replayed for an oracle", *contenders, sc.name)
			}
		}
	}
	switch {
	case o.size.requests < 0 || o.size.requests > 0 && o.size.requests < 100 || o.size.requests > 100_000_000:
		return o, fmt.Errorf("-requests %d: must be between 100 and 100000000", o.size.requests)
	case !(o.size.rps >= 0 && o.size.rps <= 1e6):
		return o, fmt.Errorf("-rps %v: must be between 0 and 1000000", o.size.rps)
	case o.runs < 1 || o.runs > 1000:
		return o, fmt.Errorf("-runs %d: must be between 1 and 1000", o.runs)
	case !slices.Contains(formats, o.format):
		return o, wrong("format", o.format, formats)
	}
	return o, nil
}

// quiet parses without the package's own messages: run prints the error, once.
func quiet(fs *flag.FlagSet, args []string) error {
	out := fs.Output()
	usage := fs.Usage
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	err := fs.Parse(args)
	fs.SetOutput(out)
	if errors.Is(err, flag.ErrHelp) {
		usage()
	}
	return err
}

func wrong(name, value string, allowed []string) error {
	return fmt.Errorf("-%s %q: must be %s", name, value, list(allowed))
}

// list says "a, b or c".
func list(names []string) string {
	n := len(names)
	if n == 1 {
		return names[0]
	}
	return strings.Join(names[:n-1], ", ") + " or " + names[n-1]
}

func engineNames() []string {
	var names []string
	for _, e := range engines() {
		names = append(names, e.name())
	}
	return names
}

func usage(fs *flag.FlagSet) {
	w := fs.Output()
	fmt.Fprint(w, "Usage: simulate [flags]\n\nPuts hedging strategies through the same traffic, side by side.\n\n")
	fs.PrintDefaults()
	fmt.Fprint(w, "\nStrategies:\n")
	for _, s := range strategies {
		fmt.Fprintf(w, "  %-18s %s\n", s.name, s.whole())
	}
	fmt.Fprint(w, "\nScenarios, and their engines:\n")
	for _, sc := range scenarios() {
		var by []string
		for _, e := range engines() {
			if e.runs(sc) {
				by = append(by, e.name())
			}
		}
		fmt.Fprintf(w, "  %-18s %s (%s)\n", sc.name, sc.about, strings.Join(by, ", "))
	}
}
