// Package reclab compares recursive resolvers in a simulated internet that they have never seen: the latency of names
// that no client has looked up before, and the number of queries.
//
// A seed determines the internet: the root, 74 zones below it, and thousands of zones below those, on thousands of
// servers near and far. Some servers are dead, broken or wrong. All servers have IPv4 addresses only. Some internets
// are signed: contenders that validate get the key of the root.
//
// Each contender has a network namespace with the servers of the internet, in which it is queried over UDP. All
// contenders get the same questions in the same order at about the same time, so that a disturbance of the machine
// meets all of them.
//
// A contender knows the servers of the root and of one zone below it, and nothing else.
//
// In memory the lab measures the resolver of this library without sockets, also in fake time.
package reclab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/benchmark/internal/latency"
)

// The defaults of a lab.Config.
const (
	DefaultQuestions = 5000
	DefaultRate      = 50
)

const (
	QuestionTimeout = 10 * time.Second // of a question

	settleTime = time.Second // between the start of the resolvers and the first question
)

// A Row is the result of one resolver. A failed question counts in Calls as answered after QuestionTimeout.
type Row struct {
	lab.Row
	Scenario  string
	Seed      uint64
	Questions []Lookup // in the order in which they were asked
	Bogus     int      // failures of a validating contender: it answered a bogus name
	WrongAD   int      // failures with a wrong AD bit (RFC 6840 §5.8)
	Stalled   int      // questions that Questions leaves out because the machine stalled soon after
	TCP       int64    // queries over TCP; Sent includes them
}

// A Lookup is one question to a resolver, and its outcome. It failed if no right answer came within QuestionTimeout.
type Lookup struct {
	latency.Call
	Name    string
	Type    uint16
	Begin   time.Time // also in fake time
	verdict verdict
}

// Run asks the selected resolvers for names in a simulated internet, and returns a row for each. Unless Memory is set
// it needs root on Linux, see netsim.ErrUnsupported. If ctx ends, Run returns the results so far and the error of ctx.
func Run(ctx context.Context, conf lab.Config) ([]Row, error) {
	if err := setDefaults(&conf); err != nil {
		return nil, err
	}
	p := newInternetPlan(conf.Scenario, conf.Seed)
	n := newInternet(p)
	bed, err := lab.NewTestbed(conf)
	if err != nil {
		return nil, err
	}
	defer bed.Close()
	resolvers, err := lab.StartAll(conf, contenders, func(c lab.Contender[environment, *resolver]) (*resolver, error) {
		if slices.Contains(validatingPrograms, c.Name) && !HasSignedZones(conf.Scenario) {
			return nil, fmt.Errorf("it validates, and nothing is signed in %s", conf.Scenario)
		}
		return c.Start(environment{ctx: ctx, conf: conf, bed: bed, name: c.Name, network: newNetwork(n, newImpairment(conf.Scenario), conf.Seed)})
	})
	if err != nil {
		return nil, err
	}
	time.Sleep(settleTime)
	rows, errs := make([]Row, len(resolvers)), make([]error, len(resolvers))
	repeats := 0.0
	if conf.Scenario == "repeats" {
		repeats = 0.5
	}
	questions := n.drawQuestions(p, conf.Calls, repeats)
	var stalls []stall
	var running, recording sync.WaitGroup
	measuring, stop := context.WithCancel(context.Background())
	if !conf.Memory {
		recording.Go(func() { stalls = recordStalls(measuring) })
	}
	for i, r := range resolvers {
		// The offsets prevent that the resolvers delay each other.
		offset := time.Duration(float64(time.Second) / conf.Rate * float64(i) / float64(len(resolvers)))
		running.Go(func() {
			time.Sleep(offset)
			rows[i], errs[i] = r.askAll(ctx, conf, questions)
		})
	}
	running.Wait()
	stop()
	recording.Wait()
	for i := range rows {
		rows[i].removeStalledQuestions(stalls)
	}
	return rows, errors.Join(append(errs, ctx.Err())...)
}

func setDefaults(c *lab.Config) error {
	_, err := lab.SelectScenario(c, scenarios, DefaultQuestions)
	if len(c.Contenders) == 0 {
		c.Contenders = ContendersOf(c.Scenario)
	}
	c.Rate = cmp.Or(c.Rate, DefaultRate)
	return err
}

// askAll asks the resolver all questions, at random times, and returns its row.
func (r *resolver) askAll(ctx context.Context, conf lab.Config, questions []question) (Row, error) {
	rng := rand.New(rand.NewPCG(conf.Seed, 4))
	row := Row{Row: lab.Row{Contender: r.name}, Scenario: conf.Scenario, Seed: conf.Seed, Questions: make([]Lookup, len(questions))}
	udp, tcp := r.network.udp.Load(), r.network.tcp.Load()
	var cpu time.Duration
	if r.cpu != nil {
		cpu = r.cpu()
	}
	start := time.Now()
	arrivals := func(int) time.Duration { return time.Duration(rng.ExpFloat64() / conf.Rate * float64(time.Second)) } // a Poisson process
	row.Asked = lab.Load{Interarrival: arrivals}.Run(ctx, len(questions), func(i int) {
		row.Questions[i] = r.measureQuestion(questions[i], start)
		row.Questions[i].Index = int32(i)
		conf.AddProgress(1)
	})
	row.Questions = row.Questions[:row.Asked]
	row.TCP = r.network.tcp.Load() - tcp
	row.Sent = r.network.udp.Load() - udp + row.TCP
	row.countVerdicts()
	if r.cpu != nil {
		row.CPU = r.cpu() - cpu
	}
	if r.stats == nil {
		return row, nil
	}
	s, err := r.stats()
	row.Hedges, row.Wins, row.Denied = s.Hedges, s.HedgeWins, s.Denied
	return row, err
}

// countVerdicts sets the row's calls from its questions, and counts failures, bogus answers and wrong AD bits.
func (r *Row) countVerdicts() {
	r.Calls, r.Failures, r.Bogus, r.WrongAD = nil, 0, 0, 0
	for _, q := range r.Questions {
		switch {
		case q.verdict == answeredBogus:
			r.Bogus++
		case q.verdict == wrongAD:
			r.WrongAD++
		}
		if q.Failed() {
			r.Failures++
		}
		q.Winner = 0
		r.Calls = append(r.Calls, q.Call)
	}
}

// measureQuestion asks question q and returns the outcome, with the time of the question since start, the start of the run.
func (r *resolver) measureQuestion(q question, start time.Time) Lookup {
	m := new(dns.Msg)
	m.SetQuestion(q.name, q.qtype)
	m.AuthenticatedData = r.network.internet.signedShare > 0 // requests the AD bit in the answer (RFC 6840 §5.7)
	ctx, cancel := context.WithTimeout(context.Background(), QuestionTimeout)
	defer cancel()
	begin := time.Now()
	answer, err := r.exchange(ctx, m)
	result := Lookup{Name: q.name, Type: q.qtype, Begin: begin, Call: latency.Call{Start: begin.Sub(start), Latency: time.Since(begin)}, verdict: incorrect}
	if err == nil {
		result.verdict = r.network.internet.checkAnswer(q, answer, r.validates)
	}
	if result.verdict != correct {
		result.Winner, result.Latency = -1, QuestionTimeout
	}
	return result
}
