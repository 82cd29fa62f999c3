package hedge_test

import (
	"context"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

// twoPlaces is a way to the places of site and far, which is 80 ms farther away. How long an attempt takes depends on its number alone.
type twoPlaces struct {
	sent   atomic.Int64
	nearby func(since, usual time.Duration, rng *rand.Rand) (time.Duration, error)
	began  time.Time
}

func (w *twoPlaces) RoundTrip(req *http.Request) (*http.Response, error) {
	rng := rand.New(rand.NewPCG(7, uint64(w.sent.Add(1))))
	d := time.Duration(math.Exp(rng.NormFloat64()*0.4) * float64(5*ms)) // lognormal: p50 5 ms, p99 13 ms
	var err error
	if req.URL.Host == "catalog.test" {
		d, err = w.nearby(time.Since(w.began), d, rng)
	} else {
		d += 80 * ms
	}
	if slept := doubles.Sleep(req.Context(), d); slept != nil {
		return nil, slept
	}
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: 200, ProtoMajor: 2, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("")), Request: req}, nil
}

// TestPlacesAreAsGoodAsTheBestStaticChoice plays 100 calls per second for 120 seconds, 60 of them while the near place is in trouble, with
// all calls to the one place, with all to the other one, each hedged there, and with the choice of both. Failures count as the longest time
// that a call may take: two seconds.
func TestPlacesAreAsGoodAsTheBestStaticChoice(t *testing.T) {
	if testing.Short() || doubles.RaceEnabled {
		t.Skip("half a million calls")
	}
	const calls, timeout = 12_000, 2 * time.Second
	troubled := func(since time.Duration) bool { return since >= 30*time.Second && since < 90*time.Second }
	for name, nearby := range map[string]func(since, d time.Duration, rng *rand.Rand) (time.Duration, error){
		"slow": func(_, d time.Duration, _ *rand.Rand) (time.Duration, error) { return d + 300*ms, nil },
		"slow for a while": func(since, d time.Duration, _ *rand.Rand) (time.Duration, error) {
			if troubled(since) {
				d += 300 * ms
			}
			return d, nil
		},
		"down": func(_, d time.Duration, _ *rand.Rand) (time.Duration, error) { return d, errDown },
		"down for a while": func(since, d time.Duration, _ *rand.Rand) (time.Duration, error) {
			if troubled(since) {
				return d, errDown
			}
			return d, nil
		},
		"silent for a while": func(since, d time.Duration, _ *rand.Rand) (time.Duration, error) {
			if troubled(since) {
				d = time.Hour
			}
			return d, nil
		},
		"a tenth is slow": func(_, d time.Duration, rng *rand.Rand) (time.Duration, error) {
			if rng.Float64() < 0.1 {
				d += time.Second
			}
			return d, nil
		},
		"a tenth fails": func(_, d time.Duration, rng *rand.Rand) (time.Duration, error) {
			if rng.Float64() < 0.1 {
				return d, errDown
			}
			return d, nil
		},
		"well": func(_, d time.Duration, _ *rand.Rand) (time.Duration, error) { return d, nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			play := func(url string, opts ...hedge.Option) (p50, p99 time.Duration, extra float64) {
				synctest.Test(t, func(t *testing.T) {
					w := &twoPlaces{nearby: nearby, began: time.Now()}
					tr := hedge.New(w, opts...)
					waited := make([]time.Duration, calls)
					var wg sync.WaitGroup
					for i := range calls {
						wg.Go(func() {
							ctx, cancel := context.WithTimeout(t.Context(), timeout)
							defer cancel()
							start := time.Now()
							resp, err := tr.RoundTrip(request(t, ctx, "GET", url, nil))
							if waited[i] = time.Since(start); err != nil {
								waited[i] = timeout
								return
							}
							resp.Body.Close()
						})
						time.Sleep(10 * ms)
					}
					wg.Wait()
					slices.Sort(waited)
					p50, p99, extra = waited[calls/2], waited[calls*99/100], float64(w.sent.Load())/calls-1
				})
				return p50, p99, extra
			}
			_, nearPlain, _ := play(site, hedge.WithMaxHedges(0))
			_, farPlain, _ := play(far+"/item", hedge.WithMaxHedges(0))
			_, nearHedged, _ := play(site)
			_, farHedged, _ := play(far + "/item")
			p50, p99, extra := play(site, toFar(hedge.Place{}))
			t.Logf("p50 %v p99 %v extra %.1f %%; static p99: near %v, far %v; hedged there: near %v, far %v", p50, p99, 100*extra, nearPlain, farPlain, nearHedged, farHedged)
			assert.LessOrEqual(t, float64(p99), 1.1*float64(min(nearPlain, farPlain, nearHedged, farHedged)))
			assert.LessOrEqual(t, extra, 0.1+30.0/calls, "one burst of each place, and a tenth")
		})
	}
}
