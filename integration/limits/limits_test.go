package limits

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/gohedge/hedge"
)

var lasts = flag.Duration("lasts", 300*time.Millisecond, "how long each handler has traffic behind each limit, and behind the one that is found twice as long")

const (
	load  = .8  // of the capacity
	most  = 256 // requests that a client has at a time: those after them wait, and that counts
	long  = 10 * time.Second
	slack = 3 // times the p99 without a limit
)

// A way is a limit before a handler, and what came of it.
type way struct {
	name    string
	limiter *hedge.Limiter // nil: none
	call    func(context.Context) error

	sent   int64
	failed atomic.Int64
	waited int64 // requests that came when others waited for a place

	mu   sync.Mutex
	took []time.Duration // of those that count
}

func (w *way) at(percent int) float64 {
	return float64(w.took[len(w.took)*percent/100].Microseconds()) / 1000
}

// newWay serves with so many places; 0: any number, and a negative number: what the Limiter finds.
func newWay(t *testing.T, name string, places int, protocol string, work func(context.Context) error) *way {
	t.Helper()
	w := &way{name: name}
	switch {
	case places > 0:
		w.limiter = hedge.NewLimiter(places)
	case places < 0:
		w.limiter = hedge.NewAdaptiveLimiter()
	}
	if protocol == "grpc" {
		w.overGRPC(t, work)
	} else {
		w.overHTTP(t, work)
	}
	return w
}

func (w *way) overHTTP(t *testing.T, work func(context.Context) error) {
	var h http.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if err := work(r.Context()); err != nil {
			http.Error(rw, err.Error(), http.StatusInternalServerError)
		}
	})
	if w.limiter != nil {
		h = w.limiter.Handler(h)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }() // until closed
	transport := &http.Transport{MaxIdleConnsPerHost: most}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = server.Close()
	})
	url := "http://" + listener.Addr().String()
	w.call = func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %w", resp.Status, err)
		}
		return nil
	}
}

func (w *way) overGRPC(t *testing.T, work func(context.Context) error) {
	var opts []grpc.ServerOption
	if w.limiter != nil {
		opts = append(opts, grpc.UnaryInterceptor(w.limiter.UnaryServer()))
	}
	server := grpc.NewServer(opts...)
	server.RegisterService(&grpc.ServiceDesc{ServiceName: "limits.Work", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: "Do",
		Handler: func(srv any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
			in := new(emptypb.Empty)
			if err := decode(in); err != nil {
				return nil, err
			}
			handle := func(ctx context.Context, in any) (any, error) { return in, work(ctx) }
			if intercept == nil {
				return handle(ctx, in)
			}
			return intercept(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: "/limits.Work/Do"}, handle)
		},
	}}}, w)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = server.Serve(listener) }() // until stopped
	conn, err := grpc.NewClient("passthrough:///"+listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		server.Stop()
	})
	w.call = func(ctx context.Context) error {
		return conn.Invoke(ctx, "/limits.Work/Do", new(emptypb.Empty), new(emptypb.Empty))
	}
}

// capacity returns how many requests so many callers get answered per second, without a limit.
func (w *way) capacity(t *testing.T, callers int) float64 {
	t.Helper()
	var done atomic.Int64
	loop := func(lasts time.Duration) float64 {
		var all sync.WaitGroup
		before, start := done.Load(), time.Now()
		for range callers {
			all.Go(func() {
				for time.Since(start) < lasts {
					if err := w.call(t.Context()); err != nil {
						w.failed.Add(1)
						return
					}
					done.Add(1)
				}
			})
		}
		all.Wait()
		return float64(done.Load()-before) / time.Since(start).Seconds()
	}
	loop(100 * time.Millisecond) // opens the connections
	rate := loop(min(max(*lasts, 200*time.Millisecond), 2*time.Second))
	w.sent += done.Load() + w.failed.Load()
	return rate
}

// arrive sends requests at random times for a while. How long one takes is counted from when it was due.
func (w *way) arrive(ctx context.Context, seed uint64, perSecond float64, lasts time.Duration, counts bool) {
	random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // arrivals
	room := make(chan struct{}, most)
	var all sync.WaitGroup
	due := time.Now()
	for end := due.Add(lasts); ; {
		if due = due.Add(time.Duration(random.ExpFloat64() / perSecond * float64(time.Second))); due.After(end) {
			break
		}
		time.Sleep(time.Until(due))
		room <- struct{}{}
		w.sent++
		if counts && w.limiter != nil && w.limiter.Snapshot().Waiting > 0 {
			w.waited++
		}
		at := due
		all.Go(func() {
			err := w.call(ctx)
			took := time.Since(at)
			<-room
			if err != nil {
				w.failed.Add(1)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if counts {
				w.took = append(w.took, took)
			}
		})
	}
	all.Wait()
}

// ways returns no limit, fixed ones that let through what comes, and the one that is found.
func (h handler) ways(t *testing.T, work func(context.Context) error) (all []*way, perSecond float64) {
	t.Helper()
	none := newWay(t, "none", 0, h.protocol, work)
	perSecond = load * none.capacity(t, h.callers)
	alone := time.Hour
	for range 20 {
		start := time.Now()
		require.NoError(t, none.call(t.Context()))
		none.sent++
		alone = min(alone, time.Since(start))
	}
	all = []*way{none}
	for _, places := range []int{2, 8, 32, 128} {
		if float64(places) > 1.1*perSecond*alone.Seconds() { // else the queue only grows
			all = append(all, newWay(t, fmt.Sprint(places), places, h.protocol, work))
		}
	}
	return append(all, newWay(t, "found", -1, h.protocol, work)), perSecond
}

// TestRealHandlers prints a table. It holds on a busy machine that all is answered, and that a handler without a limit of its own is not held up. How
// long requests take is looked at only where it lasts for long enough.
func TestRealHandlers(t *testing.T) {
	var table strings.Builder
	for _, h := range handlers() {
		t.Run(h.name, func(t *testing.T) {
			all, perSecond := h.ways(t, h.work(t))
			found := all[len(all)-1]
			found.arrive(t.Context(), 0, perSecond, *lasts, false)
			rounds := 1
			if *lasts >= time.Second {
				rounds = 4
			}
			for round := range rounds {
				for i := range all { // another one begins each time
					all[(i+round)%len(all)].arrive(t.Context(), uint64(1+round), perSecond, *lasts/time.Duration(rounds), true)
				}
			}
			best := h.check(t, all)
			s := found.limiter.Snapshot()
			row := fmt.Sprintf("| %s | %.0f |", h.name, perSecond)
			for _, name := range []string{"none", "2", "8", "32", "128", "found"} {
				if i := slices.IndexFunc(all, func(w *way) bool { return w.name == name }); i >= 0 {
					row += fmt.Sprintf(" %.1f / %.1f |", all[i].at(50), all[i].at(99))
				} else {
					row += " |"
				}
			}
			row += fmt.Sprintf(" %d | %.2f (%s) |\n", s.Limit, found.at(99)/best.at(99), best.name)
			t.Log(row, s.Moves, "waited ", found.waited, " of ", len(found.took))
			table.WriteString(row)
		})
	}
	t.Log("\n| the handler | requests/s | no limit | 2 | 8 | 32 | 128 | found | limit | p99 to the best |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n" + table.String())
}

// check looks at what came of a handler, and returns the way with the best p99 of those that do not find a limit.
func (h handler) check(t *testing.T, all []*way) (best *way) {
	t.Helper()
	best = all[0]
	for _, w := range all {
		assert.Zero(t, w.failed.Load(), "%s: requests that were not answered with success", w.name)
		require.NotEmpty(t, w.took, w.name)
		slices.Sort(w.took)
		if w.name != "found" && w.at(99) < best.at(99) {
			best = w
		}
		if w.limiter == nil {
			continue
		}
		// The last handlers return a moment after the client has their answers.
		require.Eventually(t, func() bool { return w.limiter.Snapshot().Working == 0 }, time.Minute, time.Millisecond, w.name)
		s := w.limiter.Snapshot()
		assert.Equal(t, []int64{0, 0, w.sent, 0, 0}, []int64{s.Working, s.Waiting, s.Worked, s.Left, s.Refused}, "%s: none is lost", w.name)
	}
	found := all[len(all)-1]
	if h.free {
		assert.LessOrEqual(t, found.waited, int64(len(found.took)/3), "requests that came when others waited although the handler has room")
	}
	if *lasts >= long {
		assert.LessOrEqual(t, found.at(99), slack*all[0].at(99)+20)
	}
	return best
}
