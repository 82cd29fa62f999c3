package loser_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/loser"
	"github.com/gohedge/hedge/internal/race"
)

var errDown = errors.New("down")

func TestListLetsLoserFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := &call{attempt: answerAfter(600*ms, 5*ms), terms: loser.EndOptions{Grace: time.Second}}
		out, took := c.run(ctx, 10*ms)
		assert.Equal(t, "answer 1", out.Value)
		assert.Equal(t, 15*ms, took)
		cancel() // as a caller does that has its response
		assert.Equal(t, 1, c.losers.Len())
		time.Sleep(time.Second)
		assert.Equal(t, []string{"answer 0"}, c.results())
		assert.Zero(t, c.losers.Len())
	})
}

func TestListCancelsLoserAfterGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cause error
		var at time.Duration
		start := time.Now()
		c := &call{terms: loser.EndOptions{Grace: 100 * ms}, attempt: func(a *race.Attempt, n int) (string, error) {
			if n == 1 {
				return "hedge", nil
			}
			<-a.Done()
			cause, at = context.Cause(a), time.Since(start)
			return "", a.Err()
		}}
		c.run(t.Context(), 10*ms)
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, race.ErrLost, cause)
		assert.Equal(t, 110*ms, at)
		assert.Zero(t, c.losers.Len())
	})
}

func TestListCancelsOldestLoserWhenItIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		losers := &loser.List{Max: 2}
		ended := make(chan int, 3)
		for i := range 3 {
			c := &call{losers: losers, terms: loser.EndOptions{Grace: time.Hour}, attempt: func(a *race.Attempt, n int) (string, error) {
				if n == 1 {
					return "hedge", nil
				}
				<-a.Done()
				ended <- i
				return "", a.Err()
			}}
			c.run(t.Context(), 10*ms)
			synctest.Wait()
		}
		require.Len(t, ended, 1)
		assert.Equal(t, 0, <-ended)
		assert.Equal(t, 2, losers.Len())
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.Len(t, ended, 2)
	})
}

func TestListCancelsLoserAtDeadlineOfCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), 300*ms)
		defer cancel()
		start, ended := time.Now(), make(chan time.Duration, 1)
		c := &call{terms: loser.EndOptions{Grace: time.Hour}, attempt: func(a *race.Attempt, n int) (string, error) {
			if n == 1 {
				return "hedge", nil
			}
			<-a.Done()
			ended <- time.Since(start)
			return "", a.Err()
		}}
		_, took := c.run(ctx, 10*ms)
		assert.Equal(t, 10*ms, took)
		cancel() // as a caller does that has its response
		assert.Equal(t, 300*ms, <-ended)
	})
}

func TestListCancelsLoserWithoutConnectionIfItReportsConnections(t *testing.T) {
	for _, reports := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			start, ended := time.Now(), make(chan time.Duration, 1)
			c := &call{terms: loser.EndOptions{Grace: time.Second, ReportsConn: reports}, attempt: func(a *race.Attempt, n int) (string, error) {
				if n == 0 {
					<-a.Done()
					ended <- time.Since(start)
					return "", context.Cause(a)
				}
				return answerAfter(0, 5*ms)(a, n)
			}}
			c.run(t.Context(), 10*ms)
			want := 15*ms + time.Second
			if reports {
				want = 15 * ms
			}
			assert.Equal(t, want, <-ended)
		})
	}
}

func TestListCancelsAttemptWhoseDiscardingTakesTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hedge *race.Attempt
		ended := make(chan time.Time, 1)
		c := &call{losers: &loser.List{Max: 1}, terms: loser.EndOptions{Grace: time.Second}}
		c.attempt = func(a *race.Attempt, n int) (string, error) {
			if n > 0 {
				hedge = a
				return "refused", errDown
			}
			return answerAfter(10*time.Second)(a, n)
		}
		c.discard = func(string) {
			<-hedge.Done()
			ended <- time.Now()
		}
		start := time.Now()
		out, _ := c.run(t.Context(), time.Second)
		assert.Zero(t, out.Winner)
		assert.Equal(t, 2*time.Second, (<-ended).Sub(start))
		synctest.Wait()
		assert.Zero(t, c.losers.Len())
	})
}

func TestQueuedHedgeIsCancelledWhenPrimaryFails(t *testing.T) {
	for name, test := range map[string]struct {
		hedge func(a *race.Attempt, g *loser.Guard)
		want  time.Duration
	}{
		"queued":       {func(_ *race.Attempt, g *loser.Guard) { g.GetConn() }, 200 * ms},
		"dialing":      {func(_ *race.Attempt, g *loser.Guard) { g.GetConn(); g.Dialing() }, 50*ms + time.Second},
		"connected":    {func(a *race.Attempt, g *loser.Guard) { g.GetConn(); g.GotConn(a, false, 0) }, 50*ms + time.Second},
		"never queued": {func(_ *race.Attempt, g *loser.Guard) { g.Dialing() }, 50*ms + time.Second},
		"sent again":   {func(a *race.Attempt, g *loser.Guard) { g.GetConn(); new(loser.Guard).Attach(a) }, 200 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, cancelled := time.Now(), make(chan time.Duration, 1)
				c := &call{attempt: func(a *race.Attempt, n int) (string, error) {
					if n == 0 {
						time.Sleep(200 * ms)
						return "primary", errDown
					}
					g := new(loser.Guard)
					g.Attach(a)
					test.hedge(a, g)
					<-a.Done()
					cancelled <- time.Since(start)
					return "", context.Cause(a)
				}}
				out, took := c.run(t.Context(), 50*ms)
				assert.Same(t, errDown, out.Err)
				assert.Equal(t, test.want, took)
				assert.Equal(t, test.want, <-cancelled)
			})
		})
	}
}
