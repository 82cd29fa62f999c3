package reclab_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/benchmark/reclab"
)

func TestMemory(t *testing.T) {
	for seed := range uint64(*seeds) {
		synctest.Test(t, func(t *testing.T) {
			rows, err := reclab.Run(t.Context(), reclab.Config{Seed: seed + 1, Questions: *questions, Scenario: *scenario, Memory: true})
			require.NoError(t, err)
			for _, r := range rows {
				t.Log(r.Contender, r.Quantile(.5), r.Quantile(.9), r.Quantile(.95), r.Quantile(.99), r.Quantile(.999), "fail", r.Failures, "sent", r.Sent(), r.UDP, r.TCP, "hedges", r.Hedges, r.Wins, r.Denied)
			}
		})
	}
}
