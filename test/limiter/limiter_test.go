package limiter_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/observe"
)

// desk is a handler that works on each request for the time that its path states.
type desk struct {
	mu    sync.Mutex
	begun []string
	most  int
	now   int
}

func (d *desk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	d.begun = append(d.begun, r.URL.Path[1:])
	d.now++
	d.most = max(d.most, d.now)
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		d.now--
		d.mu.Unlock()
	}()
	time.Sleep(100 * ms) // deaf: it works on what is cancelled
	_, _ = io.WriteString(w, "done")
}

func (d *desk) order() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.begun)
}

// visit sends a request in the background, waits until all goroutines are blocked, and returns the recorder of the response.
func visit(ctx context.Context, h http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(ctx, "GET", "/"+path, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	go h.ServeHTTP(w, r)
	synctest.Wait()
	return w
}

func TestLimiterLimitsConcurrencyFirstInFirstOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, l := new(desk), hedge.NewLimiter(2, hedge.WithName("shop"))
		h := l.Handler(d)
		var answers []*httptest.ResponseRecorder
		var want []string
		for i := range 9 {
			want = append(want, fmt.Sprint(i))
			answers = append(answers, visit(t.Context(), h, want[i]))
		}
		assert.Equal(t, hedge.LimiterSnapshot{Name: "shop", Limit: 2, Working: 2, Waiting: 7, Worked: 2}, l.Snapshot())
		time.Sleep(time.Second)
		synctest.Wait()
		for i, pair := range slices.Collect(slices.Chunk(d.order(), 2)) {
			assert.ElementsMatch(t, want[2*i:min(2*i+2, 9)], pair)
		}
		assert.Equal(t, 2, d.most)
		for _, w := range answers {
			assert.Equal(t, 200, w.Code)
			assert.Equal(t, "1", w.Header().Get("Hedge-Limit"))
			assert.Empty(t, w.Header().Get("Hedge-Refused"))
		}
		assert.Equal(t, hedge.LimiterSnapshot{Name: "shop", Limit: 2, Worked: 9}, l.Snapshot())
	})
}

func TestCanceledRequestInQueueDoesNotReachHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, l := new(desk), hedge.NewLimiter(1)
		h := l.Handler(d)
		visit(t.Context(), h, "first")
		ctx, cancel := context.WithCancel(t.Context())
		gone := visit(ctx, h, "gone")
		visit(t.Context(), h, "last")
		assert.EqualValues(t, 2, l.Snapshot().Waiting)
		cancel()
		synctest.Wait()
		assert.EqualValues(t, 1, l.Snapshot().Waiting, "the request leaves the queue at once")
		assert.Equal(t, 503, gone.Code, "middleware of the server may have canceled the request, so the client still reads the response")
		assert.Empty(t, gone.Header().Get("Hedge-Refused"))
		visit(ctx, h, "gone-before")
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, []string{"first", "last"}, d.order())
		assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 2, Left: 2}, l.Snapshot())
	})
}

func TestLimiterRefusesHedgesAboveFourTimesLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, l := new(desk), hedge.NewLimiter(2)
		h := l.Handler(d)
		for i := range 8 {
			visit(t.Context(), h, fmt.Sprint(i))
		}
		visit(t.Context(), h, "hedge", "Hedge-Attempt", "1") // eight are not more than four times two
		refused := visit(t.Context(), h, "refused", "Hedge-Attempt", "2")
		assert.Equal(t, 503, refused.Code)
		assert.Equal(t, "1", refused.Header().Get("Hedge-Refused"))
		assert.Equal(t, "1", refused.Header().Get("Hedge-Limit"))
		assert.Empty(t, refused.Body.String(), "the connection can be reused without reading the body")
		assert.Equal(t, 503, visit(t.Context(), h, "odd", "Hedge-Attempt", "many").Code)
		visit(t.Context(), h, "none", "Hedge-Attempt", "0") // which is no hedge
		visit(t.Context(), h, "unmarked")
		time.Sleep(time.Second)
		synctest.Wait()
		assert.ElementsMatch(t, []string{"0", "1", "2", "3", "4", "5", "6", "7", "hedge", "none", "unmarked"}, d.order())
		assert.Equal(t, hedge.LimiterSnapshot{Limit: 2, Worked: 11, Refused: 2}, l.Snapshot())
	})
}

// TestLimiterRefusesGRPCHedgeOfHTTPClientWith503 marks the hedge by an HTTP client: a proxy that hedges gRPC calls of its clients, and
// takes status 200 for a success.
func TestLimiterRefusesGRPCHedgeOfHTTPClientWith503(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := hedge.NewLimiter(1)
		h := l.Handler(new(desk))
		for range 5 {
			visit(t.Context(), h, "work")
		}
		for name, c := range map[string]struct {
			marks []string
			code  int
		}{
			"of an HTTP client":                  {[]string{"Hedge-Attempt"}, 503},
			"of an HTTP client for a gRPC retry": {[]string{"Hedge-Attempt", "Grpc-Previous-Rpc-Attempts"}, 503},
			"of a gRPC client":                   {[]string{"Grpc-Previous-Rpc-Attempts"}, 200},
		} {
			w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "POST", "/a.B/C", nil)
			r.ProtoMajor = 2
			r.Header.Set("Content-Type", "application/grpc")
			for _, mark := range c.marks {
				r.Header.Set(mark, "1")
			}
			h.ServeHTTP(w, r)
			assert.Equal(t, c.code, w.Code, name)
			assert.Equal(t, c.code == 200, w.Header().Get("Grpc-Status") == "14", name)
			assert.Equal(t, "1", w.Header().Get("Hedge-Refused"), name)
		}
		assert.EqualValues(t, 3, l.Snapshot().Refused)
		time.Sleep(time.Minute)
	})
}

func TestLimiterWithLargestLimitRefusesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, l := new(desk), hedge.NewLimiter(math.MaxInt)
		visit(t.Context(), l.Handler(d), "primary")
		visit(t.Context(), l.Handler(d), "hedge", "Hedge-Attempt", "1")
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, hedge.LimiterSnapshot{Limit: math.MaxInt, Worked: 2}, l.Snapshot())
	})
}

func TestSlotIsReleasedIfHandlerPanicsOrExits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := hedge.NewLimiter(1)
		h := l.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { panic(r.URL.Path) }))
		for range 3 {
			assert.PanicsWithValue(t, "/x", func() { h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/x", nil)) })
		}
		assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 3}, l.Snapshot())
	})
}

func TestRequestThroughLimiterTwiceUsesOneSlot(t *testing.T) {
	l, other := hedge.NewLimiter(1), hedge.NewLimiter(1)
	h := l.Handler(other.Handler(l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		assert.EqualValues(t, 1, l.Snapshot().Working)
		assert.EqualValues(t, 1, other.Snapshot().Working)
	}))))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	assert.Equal(t, []string{"1"}, w.Header()["Hedge-Limit"])
	assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 1}, l.Snapshot())
	assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 1}, other.Snapshot())
}

func TestReleasedSlotIsFreeWhileHandlerRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := hedge.NewLimiter(1)
		goOn := make(chan struct{})
		h := l.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			l.Release(r.Context())
			l.Release(r.Context())
			<-goOn
		}))
		for range 5 {
			visit(t.Context(), h, "")
		}
		assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 5}, l.Snapshot())
		close(goOn)
		synctest.Wait()
		assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 5}, l.Snapshot(), "no slot is released twice")
		hedge.NewLimiter(1).Release(t.Context()) // does nothing
	})
}

// TestContextOfReleasedSlotAdmitsNoRequest calls other handlers with the context of a request. They pass the Limiter only while the request
// holds its slot.
func TestContextOfReleasedSlotAdmitsNoRequest(t *testing.T) {
	for name, given := range map[string]struct {
		release bool // before the handler returns
	}{"released": {release: true}, "handler has returned": {}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := hedge.NewLimiter(1)
				d := new(desk)
				again := l.Handler(d)
				var rest sync.WaitGroup
				h := l.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					if given.release {
						l.Release(r.Context())
					}
					for range 10 {
						rest.Go(func() {
							time.Sleep(ms)
							again.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(context.WithoutCancel(r.Context()), "GET", "/10ms", nil))
						})
					}
					if given.release {
						rest.Wait()
					}
				}))
				h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
				rest.Wait()
				assert.Equal(t, 1, d.most, "requests that run at a time")
				assert.Len(t, d.begun, 10)
				assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 11}, l.Snapshot())
			})
		})
	}
}

// TestSlotIsHeldWhileInnerHandlerRuns uses an http.TimeoutHandler, which returns before its inner handler.
func TestSlotIsHeldWhileInnerHandlerRuns(t *testing.T) {
	for _, release := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := hedge.NewLimiter(1)
			h := l.Handler(http.TimeoutHandler(l.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if release {
					l.Release(r.Context())
				}
				time.Sleep(time.Second)
			})), 100*ms, ""))
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			require.Equal(t, 503, w.Code)
			working := int64(1)
			if release {
				working = 0
			}
			assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Working: working, Worked: 1}, l.Snapshot())
			time.Sleep(time.Second)
			synctest.Wait()
			assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 1}, l.Snapshot())
		})
	}
}

func TestNewLimiterPanicsForInvalidArguments(t *testing.T) {
	assert.PanicsWithValue(t, "hedge: NewLimiter: n is 0, and must be at least 1", func() { hedge.NewLimiter(0) })
	assert.PanicsWithValue(t, "hedge: NewLimiter: n is -3, and must be at least 1", func() { hedge.NewLimiter(-3) })
	assert.PanicsWithValue(t, "hedge: Limiter.Handler: Handler is nil", func() { hedge.NewLimiter(1).Handler(nil) })
	const zero = "hedge: a zero Limiter is not usable: NewLimiter makes one"
	assert.PanicsWithValue(t, zero, func() { new(hedge.Limiter).Handler(http.NotFoundHandler()) })
	assert.PanicsWithValue(t, zero, func() { new(hedge.Limiter).Snapshot() })
	assert.NotNil(t, hedge.NewLimiter(1, nil))
}

// limiterEvents records events of a Limiter.
type limiterEvents struct {
	hedge.NopObserver
	mu  sync.Mutex
	all []string
}

func (o *limiterEvents) Limited(_ context.Context, limiter string, r observe.LimiterResult) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, fmt.Sprint(limiter, " ", r.Outcome, " ", r.Waited))
}

func (o *limiterEvents) take() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.all)
}

// rude is an observer that panics or ends its goroutine.
type rude struct {
	hedge.NopObserver
	exit bool
}

func (r rude) Limited(context.Context, string, observe.LimiterResult) {
	if r.exit {
		runtime.Goexit()
	}
	panic("rude")
}

func TestObserverReceivesEveryRequestOfLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := new(limiterEvents)
		l := hedge.NewLimiter(1, hedge.WithObserver(rude{}), hedge.WithObserver(o), hedge.WithName("shop"), hedge.WithLogger(slog.New(slog.DiscardHandler)))
		h := l.Handler(new(desk))
		ctx, cancel := context.WithTimeout(t.Context(), 30*ms)
		defer cancel()
		visit(t.Context(), h, "a")
		visit(ctx, h, "b")
		for range 4 {
			visit(t.Context(), h, "c")
		}
		visit(t.Context(), h, "d", "Hedge-Attempt", "1")
		time.Sleep(150 * ms)
		synctest.Wait()
		assert.Equal(t, []string{"shop worked 0s", "shop refused 0s", "shop left 30ms", "shop worked 100ms"}, o.take())
		time.Sleep(time.Second)
	})
}

func TestObserverThatEndsGoroutineHoldsNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := hedge.NewLimiter(1, hedge.WithObserver(rude{exit: true}), hedge.WithLogger(slog.New(slog.DiscardHandler)))
		h := l.Handler(new(desk))
		for range 3 {
			visit(t.Context(), h, "a")
		}
		assert.Equal(t, hedge.LimiterSnapshot{Limit: 1, Worked: 3}, l.Snapshot())
	})
}

func TestLimiterSnapshotHasFieldNamesInJSON(t *testing.T) {
	b, err := json.Marshal(hedge.LimiterSnapshot{Name: "n", Limit: 1, Working: 2, Waiting: 3, Worked: 4, Left: 5, Refused: 6})
	require.NoError(t, err)
	assert.JSONEq(t, `{"name":"n","limit":1,"working":2,"waiting":3,"worked":4,"left":5,"refused":6}`, string(b))
}

// TestLimiterCountsEveryRequestOnceAndReleasesItsSlot starts, cancels and ends requests at random.
func TestLimiterCountsEveryRequestOnceAndReleasesItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, requests = 3, 2000
		random := rand.New(rand.NewPCG(1, 2))
		l := hedge.NewLimiter(limit)
		var working atomic.Int64
		var reached, wentAway atomic.Int64
		h := l.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			reached.Add(1)
			if r.Context().Err() != nil {
				wentAway.Add(1)
			}
			assert.LessOrEqual(t, working.Add(1), int64(limit))
			defer working.Add(-1)
			work, _ := time.ParseDuration(r.Header.Get("Work"))
			time.Sleep(work)
			if work%2 == 0 {
				panic(http.ErrAbortHandler)
			}
		}))
		for range requests {
			ctx, cancel := context.WithCancel(t.Context())
			r := httptest.NewRequestWithContext(ctx, "GET", "/", nil)
			r.Header.Set("Work", time.Duration(random.IntN(int(30*ms))).String())
			if random.IntN(4) == 0 {
				r.Header.Set(hedge.AttemptHeader, "1")
			}
			time.AfterFunc(time.Duration(random.IntN(int(100*ms))), cancel)
			go func() {
				defer func() { _ = recover() }()
				h.ServeHTTP(httptest.NewRecorder(), r)
			}()
			time.Sleep(time.Duration(random.IntN(int(8 * ms))))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		s := l.Snapshot()
		assert.EqualValues(t, requests, s.Worked+s.Left+s.Refused)
		assert.Equal(t, reached.Load(), s.Worked)
		assert.Zero(t, wentAway.Load(), "a canceled request never reaches the handler")
		assert.Zero(t, s.Working+s.Waiting)
		for _, n := range []int64{s.Worked, s.Left, s.Refused} {
			assert.Positive(t, n, "%+v", s)
		}
	})
}

// TestMiddlewareSeesRequestFieldsThatHandlersSet checks that middleware before the Limiter, such as logs and metrics, sees the pattern,
// path values and form that handlers set.
func TestMiddlewareSeesRequestFieldsThatHandlersSet(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /shops/{shop}/items/{path...}", func(_ http.ResponseWriter, r *http.Request) { assert.NoError(t, r.ParseForm()) })
	mux.HandleFunc("/panics/{$}", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	mux.HandleFunc("/other/", func(_ http.ResponseWriter, r *http.Request) {
		r.Pattern = "/other/{id:[0-9]{2}}" // as other routers do
		r.SetPathValue("id", "42")
	})
	see := func(h http.Handler, method, url string) []any {
		r := httptest.NewRequest(method, url, strings.NewReader("in=body"))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		func() {
			defer func() { _ = recover() }()
			h.ServeHTTP(httptest.NewRecorder(), r)
		}()
		return []any{r.Pattern, r.PathValue("shop"), r.PathValue("path"), r.PathValue("id"), r.Form, r.PostForm}
	}
	limited := hedge.NewLimiter(1).Handler(mux)
	for _, url := range []string{"/shops/7/items/a/b?q=1", "/panics/", "/other/42", "/nothing"} {
		assert.Equal(t, see(mux, "POST", url), see(limited, "POST", url), url)
	}
	assert.Equal(t, "7", see(limited, "POST", "/shops/7/items/a/b?q=1")[1])
}

// TestHandlerBehindLimiterGetsTrailers also sends HTTP/1.1 trailers that are not declared.
func TestHandlerBehindLimiterGetsTrailers(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %v %q %q", body, err, r.Trailer.Get("Declared"), r.Trailer.Get("Sum"))
	})
	for name, h := range map[string]http.Handler{"plain": handler, "limited": hedge.NewLimiter(1).Handler(handler)} {
		for _, c := range []struct{ header, trailer, want string }{
			{"", "", `abc <nil> "" "7"`},
			{"Trailer: Declared\r\n", "Declared: 1\r\n", `abc <nil> "1" "7"`},
		} {
			s := httptest.NewServer(h)
			defer s.Close()
			conn, err := net.Dial("tcp", s.Listener.Addr().String())
			require.NoError(t, err)
			defer conn.Close()
			_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a.example\r\n"+c.header+"Transfer-Encoding: chunked\r\n\r\n"+
				"3\r\nabc\r\n0\r\n"+c.trailer+"Sum: 7\r\n\r\n")
			require.NoError(t, err)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			require.NoError(t, err)
			got, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			assert.Equal(t, c.want, string(got), name)
		}
	}
}
