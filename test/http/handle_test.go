package http_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

// drive makes calls of the seed distribution at random times, 500 per second, and returns the share that was hedged.
func drive(t *testing.T, h *hedge.Hedger, rng *rand.Rand, calls int) float64 {
	before := h.Snapshot().Stats.HedgedRequests
	var wg sync.WaitGroup
	for range calls {
		takes := [3]time.Duration{latency(rng), latency(rng), latency(rng)}
		wg.Go(func() {
			_, err := hedge.Do(t.Context(), h, "k", func(ctx context.Context) (int, error) {
				a, _ := hedge.AttemptFromContext(ctx)
				return 0, doubles.Sleep(ctx, takes[a.Number])
			})
			assert.NoError(t, err)
		})
		time.Sleep(time.Duration(rng.ExpFloat64() * float64(2*ms)))
	}
	wg.Wait()
	return float64(h.Snapshot().Stats.HedgedRequests-before) / float64(calls)
}

func TestImportMakesFirstRequestsHedged(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long with the race detector")
	}
	synctest.Test(t, func(t *testing.T) {
		type rates struct{ ten, hundred float64 } // of the first ten, and the first hundred
		var warm, imported, cold rates
		const trials = 50
		first := func(r *rates, h *hedge.Hedger, rng *rand.Rand) {
			ten := drive(t, h, rng, 10)
			r.ten += ten / trials
			r.hundred += (0.1*ten + 0.9*drive(t, h, rng, 90)) / trials
		}
		for i := range uint64(trials) {
			old := hedge.NewHedger()
			drive(t, old, rand.New(rand.NewPCG(i, 1)), 3000)
			var b bytes.Buffer
			require.NoError(t, old.Export(&b))
			fresh := hedge.NewHedger()
			require.NoError(t, fresh.Import(&b))
			assert.Equal(t, old.Snapshot().Keys[0].P90, fresh.Snapshot().Keys[0].P90)

			next := func() *rand.Rand { return rand.New(rand.NewPCG(i, 2)) }
			first(&warm, old, next())
			first(&imported, fresh, next())
			first(&cold, hedge.NewHedger(), next())
		}
		t.Logf("hedged of the first 10 and 100: warm %.3f, imported %.3f, cold %.3f", warm, imported, cold)
		assert.InDelta(t, warm.ten, imported.ten, 0.02)
		assert.InDelta(t, warm.hundred, imported.hundred, 0.02)
		assert.Zero(t, cold.ten)
	})
}

// learned returns a Transport with measured latencies of three hosts, one of them with two routes, and its export.
func learned(t *testing.T, rt *doubles.RoundTripper) (*hedge.Transport, []byte) {
	rt.Answer = quick(rt)
	tr := hedge.New(rt, hedge.WithRoute("/slow", hedge.Policy{BudgetPercent: 1}))
	for range 300 {
		for _, url := range []string{site, "http://images.test/1", "http://search.test/q", "http://search.test/slow"} {
			resp, err := get(t, tr, url)
			require.NoError(t, err)
			text(t, resp)
		}
	}
	var b bytes.Buffer
	require.NoError(t, tr.Export(&b))
	return tr, b.Bytes()
}

func TestImportRestoresExportedKeys(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		old, export := learned(t, rt)
		time.Sleep(time.Hour)
		tr := hedge.New(rt, hedge.WithRoute("/slow", hedge.Policy{BudgetPercent: 1}))
		require.NoError(t, tr.Import(bytes.NewReader(export)))
		want, got := old.Snapshot().Keys, tr.Snapshot().Keys
		require.Len(t, want, 4)
		require.Len(t, got, 4)
		for i := range want {
			assert.Equal(t, want[i].Host+want[i].Route, got[i].Host+got[i].Route)
			assert.Equal(t, want[i].P99, got[i].P99)
			assert.Equal(t, want[i].Samples, got[i].Samples)
			assert.Equal(t, want[i].Delays, got[i].Delays)
			assert.Zero(t, got[i].Requests, "what was done there was not done here")
		}
		require.NoError(t, tr.Import(bytes.NewReader(export)))
		assert.Equal(t, 2*got[0].Samples, tr.Snapshot().Keys[0].Samples, "exports add up")
	})
}

func TestExportWithKeyOfRareCallsCanBeImported(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		rt.Answer = quick(rt)
		old := hedge.New(rt)
		call := func(url string) {
			resp, err := get(t, old, url)
			require.NoError(t, err)
			text(t, resp)
		}
		call("http://rare.test/")
		time.Sleep(1_001 * time.Hour)
		call(site)
		var b bytes.Buffer
		require.NoError(t, old.Export(&b))
		tr := hedge.New(rt)
		require.NoError(t, tr.Import(&b))
		assert.Len(t, tr.Snapshot().Keys, 2)
	})
}

func TestImportSkipsKeysBeyondMaxKeys(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		_, export := learned(t, rt)
		tr := hedge.New(rt, hedge.WithMaxKeys(2))
		require.NoError(t, tr.Import(bytes.NewReader(export)))
		keys := tr.Snapshot().Keys
		require.Len(t, keys, 2)
		assert.Equal(t, "search.test", keys[0].Host, "the most recently used")

		tr = hedge.New(rt, hedge.WithMaxKeys(3))
		resp, err := get(t, tr, "http://own.test/")
		require.NoError(t, err)
		text(t, resp)
		require.NoError(t, tr.Import(bytes.NewReader(export)))
		keys = tr.Snapshot().Keys
		require.Len(t, keys, 3)
		assert.Equal(t, "own.test", keys[0].Host, "what is in use is not forgotten")
	})
}

func TestImportRejectsInvalidExportWithoutChange(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		_, export := learned(t, rt)
		resealed := func(change func([]byte)) io.Reader {
			b := bytes.Clone(export[:len(export)-4])
			change(b)
			return bytes.NewReader(binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b)))
		}
		for name, test := range map[string]struct {
			r    io.Reader
			says string
		}{
			"empty":      {strings.NewReader(""), "no export"},
			"foreign":    {strings.NewReader(`{"hosts": {}}`), "no export"},
			"newer":      {strings.NewReader("hedge windows 2\nabc"), `version "2"`},
			"truncated":  {bytes.NewReader(export[:len(export)/2]), "damaged"},
			"only begun": {bytes.NewReader(export[:16]), "damaged"},
			"flipped":    {io.MultiReader(bytes.NewReader(export[:100]), bytes.NewReader([]byte{^export[100]}), bytes.NewReader(export[101:])), "damaged"},
			"longer":     {io.MultiReader(bytes.NewReader(export), strings.NewReader("x")), "damaged"},
			"lying":      {resealed(func(b []byte) { b[26] = 0xff }), "damaged"},
			"huge":       {io.MultiReader(strings.NewReader("hedge windows 1\n"), io.LimitReader(zeros{}, 1<<30)), "larger than 64 MiB"},
			"unreadable": {iotest.ErrReader(errDown), "connection refused"},
		} {
			tr := hedge.New(rt)
			err := tr.Import(test.r)
			require.ErrorContains(t, err, test.says, name)
			assert.True(t, strings.HasPrefix(err.Error(), "hedge: Import: "), name)
			assert.Empty(t, tr.Snapshot().Keys, name)
		}
		time.Sleep(25 * time.Hour)
		tr := hedge.New(rt)
		assert.ErrorContains(t, tr.Import(bytes.NewReader(export)), "old, more than 24h")
		assert.Empty(t, tr.Snapshot().Keys)
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestExportReturnsErrorOfWriter(t *testing.T) {
	pr, pw := io.Pipe()
	require.NoError(t, pr.CloseWithError(errDown))
	err := hedge.New(nil).Export(pw)
	assert.ErrorIs(t, err, errDown)
	assert.ErrorContains(t, err, "hedge: Export: ")
}

// FuzzImport recomputes the checksum of each input, because otherwise every input would be rejected for its checksum.
func FuzzImport(f *testing.F) {
	h := hedge.NewHedger()
	for i := range 40 {
		_, _ = hedge.Do(context.Background(), h, fmt.Sprint(i%3), func(context.Context) (int, error) { return 0, nil })
	}
	var b bytes.Buffer
	require.NoError(f, h.Export(&b))
	f.Add(b.Bytes()[:b.Len()-4])
	f.Add([]byte("hedge windows 1\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h := hedge.NewHedger(hedge.WithMaxKeys(10))
		if err := h.Import(bytes.NewReader(binary.BigEndian.AppendUint32(bytes.Clone(b), crc32.ChecksumIEEE(b)))); err != nil {
			require.Empty(t, h.Snapshot().Keys)
			return
		}
		require.LessOrEqual(t, len(h.Snapshot().Keys), 10)
		var again bytes.Buffer
		require.NoError(t, h.Export(&again))
		require.NoError(t, hedge.NewHedger().Import(&again))
		_, err := hedge.Do(t.Context(), h, "0", func(context.Context) (int, error) { return 0, errors.New("down") })
		require.Error(t, err)
	})
}

func TestZeroClientsPanicWithNameOfConstructor(t *testing.T) {
	const says = "hedge: a zero Transport, Interceptor or Hedger is not usable: New, NewInterceptor and NewHedger make one"
	tr, h := new(hedge.Transport), new(hedge.Hedger)
	for name, f := range map[string]func(){
		"RoundTrip": func() { _, _ = get(t, tr, site) },
		"Warm":      func() { _ = tr.Warm(t.Context(), 1, site) },
		"Do":        func() { _, _ = hedge.Do(t.Context(), h, "k", func(context.Context) (int, error) { return 0, nil }) },
		"Snapshot":  func() { h.Snapshot() },
		"String":    func() { _ = h.String() },
		"Export":    func() { _ = tr.Export(io.Discard) },
	} {
		assert.PanicsWithValue(t, says, f, name)
	}
	tr.SetEnabled(false)
	tr.CloseIdleConnections()
	assert.Nil(t, tr.WrappedRoundTripper())
	assert.Zero(t, hedge.LatencyEstimate(tr, "catalog.test", 0.5))
	assert.Equal(t, "hedge.zero", fmt.Sprintf("%s", tr))
	assert.Zero(t, new(hedge.Budget).Tokens()+(*hedge.Budget)(nil).Tokens())
	assert.Zero(t, (*hedge.Stats)(nil).Snapshot())
}

func TestNilOptionsAreIgnored(t *testing.T) {
	_, err := hedge.NewHedgerWithConfig(hedge.DefaultConfig(), nil)
	require.NoError(t, err)
	assert.Equal(t, hedge.New(nil).Snapshot(), hedge.New(nil, nil, nil).Snapshot())
}

func TestFormatOfClientHasNoHost(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := warm(t, rt, hedge.WithName("shop"))
		type program struct {
			Client *http.Client
			RT     http.RoundTripper
			Tr     *hedge.Transport
		}
		for _, verb := range []string{"%v", "%+v", "%#v", "%q", "%d"} {
			text := fmt.Sprintf(verb, program{&http.Client{Transport: tr}, tr, tr})
			assert.NotContains(t, text, "catalog.test", verb)
			assert.Equal(t, `hedge.Transport("shop")`, fmt.Sprintf(verb, tr))
		}
		assert.Equal(t, `hedge.Hedger`, fmt.Sprint(hedge.NewHedger()))
		assert.Equal(t, "<nil>", fmt.Sprint((*hedge.Transport)(nil)))

		text := fmt.Sprintf("%s", tr)
		assert.Equal(t, tr.String(), text, "as some programs print an expvar.Var")
		var s hedge.Snapshot
		require.NoError(t, json.Unmarshal([]byte(text), &s))
		assert.Equal(t, "catalog.test", s.Keys[0].Host)
	})
}

func TestConcurrentUpdatesAreAllApplied(t *testing.T) {
	tr := hedge.New(nil)
	start := tr.Snapshot().Config.MaxReplayBytes
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				assert.NoError(t, tr.Update(func(c *hedge.Config) { c.MaxReplayBytes++ }))
			}
		})
	}
	wg.Wait()
	assert.EqualValues(t, start+8*200, tr.Snapshot().Config.MaxReplayBytes)

	// One within another, which the outer one must see.
	require.NoError(t, tr.Update(func(c *hedge.Config) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			assert.NoError(t, tr.Update(func(c *hedge.Config) { c.BudgetPercent = 1 }))
		}()
		<-done
		c.MaxHedges = 1
	}))
	assert.EqualValues(t, 1, tr.Snapshot().Config.BudgetPercent)
	assert.Equal(t, 1, tr.Snapshot().Config.MaxHedges)
}

func TestSnapshotIsIndependentCopy(t *testing.T) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		tr := warm(t, rt)
		want := tr.Snapshot().Keys[0].Delays[0]
		tr.Snapshot().Keys[0].Delays[0] = 1
		assert.Equal(t, want, tr.Snapshot().Keys[0].Delays[0])
	})
}

// TestStatsSnapshotHasEveryCounter finds a field of Stats that Snapshot leaves out, or reads from another.
func TestStatsSnapshotHasEveryCounter(t *testing.T) {
	var s hedge.Stats
	from := reflect.ValueOf(&s).Elem()
	for i := range from.NumField() {
		from.Field(i).Addr().Interface().(*atomic.Int64).Store(int64(i + 1))
	}
	to := reflect.ValueOf(s.Snapshot())
	require.Equal(t, from.NumField(), to.NumField())
	for i := range from.NumField() {
		name := from.Type().Field(i).Name
		read := to.FieldByName(name)
		if assert.True(t, read.IsValid(), "StatsSnapshot lacks %s", name) {
			assert.EqualValues(t, i+1, read.Int(), "%s is not read", name)
		}
	}
}

func TestStatsSnapshotHasNoPartAboveItsWhole(t *testing.T) {
	var s hedge.Stats
	var stop atomic.Bool
	var calls sync.WaitGroup
	calls.Go(func() {
		for !stop.Load() { // in the order in which a call is counted
			s.TotalRequests.Add(1)
			s.HedgedRequests.Add(1)
			s.HedgesSent.Add(1)
			s.HedgeWins.Add(1)
		}
	})
	for range 20_000 {
		v := s.Snapshot()
		assert.LessOrEqual(t, v.HedgeWins, v.HedgesSent)
		assert.LessOrEqual(t, v.HedgesSent, v.HedgedRequests)
		assert.LessOrEqual(t, v.HedgedRequests, v.TotalRequests)
		if t.Failed() {
			break
		}
	}
	stop.Store(true)
	calls.Wait()
}

// In an outage, hosts beyond MaxKeys must not increase the total of the budgets.
func TestEvictedHostsCreateNoBudget(t *testing.T) {
	for name, opt := range map[string]hedge.HTTPOption{
		"InitialDelay": hedge.WithInitialDelay(10 * ms),
		"Policy.Delay": hedge.WithRoute("/", hedge.Policy{Delay: 10 * ms}),
	} {
		bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
			rt.Answer = after(rt, 100*ms)
			var stats *hedge.Stats
			tr := hedge.New(rt, opt, hedge.WithMaxKeys(16), hedge.WithStats(&stats))
			for i := range 2000 {
				resp, err := get(t, tr, fmt.Sprintf("http://h%d.test/", i%20))
				require.NoError(t, err)
				text(t, resp)
			}
			assert.LessOrEqual(t, stats.HedgesSent.Load(), int64(200+20), name)
			assert.Positive(t, stats.HedgesSent.Load(), name)
		})
	}
}
