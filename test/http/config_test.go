package http_test

import (
	"encoding/json"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
)

func TestConfigEncodesDurationsAsStrings(t *testing.T) {
	c := hedge.DefaultConfig()
	b, err := json.Marshal(c)
	require.NoError(t, err)
	assert.JSONEq(t, `{
		"percentile": 0.9, "max_hedges": 2, "budget_percent": 10, "estimated_rps": 100,
		"min_delay": "1ms", "max_delay": "-1ns", "initial_delay": "-1ns", "burst": "2s",
		"max_hedges_per_second": -1, "max_keys": 4096, "linger": "1s", "max_replay_bytes": 65536, "attempt_header": ""
	}`, string(b))
	var back hedge.Config
	require.NoError(t, json.Unmarshal(b, &back))
	assert.Equal(t, c, back)
}

func TestConfigKeepsSettingsMissingInJSON(t *testing.T) {
	c := hedge.DefaultConfig()
	require.NoError(t, json.Unmarshal([]byte(`{"budget_percent": 2, "burst": "10s", "linger": "5ms", "min_delay": null, "MAX_KEYS": 7}`), &c))
	require.NoError(t, json.Unmarshal([]byte(`null`), &c))
	want := hedge.DefaultConfig()
	want.BudgetPercent, want.Burst, want.Linger, want.MaxKeys = 2, 10*time.Second, 5*ms, 7
	assert.Equal(t, want, c)
}

func TestConfigReportsInvalidJSONAndDoesNotChange(t *testing.T) {
	for text, says := range map[string]string{
		`{"max_hedges": 1, "burst": "ten"}`:     `hedge: Config: burst: "ten" is not a duration like "10ms"`,
		`{"burst": true}`:                       `hedge: Config: burst: true is not a duration like "10ms"`,
		`{"burst": 1.5}`:                        `hedge: Config: burst: 1.5 is not a duration like "10ms"`,
		`{"Burst": 10}`:                         `hedge: Config: burst: 10 is not a duration like "10ms"`,
		`{"burst": "10"}`:                       `hedge: Config: burst: "10" is not a duration like "10ms"`,
		`{"max_hedges": "two"}`:                 `hedge: Config: max_hedges: "two" is not an integer`,
		`{"max_keys": 1.5}`:                     `hedge: Config: max_keys: 1.5 is not an integer`,
		`{"percentile": "p90"}`:                 `hedge: Config: percentile: "p90" is not a number`,
		`{"attempt_header": 1}`:                 `hedge: Config: attempt_header: 1 is not a string`,
		`{"max_hedges": 1, "budget_percnt": 1}`: `hedge: Config: "budget_percnt" is no setting; there are percentile, max_hedges, budget_percent, `,
		`[]`:                                    `hedge: Config: array is not an object of settings`,
	} {
		c := hedge.DefaultConfig()
		require.ErrorContains(t, json.Unmarshal([]byte(text), &c), says)
		assert.Equal(t, hedge.DefaultConfig(), c, text)
	}
}

func TestConfigAcceptsZeroDurationWithoutUnit(t *testing.T) {
	c := hedge.DefaultConfig()
	require.NoError(t, json.Unmarshal([]byte(`{"linger": 0, "burst": "0"}`), &c))
	assert.Zero(t, c.Linger+c.Burst)
}

func TestOptionsAreValidatedTogetherAfterAllAreApplied(t *testing.T) {
	for _, opts := range [][]hedge.HTTPOption{
		{hedge.WithMinDelay(ms / 10), hedge.WithMaxDelay(ms / 2)},
		{hedge.WithMaxDelay(ms / 2), hedge.WithMinDelay(ms / 10)},
		{hedge.WithInitialDelay(ms / 2), hedge.WithMinDelay(0)},
	} {
		assert.NotPanics(t, func() { hedge.New(nil, opts...) })
	}
	assert.NotPanics(t, func() {
		hedge.New(nil, hedge.WithMaxDelay(hedge.Unset), hedge.WithInitialDelay(hedge.Unset), hedge.WithMaxHedgesPerSecond(hedge.Unset))
	})
	for says, opts := range map[string][]hedge.HTTPOption{
		"hedge: Config.MaxDelay: 500µs is not at least MinDelay, 1ms":     {hedge.WithMaxDelay(ms / 2)},
		"hedge: Config.InitialDelay: 500µs is not at least MinDelay, 1ms": {hedge.WithInitialDelay(ms / 2)},
		"hedge: Config.MaxDelay: 0s is not at least MinDelay, 1ms":        {hedge.WithMaxDelay(0)},
		"hedge: Config.InitialDelay: 0s is not at least MinDelay, 1ms":    {hedge.WithInitialDelay(0)},
		"hedge: Config.InitialDelay: 30ms is not at most MaxDelay, 20ms":  {hedge.WithInitialDelay(30 * ms), hedge.WithMaxDelay(20 * ms)},
	} {
		assert.PanicsWithError(t, says, func() { hedge.New(nil, opts...) })
		_, err := hedge.NewWithConfig(nil, hedge.DefaultConfig(), opts...)
		assert.EqualError(t, err, says)
	}
	wrong := hedge.DefaultConfig()
	wrong.MaxDelay = 1
	assert.Panics(t, func() { hedge.WithConfig(wrong) })
}

// TestValidateSuggestsDefaultConfigForHandmadeConfig has Configs without the fields that are not zero by default.
func TestValidateSuggestsDefaultConfigForHandmadeConfig(t *testing.T) {
	const hint = "; start from DefaultConfig()"
	for _, c := range []hedge.Config{{}, {BudgetPercent: 5}, {BudgetPercent: 5, MaxHedges: 2, MinDelay: ms}, {Percentile: 2}} {
		_, err := hedge.NewWithConfig(nil, c)
		require.Error(t, err)
		assert.True(t, strings.HasSuffix(err.Error(), hint), err.Error())
		assert.PanicsWithError(t, err.Error(), func() { hedge.WithConfig(c) })
	}
	c := hedge.DefaultConfig()
	c.MaxKeys = 0
	assert.EqualError(t, c.Validate(), "hedge: Config.MaxKeys: 0 is not at least 1")
	assert.PanicsWithError(t, "hedge: Config.MaxKeys: 0 is not at least 1", func() { hedge.WithMaxKeys(0) })
}

func TestUpdateRejectsNilFunction(t *testing.T) {
	tr := hedge.New(nil)
	before := tr.Snapshot()
	assert.EqualError(t, tr.Update(nil), "hedge: Update: func is nil")
	assert.Equal(t, before, tr.Snapshot())
}

func TestSnapshotOfNewerVersionIsDecoded(t *testing.T) {
	var s hedge.Snapshot
	require.NoError(t, json.Unmarshal([]byte(`{"name": "shop", "later": 1, "config": {"burst": "1s", "later": 1}, "keys": [{"host": "a", "p50": 10}]}`), &s))
	assert.Equal(t, "shop", s.Name)
	assert.Equal(t, time.Second, s.Config.Burst)
	assert.Equal(t, time.Duration(10), s.Keys[0].P50)
	assert.ErrorContains(t, json.Unmarshal([]byte(`{"config": {"burst": 1}}`), &s), "burst: 1 is not a duration")
}

// FuzzValidate checks that a Config accepted by Validate can be used, encoded and decoded.
func FuzzValidate(f *testing.F) {
	f.Add(0.9, 2, 10.0, 100.0, int64(ms), int64(hedge.Unset), int64(hedge.Unset), int64(2*time.Second), float64(hedge.Unset), 4096, int64(time.Second), int64(64<<10), "Hedge-Attempt")
	f.Add(0.0, 0, 0.0, 0.0, int64(0), int64(0), int64(0), int64(0), 0.0, 1, int64(0), int64(0), "")
	f.Add(0.9, 2, 10.0, 100.0, int64(0), int64(0), int64(0), int64(0), 1.0, 1, int64(0), int64(0), "")
	f.Add(math.NaN(), -1, math.Inf(1), -1.0, int64(-1), int64(1), int64(-1), int64(math.MaxInt64), math.NaN(), 0, int64(-1), int64(-1), "a b")
	f.Fuzz(func(t *testing.T, percentile float64, hedges int, budget, rps float64, minDelay, maxDelay, initial, burst int64, perSecond float64, keys int, linger, replay int64, header string) {
		c := hedge.Config{
			Percentile: percentile, MaxHedges: hedges, BudgetPercent: budget, EstimatedRPS: rps,
			MinDelay: time.Duration(minDelay), MaxDelay: time.Duration(maxDelay), InitialDelay: time.Duration(initial),
			Burst: time.Duration(burst), MaxHedgesPerSecond: perSecond, MaxKeys: keys,
			Linger: time.Duration(linger), MaxReplayBytes: replay, AttemptHeader: header,
		}
		tr, err := hedge.NewWithConfig(roundTripper(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
		}), c)
		assert.Equal(t, c.Validate(), err)
		if err != nil {
			return
		}
		for range 20 {
			_, err := get(t, tr, site)
			require.NoError(t, err)
		}
		require.NoError(t, tr.Update(func(c *hedge.Config) { c.MaxHedges = (c.MaxHedges + 1) % 4 }))
		for _, d := range tr.Snapshot().Keys[0].Delays {
			assert.Positive(t, d)
		}
		b, err := json.Marshal(c)
		require.NoError(t, err)
		var back hedge.Config
		require.NoError(t, json.Unmarshal(b, &back))
		assert.Equal(t, c, back)
	})
}

func TestConstructorsRejectInvalidConfig(t *testing.T) {
	wrong := hedge.DefaultConfig()
	wrong.BudgetPercent = -1
	_, transport := hedge.NewWithConfig(nil, wrong)
	_, hedger := hedge.NewHedgerWithConfig(wrong)
	for _, err := range []error{transport, hedger} {
		assert.EqualError(t, err, "hedge: Config.BudgetPercent: -1 is not in [0, 400]")
	}

	right := hedge.DefaultConfig()
	right.BudgetPercent = 3
	h, err := hedge.NewHedgerWithConfig(right, hedge.WithMaxHedges(1))
	require.NoError(t, err)
	right.MaxHedges = 1
	assert.Equal(t, right, h.Snapshot().Config)
}
