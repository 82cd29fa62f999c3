// Objectstore hedges reads from an object store, with limits on the hedges of a
// read and of a second, a limit on connections, settings from a file, and counters.
// Programs above S3 and GCS otherwise write all of this by hand.
//
//	go run ./examples/objectstore
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net/http"

	"github.com/gohedge/hedge"
)

// A program would read this from its configuration file.
const settings = `{
	"max_hedges":            1,
	"max_hedges_per_second": 200,
	"budget_percent":        5,
	"min_delay":             "5ms"
}`

func main() {
	log.SetFlags(0)
	conns := flag.Int("conns", 2*workers, "largest `number` of connections; hedges have as many again")
	flag.Parse()
	store := newStore()
	defer store.Close()

	config := hedge.DefaultConfig()
	if err := json.Unmarshal([]byte(settings), &config); err != nil {
		log.Fatal(err)
	}
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.MaxConnsPerHost = *conns // a loser that is not cancelled keeps its connection until it ends
	base.MaxIdleConnsPerHost = *conns
	hedged, err := hedge.NewWithConfig(base, config, hedge.WithName("objects"))
	if err != nil {
		log.Fatal(err) // which field, which value
	}

	for _, c := range []struct {
		name      string
		transport http.RoundTripper
	}{{"plain", base}, {"hedged", hedged}} {
		took, err := readAll(&http.Client{Transport: c.transport}, store.URL)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%-7s p50 %6v   p99 %6v   max %6v\n", c.name, took[reads/2], took[reads*99/100], took[reads-1])
	}
	for _, k := range hedged.Snapshot().Keys {
		fmt.Printf("\n%d reads, %d hedges (%.1f %%), %d won, %d refused by the budget or the limit; hedged after %v\n",
			k.Requests, k.Hedges, 100*float64(k.Hedges)/float64(k.Requests), k.Wins, k.Denied[hedge.DeniedBudget], rounded(k.Delays))
	}
}
