package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/gohedge/hedge/benchmark/internal/dnsserver"
)

// The options are the values of the command-line flags.
type options struct {
	engine     engine
	scenarios  []scenario
	strategies []string // nil: the engine's choice
	size       trafficFlags
	seed       uint64
	runs       int
	format     string
	out        string
	peers      dnsserver.PeerCommands
	transport  string   // of the engine dns
	readme     []string // files
	list       bool
	overview   bool // run the engines of the overview
	args       []string
}

// selectStrategies returns the names of the selected strategies that the engine can run in scenario sc.
func (o options) selectStrategies(sc scenario) []string {
	names := slices.Clone(o.strategies)
	if names == nil {
		names = strategyNames()
	}
	return slices.DeleteFunc(names, func(n string) bool { return !o.engine.supports(sc, findStrategy(n)) })
}

var formats = []string{"text", "json"}

// parseOptions parses the command-line arguments args, without the name of the program. If args ask for help, parseOptions writes the usage text to stderr and returns flag.ErrHelp.
func parseOptions(args []string, stderr io.Writer) (options, error) {
	o := options{args: args, peers: make(dnsserver.PeerCommands)}
	fs := flag.NewFlagSet("simulate", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // the caller prints errors, once
	engine := fs.String("engine", "", "`name` of the engine: "+joinWithOr(engineNames())+" (default virtual, then http; http with -scenario or another -format)")
	scenes := fs.String("scenario", "", "comma-separated `names` of scenarios, all, or long; all leaves out those that -list marks (default the engine's first scenario)")
	named := fs.String("strategy", "", "comma-separated `names` of strategies (default all that the scenario is for)")
	readme := fs.String("readme", "", "measure the tables of these comma-separated `files` anew, and write them there, instead")
	fs.IntVar(&o.size.requests, "requests", 0, "`number` of requests per strategy and scenario (default 50000 in real time, or as many as fit into 90 seconds; as the scenario says in virtual)")
	fs.Uint64Var(&o.seed, "seed", 1, "`number` that all random draws follow from")
	fs.Float64Var(&o.size.rps, "rps", 0, "requests per second, in an open loop (default as the scenario says)")
	fs.IntVar(&o.runs, "runs", 1, "`number` of runs, with successive seeds, to report the medians of (default 1, or more if -list says so)")
	fs.StringVar(&o.format, "format", "text", "`format` of standard output: "+joinWithOr(formats))
	fs.StringVar(&o.out, "out", defaultOutDir(), "`directory` for plots and the HTML report; empty for none")
	fs.Func("peer", "`name=command` that starts a DNS server of another project, in place of the program in PATH; may be repeated; names: "+joinWithOr(dnsserver.PeerNames()), o.peers.SetCommand)
	fs.BoolVar(&o.size.quick, "quick", false, "run a smaller job, in at most 20 seconds, without the long scenarios")
	fs.BoolVar(&o.list, "list", false, "describe all strategies, engines and scenarios, and run nothing")
	fs.StringVar(&o.transport, "transport", dnsTransports[0], "transport of dns: "+joinWithOr(dnsTransports))
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		printUsage(stderr, fs)
	}
	if err == nil && fs.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q: there are only flags", fs.Arg(0))
	}
	o.overview = *engine == "" && *scenes == "" && *readme == "" && o.format == formats[0]
	if *readme != "" {
		o.readme = strings.Split(*readme, ",")
	}
	for _, take := range []func() error{
		func() error { return o.setEngine(cmp.Or(*engine, defaultEngine), fs) },
		func() error { return o.setScenarios(*scenes) },
		func() error { return o.setStrategies(*named, *scenes) },
		o.checkCommonFlags,
		o.checkPeers,
	} {
		if err != nil {
			return o, err
		}
		err = take()
	}
	return o, err
}

// setEngine selects the engine with the given name, and checks the flag -transport, which is for the engine dns. Unless
// -runs or -quick is set in fs, it sets the number of runs to the default of the engine.
func (o *options) setEngine(name string, fs *flag.FlagSet) error {
	i := slices.Index(engineNames(), name)
	switch {
	case i < 0:
		return newChoiceError("engine", name, engineNames())
	case !slices.Contains(dnsTransports, o.transport):
		return newChoiceError("transport", o.transport, dnsTransports)
	case name == "dns":
		o.engine = newDNSEngine(o.transport)
	case o.transport != dnsTransports[0]:
		return fmt.Errorf("-transport %s: is for -engine dns", o.transport)
	default:
		o.engine = engines()[i]
	}
	isSet := false
	fs.Visit(func(f *flag.Flag) { isSet = isSet || f.Name == "runs" })
	if runs := o.engine.spec().runs; runs > 0 && !isSet && !o.size.quick {
		o.runs = runs
	}
	return nil
}

// setScenarios selects the scenarios in scenarioFlag, the value of -scenario: comma-separated names, "long" for those
// that take minutes, or "all" for the others, both without excludedFromAll. Empty means the engine's first scenario.
func (o *options) setScenarios(scenarioFlag string) error {
	known := o.engine.spec().scenarios
	names := append(scenarioNames(known), "all", "long")
	for _, name := range strings.Split(cmp.Or(scenarioFlag, names[0]), ",") {
		if !slices.Contains(names, name) {
			return newChoiceError("scenario", name, names)
		}
		for _, sc := range known {
			isInGroup := !sc.excludedFromAll && (name == "all" && !sc.long || name == "long" && sc.long)
			if (sc.name == name || isInGroup) && !(sc.long && o.size.quick) {
				o.scenarios = append(o.scenarios, sc)
			}
		}
	}
	if len(o.scenarios) == 0 {
		return fmt.Errorf("-quick leaves out %s", scenarioFlag)
	}
	return nil
}

// setStrategies selects the strategies in strategyFlag, the value of -strategy. Empty means all that the engine
// supports. A scenario that can run none is an error, or with -scenario all skipped if the engine's refusal is empty.
func (o *options) setStrategies(strategyFlag, scenarioFlag string) error {
	if strategyFlag == "" {
		return nil
	}
	for _, name := range strings.Split(strategyFlag, ",") {
		if !slices.Contains(strategyNames(), name) {
			return newChoiceError("strategy", name, strategyNames())
		}
		o.strategies = append(o.strategies, name)
	}
	o.strategies = sortStrategyNames(o.strategies)
	for _, sc := range o.scenarios {
		if len(o.selectStrategies(sc)) > 0 {
			continue
		}
		switch refusal := o.engine.spec().refusal; {
		case refusal != "":
			return fmt.Errorf("-strategy %s: %s", strategyFlag, refusal)
		case scenarioFlag == "all": // the others go on
		case sc.network != nil:
			return fmt.Errorf("-strategy %s: scenario %s is for %s", strategyFlag, sc.name, joinWithOr(options{engine: o.engine}.selectStrategies(sc)))
		default:
			return fmt.Errorf("-strategy %s: the best static delays of scenario %s are unknown, because its draws cannot be replayed", strategyFlag, sc.name)
		}
	}
	return nil
}

// checkCommonFlags returns an error if a flag of all engines has an invalid value: -requests, -rps, -runs or -format.
func (o *options) checkCommonFlags() error {
	switch {
	case o.size.requests < 0 || o.size.requests > 0 && o.size.requests < 100 || o.size.requests > 100_000_000:
		return fmt.Errorf("-requests %d: must be between 100 and 100000000", o.size.requests)
	case !(o.size.rps >= 0 && o.size.rps <= 1e6):
		return fmt.Errorf("-rps %v: must be between 0 and 1000000", o.size.rps)
	case o.runs < 1 || o.runs > 1000:
		return fmt.Errorf("-runs %d: must be between 1 and 1000", o.runs)
	case !slices.Contains(formats, o.format):
		return newChoiceError("format", o.format, formats)
	}
	return nil
}

// checkPeers returns an error if the flag -peer, which names programs of DNS servers, is set for scenarios without them.
func (o *options) checkPeers() error {
	if o.readme != nil || len(o.peers) == 0 {
		return nil
	}
	for _, sc := range o.scenarios {
		if slices.ContainsFunc(strategies, func(s strategy) bool { return dnsserver.PeerOf(s.name) != "" && o.engine.supports(sc, s) }) {
			return nil
		}
	}
	name := slices.Min(slices.Collect(maps.Keys(o.peers)))
	return fmt.Errorf("-peer %s=%s: engine %s starts no DNS servers", name, strings.Join(o.peers[name], " "), o.engine.spec().name)
}

// newChoiceError returns the error for the flag name with a value that is not among the allowed ones.
func newChoiceError(name, value string, allowed []string) error {
	return fmt.Errorf("-%s %q: must be %s", name, value, joinWithOr(allowed))
}

// joinWithOr returns names as a phrase: "a, b or c". There must be at least one name.
func joinWithOr(names []string) string {
	n := len(names)
	if n == 1 {
		return names[0]
	}
	return strings.Join(names[:n-1], ", ") + " or " + names[n-1]
}

// defaultEngine is the engine if no flag names one, and there is no overview.
const defaultEngine = "http"

func engineNames() (names []string) {
	for _, e := range engines() {
		names = append(names, e.spec().name)
	}
	return names
}

func printUsage(w io.Writer, fs *flag.FlagSet) {
	fs.SetOutput(w)
	fmt.Fprint(w, "Usage: simulate [flags]\n\nPuts hedging strategies through the same traffic, side by side.\n\n")
	fs.PrintDefaults()
	fmt.Fprintln(w)
	printDescriptions(w)
}

// printDescriptions writes the names and descriptions of all strategies, engines and scenarios to w.
func printDescriptions(w io.Writer) {
	fmt.Fprint(w, "Strategies:\n")
	for _, s := range strategies {
		fmt.Fprintf(w, "  %-26s %s\n", s.name, s.fullDescription())
	}
	for _, e := range engines() {
		p := e.spec()
		fmt.Fprintf(w, "\nEngine %s %s. Runs without -quick: %d. Scenarios:\n", p.name, p.description, max(p.runs, 1))
		for _, sc := range p.scenarios {
			mark := ""
			if sc.excludedFromAll || sc.long {
				mark = " (not in all)"
			}
			fmt.Fprintf(w, "  %-26s %s%s\n", sc.name, sc.description, mark)
		}
	}
}
