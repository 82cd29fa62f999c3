package func_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
)

func TestObserverReceivesEventsOfFunctions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := new(doubles.Recorder)
		h := hedge.NewHedger(hedge.WithObserver(rec))
		var mu sync.Mutex
		var seen []string
		f := func(ctx context.Context) (int, error) {
			a, ok := hedge.AttemptFromContext(ctx)
			mu.Lock()
			seen = append(seen, fmt.Sprint(a.Number, a.Hedge(), ok))
			mu.Unlock()
			if a.Hedge() {
				return 1, doubles.Sleep(ctx, ms)
			}
			return 0, doubles.Sleep(ctx, time.Second)
		}
		_, err := hedge.Do(hedge.WithDelay(t.Context(), usual), h, "k", f)
		require.NoError(t, err)
		assert.Equal(t, []string{"start 0", "start 1", "won 1 after 1", "lost 0 after 11", "done by 1 of 2 after 11"}, rec.Take())
		assert.Equal(t, hedge.KeyInfo{Protocol: "func", Host: "k"}, rec.Key())
		_, err = hedge.Do(hedge.WithoutHedging(t.Context()), h, "k", f)
		require.NoError(t, err)
		assert.Equal(t, []string{"0 false true", "1 true true", "0 false false"}, seen)
	})
}
