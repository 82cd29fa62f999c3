// Limiter shows what a Limiter does for hedging where servers are busy: twenty of them, which
// work on one request at a time, finish what they have begun, and have 75 % of what they can do.
// It makes the same calls to three such services at once, so that all have the same machine.
//
//	go run ./examples/limiter
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohedge/hedge"
)

const (
	servers = 20
	load    = 0.75
	calls   = 3000
	mean    = 60 * time.Millisecond // of work
)

func main() {
	log.SetFlags(0)
	ways := []way{{name: "without hedging"}, {name: "hedged", hedged: true}, {name: "hedged, and Limiters", hedged: true, limited: true}}
	rows := make([]string, len(ways))
	var all sync.WaitGroup
	for i, w := range ways {
		all.Go(func() { rows[i] = w.row() })
	}
	all.Wait()
	fmt.Println("                             p50       p99    worked on, per call    left the queue   hedges turned away")
	for _, row := range rows {
		fmt.Println(row)
	}
}

// A way is how a service is called.
type way struct {
	name            string
	hedged, limited bool
}

// row makes the calls and says what came of them.
func (w way) row() string {
	s, err := start(w.limited)
	if err != nil {
		log.Fatal(err)
	}
	defer s.close()
	base := &http.Transport{Protocols: new(http.Protocols)}
	base.Protocols.SetUnencryptedHTTP2(true)
	defer base.CloseIdleConnections()
	var transport http.RoundTripper = &balancer{base, s.addrs}
	if w.hedged {
		transport = hedge.New(transport)
	}
	took := ask(&http.Client{Transport: transport})
	var left, refused int64
	for _, l := range s.limiters {
		n := l.Snapshot()
		left, refused = left+n.Left, refused+n.Refused
	}
	return fmt.Sprintf("%-22s %6.0f ms %6.0f ms %22.2f %16d %21d", w.name, ms(took[len(took)/2]), ms(took[len(took)*99/100]),
		float64(s.worked.Load())/calls, left, refused)
}

// ask makes calls at random times, and returns how long they took, sorted.
func ask(client *http.Client) []time.Duration {
	random := rand.New(rand.NewPCG(1, 2))
	took := make([]time.Duration, calls)
	var all sync.WaitGroup
	due := time.Now()
	for i := range took {
		due = due.Add(time.Duration(random.ExpFloat64() * float64(mean) / servers / load))
		time.Sleep(time.Until(due))
		all.Go(func() {
			begun := time.Now()
			ctx := context.WithValue(context.Background(), number{}, i)
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://service/", nil)
			if err != nil {
				log.Fatal(err)
			}
			resp, err := client.Do(req)
			if err != nil {
				log.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			took[i] = time.Since(begun)
		})
	}
	all.Wait()
	slices.Sort(took)
	return took
}

// number is the key of a call's number in its context.
type number struct{}

// balancer sends each attempt to a server at random, with work that differs as much. Both
// are the same whether or not there is hedging.
type balancer struct {
	http.RoundTripper
	addrs []string
}

func (b *balancer) RoundTrip(req *http.Request) (*http.Response, error) {
	i, _ := req.Context().Value(number{}).(int)
	attempt, _ := hedge.AttemptFromContext(req.Context())
	random := rand.New(rand.NewPCG(uint64(i), uint64(attempt.Number)))
	work := mean * 2 / 3
	if random.IntN(20) == 0 { // so that the mean is as said
		work = mean * 22 / 3
	}
	req = req.Clone(req.Context())
	req.Header.Set("Work", work.String())
	req.URL.Host = b.addrs[random.IntN(len(b.addrs))]
	return b.RoundTripper.RoundTrip(req)
}

// service is the servers, and what they did.
type service struct {
	addrs    []string
	limiters []*hedge.Limiter
	worked   atomic.Int64
	all      []*http.Server
}

func start(limited bool) (*service, error) {
	s := new(service)
	for range servers {
		var one sync.Mutex // a server works on one request at a time
		var handler http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			work, _ := time.ParseDuration(r.Header.Get("Work"))
			one.Lock()
			defer one.Unlock()
			s.worked.Add(1)
			time.Sleep(work)
			fmt.Fprint(w, "done")
		})
		if limited {
			limiter := hedge.NewLimiter(1)
			s.limiters = append(s.limiters, limiter)
			handler = limiter.Handler(handler)
		}
		listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		server := &http.Server{Handler: handler, Protocols: new(http.Protocols), ReadHeaderTimeout: time.Minute}
		server.Protocols.SetUnencryptedHTTP2(true)
		s.addrs, s.all = append(s.addrs, listener.Addr().String()), append(s.all, server)
		go func() { _ = server.Serve(listener) }() // until closed
	}
	return s, nil
}

func (s *service) close() {
	for _, server := range s.all {
		_ = server.Close()
	}
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }
