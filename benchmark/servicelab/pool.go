package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge/benchmark/internal/bubble"
	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/netsim"
)

const (
	lookupRate = 100 // per second
	lookups    = 3000
)

// A lookupRow is the result of DNS lookups by a pool of resolver threads, as in the C library, or by a dnshedge.Client.
type lookupRow struct {
	P50, P99, Max time.Duration
	Failed        int64
}

// measureLookups measures lookups by a pool with the given number of resolver threads. 0: by a dnshedge.Client.
var measureLookups = bubble.New("pool", runLookups)

// printLookupTable writes a table of the latencies of DNS lookups by three thread pools and by a dnshedge.Client to w.
func printLookupTable(ctx context.Context, w io.Writer) error {
	fmt.Fprint(w, "\n| 100 lookups a second | p50 ms | p99 ms | longest ms | failed |\n|---|--:|--:|--:|--:|\n")
	for _, threads := range []int{4, 16, 64, 0} {
		r, err := measureLookups.Run(ctx, threads)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("%d resolver threads", threads)
		if threads == 0 {
			name = "`dnshedge.Client`"
		}
		fmt.Fprintf(w, "| %s | %.0f | %.0f | %.0f | %d |\n", name, millis(r.P50), millis(r.P99), millis(r.Max), r.Failed)
	}
	return nil
}

// runLookups looks up 100 new names a second, while one packet in a hundred is lost each way. It measures a
// dnshedge.Client if threads is 0. Otherwise so many threads make the lookups, as with getaddrinfo: each is occupied by
// one lookup until it ends. They use Go's resolver, which sends a lost query again after 5 s, as getaddrinfo does too.
func runLookups(ctx context.Context, threads int) (row lookupRow, err error) {
	n, nameserver, err := startNetwork(netsim.Profile{Delay: netsim.Constant(5 * ms), Loss: 0.01})
	if err != nil {
		return row, err
	}
	defer n.Close()
	defer nameserver.Close()
	client := &dnshedge.Client{Upstreams: []dnshedge.Upstream{{Addr: "nameserver:53"}}, Dialer: n.Host("client")}
	defer client.Close()
	pool, resolver := make(chan struct{}, lookups), client.Resolver()
	if threads > 0 {
		pool, resolver = make(chan struct{}, threads), newGoResolver(n)
	}
	latencies := make([]time.Duration, lookups)
	var failed atomic.Int64
	lab.Load{Interarrival: lab.ConstantRate(lookupRate)}.Run(ctx, lookups, func(i int) {
		start := time.Now()
		pool <- struct{}{}
		if _, err := resolver.LookupNetIP(ctx, "ip", fmt.Sprintf("n%d.example.", i)); err != nil {
			failed.Add(1)
		}
		<-pool
		latencies[i] = time.Since(start)
	})
	slices.Sort(latencies)
	return lookupRow{P50: latency.Quantile(latencies, 0.5), P99: latency.Quantile(latencies, 0.99), Max: latencies[lookups-1], Failed: failed.Load()}, nil
}
