package http_test

import (
	"bytes"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/test/internal/fixture"
)

// moods is a service whose latency and status the test sets.
type moods struct {
	*doubles.RoundTripper
	t  *testing.T
	tr *hedge.Transport
}

// busy answers n calls with 429, and asks for a pause.
func (m moods) busy(n int, pause time.Duration) {
	m.Answer = func(req *http.Request, _ int) (*http.Response, error) {
		resp := m.Response(req, 429, "")
		resp.Header.Set("Retry-After", fmt.Sprint(int(pause.Seconds())))
		return resp, nil
	}
	m.call(n)
}

// well answers n calls in the usual time.
func (m moods) well(n int) {
	m.Answer = quick(m.RoundTripper)
	m.call(n)
}

// slow answers n calls after five times as long.
func (m moods) slow(n int) {
	m.Answer = after(m.RoundTripper, 5*usual)
	m.call(n)
}

func (m moods) call(n int) {
	for range n {
		resp, err := get(m.t, m.tr, site)
		require.NoError(m.t, err)
		require.NoError(m.t, resp.Body.Close())
	}
}

// told runs f with a warm Transport that has a logger.
func told(t *testing.T, f func(m moods, j *fixture.Journal), opts ...hedge.HTTPOption) {
	bubble(t, func(t *testing.T, rt *doubles.RoundTripper) {
		j := fixture.NewJournal()
		m := moods{rt, t, warm(t, rt, append(opts, hedge.WithLogger(slog.New(j)))...)}
		j.Meet = func() { _ = m.tr.Snapshot() } // or there would be a lock held
		require.Empty(t, j.Take())
		f(m, j)
	})
}

const (
	paused  = `WARN "paused" reason=paused for=%ds`
	resumed = `INFO "resumed"`
)

func TestLoggerLogsEachPauseAndResumptionOnce(t *testing.T) {
	told(t, func(m moods, j *fixture.Journal) {
		for range 5 {
			m.busy(fixture.UntilPause, 20*time.Second)
			assert.Equal(t, []string{fmt.Sprintf(paused, 10)}, j.Take(), "no server may ask for more")
			m.well(50)
			assert.Empty(t, j.Take(), "the pause lasts")
			time.Sleep(20 * time.Second)
			m.well(1)
			assert.Empty(t, j.Take(), "until fewer answers push back")
			m.well(fixture.UntilResumption)
			assert.Equal(t, []string{resumed}, j.Take())
		}
	})
}

func TestLoggerCountsSuppressedChanges(t *testing.T) {
	told(t, func(m moods, j *fixture.Journal) {
		const flips = 3
		for range flips { // in nine seconds
			m.busy(fixture.UntilPause, time.Second)
			time.Sleep(time.Second)
			m.well(fixture.UntilResumption)
		}
		assert.Equal(t, []string{fmt.Sprintf(paused, 1), resumed}, j.Take())
		time.Sleep(10 * time.Second)
		m.well(1)
		assert.Empty(t, j.Take(), "what was told last is so")
		m.busy(fixture.UntilPause, time.Second)
		assert.Equal(t, []string{fmt.Sprintf(paused+" dropped=%d", 1, 2*(flips-1))}, j.Take())
	})
}

func TestLoggerLogsSuppressedChangeLaterIfItLasts(t *testing.T) {
	told(t, func(m moods, j *fixture.Journal) {
		m.busy(fixture.UntilPause, time.Second)
		time.Sleep(time.Second)
		m.well(fixture.UntilResumption)
		m.busy(fixture.UntilPause, time.Minute)
		j.Take()
		time.Sleep(5 * time.Second)
		m.well(1)
		assert.Empty(t, j.Take())
		time.Sleep(5 * time.Second)
		m.well(5)
		assert.Equal(t, []string{`WARN "paused" reason=paused`}, j.Take(), "the ten seconds that the server may ask for are over")
	})
}

func TestLoggerLogsOutage(t *testing.T) {
	told(t, func(m moods, j *fixture.Journal) {
		m.Answer = after(m.RoundTripper, 5*usual)
		var wg sync.WaitGroup
		for range 100 { // at once: when calls that have ended are slow as well, that is the usual
			wg.Go(func() { m.call(1) })
		}
		wg.Wait()
		assert.Equal(t, []string{`WARN "paused" reason=slow`}, j.Take())
		m.well(100)
		assert.Equal(t, []string{resumed}, j.Take())
	}, hedge.WithMaxDelay(2*usual), hedge.WithBudget(hedge.NewBudget(300, 1000)))
}

func TestLoggerLogsExhaustedAndRefilledBudget(t *testing.T) {
	told(t, func(m moods, j *fixture.Journal) {
		for _, dropped := range []string{"", " dropped=6", " dropped=6"} {
			m.slow(10) // four hedges, and a few refused
			assert.Equal(t, []string{`INFO "budget exhausted"` + dropped}, j.Take())
			m.well(10)
			assert.Empty(t, j.Take(), "a token is not half")
			m.well(20)
			assert.Equal(t, []string{`INFO "budget refilled"`}, j.Take())
			for range 3 { // which needs nobody
				m.well(100)
				m.slow(10)
				m.well(30)
			}
			assert.Empty(t, j.Take())
			m.well(100)
			time.Sleep(10 * time.Minute)
		}
		assert.Empty(t, j.Take())
	}, hedge.WithMaxDelay(2*usual), hedge.WithMaxHedges(1), hedge.WithBudget(hedge.NewBudget(10, 4)))
}

func TestLoggerLogsExhaustedMaxHedgesPerSecond(t *testing.T) {
	told(t, func(m moods, j *fixture.Journal) {
		m.slow(10)
		assert.Equal(t, []string{`INFO "budget exhausted"`}, j.Take())
		time.Sleep(time.Second)
		m.well(1)
		assert.Equal(t, []string{`INFO "budget refilled"`}, j.Take())
	}, hedge.WithMaxDelay(2*usual), hedge.WithMaxHedgesPerSecond(4), hedge.WithBudget(hedge.NewBudget(300, 1000)))
}

func TestLoggerLogsEachAction(t *testing.T) {
	told(t, func(m moods, j *fixture.Journal) {
		for range 2 {
			m.tr.SetEnabled(false)
			m.tr.SetEnabled(false)
			m.tr.SetEnabled(true)
			m.tr.SetEnabled(true)
		}
		require.NoError(t, m.tr.Update(func(c *hedge.Config) { c.BudgetPercent, c.Burst = 2, time.Second }))
		require.NoError(t, m.tr.Update(func(c *hedge.Config) { c.BudgetPercent = 2 }))
		require.Error(t, m.tr.Update(func(c *hedge.Config) { c.BudgetPercent = -2 }))
		var b bytes.Buffer
		require.NoError(t, m.tr.Export(&b))
		require.NoError(t, m.tr.Import(&b))
		require.Error(t, m.tr.Import(&b))
		assert.Equal(t, []string{
			`WARN "disabled" by=SetEnabled`, `INFO "enabled" by=SetEnabled`,
			`WARN "disabled" by=SetEnabled`, `INFO "enabled" by=SetEnabled`,
			`INFO "settings changed" budget_percent.from=10 budget_percent.to=2 burst.from=2s burst.to=1s`,
			`INFO "imported what was learned" keys=1`,
		}, j.Take())
	})
}

func TestLoggerLogsHedgingDisabledByEnvironment(t *testing.T) {
	t.Setenv("HEDGE_DISABLED", "true")
	j := fixture.NewJournal()
	hedge.NewHedger(hedge.WithLogger(slog.New(j)), hedge.WithName("catalog"))
	assert.Equal(t, []string{`WARN "disabled" client=catalog by=HEDGE_DISABLED`}, j.Take())
}

// TestLoggerLogsSettingsThatAllowNoHedge has clients that never hedge, with a logger of their own and without.
func TestLoggerLogsSettingsThatAllowNoHedge(t *testing.T) {
	const none = `WARN "the settings allow no hedge, so none is ever sent" `
	for want, opts := range map[string][]hedge.HTTPOption{
		none + "max_hedges=0 budget_percent=10": {hedge.WithMaxHedges(0)},
		none + "max_hedges=2 budget_percent=0":  {hedge.WithBudgetPercent(0)},
		none + "max_hedges=0 budget_percent=5":  {hedge.WithConfig(hedge.Config{BudgetPercent: 5, MaxKeys: 1})},
		none + "max_hedges=3 budget_percent=0":  {hedge.WithBudget(hedge.NewBudget(0, 1)), hedge.WithMaxHedges(3)},
	} {
		j := fixture.NewJournal()
		for range 2 {
			hedge.New(nil, append(opts, hedge.WithLogger(slog.New(j)))...)
			assert.Equal(t, []string{want}, j.Take())
		}
	}
	before, writer, flags := slog.Default(), log.Writer(), log.Flags()
	t.Cleanup(func() {
		slog.SetDefault(before)
		log.SetOutput(writer)
		log.SetFlags(flags)
	})
	j := fixture.NewJournal()
	slog.SetDefault(slog.New(j))
	percent := 7 + float64(time.Now().UnixNano()%1e9)/1e9 // another one in each run of the test
	for range 3 {
		hedge.NewHedger(hedge.WithMaxHedges(0), hedge.WithBudgetPercent(percent))
		hedge.New(nil, hedge.WithMaxHedges(1), hedge.WithBudgetPercent(0.5))
	}
	assert.Equal(t, []string{fmt.Sprint(none, "max_hedges=0 budget_percent=", percent)}, j.Take(), "once")
}

// TestLoggerLogsBudgetBelowOnePercent detects a budget of 0.1 that was meant as ten percent.
func TestLoggerLogsBudgetBelowOnePercent(t *testing.T) {
	for want, opt := range map[string]hedge.HTTPOption{
		`INFO "the budget is less than 1 % of the calls" budget="0.1 %"`:                                    hedge.WithBudgetPercent(0.1),
		`INFO "the budget is less than 1 % of the calls" budget="0.25 %"`:                                   hedge.WithBudget(hedge.NewBudget(0.25, 0)),
		`INFO "the budget of a route is less than 1 % of its calls" route="GET /items/{id}" budget="0.1 %"`: hedge.WithRoute("GET /items/{id}", hedge.Policy{BudgetPercent: 0.1}),
	} {
		j := fixture.NewJournal()
		hedge.New(nil, opt, hedge.WithLogger(slog.New(j)))
		assert.Equal(t, []string{want}, j.Take())
	}
	j := fixture.NewJournal()
	hedge.New(nil, hedge.WithBudgetPercent(1), hedge.WithRoute("/", hedge.Policy{BudgetPercent: 1}), hedge.WithRoute("/a", hedge.Policy{}), hedge.WithLogger(slog.New(j)))
	assert.Empty(t, j.Take())
}
