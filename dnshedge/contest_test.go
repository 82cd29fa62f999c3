package dnshedge_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/doubles"
)

// A contender is a forwarder to be measured.
type contender struct {
	name    string
	program string
	args    func(dir, port, upstream string) []string // writes the configuration files to dir, and returns the arguments
	cache   bool                                      // the forwarder does not retransmit queries
	ours    bool
}

// contenders lists the forwarders to be measured: examples/dnsforward, another build of it in HEDGE_TEST_FORWARDER, and
// the installed peers.
func contenders(t *testing.T) []contender {
	t.Helper()
	ours, err := buildForwarder()
	require.NoError(t, err)
	args := func(_, port, upstream string) []string {
		return []string{"-listen", "127.0.0.1:" + port, "-upstream", "127.0.0.1:" + upstream}
	}
	all := []contender{{name: "dnsforward", program: ours, args: args, ours: true}}
	if other := os.Getenv("HEDGE_TEST_FORWARDER"); other != "" {
		all = append(all, contender{name: "other build", program: other, args: args, ours: true})
	}
	for name, args := range map[string]func(dir, port, upstream string) []string{
		"unbound": func(dir, port, upstream string) []string {
			return []string{"-d", "-c", write(t, filepath.Join(dir, "unbound.conf"), fmt.Sprintf(`
server:
    directory: %[1]q
    pidfile: ""
    chroot: ""
    username: ""
    use-syslog: no
    verbosity: 0
    num-threads: 2
    so-reuseport: yes
    interface: 127.0.0.1@%[2]s
    module-config: "iterator"
    do-not-query-localhost: no
forward-zone:
    name: "."
    forward-addr: 127.0.0.1@%[3]s
remote-control:
    control-enable: no
`, dir, port, upstream))}
		},
		"dnsdist": func(dir, port, upstream string) []string {
			return []string{"--supervised", "--disable-syslog", "-C", write(t, filepath.Join(dir, "dnsdist.conf"), fmt.Sprintf(
				"setLocal('127.0.0.1:%[1]s', {reusePort=true})\naddLocal('127.0.0.1:%[1]s', {reusePort=true})\nnewServer('127.0.0.1:%[2]s')\ngetPool(''):setCache(newPacketCache(10000))\n", port, upstream))}
		},
	} {
		if _, err := exec.LookPath(name); err != nil {
			t.Logf("%s is not installed", name)
			continue
		}
		all = append(all, contender{name: name, program: name, args: args, cache: name == "dnsdist"})
	}
	return all
}

// A course is a load for measuring contenders. Each contender runs in a process of its own.
type course struct {
	name   string
	names  func(round int) []string // and types
	repeat int                      // how often each is asked; 0: once
	open   int                      // questions in flight at the same time; 0: 50
	warm   bool                     // they are asked once before
	cached bool                     // answers are in the cache
	dead   bool                     // no question has an answer but a failure
	silent bool                     // because the upstream says nothing
}

const usualOpen = 50

var courses = [...]course{
	{name: "hot cache", cached: true, repeat: 25_000, names: func(int) []string {
		return []string{"a.example A", "alias.example A", "nx.example A", "mx.example MX"}
	}},
	{name: "hits", cached: true, repeat: 10, warm: true, names: func(int) []string { return numbered(0, 5_000, "any.example") }},
	{name: "misses", names: func(round int) []string { return numbered(round, 10_000, "any.example") }},
	{name: "dead zone, SERVFAIL", dead: true, names: func(round int) []string { return numbered(round, 4_000, "broken") }},
	{name: "dead zone, silence", dead: true, silent: true, open: 1_500, names: func(round int) []string { return numbered(round, 1_500, "dead.example") }},
}

// numbered returns n names in a zone, in random order and different in each round.
func numbered(round, n int, zone string) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("x%d-%d.%s A", round, i, zone))
	}
	rand.Shuffle(n, func(i, j int) { names[i], names[j] = names[j], names[i] })
	return names
}

// A runner is a contender on a course, together with the measurements.
type runner struct {
	contender
	port    string
	process *os.Process
	rate    []float64 // questions per second
	cpu     []float64 // µs of processor time per question
	others  float64   // questions about other names, sent after questions about a zone without responses
	lost    float64   // of others
}

// cpuTime returns how long a process has run, in user and system mode.
func cpuTime(t *testing.T, p *os.Process) (sum time.Duration) {
	t.Helper()
	// The first field of each thread's file is in ns.
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.Pid))
	if len(files) == 0 {
		t.Skip("the system does not tell")
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		n, err := strconv.ParseInt(strings.Fields(string(b))[0], 10, 64)
		require.NoError(t, err)
		sum += time.Duration(n)
	}
	return sum
}

// mayLose returns the number of questions that may have no correct answer. For peers it is one in a hundred, because a
// busy machine loses UDP messages.
func (r *runner) mayLose(asked float64) float64 {
	if r.ours {
		return 0
	}
	return asked / 100
}

// run makes dnsperf ask the questions of a file. It returns the number of questions, the rate per second, and the
// number of failures.
func (r *runner) run(t *testing.T, file string, repeat, open int) (asked, rate, failed float64) {
	t.Helper()
	out := doubles.RunTool(t, "dnsperf", "-s", "127.0.0.1", "-p", r.port, "-d", file, "-n", fmt.Sprint(repeat), "-c", "4", "-q", fmt.Sprint(open), "-t", "6")
	number := func(what string) float64 {
		found := regexp.MustCompile(what + `:? +([0-9.]+)`).FindStringSubmatch(out)
		if found == nil {
			return 0
		}
		n, err := strconv.ParseFloat(found[1], 64)
		require.NoError(t, err)
		return n
	}
	return number("Queries sent"), number("Queries per second"), number("Queries lost") + number("SERVFAIL")
}

// race runs the contenders in rotation, and returns the measurements of each, in their order.
func (c *course) race(t *testing.T, all []contender, upstream string, rounds int) (runners []*runner) {
	t.Helper()
	dir := t.TempDir()
	for _, one := range all {
		if one.cache && !c.cached {
			continue
		}
		port, at := freePorts(t, 1)[0], filepath.Join(dir, one.name)
		require.NoError(t, os.Mkdir(at, 0o755))
		runners = append(runners, &runner{contender: one, port: port, process: peer(t, []string{port}, one.program, one.args(at, port, upstream)...)})
		loaded(t, "udp://127.0.0.1:"+port)
	}
	repeat, open := max(c.repeat, 1), cmp.Or(c.open, usualOpen)
	for round := range rounds {
		names := c.names(round)
		file := write(t, filepath.Join(dir, "queries"), strings.Join(names, "\n")+"\n")
		for _, r := range runners {
			if c.warm && round == 0 {
				asked, _, failed := r.run(t, file, 1, open)
				require.LessOrEqual(t, failed, r.mayLose(asked), r.name)
			}
			before := cpuTime(t, r.process)
			asked, rate, failed := r.run(t, file, repeat, open)
			r.rate = append(r.rate, rate)
			r.cpu = append(r.cpu, float64((cpuTime(t, r.process)-before).Microseconds())/asked)
			if c.dead {
				failed = asked - failed // the upstream answers nothing, so each answer counts as a failure
			}
			assert.LessOrEqual(t, failed, r.mayLose(asked), "%s, %s", c.name, r.name)
			if c.silent {
				live := write(t, filepath.Join(dir, "live"), strings.Join(numbered(round, 100, "example"), "\n")+"\n")
				others, _, lost := r.run(t, live, 1, open)
				r.others, r.lost = r.others+others, r.lost+lost
			}
		}
	}
	return runners
}

// The contenders run in rotation on each course. The processor time of a question depends little on the load of the
// machine. The table has medians, also of each round's ratios.
func TestForwarderCostsNoMoreThanPeers(t *testing.T) {
	if testing.Short() || doubles.RaceEnabled {
		t.Skip("builds a program without the race detector, and measures its processes")
	}
	all, auth := contenders(t), knot(t)
	rounds := 1
	if os.Getenv("HEDGE_TEST_FORWARDER") != "" {
		rounds = 9
	}
	dying := strings.TrimPrefix(local(t, "udp", deadZone).Addr, "127.0.0.1:")
	var table strings.Builder
	for _, c := range courses {
		upstream := auth
		if c.silent {
			upstream = dying
		}
		runners := c.race(t, all, upstream, rounds)
		first := runners[0]
		for _, r := range runners {
			fmt.Fprintf(&table, "\n%-20s %-11s %7.0f questions/s %6.2f   %7.2f µs of processor time per question %6.2f",
				c.name, r.name, median(r.rate), ratio(r.rate, first.rate), median(r.cpu), ratio(r.cpu, first.cpu))
			if c.silent { // a forwarder that no longer queries the server needs no CPU time
				fmt.Fprintf(&table, "; then %.0f of %.0f questions about other names are lost", r.lost, r.others)
				assert.LessOrEqual(t, first.lost, r.lost, r.name)
				continue
			}
			assert.Greater(t, ratio(r.cpu, first.cpu), 0.2, "%s, %s", c.name, r.name)
		}
	}
	t.Log("Medians of the rounds, and how many times dnsforward's they are." + table.String())
}

// ratio returns the median of the rounds' ratios.
func ratio(of, to []float64) float64 {
	out := make([]float64, len(of))
	for i := range of {
		out[i] = of[i] / to[i]
	}
	return median(out)
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}
