package grpcattempt_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge/internal/grpcattempt"
)

func TestChoiceIsMadeOnce(t *testing.T) {
	var c grpcattempt.WinnerChoice
	c.Init()
	assert.False(t, c.HasWinner())
	released := 0
	c.Choose(2, func() { released = 2 })
	c.Choose(1, func() { released = 1 })
	assert.True(t, c.HasWinner())
	assert.Equal(t, 2, c.Winner())
	c.ReleaseWinner()
	assert.Equal(t, 2, released)
}

func TestSentRequestIsNotCopiedAfterClose(t *testing.T) {
	var s grpcattempt.SentRequest
	assert.False(t, s.HasMessage())
	s.StoreMessage(grpcattempt.RequestOf(wrapperspb.String("id")), nil)
	assert.False(t, s.HasMessage(), "the caller may change it")
	s.StoreMessage(grpcattempt.RequestOf(wrapperspb.String("id")), new(grpcattempt.Buffers))
	m, ok := s.CopyMessage()
	assert.True(t, ok)
	assert.Equal(t, "id", m.(*wrapperspb.StringValue).Value)
	s.Close()
	_, ok = s.CopyMessage()
	assert.False(t, ok)
	assert.True(t, s.HasMessage())
}

func TestEarlyContextCreatedAfterEndHasEnded(t *testing.T) {
	var before, after grpcattempt.EarlyContext
	ctx := before.Get(t.Context(), t.Context())
	assert.NoError(t, ctx.Err())
	before.End()
	assert.Equal(t, context.Canceled, ctx.Err())
	after.End()
	assert.Equal(t, context.Canceled, after.Get(t.Context(), t.Context()).Err())
	assert.Same(t, ctx, before.Get(t.Context(), t.Context()))
}

func TestFinishNotifierClaimsEachEndOfWinnerOnce(t *testing.T) {
	var f grpcattempt.FinishNotifier
	lost, won := errors.New("lost"), errors.New("won")
	f.RecordEnd(0, lost)
	due, _ := f.ClaimResult(1)
	assert.False(t, due, "the winner has not ended")
	f.RecordEnd(1, won)
	due, err := f.ClaimResult(1)
	assert.True(t, due)
	assert.Same(t, won, err)
	due, _ = f.ClaimResult(1)
	assert.False(t, due)
	f.RecordEnd(1, nil) // of a second RPC
	due, err = f.ClaimResult(1)
	assert.True(t, due)
	assert.NoError(t, err)
}

func TestSplitFinishFuncsKeepsOrderOfOptions(t *testing.T) {
	var told []error
	opts := []grpc.CallOption{grpc.WaitForReady(true), grpc.OnFinish(func(err error) { told = append(told, err) }), grpc.UseCompressor("gzip")}
	rest, finish := grpcattempt.SplitFinishFuncs(opts)
	assert.Equal(t, []grpc.CallOption{opts[0], opts[2]}, rest)
	for _, f := range finish {
		f(nil)
	}
	assert.Equal(t, []error{nil}, told)
	assert.Len(t, opts, 3, "the caller's are left alone")

	same, none := grpcattempt.SplitFinishFuncs(opts[:1])
	assert.Equal(t, opts[:1], same)
	assert.Empty(t, none)
}
