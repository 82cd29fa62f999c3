package cachelab_test

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/benchmark/cachelab"
	"github.com/gohedge/hedge/benchmark/internal/helper"
	"github.com/gohedge/hedge/benchmark/internal/lab"
	"github.com/gohedge/hedge/benchmark/internal/latency"
	"github.com/gohedge/hedge/internal/netsim"
)

func TestMain(m *testing.M) {
	helper.RunIfHelper()
	os.Exit(m.Run())
}

// Each contender that is installed answers all queries, in each scenario.
func TestServersAnswerFromTheirCaches(t *testing.T) {
	for _, sc := range cachelab.Scenarios {
		rows, err := cachelab.Run(t.Context(), lab.Config{Scenario: sc.Name, Calls: 500, Reporter: lab.Reporter{Skipped: func(why string) { t.Log(why) }}})
		if errors.Is(err, netsim.ErrUnsupported) {
			t.Skip(err)
		}
		require.NoError(t, err)
		require.NotEmpty(t, rows)
		assert.Equal(t, "forwarder", rows[0].Contender)
		for _, r := range rows {
			answered := len(latency.SortedLatencies(r.Calls))
			t.Logf("%s %s: %d answered, CPU %v, %.0f bytes for a connection", sc.Name, r.Contender, answered, r.CPU, r.ConnectionMemory)
			assert.Equal(t, 500, r.Asked, r.Contender)
			assert.GreaterOrEqual(t, answered, 495, "%s: a busy machine costs a few", r.Contender)
			assert.Positive(t, r.CPU, r.Contender)
		}
	}
}

func TestWrongConfigsAreNamed(t *testing.T) {
	for want, conf := range map[string]lab.Config{
		`scenario "quic"`:  {Scenario: "quic"},
		"Calls is -1":      {Calls: -1},
		`contender "bind"`: {Contenders: []string{"bind"}},
	} {
		_, err := cachelab.Run(t.Context(), conf)
		if errors.Is(err, netsim.ErrUnsupported) {
			t.Skip(err)
		}
		assert.ErrorContains(t, err, want)
	}
}
