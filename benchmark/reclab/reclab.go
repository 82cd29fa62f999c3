// Package reclab measures recursive resolvers in a simulated internet that they have never
// seen: how long callers wait for names that nobody has asked for, and how many queries that
// costs. The internet is made from a seed: the root, 74 zones below it, and thousands
// below those, on thousands of servers near and far, of which some are dead, broken or wrong.
//
// Each contender has a network namespace with an internet of its own, in which it is
// asked over UDP; all are asked the same names in the same order and at the same time, so
// that a disturbance of the machine meets all of them. They know the root's servers and those
// of one zone below it, and nothing else. All servers have IPv4 addresses only. Some
// internets are signed: those who validate are given the key of the root there.
//
// In memory, our own resolver is measured without sockets, also in fake time.
package reclab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/internal/netsim"
)

// The defaults of a Config.
const (
	Questions = 5000
	Rate      = 50

	sites  = 5000
	giveUp = 10 * time.Second // how long callers wait for an answer
	settle = time.Second      // between the first answer and the first question
)

// Scenarios are the internets that there are.
//
//   - broken: 5,000 zones, of which one in ten has a server that is dead, fails or does not know
//     it; 1.5 % of the exchanges are lost, and 1 % are 40 to 300 ms late
//   - clean: the same without such servers
//   - plain: broken, with one IPv4 address for each name, no other questions, no long names
//   - repeats: broken, and half of the questions have been asked before
//   - bursts: broken, and every server loses everything for one second in a hundred
//   - dead: all servers are dead but those of the root and of the zones below it
//
// In the others the root and the zones below it are signed. A twentieth of the sites are two zones on the same servers.
//
//   - mixed: clean, and 30 % of the zones further down are signed
//   - signed: clean, and all are
//   - mixed-broken, signed-broken: broken, and also 1.5 % of the servers that are not a zone's first have signatures
//     that have expired, and 2 % of the sites no signature that is right
//   - stale: signed, and a tenth of the servers that are not a zone's first have signatures that have expired
//   - insecure: mixed, and a fifth of the sites have a DS record of an algorithm or digest that need not be known
//   - flood: signed, and all questions are about names that do not exist, in 20 zones
//   - keytrap: signed, and two questions in five are about 20 zones that have many keys and signatures of one tag
var Scenarios = []string{
	"broken", "clean", "plain", "repeats", "bursts", "dead",
	"mixed", "mixed-broken", "signed", "signed-broken", "stale", "insecure", "flood", "keytrap",
}

// signings are what is signed in the scenarios of which something is.
var signings = map[string]signing{
	"mixed":         {share: 0.3},
	"mixed-broken":  {share: 0.3, stale: 0.015, bogus: 0.02},
	"signed":        {share: 1},
	"signed-broken": {share: 1, stale: 0.015, bogus: 0.02},
	"stale":         {share: 1, stale: 0.1},
	"insecure":      {share: 0.3, weak: 0.2},
	"flood":         {share: 1, crowd: random},
	"keytrap":       {share: 1, crowd: trap},
}

// Signed reports whether something is signed in a scenario.
func Signed(scenario string) bool { return signings[scenario].share > 0 }

// Trapped reports whether a call of the scenario keytrap, by its Index, is about a trap.
func Trapped(index int32) bool { return int(index)%trapped.of < trapped.are }

// Config says what to measure. The zero value measures all contenders with their defaults.
type Config struct {
	Scenario   string   // one of Scenarios; empty: the first
	Contenders []string // some of Contenders; empty: all of ContendersOf that can run here
	Questions  int      // to each contender; 0: Questions
	Rate       float64  // of questions a second, at random times; 0: Rate
	Seed       uint64
	Memory     bool            // our own contenders alone, in this process and without sockets
	Trace      *recursor.Trace // in memory, is told what they do; may be nil
	Skipped    func(string)    // called with the reason if one of all contenders cannot run here; may be nil
	Progress   func(int)       // called with how many more questions have ended, of all contenders; may be nil
}

// Row is what was measured of a contender.
type Row struct {
	Scenario, Contender string
	Seed                uint64
	Calls               []Call        // in the order of the questions
	Failures            int           // calls that failed
	Believed            int           // of those, whose name is bogus and has an answer of a contender that validates
	Misjudged           int           // of those, whose answer has AD where it must not, or has it not where it must
	Stalled             int           // questions that are not among Calls, for the machine stood still soon after
	UDP, TCP            int64         // queries that it sent to servers
	CPU                 time.Duration // that it used for them; 0: unknown
	TrapCPU             time.Duration // that one question about a trap takes; 0: unknown, or there are no traps
	Hedges, Wins        int64         // of our own contenders; 0: unknown
	Denied              int64
}

// Call is one question. It failed if there was no answer within 10 s, or it was wrong: its latency is 10 s then.
type Call struct {
	latency.Call
	Name  string
	Type  uint16
	Begun time.Time // also in fake time
	grade grade
}

// Sent returns how many queries a question took.
func (r Row) Sent() float64 {
	return float64(r.UDP+r.TCP) / float64(max(len(r.Calls)+r.Stalled, 1))
}

// Run measures. Unless Memory is set it needs root on Linux; see netsim.ErrUnsupported.
// If ctx ends, what was measured until then is returned with its error.
func Run(ctx context.Context, conf Config) ([]Row, error) {
	if err := conf.complete(); err != nil {
		return nil, err
	}
	p := planOf(conf.Scenario, conf.Seed)
	w := newWorld(p)
	all, err := open(ctx, conf, w)
	defer func() {
		for _, c := range all {
			c.close()
		}
	}()
	if err != nil {
		return nil, err
	}
	time.Sleep(settle)
	rows, errs := make([]Row, len(all)), make([]error, len(all))
	repeats := 0.0
	if conf.Scenario == "repeats" {
		repeats = 0.5
	}
	questions := w.questions(p, conf.Questions, repeats)
	var s *stalls
	if !conf.Memory {
		s = watchStalls()
	}
	var wg sync.WaitGroup
	for i, c := range all {
		// Their questions do not come at the very same time, so that they do not delay each other.
		later := time.Duration(float64(time.Second) / conf.Rate * float64(i) / float64(len(all)))
		wg.Go(func() {
			time.Sleep(later)
			rows[i], errs[i] = c.measure(ctx, conf, questions)
		})
	}
	wg.Wait()
	if s != nil {
		s.stop()
		for i := range rows {
			rows[i].leaveOut(s.seen)
		}
	}
	return rows, errors.Join(append(errs, ctx.Err())...)
}

// complete checks a Config and sets its defaults.
func (c *Config) complete() error {
	if c.Scenario == "" {
		c.Scenario = Scenarios[0]
	}
	if !slices.Contains(Scenarios, c.Scenario) {
		return fmt.Errorf("reclab: scenario %q; want one of %s", c.Scenario, strings.Join(Scenarios, ", "))
	}
	if c.Questions < 0 || c.Rate < 0 {
		return fmt.Errorf("reclab: Config.Questions is %d and Rate %v; want 0 or more", c.Questions, c.Rate)
	}
	if c.Questions == 0 {
		c.Questions = Questions
	}
	if c.Rate == 0 {
		c.Rate = Rate
	}
	return nil
}

func planOf(scenario string, seed uint64) plan {
	return plan{
		seed: seed, sites: sites, dead: scenario == "dead", plain: scenario == "plain", signing: signings[scenario],
		clean: scenario == "clean" || Signed(scenario) && !strings.HasSuffix(scenario, "-broken"),
	}
}

func weatherOf(scenario string) weather {
	how := weather{loss: 0.015, jitter: 0.05, spikes: 0.01}
	if scenario == "bursts" {
		how.bursts = 0.01
	}
	return how
}

// open starts the contenders. Those that it returns have to be closed, also after an error.
func open(ctx context.Context, conf Config, w *world) (all []*contender, err error) {
	names := conf.Contenders
	if len(names) == 0 {
		names = ContendersOf(conf.Scenario)
	}
	started, errs := make([]*contender, len(names)), make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { started[i], errs[i] = openOne(ctx, conf, w, name) })
	}
	wg.Wait()
	for i, c := range started {
		switch {
		case c != nil:
			all = append(all, c)
		case errors.Is(errs[i], netsim.ErrUnsupported) && errors.Is(err, netsim.ErrUnsupported): // once is enough
		case errors.Is(errs[i], exec.ErrNotFound) && len(conf.Contenders) == 0:
			if conf.Skipped != nil {
				conf.Skipped(errs[i].Error())
			}
		default:
			err = errors.Join(err, errs[i])
		}
	}
	return all, err
}

func openOne(ctx context.Context, conf Config, w *world, name string) (*contender, error) {
	i := slices.Index(Contenders, name)
	if i < 0 {
		return nil, fmt.Errorf("reclab: contender %q; want one of %s", name, strings.Join(Contenders, ", "))
	}
	if one := contenders[i]; one.validates && one.ours == nil && !Signed(conf.Scenario) {
		return nil, fmt.Errorf("reclab: %s validates, and nothing is signed in %s", name, conf.Scenario)
	}
	one, n := contenders[i], newInternet(w, weatherOf(conf.Scenario), conf.Seed)
	if !conf.Memory {
		return start(ctx, one, n)
	}
	if one.ours == nil {
		return nil, fmt.Errorf("reclab: %s in memory: %w", name, exec.ErrNotFound)
	}
	c := inMemory(one, n, conf.Trace)
	if err := c.warm(ctx); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// measure asks the questions and waits for their answers.
func (c *contender) measure(ctx context.Context, conf Config, questions []question) (Row, error) {
	rng := rand.New(rand.NewPCG(conf.Seed, 4))
	row := Row{Scenario: conf.Scenario, Contender: c.name, Seed: conf.Seed, Calls: make([]Call, len(questions))}
	udp, tcp := c.internet.udp.Load(), c.internet.tcp.Load()
	var cpu time.Duration
	if c.cpu != nil {
		cpu = c.cpu()
	}
	start := time.Now()
	var due time.Duration
	var wg sync.WaitGroup
	asked := 0
	for i, q := range questions {
		due += time.Duration(rng.ExpFloat64() / conf.Rate * float64(time.Second))
		if !sleep(ctx, time.Until(start.Add(due))) {
			break
		}
		asked++
		wg.Go(func() {
			row.Calls[i] = c.call(q, start)
			row.Calls[i].Index = int32(i)
			if conf.Progress != nil {
				conf.Progress(1)
			}
		})
	}
	wg.Wait()
	row.Calls = row.Calls[:asked]
	row.UDP, row.TCP = c.internet.udp.Load()-udp, c.internet.tcp.Load()-tcp
	row.count()
	if c.cpu != nil {
		row.CPU = c.cpu() - cpu
		row.TrapCPU = c.trapCPU(ctx, conf)
	}
	if c.stats == nil {
		return row, nil
	}
	s, err := c.stats()
	row.Hedges, row.Wins, row.Denied = s.Hedges, s.HedgeWins, s.Denied
	return row, err
}

// trapQuestions are asked about traps alone, so that their processor time can be told from others'.
const trapQuestions = 200

// trapCPU returns what one of them takes of a contender, which has seen the traps' zones before.
func (c *contender) trapCPU(ctx context.Context, conf Config) time.Duration {
	w := c.internet.world
	if conf.Scenario != "keytrap" {
		return 0
	}
	rng := rand.New(rand.NewPCG(conf.Seed, 5))
	start, before := time.Now(), c.cpu()
	var wg sync.WaitGroup
	for i := range trapQuestions {
		if !sleep(ctx, time.Duration(rng.ExpFloat64()/conf.Rate*float64(time.Second))) {
			return 0
		}
		q := w.stranger(rng, i)
		wg.Go(func() { c.call(q, start) })
	}
	wg.Wait()
	return (c.cpu() - before) / trapQuestions
}

func (r *Row) count() {
	r.Failures, r.Believed, r.Misjudged = 0, 0, 0
	for _, call := range r.Calls {
		switch {
		case call.grade == believed:
			r.Believed++
		case call.grade == misjudged:
			r.Misjudged++
		}
		if call.Failed() {
			r.Failures++
		}
	}
}

// call asks a question.
func (c *contender) call(q question, start time.Time) Call {
	m := new(dns.Msg)
	m.SetQuestion(q.name, q.qtype)
	m.AuthenticatedData = c.internet.world.share > 0 // it wants to know (RFC 6840 §5.7)
	ctx, cancel := context.WithTimeout(context.Background(), giveUp)
	defer cancel()
	begun := time.Now()
	answer, err := c.ask(ctx, m)
	call := Call{Name: q.name, Type: q.qtype, Begun: begun, Call: latency.Call{Start: begun.Sub(start), Latency: time.Since(begun)}}
	call.grade = wrong
	if err == nil {
		call.grade = c.internet.world.grade(q, answer, c.validates)
	}
	if call.grade != right {
		call.Winner, call.Latency = -1, giveUp
	}
	return call
}

// sleep waits, and reports false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
