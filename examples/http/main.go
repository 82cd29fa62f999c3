// Http shows what hedging does to a slow service: it starts one on loopback,
// calls it with and without hedging, and prints the percentiles.
//
//	go run ./examples/http
package main

import (
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"time"

	"github.com/gohedge/hedge"
)

const (
	requests = 2000
	workers  = 10
)

func main() {
	log.SetFlags(0)
	// One answer in twenty takes ten times as long.
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d := time.Duration(3+rand.IntN(5)) * time.Millisecond
		if rand.IntN(20) == 0 {
			d *= 10
		}
		select {
		case <-time.After(d):
			fmt.Fprint(w, "hello")
		case <-r.Context().Done(): // the hedge was faster: stop working
		}
	}))
	defer server.Close()

	base := http.DefaultTransport.(*http.Transport).Clone()
	base.MaxIdleConnsPerHost = 2 * workers // a hedge also needs a connection

	var stats *hedge.Stats
	hedged := hedge.New(base, hedge.WithStats(&stats))

	for _, c := range []struct {
		name   string
		client *http.Client
	}{
		{"plain", &http.Client{Transport: base}},
		{"hedged", &http.Client{Transport: hedged}},
	} {
		took, err := load(c.client, server.URL)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%-7s p50 %6v   p95 %6v   p99 %6v   max %6v\n", c.name,
			took[requests/2], took[requests*95/100], took[requests*99/100], took[requests-1])
	}
	s := stats.Snapshot()
	fmt.Printf("\n%d of %d requests were hedged, %d hedges won: %.1f %% more load\n",
		s.HedgedRequests, s.TotalRequests, s.HedgeWins, 100*float64(s.HedgesSent)/float64(s.TotalRequests))
	for _, k := range hedged.Snapshot().Keys {
		fmt.Printf("%s is hedged after %v\n", k.Host, rounded(k.Delays))
	}
}

// load makes the requests and returns how long each took, sorted.
func load(client *http.Client, url string) ([]time.Duration, error) {
	took := make([]time.Duration, requests)
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < requests; i += workers {
				start := time.Now()
				resp, err := client.Get(url)
				if err != nil {
					errs[w] = err
					return
				}
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if err != nil {
					errs[w] = err
					return
				}
				took[i] = time.Since(start).Round(100 * time.Microsecond)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(took)
	return took, nil
}

// rounded returns the durations to a tenth of a millisecond.
func rounded(all []time.Duration) (short []time.Duration) {
	for _, d := range all {
		short = append(short, d.Round(100*time.Microsecond))
	}
	return short
}
