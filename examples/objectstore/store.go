package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"time"
)

const (
	reads   = 2000
	workers = 32
	objects = 100
	size    = 64 << 10
)

// newStore starts an object server. Three reads in a hundred are stragglers, and
// another read of the same object is not.
func newStore() *httptest.Server {
	object := make([]byte, size)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /bucket/{name}", func(w http.ResponseWriter, r *http.Request) {
		d := time.Duration(10+rand.IntN(10)) * time.Millisecond
		if rand.IntN(100) < 3 {
			d *= 10
		}
		select {
		case <-time.After(d):
			_, _ = w.Write(object)
		case <-r.Context().Done(): // the other read was faster: stop working
		}
	})
	return httptest.NewServer(mux)
}

// readAll reads objects and returns how long each read took, sorted.
func readAll(client *http.Client, url string) ([]time.Duration, error) {
	took := make([]time.Duration, reads)
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < reads && errs[w] == nil; i += workers {
				start := time.Now()
				errs[w] = read(client, fmt.Sprintf("%s/bucket/%d", url, i%objects))
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

func read(client *http.Client, url string) error {
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err == nil && (resp.StatusCode != http.StatusOK || n != size) {
		err = fmt.Errorf("%s: %s, %d bytes", url, resp.Status, n)
	}
	return err
}

// rounded returns the durations to a tenth of a millisecond.
func rounded(all []time.Duration) (short []time.Duration) {
	for _, d := range all {
		short = append(short, d.Round(100*time.Microsecond))
	}
	return short
}
