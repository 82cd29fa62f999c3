package transport_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
)

func TestSpanEndsLikeContext(t *testing.T) {
	mine := errors.New("mine")
	type key struct{}
	for name, tc := range map[string]struct {
		timeout time.Duration
		do      func(s *transport.EmbeddedContext, parent context.CancelCauseFunc)
		took    time.Duration
		err     error
	}{
		"by End":          {time.Hour, func(s *transport.EmbeddedContext, _ context.CancelCauseFunc) { s.End(mine) }, 0, context.Canceled},
		"with its parent": {time.Hour, func(_ *transport.EmbeddedContext, p context.CancelCauseFunc) { p(mine) }, 0, context.Canceled},
		"with its time":   {time.Second, func(*transport.EmbeddedContext, context.CancelCauseFunc) {}, time.Second, context.DeadlineExceeded},
		"with its parent's time": {0, func(*transport.EmbeddedContext, context.CancelCauseFunc) {}, time.Minute,
			context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				parent, stop := context.WithTimeout(context.WithValue(t.Context(), key{}, 1), time.Minute)
				defer stop()
				parent, cancel := context.WithCancelCause(parent)
				defer cancel(nil)
				var s, child transport.EmbeddedContext
				s.Begin(parent, tc.timeout)
				child.Begin(&s, 0)
				derived, stopDerived := context.WithCancel(&child)
				defer stopDerived()
				called := make(chan struct{})
				context.AfterFunc(&child, func() { close(called) })
				unwanted := context.AfterFunc(&child, func() { t.Error("was stopped") })
				assert.True(t, unwanted())
				assert.NoError(t, s.Err())
				assert.Equal(t, 1, child.Value(key{}))
				at, ok := child.Deadline()
				assert.True(t, ok)
				if tc.timeout > 0 {
					assert.Equal(t, min(tc.timeout, time.Minute), time.Until(at))
				}
				start := time.Now()
				tc.do(&s, cancel)
				<-derived.Done()
				<-child.Done()
				<-s.Done()
				<-called
				assert.Equal(t, tc.took, time.Since(start))
				for _, ctx := range []context.Context{&s, &child, derived} {
					assert.Equal(t, tc.err, ctx.Err())
				}
				if tc.took == 0 {
					assert.Equal(t, mine, transport.CauseOf(&child))
				}
				child.Cancel()
				s.Cancel()
				var late transport.EmbeddedContext
				late.Begin(&s, 0)
				assert.Equal(t, tc.err, late.Err())
			})
		})
	}
}

func TestSpanEndsConcurrently(t *testing.T) {
	for range 200 {
		ctx, cancel := context.WithCancel(t.Context())
		var s, child transport.EmbeddedContext
		s.Begin(ctx, time.Hour)
		child.Begin(&s, 0)
		var wg sync.WaitGroup
		wg.Go(cancel)
		wg.Go(s.Cancel)
		wg.Go(child.Cancel)
		wg.Go(func() {
			var other transport.EmbeddedContext
			other.Begin(&s, time.Hour)
			other.Cancel()
		})
		wg.Go(func() { <-child.Done() })
		wg.Wait()
		assert.Error(t, s.Err())
	}
}
