// Elsewhere measures what it is worth to send a hedge to another backend than its
// primary's: over gRPC with the balancer hedge_elsewhere, and over HTTP with WithReplicas.
//
//	go run ./benchmark/elsewhere                       # gRPC: 2, 3 and 10 backends, one of which stops 100 ms a second
//	go run ./benchmark/elsewhere -protocol http1,http2 # addresses of one host, over TLS
//	go run ./benchmark/elsewhere -protocol plain,http1,http2 -world stop,rotate,calm,dead -backends 3
//
// Real servers listen on loopback: on ports for gRPC, and on 127.0.0.1, 127.0.0.2 and so on
// for HTTP, which not every system has. Their answers take 3 to 7 ms. Ten callers wait 2 ms
// between calls. All strategies that hedge have the same budget, with the burst that -burst says. The
// columns: milliseconds that callers waited; hedges per 100 calls; how many of the first
// hedges went to the primary's backend; connections that the servers accepted; failed calls.
//
// The worlds:
//
//	stop    the first backend stops for 100 ms of each second; a new HTTP connection goes to the first address
//	rotate  the same, but each lookup has another address first
//	calm    one answer in a hundred takes ten times as long, whatever its backend
//	dead    the same, and the second backend cannot be reached: who dials it waits in vain
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/gohedge/hedge/benchmark/internal/virtual"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("elsewhere: ")
	if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		log.Fatal(err)
	}
}

const (
	callers = 10
	think   = 2 * time.Millisecond
	stop    = 100 * time.Millisecond // of each period
	period  = time.Second
)

// worlds are the names of what happens to backends.
var worlds = []string{"stop", "rotate", "calm", "dead"}

// protocols name how a fleet is reached.
var protocols = map[string]func(*fleet) ([]strategy, error){
	"grpc":  grpcStrategies,
	"plain": func(f *fleet) ([]strategy, error) { return httpStrategies(f, false, false) },
	"http1": func(f *fleet) ([]strategy, error) { return httpStrategies(f, true, false) },
	"http2": func(f *fleet) ([]strategy, error) { return httpStrategies(f, true, true) },
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("elsewhere", flag.ContinueOnError)
	protocolList := flags.String("protocol", "grpc", "comma-separated `names`: grpc, plain (HTTP/1.1), http1 (over TLS), http2")
	worldList := flags.String("world", "stop", "comma-separated `names`: "+strings.Join(worlds, ", "))
	backendList := flags.String("backends", "2,3,10", "comma-separated `numbers`")
	each := flags.Duration("for", 8*time.Second, "how `long` each strategy is measured")
	burst := flags.Duration("burst", 20*time.Second, "for hedge.WithBurst, of all that hedge")
	md := flags.Bool("md", false, "print the table as Markdown")
	if err := flags.Parse(args); err != nil {
		return err
	}
	t := newTable()
	for _, protocol := range strings.Split(*protocolList, ",") {
		strategies := protocols[protocol]
		if strategies == nil {
			return fmt.Errorf("-protocol %q is not known", protocol)
		}
		for _, world := range strings.Split(*worldList, ",") {
			if !slices.Contains(worlds, world) {
				return fmt.Errorf("-world %q is not one of %s", world, strings.Join(worlds, ", "))
			}
			for _, number := range strings.Split(*backendList, ",") {
				n, err := strconv.Atoi(number)
				if err != nil || n < 1 || n > 100 {
					return fmt.Errorf("-backends %q is not a number from 1 to 100", number)
				}
				f := newFleet(loopback{}, world, n, *burst)
				rows, err := f.measure(ctx, strategies, protocol, *each)
				f.close()
				if err != nil {
					return err
				}
				t.AppendRows(rows)
				t.AppendSeparator()
			}
		}
	}
	text := t.Render()
	if *md {
		text = t.RenderMarkdown()
	}
	_, err := fmt.Fprintln(out, text)
	return err
}

func newTable() table.Writer {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"protocol", "world", "backends", "strategy", "calls", "p50", "p99", "p99.9", "max", "hedges", "same backend", "connections", "failed"})
	return t
}

// A strategy is one way to call a fleet.
type strategy struct {
	name  string
	call  func(ctx context.Context, id int64) error
	close func()
}

// measure lets the strategies call the fleet, one after another.
func (f *fleet) measure(ctx context.Context, connect func(*fleet) ([]strategy, error), protocol string, each time.Duration) ([]table.Row, error) {
	strategies, err := connect(f)
	if err != nil {
		return nil, err
	}
	var rows []table.Row
	for _, s := range strategies {
		before := f.accepted.Load()
		f.hedges.Store(0)
		f.first.Store(0)
		f.same.Store(0)
		took, failed := f.load(ctx, s, each)
		s.close()
		at := func(q float64) string {
			return fmt.Sprintf("%.1f", float64(virtual.Quantile(took, q))/1e6)
		}
		rows = append(rows, table.Row{
			protocol, f.world, f.n, s.name, len(took), at(.5), at(.99), at(.999), at(1),
			fmt.Sprintf("%.2f", 100*float64(f.hedges.Load())/float64(len(took))),
			fmt.Sprintf("%d of %d", f.same.Load(), f.first.Load()), f.accepted.Load() - before, failed,
		})
	}
	return rows, nil
}

// A fleet is a number of backends, and what happens to them.
type fleet struct {
	net   network
	world string
	n     int
	burst time.Duration

	accepted, hedges, first, same atomic.Int64
	next                          atomic.Int64 // the number of a call

	mu        sync.Mutex
	primaries map[int64]int // the backend of each call's primary
	shut      []func()
}

func newFleet(n network, world string, backends int, burst time.Duration) *fleet {
	return &fleet{net: n, world: world, n: backends, burst: burst, primaries: make(map[int64]int)}
}

// onClose has f called at the end.
func (f *fleet) onClose(shut func()) { f.shut = append(f.shut, shut) }

func (f *fleet) close() {
	for _, shut := range slices.Backward(f.shut) {
		shut()
	}
}

// serve is what backend n does for an attempt of a call.
func (f *fleet) serve(ctx context.Context, n int, id int64, attempt int) error {
	f.mu.Lock()
	primary, known := f.primaries[id]
	if attempt == 0 {
		f.primaries[id] = n
	}
	f.mu.Unlock()
	if attempt > 0 {
		f.hedges.Add(1)
	}
	if attempt == 1 && known {
		f.first.Add(1)
		if primary == n {
			f.same.Add(1)
		}
	}
	wait := time.Duration(3+rand.IntN(4)) * time.Millisecond
	switch {
	case f.world == "calm" || f.world == "dead":
		if rand.IntN(100) == 0 {
			wait *= 10
		}
	case n == 0:
		if in := time.Duration(time.Now().UnixNano()) % period; in < stop {
			wait += stop - in
		}
	}
	select {
	case <-time.After(wait):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// load makes calls for so long, and returns how long they took, sorted.
func (f *fleet) load(ctx context.Context, s strategy, each time.Duration) (took []time.Duration, failed int) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	end := time.Now().Add(each)
	for range callers {
		wg.Go(func() {
			for time.Now().Before(end) {
				start := time.Now()
				err := s.call(ctx, f.next.Add(1))
				d := time.Since(start)
				mu.Lock()
				took = append(took, d)
				if err != nil {
					failed++
				}
				mu.Unlock()
				time.Sleep(think)
			}
		})
	}
	wg.Wait()
	slices.SortFunc(took, cmp.Compare)
	return took, failed
}
