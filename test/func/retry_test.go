package func_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

func TestMarkedRetriesOfFunctionsEarnNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := hedge.NewBudget(50, 1)
		h := hedge.NewHedger(hedge.WithBudget(budget))
		f := func(ctx context.Context) (int, error) { return 0, doubles.Sleep(ctx, usual) }
		require.True(t, budget.Spend())
		ctx := hedge.MarkRetry(t.Context())
		for range 20 {
			_, err := hedge.Do(ctx, h, "k", f)
			require.NoError(t, err)
			_, err = hedge.DoDetached(ctx, h, "k", f, nil)
			require.NoError(t, err)
		}
		assert.Zero(t, budget.Tokens())
		assert.EqualValues(t, 40, h.Snapshot().Stats.Retries)
		_, err := hedge.Do(t.Context(), h, "k", f)
		require.NoError(t, err)
		assert.EqualValues(t, 0.5, budget.Tokens())
		assert.EqualValues(t, 41, h.Snapshot().Keys[0].Requests)
	})
}
