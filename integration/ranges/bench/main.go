// Bench reads ranges of a large object from a local server, some of whose answers are late or stall, by package rangeread and by the
// clients of object stores, in turns. It prints the tables of docs/design/benchmarks-ranges.md.
//
//	go -C integration run ./ranges/bench          # five minutes
//	go -C integration run ./ranges/bench -quick   # seconds; the figures mean nothing
//	go -C integration run ./ranges/bench -only sequential
//	go -C integration run ./ranges/bench -only random -at-once 1
//
// The server is a process of its own. It answers as S3 and as the XML API of Google Cloud Storage. One answer in a hundred is a second
// late, and the body of one in a hundred stalls for a second. The sequence of these faults is the same for all, request by request;
// so whoever sends more requests meets more of them.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
)

// A plan says how much is measured.
type plan struct {
	size    int64 // of the object
	part    int   // bytes of a read
	reads   int   // of a strategy, in a round
	rounds  int
	workers int    // reads at the same time
	runs    int    // through the whole object, of each strategy
	only    string // the kind of reads that is measured: random or sequential; "": both
	seed    uint64
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	if text := os.Getenv(serves); text != "" {
		size, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return err
		}
		return serve(size)
	}
	p := plan{size: 1 << 30, part: 1 << 20, reads: 500, rounds: 5, runs: 7}
	quick := flag.Bool("quick", false, "measure a small object for a short time")
	flag.Uint64Var(&p.seed, "seed", 1, "`number` that the offsets and the faults follow from")
	flag.IntVar(&p.workers, "at-once", 4, "`number` of random reads at the same time")
	flag.StringVar(&p.only, "only", "", "measure `random` reads only, or sequential ones")
	flag.Parse()
	if p.workers < 1 {
		return fmt.Errorf("-at-once is %d, want at least 1", p.workers)
	}
	switch p.only {
	case "", "random", "sequential":
	default:
		return fmt.Errorf("-only is %q, want random or sequential", p.only)
	}
	if *quick {
		p = quickly(p)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := p.measure(ctx, os.Stdout); err != nil {
		return err
	}
	fmt.Println(line(strings.Join(append([]string{"go -C integration run ./ranges/bench"}, os.Args[1:]...), " ")))
	return nil
}

// quickly is a plan of seconds.
func quickly(p plan) plan {
	p.size, p.part, p.reads, p.rounds, p.runs = 32<<20, 256<<10, 60, 1, 1
	return p
}

// measure writes each table as soon as it is measured.
func (p plan) measure(ctx context.Context, to io.Writer) error {
	address, stop, err := start(ctx, p.size)
	if err != nil {
		return err
	}
	defer stop()
	if err := os.Setenv("STORAGE_EMULATOR_HOST", "http://"+address); err != nil { // for Google's client
		return err
	}
	for _, bucket := range []string{"faulty", "far"} {
		if p.only == "sequential" {
			break
		}
		rows, err := p.random(ctx, address, bucket)
		if err != nil {
			return err
		}
		fmt.Fprint(to, p.randomTable(bucket, rows))
	}
	if p.only == "random" {
		return nil
	}
	passes, err := p.sequential(ctx, address)
	if err != nil {
		return err
	}
	fmt.Fprint(to, p.sequentialTable(passes))
	return nil
}

// again makes the server begin its faults from the start.
func again(ctx context.Context, address string, seed uint64) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("http://%s/?seed=%d", address, seed), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
