package hedge_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

// TestMain fails if an example leaves a goroutine behind. Examples that show what is logged have loggers of their own.
func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	doubles.RunWithoutLeaks(m, http.DefaultClient.CloseIdleConnections)
}

type roundTripper = doubles.RoundTripperFunc

// stuckOnce is a service whose first answer never comes.
func stuckOnce() http.RoundTripper {
	var n atomic.Int32
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		if n.Add(1) == 1 {
			<-req.Context().Done()
			return nil, req.Context().Err()
		}
		return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("hello"))}, nil
	})
}

func Example() {
	client := &http.Client{Transport: hedge.New(http.DefaultTransport)}

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	defer server.Close()
	resp, err := client.Get(server.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status)
	// Output: 200 OK
}

func ExampleNew() {
	var stats *hedge.Stats
	client := &http.Client{Transport: hedge.New(stuckOnce(),
		hedge.WithInitialDelay(10*time.Millisecond), // to hedge the very first call
		hedge.WithStats(&stats),
	)}
	resp, err := client.Get("http://catalog.test/item")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	fmt.Printf("%s, hedged=%d won=%d\n", body, stats.HedgedRequests.Load(), stats.HedgeWins.Load())
	// Output: hello, hedged=1 won=1
}

func ExampleNewWithConfig() {
	config := hedge.DefaultConfig()
	config.BudgetPercent = 500 // from a file, say
	_, err := hedge.NewWithConfig(http.DefaultTransport, config)
	fmt.Println(err)
	// Output: hedge: Config.BudgetPercent: 500 is not in [0, 400]
}

func ExampleWrap() {
	client := hedge.Wrap(&http.Client{Timeout: 5 * time.Second})
	fmt.Println(client.Timeout)
	// Output: 5s
}

func ExampleDo() {
	hedger := hedge.NewHedger()
	ctx := hedge.WithDelay(context.Background(), 10*time.Millisecond) // to hedge the very first call
	var n atomic.Int32
	answer, err := hedge.Do(ctx, hedger, "catalog", func(ctx context.Context) (string, error) {
		if n.Add(1) == 1 {
			<-ctx.Done() // stuck
			return "", ctx.Err()
		}
		return "hello", nil
	})
	fmt.Println(answer, err)
	// Output: hello <nil>
}

// A client that ignores its context gains nothing by Do, which waits for it.
func ExampleDoDetached() {
	hedger := hedge.NewHedger()
	asked := make(chan int, 8)
	get := func(context.Context) (string, error) { // a client that takes no context
		if asked <- 1; len(asked) == 1 {
			time.Sleep(500 * time.Millisecond) // the first connection is stuck
		}
		return "value", nil
	}
	discard := func(string) {} // nothing to close

	ctx := hedge.WithDelay(context.Background(), 5*time.Millisecond) // known after ten calls, as a rule
	start := time.Now()
	value, err := hedge.DoDetached(ctx, hedger, "cache", get, discard)
	fmt.Println(value, err, time.Since(start) < 400*time.Millisecond)
	time.Sleep(time.Second) // here, for the test: the first call goes on for a while
	// Output: value <nil> true
}

func ExampleNewBudget() {
	budget := hedge.NewBudget(5, 20) // 5 % of the requests of both
	search := hedge.New(nil, hedge.WithBudget(budget))
	images := hedge.New(nil, hedge.WithBudget(budget))
	_, _ = search, images
	fmt.Println(budget.Tokens())
	// Output: 20
}

func ExampleAllowHedging() {
	// A POST is not hedged, unless it is known to only read.
	ctx := hedge.AllowHedging(context.Background())
	req, _ := http.NewRequestWithContext(ctx, "POST", "http://search.test/_search", strings.NewReader(`{"query": {}}`))
	resp, err := hedge.New(stuckOnce(), hedge.WithInitialDelay(10*time.Millisecond)).RoundTrip(req)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 200
}

func ExampleWithoutHedging() {
	ctx, cancel := context.WithTimeout(hedge.WithoutHedging(context.Background()), 50*time.Millisecond)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "GET", "http://catalog.test/export", nil)
	_, err := hedge.New(stuckOnce(), hedge.WithInitialDelay(10*time.Millisecond)).RoundTrip(req)
	fmt.Println(err)
	// Output: context deadline exceeded
}

func ExampleTransport_Update() {
	transport := hedge.New(http.DefaultTransport)
	err := transport.Update(func(c *hedge.Config) { c.BudgetPercent = 2 })
	fmt.Println(err, transport.Snapshot().Config.BudgetPercent)
	// Output: <nil> 2
}

func ExampleTransport_SetEnabled() {
	transport := hedge.New(http.DefaultTransport)
	transport.SetEnabled(false)
	fmt.Println(transport.Snapshot().Enabled)
	// Output: false
}

func ExampleLatencyEstimate() {
	transport := hedge.New(http.DefaultTransport)
	fmt.Println(hedge.LatencyEstimate(transport, "catalog.test", 0.99)) // nothing known yet
	// Output: 0s
}

// logger is an Observer that only wants to hear of hedges.
type logger struct{ hedge.NopObserver }

func (logger) AttemptDone(_ context.Context, key hedge.KeyInfo, a hedge.AttemptResult) {
	if a.Outcome != hedge.Lost { // losers may end later than their call
		fmt.Println(key.Client, key.Host, a.Number, a.Outcome)
	}
}

func ExampleWithObserver() {
	client := &http.Client{Transport: hedge.New(stuckOnce(),
		hedge.WithInitialDelay(10*time.Millisecond), // to hedge the very first call
		hedge.WithName("shop"),
		hedge.WithObserver(logger{}),
	)}
	resp, err := client.Get("http://catalog.test/item")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	// Output:
	// shop catalog.test 1 won
}

func ExampleAttemptFromContext() {
	inner := roundTripper(func(req *http.Request) (*http.Response, error) {
		if a, ok := hedge.AttemptFromContext(req.Context()); ok && a.Hedge() {
			req = req.Clone(req.Context())
			req.Header.Set("X-Priority", "low") // servers that are busy may drop it first
		}
		return http.DefaultTransport.RoundTrip(req)
	})
	client := &http.Client{Transport: hedge.New(inner)}
	fmt.Println(client.Transport != nil)
	// Output: true
}

func ExampleWithShadow() {
	transport := hedge.New(http.DefaultTransport, hedge.WithShadow())
	// After a day of traffic:
	for _, key := range transport.Snapshot().Keys {
		fmt.Printf("%s: %d hedges would have won %d times and saved %v\n", key.Host, key.Denied[hedge.DeniedShadow], key.ShadowWins, key.Saved)
	}
	fmt.Println(transport.Snapshot().Shadow)
	// Output: true
}

func ExampleWithRoute() {
	transport := hedge.New(stuckOnce(),
		hedge.WithRoute("POST /_search", hedge.Policy{Hedgeable: true, Delay: 10 * time.Millisecond}), // it only reads
		hedge.WithRoute("GET /export/", hedge.Policy{Off: true}))                                      // too expensive to send twice
	client := &http.Client{Transport: transport}
	resp, err := client.Post("http://catalog.test/_search", "text/plain", strings.NewReader("lamps"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	for _, key := range transport.Snapshot().Keys { // the host, and each route that was used
		fmt.Printf("%s %q %d\n", key.Host, key.Route, key.Hedges)
	}
	// Output:
	// catalog.test "" 0
	// catalog.test "POST /_search" 1
}

func ExampleNewLimiter() {
	// The server works on 64 requests at a time. The others wait, and leave if their callers do.
	limit := hedge.NewLimiter(64, hedge.WithName("catalog"))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /item", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "lamp") })
	mux.HandleFunc("GET /changes", func(_ http.ResponseWriter, r *http.Request) {
		limit.Release(r.Context()) // this may go on for hours, and does little
	})
	server := httptest.NewServer(limit.Handler(mux))
	defer server.Close()

	resp, err := http.Get(server.URL + "/item")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	s := limit.Snapshot()
	fmt.Println(resp.Header.Get("Hedge-Limit"), s.Limit, s.Worked, s.Left, s.Refused)
	// Output: 1 64 1 0 0
}

func ExampleWithReplicas() {
	// The name stands for three replicas; a hedge avoids the one that its primary went to.
	client := hedge.Wrap(nil, hedge.WithReplicas(net.DefaultResolver), hedge.WithBurst(10*time.Second))
	fmt.Println(client.Transport.(*hedge.Transport).Snapshot().Config.Burst)
	// Output: 10s
}

func ExampleWithFirstByte() {
	// The server sends the header at once, and the first word when it has one.
	var n atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		if n.Add(1) == 1 {
			<-r.Context().Done() // stuck
			return
		}
		fmt.Fprint(w, "hello")
	}))
	defer server.Close()
	client := &http.Client{Transport: hedge.New(http.DefaultTransport,
		hedge.WithFirstByte(), hedge.WithInitialDelay(10*time.Millisecond))} // to hedge the very first call
	resp, err := client.Get(server.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	fmt.Println(string(body), err)
	// Output: hello <nil>
}

func ExampleTransport_Warm() {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	transport := hedge.New(http.DefaultTransport)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := transport.Warm(ctx, 2, server.URL) // any status will do
	fmt.Println(err)
	// Output: <nil>
}

func ExampleWithLogger() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{} // for this example only
			}
			return a
		},
	}))
	hedger := hedge.NewHedger(hedge.WithName("catalog"), hedge.WithLogger(logger))
	hedger.SetEnabled(false)
	if err := hedger.Update(func(c *hedge.Config) { c.BudgetPercent = 2 }); err != nil {
		fmt.Println(err)
	}
	// Output:
	// level=WARN msg="hedge: disabled" protocol=func client=catalog by=SetEnabled
	// level=INFO msg="hedge: settings changed" protocol=func client=catalog budget_percent.from=10 budget_percent.to=2
}

func ExampleConfig() {
	config := hedge.DefaultConfig()
	err := json.Unmarshal([]byte(`{"budget_percent": 5, "min_delay": "10ms"}`), &config)
	fmt.Println(config.BudgetPercent, config.MinDelay, err)
	// Output: 5 10ms <nil>
}

func ExampleTransport_Import() {
	transport := hedge.New(http.DefaultTransport)
	var file bytes.Buffer // or os.Create, before the process ends
	if err := transport.Export(&file); err != nil {
		fmt.Println(err)
	}
	restarted := hedge.New(http.DefaultTransport)
	if err := restarted.Import(&file); err != nil {
		fmt.Println(err) // and go on: it starts cold
	}
	fmt.Println(restarted.Import(strings.NewReader("something else")))
	// Output: hedge: Import: this is no export of learned latencies
}

func ExampleMiddleware() {
	client := hedge.Wrap(nil, hedge.WithAttemptHeader(hedge.AttemptHeader))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /page", func(w http.ResponseWriter, r *http.Request) {
		// Hedged, unless this request is a hedge itself.
		req, _ := http.NewRequestWithContext(r.Context(), "GET", "http://catalog.test/item", nil)
		resp, err := client.Do(req)
		if err != nil {
			http.Error(w, "no answer", http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		_, _ = io.Copy(w, resp.Body)
	})
	_ = http.Server{Handler: hedge.Middleware(hedge.AttemptHeader)(mux)}
}
