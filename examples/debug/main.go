// Debug serves the page that shows what hedging knows and does, makes some
// traffic, and prints the main numbers of the page, which it reads as JSON.
//
//	go run ./examples/debug
//	go run ./examples/debug -addr localhost:8080   # keeps the page up for a browser
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/debug"
)

const workers = 10

func main() {
	log.SetFlags(0)
	addr := flag.String("addr", "", "`address` to serve the page on until interrupted")
	flag.Parse()
	shop := httptest.NewServer(http.HandlerFunc(shop))
	defer shop.Close()

	base := http.DefaultTransport.(*http.Transport).Clone()
	base.MaxIdleConnsPerHost = 2 * workers
	search := hedge.WithRoute("/search", hedge.Policy{}) // has a latency of its own
	live := hedge.New(base, hedge.WithName("shop"), search)
	shadow := hedge.New(base, hedge.WithName("shop, in shadow mode"), search, hedge.WithShadow())

	mux := http.NewServeMux()
	mux.Handle("/debug/hedge", debug.Handler(live, shadow)) // the page
	at := "127.0.0.1:0"
	if *addr != "" {
		at = *addr
	}
	listener, err := net.Listen("tcp", at)
	if err != nil {
		log.Fatal(err)
	}
	page := "http://" + listener.Addr().String() + "/debug/hedge"
	go func() { log.Fatal(http.Serve(listener, mux)) }()

	if *addr != "" {
		fmt.Println(page)
		for {
			load(shop.URL, live, shadow)
		}
	}
	load(shop.URL, live, shadow)
	if err := show(page + "?format=json"); err != nil {
		log.Fatal(err)
	}
}

// shop answers; one answer in thirty takes ten times as long, unless it is asked again.
func shop(w http.ResponseWriter, r *http.Request) {
	d := time.Duration(3+rand.IntN(5)) * time.Millisecond
	if r.URL.Path == "/search" {
		d *= 4
	}
	if rand.IntN(30) == 0 {
		d *= 10
	}
	select {
	case <-time.After(d):
		fmt.Fprint(w, "hello")
	case <-r.Context().Done():
	}
}

// load sends some requests through each transport, all at once.
func load(url string, transports ...*hedge.Transport) {
	var wg sync.WaitGroup
	for _, t := range transports {
		client := &http.Client{Transport: t}
		for range workers / len(transports) {
			wg.Go(func() {
				for i := range 150 {
					method, path := "GET", "/item"
					switch {
					case i%5 == 0:
						path = "/search"
					case i%7 == 0:
						method, path = "POST", "/order" // sent once
					}
					req, err := http.NewRequest(method, url+path, nil)
					if err != nil {
						log.Fatal(err)
					}
					resp, err := client.Do(req)
					if err != nil {
						log.Fatal(err)
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			})
		}
	}
	wg.Wait()
}

// show fetches the page and prints its main numbers.
func show(url string) error {
	resp, err := http.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var page debug.Page
	if err := json.NewDecoder(resp.Body).Decode(&page); err != nil {
		return err
	}
	for _, c := range page.Clients {
		fmt.Printf("%s: %d requests, %d never hedged, %d hedges sent, %d won\n",
			c.Name, c.Stats.TotalRequests, c.Stats.NotHedgeable, c.Stats.HedgesSent, c.Stats.HedgeWins)
		for _, k := range c.Keys {
			fmt.Printf("  %-22s %-8s p50 %6v  p99 %6v  after %v  would hedge %d, budget %.1f\n", k.Host, k.Route,
				k.P50.Round(100*time.Microsecond), k.P99.Round(100*time.Microsecond), rounded(k.Delays), k.Denied[hedge.DeniedShadow], k.Budget)
		}
	}
	return nil
}

// rounded returns the durations to a tenth of a millisecond.
func rounded(all []time.Duration) (short []time.Duration) {
	for _, d := range all {
		short = append(short, d.Round(100*time.Microsecond))
	}
	return short
}
