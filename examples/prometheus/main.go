// Prometheus makes hedged calls, scrapes its own metrics once, and prints what
// Prometheus would see.
//
//	go -C examples/prometheus run .
package main

import (
	"bufio"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/hedgeprom"
)

const workers = 10

func main() {
	log.SetFlags(0)
	shop := httptest.NewServer(http.HandlerFunc(shop))
	defer shop.Close()

	metrics := hedgeprom.New()
	registry := prometheus.NewRegistry() // or prometheus.DefaultRegisterer
	registry.MustRegister(metrics)
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.MaxIdleConnsPerHost = 2 * workers
	client := &http.Client{Transport: hedge.New(base, hedge.WithName("shop"), hedge.WithObserver(metrics))}

	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	server := httptest.NewServer(mux)
	defer server.Close()

	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range 150 {
				if err := get(client, shop.URL, io.Discard); err != nil {
					log.Fatal(err)
				}
			}
		})
	}
	wg.Wait()

	var scraped strings.Builder
	if err := get(http.DefaultClient, server.URL+"/metrics", &scraped); err != nil {
		log.Fatal(err)
	}
	lines := bufio.NewScanner(strings.NewReader(scraped.String()))
	for lines.Scan() {
		if line := lines.Text(); strings.HasPrefix(line, "hedge_") && !strings.Contains(line, "_bucket{") {
			fmt.Println(line)
		}
	}
}

// shop answers; one answer in thirty takes ten times as long, unless it is asked again.
func shop(w http.ResponseWriter, r *http.Request) {
	d := time.Duration(3+rand.IntN(5)) * time.Millisecond
	if rand.IntN(30) == 0 {
		d *= 10
	}
	select {
	case <-time.After(d):
		fmt.Fprint(w, "hello")
	case <-r.Context().Done():
	}
}

func get(client *http.Client, url string, to io.Writer) error {
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(to, resp.Body)
	return err
}
