package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"

	"github.com/gohedge/hedge/benchmark/internal/dnsserver"
	"github.com/gohedge/hedge/dnshedge/recursor"
	"github.com/gohedge/hedge/internal/netsim"
)

// A Config selects the scenario, the contenders and the calls of a run. A lab ignores the fields that it has no use for.
type Config struct {
	Scenario   string   // the name of a scenario of the lab; empty: the first
	Contenders []string // names of contenders of the lab; empty: all that can run in the scenario
	Calls      int      // of each contender; 0: the default of the lab
	Rate       float64  // calls per second, if no call waits for another; 0: the default of the lab
	Seed       uint64

	Transport string // over which DNS servers are queried: udp, tls or https; empty: udp, the only one of some contenders
	Workers   int    // concurrent lookups in dnslab, of clients that know both servers; 0: 32, of clients that know one that is alive
	Memory    bool   // needs no root: sockets in memory, and no contenders that are programs
	Peers     dnsserver.PeerCommands
	Trace     *recursor.Trace `json:"-"` // of the resolvers of a reclab in memory; may be nil
	Reporter
}

// A Reporter has the functions by which a lab reports to its caller during a run. A nil function is not called.
type Reporter struct {
	Progress func(int)           `json:"-"` // called with the number of further calls that are done, of all contenders
	Skipped  func(reason string) `json:"-"` // called for each contender that cannot run here
}

// AddProgress reports that n further calls are done.
func (r Reporter) AddProgress(n int) {
	if r.Progress != nil {
		r.Progress(n)
	}
}

// SkipContender reports that a compared client or server cannot run here, for the reason err.
func (r Reporter) SkipContender(err error) {
	if r.Skipped != nil {
		r.Skipped(err.Error())
	}
}

// SelectScenario returns the scenario of all that c.Scenario names. An empty c.Scenario becomes the name of the first,
// and a zero c.Calls becomes defaultCalls. A negative Calls, Rate or Workers and an unknown name are errors.
func SelectScenario[S Selectable](c *Config, all []S, defaultCalls int) (sc S, err error) {
	if c.Calls < 0 || c.Rate < 0 || c.Workers < 0 {
		return sc, fmt.Errorf("config: Calls is %d, Rate %v and Workers %d; want 0 or more", c.Calls, c.Rate, c.Workers)
	}
	c.Scenario, c.Calls = cmp.Or(c.Scenario, all[0].selectionName()), cmp.Or(c.Calls, defaultCalls)
	return FindByName("scenario", all, c.Scenario)
}

// callForSelected calls the function f for each contender that the config selects from all, at the same time. It returns
// these contenders, and the results and the errors of f in the order of the contenders. err means that a name is unknown.
func callForSelected[E, C, R any](c Config, all []Contender[E, C], f func(Contender[E, C]) (R, error)) (selected []Contender[E, C], results []R, errs []error, err error) {
	if selected, err = SelectByName("contender", all, c.Contenders); err != nil {
		return nil, nil, nil, err
	}
	results, errs = make([]R, len(selected)), make([]error, len(selected))
	var running sync.WaitGroup
	for i, one := range selected {
		running.Go(func() {
			if results[i], errs[i] = f(one); errs[i] != nil {
				errs[i] = fmt.Errorf("%s: %w", one.Name, errs[i])
			}
		})
	}
	running.Wait()
	return selected, results, errs, nil
}

// StartAll calls start at the same time for all contenders that the config selects, and returns the results. It skips and
// reports DNS servers of other projects that do not start, and missing programs. It returns other errors. If no contender
// starts, it returns the errors of all.
func StartAll[E, C, S any](c Config, all []Contender[E, C], start func(Contender[E, C]) (S, error)) (started []S, err error) {
	selected, results, errs, err := callForSelected(c, all, start)
	var skipped []error
	for i, one := range selected {
		switch {
		case errs[i] == nil:
			started = append(started, results[i])
		case errors.Is(errs[i], netsim.ErrUnsupported):
			return nil, errs[i]
		case dnsserver.PeerOf(one.Name) == "" && !errors.Is(errs[i], exec.ErrNotFound):
			err = errors.Join(err, errs[i])
		default:
			skipped = append(skipped, errs[i])
			c.SkipContender(errs[i])
		}
	}
	if len(started) == 0 {
		err = errors.Join(append(skipped, err)...)
	}
	return started, err
}

// MeasureAll calls measure at the same time for all contenders that the config selects, and returns the results. If ctx
// ends, it returns the results so far and the error of ctx.
func MeasureAll[E, C, R any](ctx context.Context, c Config, all []Contender[E, C], measure func(Contender[E, C]) (R, error)) ([]R, error) {
	_, rows, errs, err := callForSelected(c, all, measure)
	if ctx.Err() != nil {
		return rows, ctx.Err()
	}
	return rows, errors.Join(append(errs, err)...)
}
