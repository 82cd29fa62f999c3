// Llmstream hedges the wait for the first token of a language model. Such a
// server sends the header at once and the first event much later, so the first
// byte decides which attempt wins. Its requests are POSTs. They are hedged because
// the route says that they are safe to repeat: a second answer costs money and has
// no other effect.
//
//	go run ./examples/llmstream
package main

import (
	"bufio"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gohedge/hedge"
)

const (
	prompts = 600
	workers = 20
)

func main() {
	log.SetFlags(0)
	server := httptest.NewServer(http.HandlerFunc(complete))
	defer server.Close()

	base := http.DefaultTransport.(*http.Transport).Clone()
	base.MaxIdleConnsPerHost = 2 * workers
	hedged := hedge.New(base, hedge.WithRoute("POST /v1/chat/completions", hedge.Policy{
		Hedgeable:     true, // although these are POSTs
		FirstByte:     true, // the header comes before the work is done
		BudgetPercent: 5,    // each hedge is paid for
	}))

	for _, c := range []struct {
		name      string
		transport http.RoundTripper
	}{{"plain", base}, {"hedged", hedged}} {
		first, err := ask(&http.Client{Transport: c.transport}, server.URL)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%-7s time to first token: p50 %6v   p99 %6v   max %6v\n",
			c.name, first[prompts/2], first[prompts*99/100], first[prompts-1])
	}
	for _, k := range hedged.Snapshot().Keys {
		if k.Route != "" {
			fmt.Printf("\n%s: %d asked, %.1f %% more load, %d hedges won; hedged after %v\n",
				k.Route, k.Requests, 100*float64(k.Hedges)/float64(k.Requests), k.Wins, rounded(k.Delays))
		}
	}
}

// complete streams a few tokens. One prompt in twenty-five waits in a queue
// before its first.
func complete(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		http.Error(w, "post a prompt", http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	stream := http.NewResponseController(w)
	_ = stream.Flush() // the header, at once
	d := time.Duration(20+rand.IntN(20)) * time.Millisecond
	if rand.IntN(25) == 0 {
		d *= 10
	}
	for _, token := range []string{"Take", "the", "first", "good", "answer.", "[DONE]"} {
		select {
		case <-time.After(d):
		case <-r.Context().Done(): // the hedge was faster: stop generating
			return
		}
		fmt.Fprintf(w, "data: %s\n\n", token)
		_ = stream.Flush()
		d = time.Millisecond
	}
}

// ask sends the prompts, reads every answer to its end, and returns how long
// each first token took, sorted.
func ask(client *http.Client, url string) ([]time.Duration, error) {
	first := make([]time.Duration, prompts)
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < prompts && errs[w] == nil; i += workers {
				first[i], errs[w] = answer(client, url)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(first)
	return first, nil
}

func answer(client *http.Client, url string) (first time.Duration, err error) {
	start := time.Now()
	req, err := http.NewRequest("POST", url+"/v1/chat/completions", strings.NewReader(`{"stream":true,"prompt":"How?"}`))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Accept", "text/event-stream")
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	events := bufio.NewScanner(resp.Body)
	for events.Scan() {
		token, ok := strings.CutPrefix(events.Text(), "data: ")
		if ok && first == 0 {
			first = time.Since(start).Round(100 * time.Microsecond)
		}
		if token == "[DONE]" {
			_, err = io.Copy(io.Discard, resp.Body)
			return first, err
		}
	}
	return 0, fmt.Errorf("the answer ended early: %s, %v", resp.Status, events.Err())
}

// rounded returns the durations to a tenth of a millisecond.
func rounded(all []time.Duration) (short []time.Duration) {
	for _, d := range all {
		short = append(short, d.Round(100*time.Microsecond))
	}
	return short
}
